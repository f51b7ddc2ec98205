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
	if err := lockFile(f, unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}

// lockFile fails with BUSY where another process has the lock.
func lockFile(f *os.File, how int) error {
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return errs.Wrap(errs.Internal, "lock store", "", err)
	}
	b := make([]byte, 32)
	n, _ := f.Read(b)
	return errs.New(errs.Busy, "lock store", "", "another hyperfs (process %s) works on this workspace", strings.TrimSpace(string(b[:n]))).
		WithHint("use `hyperfs status`, or end it with `hyperfs unmount`")
}

// lockToRead keeps others from opening a store until unlock is called. Where somebody has it open, that is the error.
func lockToRead(dir string) (unlock func(), busy error) {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return func() {}, nil // nobody has ever opened it
	}
	return func() { _ = f.Close() }, lockFile(f, unix.LOCK_SH)
}
