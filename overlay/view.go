//go:build linux

package overlay

import (
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"golang.org/x/sys/unix"
)

// view is the state at the beginning of an epoch, as the records since then and the live tree tell it. With an empty fold
// it is the live tree itself. It holds nodes, so it must be closed. The caller keeps the tree from changing: it
// holds Tree.mu, shared or alone.
type view struct {
	t    *Tree
	fold *checkpoint.Fold

	slots              map[checkpoint.ID][]checkpoint.Slot // where the fold says that an inode was
	alive              map[checkpoint.ID]bool              // whether a directory was in the state
	asking             map[checkpoint.ID]bool              // directories for which that is being worked out
	places             map[checkpoint.ID]*Node             // inodes that were found
	missing, searching map[checkpoint.ID]bool              // inodes that are nowhere; that are being looked for
	at                 map[checkpoint.ID]checkpoint.Slot   // where a walk of the state saw an inode
	pinned             []*Node
	before             map[checkpoint.ID]checkpoint.Slot // only while a rollback is resumed: where it took inodes from
	replaced           map[checkpoint.ID]checkpoint.ID   // only then: what it may have put in the place of inodes

	rules []*ignore.Rules          // what it leaves out; see view_ignored.go
	paths map[checkpoint.ID]string // of directories in the state, for that
	undo  checkpoint.Epoch         // of the rollback that is to be undone; or 0

	// While nothing can change, what was asked once is not asked again.
	frozen bool
	reader *checkpoint.Reader
	stats  map[*Node]unix.Statx_t
}

func (t *Tree) newView(fold *checkpoint.Fold) *view {
	v := &view{
		t: t, fold: fold,
		slots: map[checkpoint.ID][]checkpoint.Slot{},
		alive: map[checkpoint.ID]bool{}, asking: map[checkpoint.ID]bool{},
		missing: map[checkpoint.ID]bool{}, searching: map[checkpoint.ID]bool{},
		places: map[checkpoint.ID]*Node{},
		at:     map[checkpoint.ID]checkpoint.Slot{},
	}
	for s, o := range fold.Slots {
		if !o.ID.IsZero() {
			v.slots[o.ID] = append(v.slots[o.ID], s)
		}
	}
	return v
}

// newFrozenView is newView for somebody who holds Tree.mu alone until thaw is called.
func (t *Tree) newFrozenView(fold *checkpoint.Fold) *view {
	v := t.newView(fold)
	v.frozen, v.reader, v.stats = true, t.store.NewReader(), map[*Node]unix.Statx_t{}
	return v
}

// thaw ends the time in which nothing can change.
func (v *view) thaw() {
	if v.frozen {
		v.frozen, v.stats = false, nil
		v.reader.Close()
	}
}

// reread makes the view see what the store got since it was frozen.
func (v *view) reread() {
	v.reader.Close()
	v.reader = v.t.store.NewReader()
}

// read runs fn with the store.
func (v *view) read(fn func(tx *checkpoint.Tx) error) error {
	if v.frozen {
		return fn(&v.reader.Tx)
	}
	return v.t.store.View(fn)
}

// statNode describes a node that has a name or an open handle.
func (v *view) statNode(n *Node, st *unix.Statx_t) error {
	if s, ok := v.stats[n]; ok {
		*st = s
		return nil
	}
	err := v.t.statOpen(n, nil, st)
	if err == nil {
		v.keep(n, st)
	}
	return err
}

// keep remembers what a node is like.
func (v *view) keep(n *Node, st *unix.Statx_t) {
	if v.frozen {
		v.stats[n] = *st
	}
}

func (v *view) close() {
	v.thaw()
	for _, n := range v.pinned {
		v.t.unpin(n)
	}
	v.pinned = nil
}

