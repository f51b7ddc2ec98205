//go:build unix

package checkpoint

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// volume is a filesystem, by the descriptor of a directory on it.
type volume struct{ fd int }

func openVolume(dir string) (volume, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return volume{fd}, err
}

func (v volume) close() error { return unix.Close(v.fd) }

// free is how many bytes can be written.
func (v volume) free() int64 {
	var st unix.Statfs_t
	if err := unix.Fstatfs(v.fd, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * int64(st.Bsize)
}

// allocated gives the bytes that a file takes on disk.
func allocated(path string) int64 {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0
	}
	return st.Blocks * 512
}

// syncDirectory makes the names in a directory last over a loss of power.
func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
