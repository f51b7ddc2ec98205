//go:build linux

package branch

import (
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// view is a state of a branch that is compared with another. Nothing changes it meanwhile. It is an overlay.Side.
type view struct {
	*state
	p      *pool
	places *places
	at     map[checkpoint.ID][]checkpoint.Slot // where the layers say that an inode is
}

func newView(s *state, p *pool, places *places) *view {
	v := &view{state: s, p: p, places: places, at: map[checkpoint.ID][]checkpoint.Slot{}}
	for dir, names := range s.slots {
		for name, h := range names {
			if !h.ID.IsZero() {
				v.at[h.ID] = append(v.at[h.ID], checkpoint.Slot{Dir: dir, Name: name})
			}
		}
	}
	return v
}

func (v *view) Root() checkpoint.ID { return v.base.Root() }

func (v *view) Lookup(dir checkpoint.ID, name string) (overlay.StateEntry, error) {
	h, err := v.lookup(checkpoint.Slot{Dir: dir, Name: name})
	return overlay.StateEntry{ID: h.ID, Type: h.Type}, err
}

func (v *view) List(dir checkpoint.ID) (all []overlay.DirEntry, err error) {
	err = v.list(dir, func(name string, h checkpoint.LayerSlot) bool {
		if dir != v.Root() || name != overlay.StoreName {
			all = append(all, overlay.DirEntry{Name: name, Ino: h.ID.Ino, Type: h.Type})
		}
		return true
	})
	return all, err
}

func (v *view) Attr(id checkpoint.ID) (overlay.Attr, error) { return v.attr(v.p, id, v.inodes[id]) }

func (v *view) Xattrs(id checkpoint.ID) ([]checkpoint.Xattr, error) {
	return v.xattrs(v.p, id, v.inodes[id])
}

func (v *view) Readlink(id checkpoint.ID) (string, error) { return v.readlink(v.p, id, v.inodes[id]) }

func (v *view) Open(id checkpoint.ID) (overlay.SideFile, error) {
	c, err := v.open(v.p, &node{id: id}, v.inodes[id], false)
	return sideFile{c}, err
}

func (v *view) Places(id checkpoint.ID) ([]checkpoint.Slot, error) {
	below, err := v.places.of(id)
	return slices.Concat(v.at[id], below), err
}

// Unknown says that everything is known: what main's state can't tell of is an error of it.
func (v *view) Unknown(checkpoint.ID) bool { return false }

// sideFile is a content that is compared.
type sideFile struct{ c *content }

func (f sideFile) ReadAt(p []byte, off int64) (int, error) { return f.c.readAt(p, off) }
func (f sideFile) Close()                                  { f.c.release() }

// places finds where inodes are in main's state, which has no index of that. Most were looked up before they were changed, and the state may
// remember where. For the others it walks the tree, until all that is wanted was seen.
type places struct {
	base   overlay.State
	wanted map[uint64]int // inode numbers of what is no directory, with how many names are left to be found
	left   int            // the sum of these
	dirs   map[checkpoint.ID]bool
	found  map[checkpoint.ID][]checkpoint.Slot
	queue  []checkpoint.ID // directories that were not listed yet
}

func newPlaces(base overlay.State) *places {
	return &places{base: base, wanted: map[uint64]int{}, dirs: map[checkpoint.ID]bool{}, found: map[checkpoint.ID][]checkpoint.Slot{}, queue: []checkpoint.ID{base.Root()}}
}

// want says that an inode will be asked for. All are said before the first is asked for.
func (p *places) want(id checkpoint.ID) error {
	if id.Birth == bornHere || p.dirs[id] || p.wanted[id.Ino] > 0 {
		return nil
	}
	a, err := p.base.Attr(id)
	switch {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return err
	case a.Mode&unix.S_IFMT == unix.S_IFDIR:
		p.dirs[id] = true
		return nil
	}
	if slot, _, ok := p.remembered(id); ok && a.Nlink == 1 {
		p.found[id] = []checkpoint.Slot{slot}
		return nil
	}
	p.wanted[id.Ino] = int(a.Nlink)
	p.left += int(a.Nlink)
	return nil
}

// remembered gives a slot that an inode is in, and its type, if the state can tell that by itself.
func (p *places) remembered(id checkpoint.ID) (slot checkpoint.Slot, kind uint32, ok bool) {
	base, ok := p.base.(interface {
		Where(checkpoint.ID) (checkpoint.Slot, uint32, bool)
	})
	if !ok {
		return slot, 0, false
	}
	return base.Where(id)
}

// of gives the names of an inode that was wanted, or of a directory.
func (p *places) of(id checkpoint.ID) ([]checkpoint.Slot, error) {
	if id.Birth == bornHere {
		return nil, nil
	}
	if len(p.found[id]) == 0 && p.wanted[id.Ino] == 0 {
		if slot, kind, ok := p.remembered(id); ok && kind == unix.S_IFDIR { // which has no other name
			p.found[id] = []checkpoint.Slot{slot}
		}
	}
	for len(p.queue) > 0 && (p.left > 0 || len(p.found[id]) == 0) {
		dir := p.queue[0]
		p.queue = p.queue[1:]
		if err := p.walk(dir); err != nil {
			return nil, err
		}
	}
	return p.found[id], nil
}

func (p *places) walk(dir checkpoint.ID) error {
	entries, err := p.base.List(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type != 0 && e.Type != unix.S_IFDIR && p.wanted[e.Ino] == 0 {
			continue
		}
		h, err := p.base.Lookup(dir, e.Name)
		if err != nil {
			return err
		}
		switch {
		case h.Type == unix.S_IFDIR:
			p.queue = append(p.queue, h.ID)
			if len(p.found[h.ID]) > 0 {
				continue
			}
		case p.wanted[h.ID.Ino] == 0:
			continue
		default:
			p.wanted[h.ID.Ino]--
			p.left--
		}
		p.found[h.ID] = append(p.found[h.ID], checkpoint.Slot{Dir: dir, Name: e.Name})
	}
	return nil
}
