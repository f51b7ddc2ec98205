//go:build linux

package branch

import (
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
)

// findEffects tells what a rollback from the state was has done. Of names that nobody has looked up nothing is said, as nobody can watch them. The
// caller holds v.mu alone.
func (v *Volume) findEffects(f *forgets, was *state) {
	if _, ok := v.m.notify().(overlay.Teller); !ok {
		return
	}
	remembered := &places{base: v.st.base, wanted: map[uint64]int{}, dirs: map[checkpoint.ID]bool{}, found: map[checkpoint.ID][]checkpoint.Slot{}}
	l := effectList{v: v, view: newView(v.st, v.m.pool, remembered), gone: f.gone(), paths: map[checkpoint.ID]string{v.root.id: ""}, changes: map[checkpoint.Slot]bool{}}
	listed := map[*node]bool{}
	for _, n := range f.names {
		listed[n.dir] = true
		l.changed(n)
	}
	for _, n := range f.inodes {
		a, b := was.inodes[n.id], v.st.inodes[n.id]
		if a != b && !listed[n] {
			l.inode(n, n.isRegular() && a.data != b.data)
		}
	}
	f.effects = l.all
}

// gone gives the nodes that have no name any more and are no directories.
func (f *forgets) gone() map[checkpoint.ID]*node {
	gone := map[checkpoint.ID]*node{}
	for _, to := range f.fates {
		if !to.alive && !to.n.IsDir() {
			gone[to.n.id] = to.n
		}
	}
	return gone
}

// effectList collects effects.
type effectList struct {
	v     *Volume
	view  *view
	gone  map[checkpoint.ID]*node
	paths map[checkpoint.ID]string // of directories
	all   []overlay.Effect

	changes map[checkpoint.Slot]bool // names that mean something else now
}

// changed adds a name that means something else.
func (l *effectList) changed(n nameOf) {
	l.changes[checkpoint.Slot{Dir: n.dir.id, Name: n.name}] = true
	path, ok := l.path(n.dir.id)
	if !ok {
		return
	}
	e := overlay.Effect{Dir: n.dir, Path: path, Name: n.name, Was: n.was.Type, Is: n.is.Type}
	if had := l.gone[n.was.ID]; had != nil {
		e.Gone = had
	}
	l.all = append(l.all, e)
}

// inode adds that an inode has other attributes, for each of the names that it has kept.
func (l *effectList) inode(n *node, content bool) {
	slots := l.view.at[n.id]
	if slot, _, ok := l.view.places.remembered(n.id); ok {
		if _, changed := l.view.slots[slot.Dir][slot.Name]; !changed {
			slots = append(slots[:len(slots):len(slots)], slot)
		}
	}
	for _, s := range slots {
		if l.changes[s] {
			continue
		}
		if path, ok := l.path(s.Dir); ok {
			l.all = append(l.all, overlay.Effect{Dir: l.node(s.Dir), Path: path, Name: s.Name, Inode: n, Content: content, Attr: true})
		}
	}
}

// node gives the node of a directory, nil where nobody holds it.
func (l *effectList) node(id checkpoint.ID) overlay.Inode {
	l.v.nodesMu.Lock()
	defer l.v.nodesMu.Unlock()
	if n := l.v.nodes[id]; n != nil {
		return n
	}
	return nil
}

// path gives the path of a directory that somebody holds; ok is false where that is not known.
func (l *effectList) path(id checkpoint.ID) (path string, ok bool) {
	if path, ok = l.paths[id]; ok || l.node(id) == nil {
		return path, ok
	}
	slot, ok := l.slotOf(id)
	if !ok {
		return "", false
	}
	above, ok := l.path(slot.Dir)
	if !ok {
		return "", false
	}
	path = strings.TrimPrefix(above+"/"+slot.Name, "/")
	l.paths[id] = path
	return path, true
}

// slotOf gives the slot that a directory is in, if it is known where to look. Of one that has no place in the tree it can give any: but somebody would have
// to hold a directory above it that has none either, and so on, and the topmost of these is in no slot.
func (l *effectList) slotOf(id checkpoint.ID) (checkpoint.Slot, bool) {
	slots, err := l.view.Places(id)
	if err != nil {
		return checkpoint.Slot{}, false
	}
	for _, s := range slots {
		if h, err := l.view.Lookup(s.Dir, s.Name); err == nil && h.ID == id {
			return s, true
		}
	}
	return checkpoint.Slot{}, false
}
