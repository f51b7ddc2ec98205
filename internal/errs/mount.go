package errs

import (
	"errors"
	"syscall"
)

// IsDeadMount reports whether a path can't be looked at because the daemon of a mount is gone, or is just going: a request that was under way then ends with ECONNABORTED, or
// with ECANCELED where it came by io_uring.
func IsDeadMount(err error) bool { return errors.Is(err, syscall.ENOTCONN) || IsDyingMount(err) }

// IsDyingMount reports whether a request was under way when the daemon of a mount died. A later one tells that it is gone.
func IsDyingMount(err error) bool {
	return errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.ECANCELED)
}
