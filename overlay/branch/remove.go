//go:build linux

package branch

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Unlink implements overlay.Volume.
func (v *Volume) Unlink(dir overlay.Inode, name string) error { return v.remove(dir, name, false) }

// Rmdir implements overlay.Volume.
func (v *Volume) Rmdir(dir overlay.Inode, name string) error { return v.remove(dir, name, true) }

func (v *Volume) remove(i overlay.Inode, name string, isDir bool) error {
	dir, err := v.own(i)
	if err == nil {
		err = v.enterToChange()
	}
	if err != nil {
		return err
	}
	defer v.leave()
	v.nameMu.Lock()
	defer v.nameMu.Unlock()
	if err := v.writableDir(dir, name); err != nil {
		return err
	}
	n, err := v.find(dir, name, false)
	if err != nil {
		return err
	}
	defer v.unpin(n)
	switch {
	case isDir && !n.IsDir():
		return unix.ENOTDIR
	case !isDir && n.IsDir():
		return unix.EISDIR
	}
	if err := v.mayGo(n); err != nil {
		return err
	}
	up, err := v.copyUpDir(dir)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	slot := checkpoint.Slot{Dir: dir.id, Name: name}
	l, err := v.loses(n)
	if err != nil {
		return err
	}
	put, held, err := v.empties(slot)
	if err != nil {
		return err
	}
	err = v.m.store.Update(func(tx *checkpoint.Tx) error {
		if err := put(tx); err != nil {
			return err
		}
		return l.record(tx)
	})
	if err != nil {
		l.failed()
		return err
	}
	crash.Point("branch-removed")
	v.st.mu.Lock()
	held()
	l.apply()
	v.st.mu.Unlock()
	v.touch(up)
	return nil
}

// mayGo fails with ENOTEMPTY for a directory with names.
func (v *Volume) mayGo(n *node) error {
	if !n.IsDir() {
		return nil
	}
	empty, err := v.st.isEmpty(n.id)
	if err == nil && !empty {
		err = unix.ENOTEMPTY
	}
	return err
}

// empties works out what empties a slot: what to commit, and what to do to the state then, with state.mu held.
func (v *Volume) empties(slot checkpoint.Slot) (commit func(*checkpoint.Tx) error, apply func(), err error) {
	below, err := v.slotBelow(slot)
	if err != nil {
		return nil, nil, err
	}
	switch below {
	case underSome:
		return func(tx *checkpoint.Tx) error { return tx.PutLayerSlot(v.layer, slot, checkpoint.LayerSlot{}) },
			func() { v.st.put(slot, held{layer: v.layer, under: underSome}) }, nil
	case underWhiteout: // the one below shows again
		return func(tx *checkpoint.Tx) error { return tx.DeleteLayerSlot(v.layer, slot) },
			func() { v.st.put(slot, held{layer: v.layer, under: underWhiteout}) }, nil
	}
	return func(tx *checkpoint.Tx) error { return tx.DeleteLayerSlot(v.layer, slot) }, func() { v.st.forget(slot) }, nil
}

// slotBelow tells what a slot that holds something holds below the live layer.
func (v *Volume) slotBelow(slot checkpoint.Slot) (under, error) {
	v.st.mu.RLock()
	h, ok := v.st.slots[slot.Dir][slot.Name]
	v.st.mu.RUnlock()
	switch {
	case !ok || h.layer != v.layer:
		return underSome, nil // that is where it was found
	case h.under != underUnknown:
		return h.under, nil
	}
	_, err := v.st.below(slot)
	switch err {
	case nil:
		return underSome, nil
	case unix.ENOENT:
		return underNothing, nil
	}
	return underUnknown, err
}

// loss is what it takes for an inode to have a name less.
type loss struct {
	v    *Volume
	n    *node
	e    inode // as it is then
	was  inode
	last bool          // it has none then
	attr *overlay.Attr // as it was
}

// loses works it out. Where the inode keeps a name, it is copied up for its link count. The caller holds n.mu.
func (v *Volume) loses(n *node) (loss, error) {
	l := loss{v: v, n: n}
	a, err := v.attr(n)
	if err != nil {
		return l, err
	}
	l.last, l.attr = n.IsDir() || a.Nlink <= 1, &a
	if l.last {
		l.was = v.entry(n)
		l.e = l.was
		if l.was.layer == v.layer && l.was.pool != 0 {
			l.e.layer = private
			v.m.pool.keep(l.e.pool) // before its record goes
		}
		return l, nil
	}
	if l.was, err = v.copyUp(n, metadata); err != nil {
		return l, err
	}
	l.e = l.was
	l.e.nlink--
	return l, nil
}

func (l loss) record(tx *checkpoint.Tx) error {
	switch {
	case !l.last:
		return tx.PutLayerInode(l.v.layer, l.n.id, l.e.record())
	case l.e.layer == private:
		return tx.DeleteLayerInode(l.v.layer, l.n.id)
	}
	return nil
}

// failed takes back what was done before the commit.
func (l loss) failed() {
	if l.last && l.e.layer == private && l.was.layer != private {
		l.v.m.pool.let(l.e.pool)
	}
}

// apply changes the state. The caller holds state.mu.
func (l loss) apply() {
	v, n := l.v, l.n
	if !l.last {
		v.bump(l.e)
		v.st.inodes[n.id] = l.e
		return
	}
	delete(v.st.inodes, n.id)
	n.last = l.attr
	v.orphanLocked(n, l.e)
}

// orphanLocked makes n the node of an inode without a name. The caller holds state.mu.
func (v *Volume) orphanLocked(n *node, e inode) {
	e.nlink = 0
	n.orphan = &e
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	if v.nodes[n.id] == n {
		delete(v.nodes, n.id)
	}
	v.orphans[n] = struct{}{}
}
