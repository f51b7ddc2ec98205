//go:build !linux

package control

// resident is not known.
func resident() int64 { return 0 }