// find gives the node of an inode wherever it is now: known already, at its noted location, where its attribute record
// saw it, or in the trash. It gives nil where there is none.
//
// Where an inode is noted to be may long be out of date, and then one search can lead in a circle. What a search finds
// out while another one is under way that it would need is not the whole truth: that nothing was found is remembered of
// the outermost one only.
func (v *view) find(id checkpoint.ID) (*Node, error) {
	if n := v.places[id]; n != nil || v.missing[id] || v.searching[id] {
		return n, nil
	}
	v.searching[id] = true
	n, err := v.search(id)
	delete(v.searching, id)
	if err != nil {
		return nil, err
	}
	if n != nil {
		v.places[id] = n
	} else if len(v.searching) == 0 {
		v.missing[id] = true
	}
	return n, nil
}

// saw notes where an inode is, for inodes that the log does not speak of.
func (v *view) saw(id checkpoint.ID, slot checkpoint.Slot) {
	v.at[id] = slot
	delete(v.missing, id)
}

// lost notes that an inode is nowhere any more.
func (v *view) lost(id checkpoint.ID) {
	delete(v.places, id)
	v.missing[id] = true
}

func (v *view) search(id checkpoint.ID) (*Node, error) {
	t := v.t
	if n := t.known(id); n != nil {
		t.pin(n)
		v.pinned = append(v.pinned, n)
		return n, nil
	}
	candidates, err := v.noted(id)
	if err != nil {
		return nil, err
	}
	candidates = append(candidates, v.slots[id]...)
	for _, s := range candidates {
		dir, err := v.find(s.Dir)
		if err != nil {
			return nil, err
		}
		if dir == nil || !dir.dir {
			continue
		}
		if n, err := v.nodeAt(dir, s.Name, id); n != nil || err != nil {
			return n, err
		}
	}
	return v.trashNode(id)
}

// nodeAt gives the node at a slot if it is the inode that is looked for.
func (v *view) nodeAt(dir *Node, name string, id checkpoint.ID) (*Node, error) {
	st, err := v.statIn(dir, name)
	if err != nil || st == nil || v.t.idOf(st) != id {
		return nil, err
	}
	v.t.nodesMu.Lock()
	defer v.t.nodesMu.Unlock()
	n := v.t.internLocked(st)
	v.t.addName(n, dir, name)
	v.pinLocked(n)
	v.keep(n, st)
	return n, nil
}

