//go:build linux

package branch

import (
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// bornHere is ID.Birth of what a branch has made.
const bornHere = checkpoint.BornInBranch

// state is what a chain of layers comes to.
type state struct {
	base overlay.State

	mu     sync.RWMutex // guards what follows
	slots  map[checkpoint.ID]map[string]held
	inodes map[checkpoint.ID]inode
}

// held is what a slot holds, from a layer on. The zero ID is a whiteout.
type held struct {
	checkpoint.LayerSlot
	layer uint64
	under under
}

// under says what a slot holds below the layer of its record: it decides what must be left there when the slot is emptied again.
type under uint8

const (
	underUnknown  under = iota // nothing in a layer; main's state has not been asked
	underNothing               // nothing in a layer, and nothing in main's state
	underWhiteout              // nothing, by a whiteout
	underSome                  // something
)

// inode says where an inode is.
type inode struct {
	pool  uint64 // 0 where it is as main has it
	data  uint64 // where the content of a regular file is; 0 as main has it
	layer uint64 // of its record; private where it has none and nobody else's
	nlink uint32 // meaningless where pool is 0
	owner checkpoint.LayerOwner
}

// private is the layer of what has no record: it can be changed as if it were in the live one.
const private = ^uint64(0)

// loadState merges layers, the lowest first, over a state of main, which it takes over.
func loadState(tx *checkpoint.Tx, base overlay.State, chain []uint64) (*state, error) {
	s := &state{base: base, slots: map[checkpoint.ID]map[string]held{}, inodes: map[checkpoint.ID]inode{}}
	for _, layer := range chain {
		err := tx.EachLayerSlot(layer, func(slot checkpoint.Slot, h checkpoint.LayerSlot) error {
			s.put(slot, held{h, layer, s.underOf(slot)})
			return nil
		})
		if err != nil {
			return nil, err
		}
		err = tx.EachLayerInode(layer, func(id checkpoint.ID, rec checkpoint.LayerInode) error {
			i := inode{pool: rec.Pool, data: rec.Pool, layer: layer, nlink: rec.Nlink, owner: rec.Owner}
			if rec.MetaOnly {
				i.data = s.inodes[id].data
			}
			s.inodes[id] = i
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// underOf tells what a new record of a slot covers. The caller holds mu, or has the state alone.
func (s *state) underOf(slot checkpoint.Slot) under {
	h, ok := s.slots[slot.Dir][slot.Name]
	switch {
	case !ok && slot.Dir.Birth == bornHere:
		return underNothing
	case !ok:
		return underUnknown
	case h.ID.IsZero():
		return underWhiteout
	}
	return underSome
}

// put makes a slot hold something. The caller holds mu, or has the state alone.
func (s *state) put(slot checkpoint.Slot, h held) {
	names := s.slots[slot.Dir]
	if names == nil {
		names = map[string]held{}
		s.slots[slot.Dir] = names
	}
	names[slot.Name] = h
}

// forget drops what the layers say of a slot. The caller holds mu.
func (s *state) forget(slot checkpoint.Slot) {
	names := s.slots[slot.Dir]
	if delete(names, slot.Name); len(names) == 0 {
		delete(s.slots, slot.Dir)
	}
}

// lookup gives what a slot holds, or ENOENT. The caller holds mu, or has the state alone.
func (s *state) lookup(slot checkpoint.Slot) (checkpoint.LayerSlot, error) {
	if h, ok := s.slots[slot.Dir][slot.Name]; ok {
		if h.ID.IsZero() {
			return h.LayerSlot, unix.ENOENT
		}
		return h.LayerSlot, nil
	}
	return s.below(slot)
}

// below gives what main's state has in a slot, or ENOENT.
func (s *state) below(slot checkpoint.Slot) (checkpoint.LayerSlot, error) {
	if slot.Dir.Birth == bornHere {
		return checkpoint.LayerSlot{}, unix.ENOENT
	}
	e, err := s.base.Lookup(slot.Dir, slot.Name)
	return checkpoint.LayerSlot{ID: e.ID, Type: e.Type}, err
}

// list calls fn for every name of a directory, in no order, until it says that it has enough.
func (s *state) list(dir checkpoint.ID, fn func(name string, h checkpoint.LayerSlot) (more bool)) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	changed := s.slots[dir]
	for name, h := range changed {
		if !h.ID.IsZero() && !fn(name, h.LayerSlot) {
			return nil
		}
	}
	if dir.Birth == bornHere {
		return nil
	}
	entries, err := s.base.List(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, ok := changed[e.Name]; ok {
			continue
		}
		if !fn(e.Name, checkpoint.LayerSlot{ID: checkpoint.ID{Ino: e.Ino}, Type: e.Type}) {
			return nil
		}
	}
	return nil
}

// isEmpty reports whether a directory has no name.
func (s *state) isEmpty(dir checkpoint.ID) (empty bool, err error) {
	empty = true
	err = s.list(dir, func(string, checkpoint.LayerSlot) bool { empty = false; return false })
	return empty, err
}

// held is lookup, with a zero ID for nothing. The caller has the state alone, or holds mu.
func (s *state) held(slot checkpoint.Slot) (checkpoint.LayerSlot, error) {
	h, err := s.lookup(slot)
	if err == unix.ENOENT {
		return checkpoint.LayerSlot{}, nil
	}
	return h, err
}

// countNames tells how many more names each inode has than in main's state. Directories that are gone count for nothing, as they had to be
// emptied first. The caller has the state alone, or holds mu.
func (s *state) countNames() (map[checkpoint.ID]int, error) {
	more := map[checkpoint.ID]int{}
	for dir, names := range s.slots {
		for name, h := range names {
			if !h.ID.IsZero() {
				more[h.ID]++
			}
			below, err := s.below(checkpoint.Slot{Dir: dir, Name: name})
			switch err {
			case nil:
				more[below.ID]--
			case unix.ENOENT:
			default:
				return nil, err
			}
		}
	}
	return more, nil
}

// hasName reports whether an inode has a name, given what countNames gives.
func (s *state) hasName(id checkpoint.ID, more map[checkpoint.ID]int) (bool, error) {
	if id.Birth == bornHere {
		return more[id] > 0, nil
	}
	if more[id] >= 0 { // all that is known of main has a name there
		return true, nil
	}
	a, err := s.base.Attr(id)
	if err == unix.ENOENT {
		return false, nil
	}
	return int(a.Nlink)+more[id] > 0, err
}
