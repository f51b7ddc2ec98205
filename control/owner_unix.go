//go:build unix

package control

import (
	"io/fs"
	"syscall"
)

// ownerOf gives the owner of a file.
func ownerOf(st fs.FileInfo) (int, bool) {
	s, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, false
	}
	return int(s.Uid), true
}
