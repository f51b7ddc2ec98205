//go:build linux

package overlay

import (
	"context"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// names tells where inodes are in one of two states. Each side may know better than the other where to look; what is found is proved.
type names struct {
	Side
	other   Side
	ignored func(path string, isDir bool) bool // as in Comparison
	dirs    map[checkpoint.ID]dirPlace
	wanted  map[uint64]struct{}                 // inode numbers that index is about
	index   map[checkpoint.ID][]checkpoint.Slot // of directories and what is wanted; nil until the state was walked
}

// dirPlace is where a directory is.
type dirPlace struct {
	path  string // "" is the root
	alive bool   // it is in the state
}

func newNames(side Side, c *Comparison) *names {
	other := c.A
	if side == c.A {
		other = c.B
	}
	wanted := make(map[uint64]struct{}, len(c.Inodes))
	for id := range c.Inodes {
		wanted[id.Ino] = struct{}{}
	}
	ignored := c.Ignored
	if ignored == nil {
		ignored = func(string, bool) bool { return false }
	}
	return &names{Side: side, other: other, ignored: ignored, dirs: map[checkpoint.ID]dirPlace{}, wanted: wanted}
}

// dirAlive reports whether a directory is in the state.
func (v *names) dirAlive(id checkpoint.ID) (bool, error) {
	p, err := v.dirPlace(id)
	return p.alive, err
}

// dirPlace finds a directory. Of one that is in the state exactly one slot says that it holds it, and leads up to the root; of one that is not, a slot can say so
// that is itself in a directory which is not in the state. So no answer depends on one that is still being worked out.
func (v *names) dirPlace(id checkpoint.ID) (p dirPlace, err error) {
	if id == v.Root() {
		return dirPlace{alive: true}, nil
	}
	if p, ok := v.dirs[id]; ok {
		return p, nil
	}
	v.dirs[id] = p
	places, err := v.places(id)
	if err != nil {
		return p, err
	}
	for _, s := range places {
		if ok, err := v.holds(s, id); err != nil {
			return p, err
		} else if ok {
			path, err := v.path(s)
			if err != nil {
				return p, err
			}
			p = dirPlace{path, true}
			break
		}
	}
	v.dirs[id] = p
	return p, nil
}

// places gives slots that an inode may be in, each once.
func (v *names) places(id checkpoint.ID) ([]checkpoint.Slot, error) {
	if slots, ok := v.index[id]; ok {
		return slots, nil
	}
	var all []checkpoint.Slot
	for _, side := range []Side{v.Side, v.other} {
		slots, err := side.Places(id)
		if err != nil {
			return nil, err
		}
		for _, s := range slots {
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// at gives what a slot holds, if its directory is in the state; the zero ID is nothing.
func (v *names) at(s checkpoint.Slot) (StateEntry, error) {
	e, err := v.Lookup(s.Dir, s.Name)
	if err == unix.ENOENT {
		return StateEntry{}, nil
	}
	return e, err
}

// holds reports whether a slot of the state holds an inode.
func (v *names) holds(s checkpoint.Slot, id checkpoint.ID) (bool, error) {
	e, err := v.at(s)
	if err != nil || e.ID != id {
		return false, err
	}
	p, err := v.dirPlace(s.Dir)
	return p.alive && !v.hides(p.path, s.Name, e), err
}

// held gives what a slot holds; nothing where it is not in the state.
func (v *names) held(s checkpoint.Slot) (StateEntry, error) {
	p, err := v.dirPlace(s.Dir)
	if err != nil || !p.alive {
		return StateEntry{}, err
	}
	e, err := v.at(s)
	if err != nil || v.hides(p.path, s.Name, e) {
		return StateEntry{}, err
	}
	return e, nil
}

// hides reports whether what a directory of the state has under a name is no part of it.
func (v *names) hides(dir, name string, e StateEntry) bool {
	return v.ignored(below(dir, name), e.Type == unix.S_IFDIR)
}

// slotsOf gives all slots that hold an inode. Where it must have more names than anybody knows of, the whole state is walked, once.
func (v *names) slotsOf(ctx context.Context, id checkpoint.ID) ([]checkpoint.Slot, error) {
	slots, err := v.provedSlots(id)
	if err != nil || v.index != nil {
		return slots, err
	}
	if all, err := v.areAll(slots, id); err != nil || all {
		return slots, err
	}
	if err := v.walk(ctx); err != nil {
		return nil, err
	}
	return v.provedSlots(id)
}

// areAll reports whether an inode can have no other slots than these. Where there is none, it is not in the state: what has changed it has left a trace of where
// it was, if that was not done while nobody watched.
func (v *names) areAll(slots []checkpoint.Slot, id checkpoint.ID) (bool, error) {
	if len(slots) == 0 {
		return !v.Unknown(id), nil
	}
	a, err := v.Attr(id)
	return a.Mode&unix.S_IFMT == unix.S_IFDIR || int(a.Nlink) <= len(slots), err
}

func (v *names) provedSlots(id checkpoint.ID) (proved []checkpoint.Slot, err error) {
	places, err := v.places(id)
	for _, s := range places {
		if err != nil {
			break
		}
		var ok bool
		if ok, err = v.holds(s, id); ok {
			proved = append(proved, s)
		}
	}
	return proved, err
}

// walk makes the index.
func (v *names) walk(ctx context.Context) error {
	index := map[checkpoint.ID][]checkpoint.Slot{}
	for left := []pastPath{{id: v.Root()}}; len(left) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		dir := left[len(left)-1]
		left = left[:len(left)-1]
		entries, err := v.List(dir.id)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if _, ok := v.wanted[e.Ino]; !ok && e.Type != 0 && e.Type != unix.S_IFDIR {
				continue
			}
			s := checkpoint.Slot{Dir: dir.id, Name: e.Name}
			is, err := v.at(s)
			if err != nil {
				return err
			}
			if is.ID.IsZero() || v.hides(dir.path, e.Name, is) { // something else is mounted there, or it is ignored
				continue
			}
			index[is.ID] = append(index[is.ID], s)
			if is.Type == unix.S_IFDIR {
				left = append(left, pastPath{is.ID, below(dir.path, e.Name)})
			}
		}
	}
	v.index = index
	return nil
}

// each calls fn for everything that a directory holds, which is at path.
func (v *names) each(dir checkpoint.ID, path string, fn func(path string, e StateEntry) error) error {
	entries, err := v.List(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		is, err := v.at(checkpoint.Slot{Dir: dir, Name: e.Name}) // a listing tells no identities
		if err != nil {
			return err
		}
		if is.ID.IsZero() || v.hides(path, e.Name, is) {
			continue
		}
		if err := fn(below(path, e.Name), is); err != nil {
			return err
		}
	}
	return nil
}

// path gives the path of a slot whose directory is in the state.
func (v *names) path(s checkpoint.Slot) (string, error) {
	p, err := v.dirPlace(s.Dir)
	if err == nil && !p.alive {
		err = unix.ENOENT
	}
	return below(p.path, s.Name), err
}
