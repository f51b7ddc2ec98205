//go:build linux

package branch

import (
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// view is a state with what it takes to tell paths. Nothing changes the state meanwhile.
type view struct {
	*state
	p      *pool
	places *places

	at    map[checkpoint.ID][]checkpoint.Slot // where the layers say that an inode is
	alive map[checkpoint.ID]bool              // whether a directory has a path
}

func newView(s *state, p *pool, places *places) *view {
	v := &view{state: s, p: p, places: places, at: map[checkpoint.ID][]checkpoint.Slot{}, alive: map[checkpoint.ID]bool{}}
	for dir, names := range s.slots {
		for name, h := range names {
			if !h.ID.IsZero() {
				v.at[h.ID] = append(v.at[h.ID], checkpoint.Slot{Dir: dir, Name: name})
			}
		}
	}
	for _, slots := range v.at {
		slices.SortFunc(slots, func(a, b checkpoint.Slot) int { return strings.Compare(a.Name, b.Name) })
	}
	return v
}

// slotOf gives a name that an inode has; ok is false where it has none.
func (v *view) slotOf(id checkpoint.ID) (checkpoint.Slot, bool, error) {
	return v.slotWhere(id, func(checkpoint.Slot) (bool, error) { return true, nil })
}

// slotWhere is slotOf with a condition.
func (v *view) slotWhere(id checkpoint.ID, suits func(checkpoint.Slot) (bool, error)) (checkpoint.Slot, bool, error) {
	try := func(s checkpoint.Slot) (bool, error) {
		alive, err := v.dirAlive(s.Dir)
		if err != nil || !alive {
			return false, err
		}
		return suits(s)
	}
	for _, s := range v.at[id] {
		if ok, err := try(s); err != nil || ok {
			return s, ok, err
		}
	}
	below, err := v.places.of(id)
	if err != nil {
		return checkpoint.Slot{}, false, err
	}
	for _, s := range below {
		if _, changed := v.slots[s.Dir][s.Name]; changed {
			continue
		}
		if ok, err := try(s); err != nil || ok {
			return s, ok, err
		}
	}
	return checkpoint.Slot{}, false, nil
}

// dirAlive reports whether a directory has a path.
func (v *view) dirAlive(id checkpoint.ID) (bool, error) {
	if id == v.base.Root() {
		return true, nil
	}
	if a, ok := v.alive[id]; ok {
		return a, nil
	}
	v.alive[id] = false // directories have no cycles, so nobody asks for this one meanwhile
	_, a, err := v.slotOf(id)
	if err == nil {
		v.alive[id] = a
	}
	return a, err
}

// path gives the path of a slot, whose directory is alive.
func (v *view) path(s checkpoint.Slot) (string, error) {
	parts := []string{s.Name}
	for id := s.Dir; id != v.base.Root(); {
		up, ok, err := v.slotOf(id)
		if err != nil {
			return "", err
		}
		if !ok {
			return "", unix.ENOENT
		}
		parts = append(parts, up.Name)
		id = up.Dir
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/"), nil
}

// holds gives what a slot holds; nothing where its directory has no path.
func (v *view) holds(slot checkpoint.Slot) (checkpoint.LayerSlot, error) {
	alive, err := v.dirAlive(slot.Dir)
	if err != nil || !alive {
		return checkpoint.LayerSlot{}, err
	}
	return v.held(slot)
}

// entries gives what a directory holds.
func (v *view) entries(dir checkpoint.ID) (map[string]checkpoint.LayerSlot, error) {
	all := map[string]checkpoint.LayerSlot{}
	err := v.list(dir, func(name string, h checkpoint.LayerSlot) bool {
		all[name] = h
		return true
	})
	for name := range all {
		if err != nil {
			break
		}
		if dir == v.base.Root() && name == overlay.StoreName {
			delete(all, name)
			continue
		}
		all[name], err = v.lookup(checkpoint.Slot{Dir: dir, Name: name}) // a listing tells no identities
	}
	return all, err
}

func (v *view) attrOf(id checkpoint.ID) (overlay.Attr, error) { return v.attr(v.p, id, v.inodes[id]) }

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
