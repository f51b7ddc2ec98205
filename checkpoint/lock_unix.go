//go:build unix

package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// lockStore takes the store's lock, which ends with the process. The lock file holds the process's number for the
// error message of the next one.
func lockStore(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "lock store", "", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errs.Wrap(errs.Internal, "lock store", "", err)
		}
		b := make([]byte, 32)
		n, _ := f.Read(b)
		return nil, errs.New(errs.Busy, "lock store", "", "another hyperfs (process %s) works on this workspace", strings.TrimSpace(string(b[:n]))).
			WithHint("use `hyperfs status`, or end it with `hyperfs unmount`")
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}
