package fs

import "github.com/hyperfs/hyperfs/overlay"

// volume is a tree of files that is a part of the mount: the live tree, the directories of the shelf, or what these show.
type volume struct {
	overlay.Volume
	root  overlay.Inode
	cache timeouts
	main  bool // the live tree, of which files may be served past the daemon

	// owned says that nothing changes it but requests, and what the kernel is told of: so the kernel may keep pages and listings.
	owned bool
	loan  *loan // nil of what is there for as long as the mount is
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

// reserved reports whether the slot is none that a volume of the shelf may have: that of the store. The live tree sees to its own.
func (v *volume) reserved(dir overlay.Inode, name string) bool {
	return v.loan != nil && name == overlay.StoreName && dir == v.root
}

// node is an inode, and the volume that it is of.
type node struct {
	vol   *volume
	Inode overlay.Inode
}

func (n node) num() uint64 { return n.Inode.Num() }