// statIn describes what a directory has under a name; nil where that is nothing.
func (v *view) statIn(dir *Node, name string) (*unix.Statx_t, error) {
	d, err := v.t.openDirRef(dir)
	if err == unix.ESTALE {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.done()
	var st unix.Statx_t
	if err := v.t.within(dir, d.fd, func() error { return statAt(d.fd, name, &st) }); err != nil {
		if err == unix.ENOENT || err == unix.ENOTDIR {
			return nil, nil
		}
		return nil, err
	}
	return &st, nil
}

func (v *view) trashNode(id checkpoint.ID) (*Node, error) {
	var st unix.Statx_t
	err := statAt(v.t.trashFd, id.String(), &st)
	if err == unix.ENOENT {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if v.t.idOf(&st) != id {
		return nil, nil
	}
	v.t.nodesMu.Lock()
	defer v.t.nodesMu.Unlock()
	n := v.t.internLocked(&st)
	n.trashed = true
	v.pinLocked(n)
	v.keep(n, &st)
	return n, nil
}

func (v *view) pinLocked(n *Node) {
	n.pins++
	v.pinned = append(v.pinned, n)
}

// dirAlive reports whether a directory was in the state: it is the root, or the fold says where it was, or it has not
// moved since and its parent was in the state.
func (v *view) dirAlive(id checkpoint.ID) (bool, error) {
	if id == v.t.root.id {
		return true, nil
	}
	if a, ok := v.alive[id]; ok || v.asking[id] {
		return a, nil
	}
	v.asking[id] = true
	_, a, err := v.slotOf(id)
	delete(v.asking, id)
	if err == nil && (a || len(v.asking) == 0) { // as for find
		v.alive[id] = a
	}
	return a, err
}

// slotOf gives a slot that held the inode in the state; ok is false where it was in none.
func (v *view) slotOf(id checkpoint.ID) (checkpoint.Slot, bool, error) {
	for _, s := range v.slots[id] {
		if had, err := v.had(s, v.fold.Slots[s].Mode); err != nil || had {
			return s, had, err
		}
	}
	n, err := v.find(id)
	if err != nil || n == nil {
		return checkpoint.Slot{}, false, err
	}
	for _, s := range v.t.slotsOf(n) {
		if _, changed := v.fold.Slots[s]; changed {
			continue
		}
		if had, err := v.had(s, n.format()); err != nil || had {
			return s, had, err
		}
	}
	if n.dir {
		return checkpoint.Slot{}, false, nil
	}
	return v.furtherSlot(id, n)
}

// furtherSlot looks for a name of a file that no node knows of.
func (v *view) furtherSlot(id checkpoint.ID, n *Node) (checkpoint.Slot, bool, error) {
	candidates, err := v.noted(id)
	if err != nil {
		return checkpoint.Slot{}, false, err
	}
	for _, s := range candidates {
		if _, changed := v.fold.Slots[s]; changed {
			continue
		}
		if had, err := v.had(s, unix.S_IFREG); err != nil {
			return s, false, err
		} else if !had {
			continue
		}
		st, err := v.live(s)
		if err != nil {
			return s, false, err
		}
		if st != nil && v.t.idOf(st) == id {
			return s, true, nil
		}
	}
	if s, ok := v.before[id]; ok {
		if _, changed := v.fold.Slots[s]; !changed {
			had, err := v.had(s, unix.S_IFREG)
			return s, had, err
		}
	}
	return checkpoint.Slot{}, false, nil
}

// noted gives the slots where the store saw an inode.
func (v *view) noted(id checkpoint.ID) ([]checkpoint.Slot, error) {
	var slots []checkpoint.Slot
	err := v.read(func(tx *checkpoint.Tx) error {
		loc, _, err := tx.Loc(id)
		slots = loc.Slots
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range slots {
		slots[i].Dir = v.t.store.Resolve(slots[i].Dir)
	}
	if a, ok := v.fold.Attrs[id]; ok && !a.At.Dir.IsZero() {
		slots = append(slots, a.At)
	}
	if s, ok := v.at[id]; ok {
		slots = append(slots, s)
	}
	return slots, nil
}

// slotsOf gives all names of a node that are known.
func (t *Tree) slotsOf(n *Node) []checkpoint.Slot {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	if n.parent == nil {
		return nil
	}
	slots := []checkpoint.Slot{{Dir: n.parent.id, Name: n.name}}
	for _, l := range n.links {
		slots = append(slots, checkpoint.Slot{Dir: l.parent.id, Name: l.name})
	}
	return slots
}

// live describes what a slot holds now; nil where that is nothing.
func (v *view) live(s checkpoint.Slot) (*unix.Statx_t, error) {
	dir, err := v.find(s.Dir)
	if err != nil || dir == nil {
		return nil, err
	}
	return v.statIn(dir, s.Name)
}

// path gives the workspace-relative path that a slot had in the state.
func (v *view) path(s checkpoint.Slot) (string, error) {
	parts := []string{s.Name}
	for id := s.Dir; id != v.t.root.id; {
		up, ok, err := v.slotOf(id)
		if err != nil {
			return "", err
		}
		if !ok || len(parts) > 1<<16 {
			return "?/" + join(parts), nil
		}
		parts = append(parts, up.Name)
		id = up.Dir
	}
	return join(parts), nil
}

// join puts the parts together, the last one first.
func join(parts []string) string {
	var b strings.Builder
	for i := len(parts) - 1; i >= 0; i-- {
		if b.Len() > 0 {
			b.WriteByte('/')
		}
		b.WriteString(parts[i])
	}
	return b.String()
}

// stat describes an inode as it is now.
func (v *view) stat(id checkpoint.ID, st *unix.Statx_t) error {
	n, err := v.find(id)
	if err != nil {
		return err
	}
	if n == nil {
		return unix.ENOENT
	}
	return v.statNode(n, st)
}
