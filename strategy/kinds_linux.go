package strategy

var kinds = []Kind{Reflink, Tmpfs, PosixLink, PureManifest}
