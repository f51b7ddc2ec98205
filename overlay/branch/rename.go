//go:build linux

package branch

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// side is one end of a rename.
type side struct {
	dir  *node
	slot checkpoint.Slot
	n    *node // what it holds, pinned; nil for nothing
	up   inode // where dir is, copied up
}

func (s *side) holds() checkpoint.LayerSlot {
	return checkpoint.LayerSlot{ID: s.n.id, Type: s.n.kind}
}

// Rename implements overlay.Volume. What moves keeps its identity, so that what is below a directory need not be touched.
func (v *Volume) Rename(oldDir overlay.Inode, oldName string, newDir overlay.Inode, newName string, flags uint32) error {
	if flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 || flags == unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE {
		return unix.EINVAL
	}
	from, err := v.own(oldDir)
	if err != nil {
		return err
	}
	to, err := v.own(newDir)
	if err == nil {
		err = v.enterToChange()
	}
	if err != nil {
		return err
	}
	defer v.leave()
	v.nameMu.Lock()
	defer v.nameMu.Unlock()
	a, err := v.sideOf(from, oldName)
	if err != nil {
		return err
	}
	defer v.doneWith(a)
	b, err := v.sideOf(to, newName)
	if err != nil {
		return err
	}
	defer v.doneWith(b)
	if err := v.mayRename(a, b, flags); err != nil || a.n == b.n {
		return err
	}
	for _, s := range []*side{a, b} {
		if s.up, err = v.copyUpDir(s.dir); err != nil {
			return err
		}
	}
	if flags&unix.RENAME_EXCHANGE != 0 {
		err = v.exchange(a, b)
	} else {
		err = v.move(a, b)
	}
	if err != nil {
		return err
	}
	v.touch(a.up)
	v.touch(b.up)
	return nil
}

func (v *Volume) sideOf(dir *node, name string) (*side, error) {
	s := &side{dir: dir, slot: checkpoint.Slot{Dir: dir.id, Name: name}}
	if err := v.writableDir(dir, name); err != nil {
		return nil, err
	}
	n, err := v.find(dir, name, false)
	if err == unix.ENOENT {
		return s, nil
	}
	s.n = n
	return s, err
}

func (v *Volume) doneWith(s *side) {
	if s.n != nil {
		v.unpin(s.n)
	}
}

// mayRename refuses what the VFS refuses, in its order, but for what it does itself: two names of one inode.
func (v *Volume) mayRename(a, b *side, flags uint32) error {
	exchange := flags&unix.RENAME_EXCHANGE != 0
	switch {
	case a.n == nil:
		return unix.ENOENT
	case b.n != nil && flags&unix.RENAME_NOREPLACE != 0:
		return unix.EEXIST
	case b.n == nil && exchange:
		return unix.ENOENT
	case v.isAbove(a.n, b.dir):
		return unix.EINVAL
	case b.n != nil && v.isAbove(b.n, a.dir) && exchange:
		return unix.EINVAL
	case b.n != nil && v.isAbove(b.n, a.dir):
		return unix.ENOTEMPTY
	case b.n == nil || exchange || a.n == b.n:
		return nil
	case a.n.IsDir() && !b.n.IsDir():
		return unix.ENOTDIR
	case !a.n.IsDir() && b.n.IsDir():
		return unix.EISDIR
	}
	if err := v.mayGo(b.n); err != unix.ENOTEMPTY {
		return err
	}
	return v.m.pool.full
}

// isAbove reports whether n is dir or a directory above it.
func (v *Volume) isAbove(n, dir *node) bool {
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	for ; dir != nil; dir = dir.parent {
		if dir == n {
			return true
		}
	}
	return false
}

func (v *Volume) exchange(a, b *side) error {
	err := v.m.store.Update(func(tx *checkpoint.Tx) error {
		if err := tx.PutLayerSlot(v.layer, a.slot, b.holds()); err != nil {
			return err
		}
		return tx.PutLayerSlot(v.layer, b.slot, a.holds())
	})
	if err != nil {
		return err
	}
	crash.Point("branch-renamed")
	v.st.mu.Lock()
	defer v.st.mu.Unlock()
	v.fillSlot(a.slot, b.holds())
	v.fillSlot(b.slot, a.holds())
	v.movedTo(a.n, b.dir)
	v.movedTo(b.n, a.dir)
	return nil
}

// move renames over what the target may hold.
func (v *Volume) move(a, b *side) error {
	var l loss
	if b.n != nil {
		b.n.mu.Lock()
		defer b.n.mu.Unlock()
		var err error
		if l, err = v.loses(b.n); err != nil {
			return err
		}
	}
	put, empty, err := v.empties(a.slot)
	if err != nil {
		return err
	}
	err = v.m.store.Update(func(tx *checkpoint.Tx) error {
		if b.n != nil {
			if err := l.record(tx); err != nil {
				return err
			}
		}
		if err := put(tx); err != nil {
			return err
		}
		return tx.PutLayerSlot(v.layer, b.slot, a.holds())
	})
	if err != nil {
		if b.n != nil {
			l.failed()
		}
		return err
	}
	crash.Point("branch-renamed")
	v.st.mu.Lock()
	defer v.st.mu.Unlock()
	if b.n != nil {
		l.apply()
	}
	empty()
	v.fillSlot(b.slot, a.holds())
	v.movedTo(a.n, b.dir)
	return nil
}

// movedTo notes where a directory is now.
func (v *Volume) movedTo(n, dir *node) {
	if n.IsDir() {
		v.nodesMu.Lock()
		v.setParent(n, dir)
		v.nodesMu.Unlock()
	}
}
