//go:build linux

package overlay

import "github.com/hyperfs/hyperfs/checkpoint"

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
