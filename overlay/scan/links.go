package scan

import (
	"os"
	"path/filepath"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// checkLinks refuses a rollback, before it touches anything, that must make a symlink where this user may make none.
func (w *Workspace) checkLinks(p *plan) error {
	if !linksNeedRights {
		return nil
	}
	for i := range p.want.entries {
		e := &p.want.entries[i]
		if e.kind() != modeSymlink || e.rdev&linkJunction != 0 || p.source[e.first] >= 0 || e.flags&flagForeign != 0 {
			continue
		}
		if err := w.tryLink(e); err != nil {
			return errs.New(errs.Rollback, "rollback", p.want.path(int32(i)), "this user can't make symlinks: %w", err).
				WithHint("turn on Developer Mode, or run it as an administrator; nothing was changed")
		}
		return nil // others need no other right
	}
	return nil
}

// tryLink makes a symlink in the store, and takes it away again.
func (w *Workspace) tryLink(e *entry) error {
	d, err := openTop(filepath.Join(w.storeAt, manifestsName))
	if err != nil {
		return err
	}
	defer d.close()
	const name = "trial" + tempSuffix
	if err := os.Remove(filepath.Join(w.storeAt, manifestsName, name)); err != nil && !os.IsNotExist(err) {
		return plain(err)
	}
	if err := d.special(name, e); err != nil {
		return err
	}
	return d.unlink(name)
}
