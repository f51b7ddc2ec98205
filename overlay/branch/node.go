//go:build linux

package branch

import (
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// node is an inode of a volume that somebody holds: the kernel, an open file or directory, or a directory below it.
type node struct {
	num  uint64
	id   checkpoint.ID
	kind uint32 // the S_IFMT bits of the mode

	mu sync.Mutex // held while its inode record changes

	orphan *inode        // of an inode without a name: what a record would say; guarded by state.mu
	last   *overlay.Attr // of an inode without a name: what it was like, as its pool inode may go with its layer; guarded by state.mu
	tmp    bool          // made without a name, and may get one; guarded by state.mu

	// Guarded by Volume.nodesMu.
	parent   *node  // of a directory
	lookups  uint64 // references of the kernel
	children int    // directories that have it as a parent
	pins     int    // open files and directories, and work under way

	contentMu sync.Mutex
	content   *content // of an open regular file; guarded by contentMu
	opens     int      // guarded by contentMu
	writers   int      // of opens; guarded by contentMu
}

// Num implements overlay.Inode.
func (n *node) Num() uint64 { return n.num }

// IsDir implements overlay.Inode.
func (n *node) IsDir() bool { return n.kind == unix.S_IFDIR }

// isRegular reports whether it has content.
func (n *node) isRegular() bool { return n.kind == unix.S_IFREG }

// internLocked gives the node of an identity. The caller holds nodesMu and, if it is not sure that the inode has a name, state.mu.
func (v *Volume) internLocked(h checkpoint.LayerSlot) *node {
	n := v.nodes[h.ID]
	if n == nil {
		n = &node{num: v.m.cfg.NewNum(), id: h.ID, kind: h.Type}
		v.nodes[h.ID] = n
	}
	return n
}

// intern gives the node of what a directory holds, with a reference more for the kernel, or else pinned.
func (v *Volume) intern(dir *node, h checkpoint.LayerSlot, lookup bool) *node {
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	n := v.internLocked(h)
	if lookup {
		n.lookups++
	} else {
		n.pins++
	}
	if n.IsDir() && dir != nil {
		v.setParent(n, dir)
	}
	return n
}

// setParent notes where a directory is. The caller holds nodesMu.
func (v *Volume) setParent(n, dir *node) {
	if n.parent == dir || n == v.root {
		return
	}
	old := n.parent
	n.parent = dir
	dir.children++
	if old != nil {
		old.children--
		v.release(old)
	}
}

// Forget implements overlay.Volume.
func (v *Volume) Forget(i overlay.Inode, nlookup uint64) {
	n, ok := i.(*node)
	if !ok {
		return
	}
	v.nodesMu.Lock()
	n.lookups -= min(nlookup, n.lookups)
	gone := v.release(n)
	v.nodesMu.Unlock()
	v.buryAll(gone)
}

func (v *Volume) pin(n *node) {
	v.nodesMu.Lock()
	n.pins++
	v.nodesMu.Unlock()
}

func (v *Volume) unpin(n *node) {
	v.nodesMu.Lock()
	n.pins--
	gone := v.release(n)
	v.nodesMu.Unlock()
	v.buryAll(gone)
}

// release drops a node that nobody holds any more, and gives what it and those above it leave behind. The caller holds nodesMu.
func (v *Volume) release(n *node) (gone []*node) {
	for n != nil && n != v.root && n.lookups == 0 && n.children == 0 && n.pins == 0 {
		if v.nodes[n.id] == n {
			delete(v.nodes, n.id)
		}
		if _, ok := v.orphans[n]; ok {
			delete(v.orphans, n)
			gone = append(gone, n)
		}
		parent := n.parent
		n.parent = nil
		if parent != nil {
			parent.children--
		}
		n = parent
	}
	return gone
}

// buryAll removes the pool inodes that orphans had for themselves.
func (v *Volume) buryAll(gone []*node) {
	for _, n := range gone {
		if n.orphan != nil && n.orphan.layer == private { // nobody has the node any more
			v.m.discard(n.orphan.pool)
		}
	}
}

// entry tells where an inode is. st is the volume's state.
func (v *Volume) entry(n *node) inode {
	v.st.mu.RLock()
	defer v.st.mu.RUnlock()
	return v.entryLocked(n)
}

// entryLocked is entry for a caller who holds state.mu.
func (v *Volume) entryLocked(n *node) inode {
	if n.orphan != nil {
		return *n.orphan
	}
	return v.st.inodes[n.id]
}

// isDead reports whether an inode has no name.
func (v *Volume) isDead(n *node) bool {
	v.st.mu.RLock()
	defer v.st.mu.RUnlock()
	return n.orphan != nil
}

// own gives the node that an argument of a call stands for: ESTALE says that it is another volume's.
func (v *Volume) own(i overlay.Inode) (*node, error) {
	n, ok := i.(*node)
	if !ok || n == nil {
		return nil, unix.ESTALE
	}
	return n, nil
}

// isLive reports whether the inode record that e stands for may be changed in place.
func (v *Volume) isLive(e inode) bool {
	return e.pool != 0 && (e.layer == v.layer || e.layer == private)
}

// settled calls fn with where an inode is, again if it was moved meanwhile: a copy-up replaces the metadata-only inode of its own layer.
func (v *Volume) settled(n *node, fn func(e inode) error) error {
	for {
		e := v.entry(n)
		err := fn(e)
		if err != unix.ENOENT || v.entry(n) == e {
			return err
		}
	}
}
