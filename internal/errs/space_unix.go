//go:build unix

package errs

import (
	"errors"
	"syscall"
)

// NoSpace reports whether an error says that a filesystem, or what its owner may use of it, is full.
func NoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
