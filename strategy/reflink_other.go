//go:build !linux && !windows

package strategy

import (
	"errors"
	"fmt"
	"runtime"
)

// clone is FICLONE, which is Linux's.
func clone(file, file) error {
	return fmt.Errorf("FICLONE on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// cannotClone says whether err of clone leaves hope that copying works.
func cannotClone(err error) bool { return errors.Is(err, errors.ErrUnsupported) }
