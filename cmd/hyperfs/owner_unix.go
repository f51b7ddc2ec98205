//go:build unix

package main

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// checkStoreOwner refuses a store of another user, root included: files that root made in it would lock its owner out.
// A store that is not there yet is fine.
func checkStoreOwner(store string) error {
	st, err := os.Lstat(store)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.Wrap(control.Path, "open store", store, cause(err))
	}
	if s, ok := st.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		return errs.New(control.Path, "open store", store, "it belongs to user %d, not to user %d", s.Uid, os.Geteuid()).
			WithHint("run hyperfs as that user")
	}
	return nil
}
