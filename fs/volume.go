package fs

import (
	"maps"
	"slices"
	"sync"

	"github.com/hyperfs/hyperfs/overlay"
)

// volume is a tree of files that is a part of the mount: the live tree, the directories of the shelf, or what these show.
type volume struct {
	overlay.Volume
	root  overlay.Inode
	cache timeouts
	main  bool // the live tree, of which files may be served past the daemon

	// owned says that nothing changes it but requests, and what the kernel is told of: so the kernel may keep pages and listings.
	owned    bool
	uncached bool  // of a branch mount: no pages are kept of files but for mappings, where the kernel can do that
	loan     *loan // nil of what is there for as long as the mount is

	idsMu sync.Mutex          // after the node table's
	ids   map[uint64]struct{} // of its nodes in the node table, so that they are found when it is given up; guarded by idsMu
}

func newVolume(v overlay.Volume, owned bool) *volume {
	n := &volume{Volume: v, root: v.Root(), cache: forNow, owned: owned}
	if owned {
		n.cache = forGood
	}
	return n
}

// Forget gives references back, but for those of the root, which the volume holds by itself.
func (v *volume) Forget(n overlay.Inode, nlookup uint64) {
	if n != v.root {
		v.Volume.Forget(n, nlookup)
	}
}

// hold keeps a volume that is on loan from being given back until let. Who calls it must know that somebody else holds it.
func (v *volume) hold() {
	if v.loan != nil {
		v.loan.users.Add(1)
	}
}

func (v *volume) let() {
	if v.loan != nil {
		v.loan.let()
	}
}

// gone reports whether the volume was given up while something of it was in use.
func (v *volume) gone() bool { return v.loan != nil && v.loan.gone.Load() }

// enter notes that the node table has a node. It is false if the volume was given up; known has all nodes then that were let in.
func (v *volume) enter(id uint64) bool {
	if v.loan == nil {
		return true
	}
	v.idsMu.Lock()
	defer v.idsMu.Unlock()
	if v.gone() {
		return false
	}
	if v.ids == nil {
		v.ids = map[uint64]struct{}{}
	}
	v.ids[id] = struct{}{}
	return true
}

// leave notes that the node table has a node no more.
func (v *volume) leave(id uint64) {
	if v.loan == nil {
		return
	}
	v.idsMu.Lock()
	defer v.idsMu.Unlock()
	delete(v.ids, id)
}

// known gives the IDs of the nodes of a volume that is on loan.
func (v *volume) known() []uint64 {
	v.idsMu.Lock()
	defer v.idsMu.Unlock()
	return slices.Collect(maps.Keys(v.ids))
}

// reserved reports whether the slot is none that a volume of the shelf may have: that of the store. The live tree sees to its own.
func (v *volume) reserved(dir overlay.Inode, name string) bool {
	return (v.loan != nil || v.uncached) && name == overlay.StoreName && dir == v.root
}

// node is an inode, and the volume that it is of.
type node struct {
	vol   *volume
	Inode overlay.Inode
}

func (n node) num() uint64 { return n.Inode.Num() }
