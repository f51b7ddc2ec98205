package scan

import (
	"strings"
	"unicode"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// checkCase refuses a rollback that would need two names in a directory which are one name there.
func (w *Workspace) checkCase(p *plan) error {
	if !mayFoldCase {
		return nil
	}
	for i := range p.want.entries {
		e := &p.want.entries[i]
		if !e.isDir() || !p.todo[i] {
			continue
		}
		a, b := p.alike(int32(i))
		if a < 0 {
			continue
		}
		folds, err := w.foldsCaseAt(p, int32(i))
		if err != nil {
			return errs.Ensure("rollback", p.want.path(int32(i)), err)
		}
		if folds {
			return errs.New(errs.Rollback, "rollback", p.want.path(b), "its name differs from %q in case alone, and the directory can't have both",
				p.want.entries[a].name).WithHint("roll back on the system where the checkpoint was made")
		}
	}
	return nil
}

// alike gives two entries in the directory i of want whose names differ in case alone; -1 if there are none.
func (p *plan) alike(i int32) (a, b int32) {
	seen := map[string]int32{}
	a, b = -1, -1
	p.want.children(i, func(k int32) {
		name := strings.Map(unicode.ToUpper, p.want.entries[k].name)
		if other, ok := seen[name]; ok && a < 0 {
			a, b = other, k
		}
		seen[name] = k
	})
	return a, b
}

// foldsCaseAt asks the directory i of want, or where it must be made first the one that it is in: a new directory takes after that.
func (w *Workspace) foldsCaseAt(p *plan, i int32) (bool, error) {
	for i > 0 && !p.isDirAt(i) {
		i = p.want.entries[i].parent
	}
	d, err := w.openDir(p.want.path(i))
	if err != nil {
		return false, err
	}
	defer d.close()
	return foldsCase(d), nil
}
