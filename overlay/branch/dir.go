//go:build linux

package branch

import (
	"cmp"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// dir is an open directory. What it lists is worked out at the first entry, and again when somebody starts over or asks for
// what does not come next.
type dir struct {
	v *Volume
	n *node

	mu      sync.Mutex // guards what follows
	entries []overlay.DirEntry
	at      int    // the index of the entry that comes next
	off     uint64 // its cookie
	listed  bool
}

// OpenDir implements overlay.Volume.
func (v *Volume) OpenDir(i overlay.Inode) (overlay.Dir, error) {
	n, err := v.own(i)
	if err == nil {
		err = v.enter()
	}
	if err != nil {
		return nil, err
	}
	defer v.leave()
	if !n.IsDir() {
		return nil, unix.ENOTDIR
	}
	v.pin(n)
	return &dir{v: v, n: n}, nil
}

// Inode implements overlay.Dir.
func (d *dir) Inode() overlay.Inode { return d.n }

// Fsync implements overlay.Dir. The names are in the store.
func (d *dir) Fsync(bool) error { return d.v.m.store.Sync() }

// Release implements overlay.Dir.
func (d *dir) Release() { d.v.unpin(d.n) }

// Next implements overlay.Dir. Cookies are hashes of the names, so they mean the same after any change of the directory.
func (d *dir) Next(off uint64) (e overlay.DirEntry, ok bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if off == 0 || !d.listed || off != d.off {
		if err := d.seek(off); err != nil {
			return e, false, err
		}
	}
	if d.at == len(d.entries) {
		return e, false, nil
	}
	e = d.entries[d.at]
	d.at, d.off = d.at+1, e.Off
	return e, true, nil
}

// seek lists the directory from a cookie on. A listing that goes on is only listed anew where it starts over: with many entries that
// costs, and who removes a tree asks in between.
func (d *dir) seek(off uint64) error {
	if off == 0 || !d.listed {
		if err := d.list(); err != nil {
			return err
		}
	}
	d.off = off
	d.at, _ = slices.BinarySearchFunc(d.entries, off, func(e overlay.DirEntry, off uint64) int {
		if e.Off <= off {
			return -1
		}
		return 1
	})
	return nil
}

func (d *dir) list() error {
	v := d.v
	if err := v.enter(); err != nil {
		return err
	}
	defer v.leave()
	d.entries, d.listed = d.entries[:0], true
	v.st.mu.RLock()
	dead := d.n.orphan != nil
	v.st.mu.RUnlock()
	if dead {
		return nil
	}
	err := v.st.list(d.n.id, func(name string, h checkpoint.LayerSlot) bool {
		if !v.hidden(d.n, name) {
			d.entries = append(d.entries, overlay.DirEntry{Name: name, Ino: v.ino(h.ID), Type: h.Type, Off: hashOf(name)})
		}
		return true
	})
	if err != nil {
		return err
	}
	slices.SortFunc(d.entries, func(a, b overlay.DirEntry) int {
		return cmp.Or(cmp.Compare(a.Off, b.Off), cmp.Compare(a.Name, b.Name))
	})
	d.entries = slices.Insert(d.entries, 0,
		overlay.DirEntry{Name: ".", Ino: v.ino(d.n.id), Type: unix.S_IFDIR, Off: 1},
		overlay.DirEntry{Name: "..", Ino: v.parentIno(d.n), Type: unix.S_IFDIR, Off: 2})
	for i := 2; i < len(d.entries); i++ { // of two names with one hash the second gets the next number
		d.entries[i].Off = max(d.entries[i].Off, d.entries[i-1].Off+1)
	}
	return nil
}

func (v *Volume) parentIno(n *node) uint64 {
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	if n.parent != nil {
		n = n.parent
	}
	return v.ino(n.id)
}

// hashOf gives the cookie behind a name: the kernel takes no more than 63 bits, and the first ones are those of "." and "..".
func hashOf(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return mix(h.Sum64())>>2 + 3
}
