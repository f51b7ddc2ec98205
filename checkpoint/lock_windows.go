package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/windows"
)

// lockOffset is where the locked byte is: far behind what the file holds, which others may read so.
const lockOffset = 1 << 30

// lockStore takes the store's lock, which ends with the process. The lock file holds the process's number for the
// error message of the next one.
func lockStore(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "lock store", "", err)
	}
	if err := lockFile(f, windows.LOCKFILE_EXCLUSIVE_LOCK); err != nil {
		_ = f.Close()
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}

// lockFile fails with BUSY where another process has the lock.
func lockFile(f *os.File, how uint32) error {
	at := &windows.Overlapped{Offset: lockOffset}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, at)
	if !errors.Is(err, windows.ERROR_LOCK_VIOLATION) && !errors.Is(err, windows.ERROR_IO_PENDING) {
		return errs.Wrap(errs.Internal, "lock store", "", err)
	}
	b := make([]byte, 32)
	n, _ := f.Read(b)
	return errs.New(errs.Busy, "lock store", "", "another hyperfs (process %s) works on this workspace", strings.TrimSpace(string(b[:n]))).
		WithHint("use `hyperfs status`, or wait until it is done")
}

// lockToRead keeps others from opening a store until unlock is called. Where somebody has it open, that is the error.
func lockToRead(dir string) (unlock func(), busy error) {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return func() {}, nil // nobody has ever opened it
	}
	return func() { _ = f.Close() }, lockFile(f, 0)
}
