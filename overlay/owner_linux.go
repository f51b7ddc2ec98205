package overlay

import (
	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// MetaOwner is the name of the value in the store that says which directory it was made for.
const MetaOwner = metaOwner

// CheckOwner refuses a store that was made for another directory, as far as that can be told without opening it: owner is what it has under MetaOwner.
func CheckOwner(workspace, store, owner string) error {
	var st unix.Statx_t
	if err := statAt(unix.AT_FDCWD, workspace, &st); err != nil {
		return errs.New(errs.Path, "open workspace", workspace, "%w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(workspace, &fs); err != nil {
		return errs.New(errs.Path, "open workspace", workspace, "%w", err)
	}
	t := Tree{births: fs.Type != overlayfsMagic}
	if is := t.idOf(&st).String(); owner != "" && owner != is {
		return foreignStore(store)
	}
	return nil
}

func foreignStore(store string) error {
	return errs.New(errs.Integrity, "open store", store, "it was made for another directory; was the workspace copied?").
		WithHint("remove it to start without checkpoints")
}
