package strategy

var kinds = []Kind{Reflink, NtfsLink, PureManifest}
