//go:build linux

package overlay

import (
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"golang.org/x/sys/unix"
)

// graft is a state of which what the patterns ignored comes from a later one: what these paths were at the earlier one nobody knows. An inode that was protected then and
// is in an ignored place at the later one is in both, and has two identities here. So is a file with names of both kinds.
type graft struct {
	*openState            // what is protected, with what was ignored then and is hidden here
	ignored    *openState // the later one
	rules      []*ignore.Rules

	mu    sync.RWMutex
	paths map[checkpoint.ID]string // of protected directories, as far as they are known; guarded by mu
}

var _ State = (*graft)(nil)

// openGraft opens the state of which a pinned epoch has what is ignored, and an earlier one the rest. The caller shares w.admin.
func (w *Workspace) openGraft(protected, ignored checkpoint.Epoch) (*graft, error) {
	a, err := w.openState(protected)
	if err != nil {
		return nil, err
	}
	b, err := w.openState(ignored)
	if err != nil {
		a.Close()
		return nil, err
	}
	g := &graft{openState: a, ignored: b, rules: w.rulesBetween(protected, ignored)}
	g.paths = map[checkpoint.ID]string{g.Root(): ""}
	return g, nil
}

// The marks of an identity that is from the later state. No file is born after 2116, and no two inode numbers differ in just this.
const (
	graftBirth = 1 << 62
	graftIno   = 0x6a09e667f3bcc909
)

func isGrafted(id checkpoint.ID) bool { return id.Birth > 0 && id.Birth&graftBirth != 0 }

func grafted(id checkpoint.ID) checkpoint.ID {
	return checkpoint.ID{Ino: id.Ino ^ graftIno, Birth: id.Birth | graftBirth}
}

func ungrafted(id checkpoint.ID) checkpoint.ID {
	return checkpoint.ID{Ino: id.Ino ^ graftIno, Birth: id.Birth &^ graftBirth}
}

// from gives the state that an inode is from, and its identity there.
func (g *graft) from(id checkpoint.ID) (*openState, checkpoint.ID) {
	if isGrafted(id) {
		return g.ignored, ungrafted(id)
	}
	return g.openState, id
}

// Close is State.Close.
func (g *graft) Close() {
	g.ignored.Close()
	g.openState.Close()
}

// Lookup is State.Lookup.
func (g *graft) Lookup(dir checkpoint.ID, name string) (StateEntry, error) {
	if isGrafted(dir) {
		e, err := g.ignored.Lookup(ungrafted(dir), name)
		if err == nil {
			e.ID = grafted(e.ID)
		}
		return e, err
	}
	e, err := g.openState.Lookup(dir, name)
	if err != nil && err != unix.ENOENT {
		return e, err
	}
	path, err2 := g.pathOf(dir)
	if err2 != nil {
		return StateEntry{}, err2
	}
	path = below(path, name)
	if err == nil && !g.ignores(path, e.Type) {
		if e.Type == unix.S_IFDIR {
			g.setPath(e.ID, path)
		}
		return e, nil
	}
	if !g.ignores(path, unix.S_IFDIR) && !g.ignores(path, unix.S_IFREG) {
		return StateEntry{}, unix.ENOENT
	}
	if e, err = g.ignored.Lookup(dir, name); err != nil {
		return StateEntry{}, noneOf(err)
	}
	if !g.ignores(path, e.Type) {
		return StateEntry{}, unix.ENOENT
	}
	return StateEntry{grafted(e.ID), e.Type}, nil
}

// noneOf makes ENOENT of the error for a protected directory that the later state has no more, and that is gone for good.
func noneOf(err error) error {
	if err == unix.ESTALE {
		return unix.ENOENT
	}
	return err
}

func (g *graft) ignores(path string, kind uint32) bool {
	return anyMatches(g.rules, path, kind == unix.S_IFDIR)
}

