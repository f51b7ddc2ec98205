package test

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
)

// explain proves that a diff from a checkpoint to now tells all that differs and nothing else, and changes nothing itself.
func (w *world) explain(o ops.Op) error {
	m := w.checkpoints[o.N]
	if m == nil {
		return nil
	}
	changes, err := w.sub.Explain(m.id)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("diff from checkpoint %d: %w", o.N, err)
	}
	now, err := w.capture()
	if err != nil {
		return err
	}
	if err := leadsTo(changes, m.capture, now); err != nil {
		return fmt.Errorf("diff from checkpoint %d: %w, in %+v", o.N, err, changes)
	}
	return w.model.compare(now)
}

// told is an expanded diff, by path.
type told struct {
	gone    map[string]bool   // of the old state
	moved   map[string]string // from a path of the old state to one of the new
	created map[string]bool
	changed map[string]bool // of the new state: whose inode is told to differ
}

// leadsTo reports whether changes are what leads from one state to another. The mtime of directories does not count.
func leadsTo(changes []overlay.Change, was, is treestate.State) error {
	t := told{gone: map[string]bool{}, moved: map[string]string{}, created: map[string]bool{}, changed: map[string]bool{}}
	for _, c := range changes {
		switch c.Kind {
		case overlay.Deleted:
			t.gone[c.Path] = true
		case overlay.Renamed:
			t.moved[c.OldPath] = c.Path
			t.changed[c.Path] = len(c.What) > 0
		case overlay.Created:
			t.created[c.Path] = true
		case overlay.Modified:
			t.changed[c.Path] = true
		}
	}
	from := map[string]string{} // by paths of the new state
	for _, p := range was.Paths() {
		q, ok := t.now(p, is)
		if !ok {
			continue
		}
		if other, twice := from[q]; twice {
			return fmt.Errorf("%q has come from %q and from %q", q, other, p)
		}
		from[q] = p
		if e, there := is[q]; !there {
			return fmt.Errorf("%q, that was %q, is not there", q, p)
		} else if same := sameButForDirs(was[p], e); same == t.changed[q] {
			return fmt.Errorf("%q, that was %q, is told to have changed: %v; it has: %v", q, p, t.changed[q], !same)
		}
	}
	for q := range is {
		if _, old := from[q]; old == t.created[q] {
			return fmt.Errorf("%q is told to have been created: %v; it was there: %v", q, t.created[q], old)
		}
	}
	return nil
}

// now gives where a path of the old state is now. What takes the place of something in a directory that was removed, at the same path and of the same type, is that to a diff.
func (t *told) now(p string, is treestate.State) (string, bool) {
	if q, ok := t.moved[p]; ok || t.gone[p] {
		return q, ok
	}
	if p == "." {
		return p, true
	}
	dir, ok := t.now(path.Dir(p), is)
	if !ok {
		return p, true // told by its path
	}
	return strings.TrimPrefix(dir+"/"+path.Base(p), "./"), true
}

func sameButForDirs(a, b treestate.Entry) bool {
	if a.IsDir() && b.IsDir() {
		a.Mtime = b.Mtime
	}
	return alike(a, b)
}
