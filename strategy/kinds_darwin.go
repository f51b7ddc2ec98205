package strategy

var kinds = []Kind{Reflink, PosixLink, PureManifest}