// pathOf gives the path of a protected directory.
func (g *graft) pathOf(dir checkpoint.ID) (string, error) {
	g.mu.RLock()
	path, ok := g.paths[dir]
	g.mu.RUnlock()
	if ok {
		return path, nil
	}
	_, path, ok, err := g.placeOf(dir)
	if err == nil && !ok {
		err = unix.ESTALE
	}
	if err == nil {
		g.setPath(dir, path)
	}
	return path, err
}

func (g *graft) setPath(dir checkpoint.ID, path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paths[dir] = path
}

// List is State.List.
func (g *graft) List(dir checkpoint.ID) ([]DirEntry, error) {
	if isGrafted(dir) {
		all, err := g.ignored.List(ungrafted(dir))
		for i := range all {
			all[i].Ino ^= graftIno
		}
		return all, err
	}
	path, err := g.pathOf(dir)
	if err != nil {
		return nil, err
	}
	protected, err := g.openState.List(dir)
	if err != nil {
		return nil, err
	}
	all, taken := protected[:0], map[string]bool{}
	for _, e := range protected {
		if !g.ignores(below(path, e.Name), e.Type) {
			all = append(all, e)
			taken[e.Name] = true
		}
	}
	ignored, err := g.ignored.List(dir)
	if err != nil && noneOf(err) != unix.ENOENT {
		return nil, err
	}
	for _, e := range ignored {
		if !taken[e.Name] && g.ignores(below(path, e.Name), e.Type) {
			e.Ino ^= graftIno
			all = append(all, e)
		}
	}
	return all, nil
}

// Attr is State.Attr.
func (g *graft) Attr(id checkpoint.ID) (Attr, error) {
	s, own := g.from(id)
	a, err := s.Attr(own)
	a.Ino = id.Ino
	return a, err
}

// Xattrs is State.Xattrs.
func (g *graft) Xattrs(id checkpoint.ID) ([]checkpoint.Xattr, error) {
	s, own := g.from(id)
	return s.Xattrs(own)
}

// Readlink is State.Readlink.
func (g *graft) Readlink(id checkpoint.ID) (string, error) {
	s, own := g.from(id)
	return s.Readlink(own)
}

// Open is State.Open.
func (g *graft) Open(id checkpoint.ID) (StateFile, error) {
	s, own := g.from(id)
	return s.Open(own)
}

// Where is state.Where.
func (g *graft) Where(id checkpoint.ID) (slot checkpoint.Slot, kind uint32, ok bool) {
	for at, depth := id, 0; depth < whereMax; depth++ {
		up, is, ok := g.whereOne(at)
		if !ok {
			break
		}
		if at == id {
			slot, kind = up, is
		}
		if at = up.Dir; at == g.Root() {
			return slot, kind, true
		}
	}
	return checkpoint.Slot{}, 0, false
}

// whereOne gives a slot that holds an inode, if its directory is a part of the state.
func (g *graft) whereOne(id checkpoint.ID) (slot checkpoint.Slot, kind uint32, ok bool) {
	s, own := g.from(id)
	slot, _, ok, err := s.placeOf(own)
	if err != nil || !ok {
		return slot, 0, false
	}
	dirs := []checkpoint.ID{slot.Dir}
	if isGrafted(id) { // what is above may be of either state
		dirs = []checkpoint.ID{slot.Dir, grafted(slot.Dir)}
		if g.isIgnoredLater(slot.Dir) {
			dirs[0], dirs[1] = dirs[1], dirs[0]
		}
	}
	for _, slot.Dir = range dirs {
		if e, err := g.Lookup(slot.Dir, slot.Name); err == nil && e.ID == id {
			return slot, e.Type, true
		}
	}
	return checkpoint.Slot{}, 0, false
}

// isIgnoredLater reports whether the later state has a directory in an ignored place.
func (g *graft) isIgnoredLater(dir checkpoint.ID) bool {
	if dir == g.Root() {
		return false
	}
	_, path, ok, err := g.ignored.placeOf(dir)
	if err != nil || !ok {
		return false
	}
	for _, r := range g.rules {
		if r.Ignored(path, true) {
			return true
		}
	}
	return false
}
