package fs

import (
	"os"

	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// Probe finds out whether this user can mount, by doing it: in a directory of its own, and for a moment only. UNSUPPORTED says
// why not.
func Probe() error {
	dir, err := os.MkdirTemp("", "hyperfs-probe-")
	if err != nil {
		return errs.Wrap(errs.Internal, "mount", "", err)
	}
	defer os.Remove(dir)
	fd, err := mount(dir, fsName, false)
	if err != nil {
		return err
	}
	_ = unix.Close(fd) // nobody answers on it
	return unmount(dir, true)
}
