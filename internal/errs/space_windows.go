package errs

import (
	"errors"

	"golang.org/x/sys/windows"
)

// NoSpace reports whether an error says that a filesystem, or what its owner may use of it, is full.
func NoSpace(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}
