//go:build linux

package overlay

import (
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
)

// whereMax is how deep a tree is that Where looks into.
const whereMax = 1 << 8

// Where gives a slot that an inode was in, and its type, if that is known without looking for it: where somebody has looked it up in a state, and all of
// the directories above. What is there now does not matter.
//
// The whole way up to the root is proved. A directory that was made later has no records of what was moved into it, so that what it holds now
// would be taken for what it held.
func (s *state) Where(id checkpoint.ID) (slot checkpoint.Slot, kind uint32, ok bool) {
	at := id
	for range whereMax {
		up, seen := s.lastSeen(s.w.store.Resolve(at).Ino)
		if !seen {
			return checkpoint.Slot{}, 0, false
		}
		up.Dir = s.w.store.Before(up.Dir, s.epoch)
		e, err := s.Lookup(up.Dir, up.Name)
		if err != nil || e.ID != at {
			return checkpoint.Slot{}, 0, false
		}
		if at == id {
			slot, kind = up, e.Type
		}
		if at = up.Dir; at == s.Root() {
			return slot, kind, true
		}
	}
	return checkpoint.Slot{}, 0, false
}

// placeOf gives a slot that an inode was in, wherever that is now, and its path in the state. Where nobody knows, the state is looked through.
func (s *state) placeOf(id checkpoint.ID) (slot checkpoint.Slot, path string, ok bool, err error) {
	if slot, path, ok, err = s.placeBy(id, nil); ok || err != nil {
		return slot, path, ok, err
	}
	if err := s.survey(); err != nil {
		return slot, "", false, err
	}
	return s.placeBy(id, nil)
}

// placeBy is placeOf by what is known; under has what is being looked for. The whole way up to the root is proved, as for Where.
func (s *state) placeBy(id checkpoint.ID, under []checkpoint.ID) (slot checkpoint.Slot, path string, ok bool, err error) {
	if len(under) > whereMax || slices.Contains(under, id) {
		return slot, "", false, nil
	}
	var slots []checkpoint.Slot
	err = s.do(func(q *search) error {
		slots = slots[:0]
		for _, known := range q.places() {
			list, err := known(s.w.store.Resolve(id))
			if err != nil {
				return q.failure("find an inode", err)
			}
			slots = append(slots, list...)
		}
		return nil
	})
	if err != nil {
		return slot, "", false, err
	}
	for _, slot := range slots {
		slot.Dir = s.w.store.Before(slot.Dir, s.epoch)
		if e, err := s.Lookup(slot.Dir, slot.Name); err != nil || e.ID != id {
			continue
		}
		if slot.Dir == s.Root() {
			return slot, slot.Name, true, nil
		}
		_, up, ok, err := s.placeBy(slot.Dir, append(under, id))
		if err != nil || ok {
			return slot, below(up, slot.Name), ok, err
		}
	}
	return checkpoint.Slot{}, "", false, nil
}
