package control

import (
	"os"

	"golang.org/x/sys/unix"
)

// unnamedFile opens a file that vanishes when it is closed. Filesystems without O_TMPFILE get one that is unlinked.
func unnamedFile(dir string) (*os.File, error) {
	if dir == "" {
		dir = os.TempDir()
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "spool"), nil
	}
	f, err := os.CreateTemp(dir, "spool-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}
