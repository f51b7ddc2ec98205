//go:build linux

package branch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

var _ overlay.Volume = (*Volume)(nil)

// Volume is the tree of a branch, or what a branch or main was at a checkpoint, read-only. Give it back with Close. It stays valid when the branch
// is dropped; then every call gives ESTALE.
type Volume struct {
	m        *Manager
	key      volumeKey
	salt     uint64 // of inode numbers
	readonly bool
	epoch    checkpoint.Epoch // of main, below all layers
	root     *node            // made when it is first asked for, as it needs the state

	admin sync.Mutex

	mu    sync.RWMutex // see doc.go
	layer uint64       // the top of the chain, the live one if not readonly; guarded by mu
	st    *state       // nil while the volume is idle; guarded by mu
	gone  bool         // the branch was dropped, or the manager closed; guarded by mu
	used  atomic.Int64 // when, ns since 1970

	nameMu sync.Mutex

	nodesMu sync.Mutex
	nodes   map[checkpoint.ID]*node // those of inodes that have a name; guarded by nodesMu
	orphans map[*node]struct{}      // those of the others; guarded by nodesMu
	open    map[*node]struct{}      // those that are open for writing; guarded by nodesMu

	users int // who has not called Close; guarded by Manager.mu
}

// volumeKey names a volume of a manager.
type volumeKey struct {
	branch uint64           // of a branch's live state; 0 otherwise
	layer  uint64           // of a read-only one
	epoch  checkpoint.Epoch // of one of main
}

// enter begins an operation, which shares the volume; leave ends it. It loads what is needed.
func (v *Volume) enter() error {
	for {
		v.mu.RLock()
		switch {
		case v.gone:
			v.mu.RUnlock()
			return unix.ESTALE
		case v.st != nil:
			v.used.Store(time.Now().UnixNano())
			return nil
		}
		v.mu.RUnlock()
		if err := v.load(); err != nil {
			return err
		}
	}
}

func (v *Volume) leave() { v.mu.RUnlock() }

// enterToChange is enter for operations that change something.
func (v *Volume) enterToChange() error {
	if v.readonly {
		return unix.EROFS
	}
	return v.enter()
}

// load merges the layers, if nobody else has done so.
func (v *Volume) load() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.loadLocked()
}

// loadLocked is load for a caller who holds mu alone.
func (v *Volume) loadLocked() error {
	if v.gone {
		return unix.ESTALE
	}
	v.used.Store(time.Now().UnixNano())
	if v.st != nil {
		return nil
	}
	st, err := v.m.loadState(v.epoch, v.layer)
	if err != nil {
		v.m.log.Error("a branch can't be read", "err", err)
		return unix.EIO
	}
	v.st = st
	return nil
}

// unload lets go of what is only needed while somebody uses the volume, and reports whether there is nothing left. A branch is loaded again
// when the kernel asks for what it remembers of it. A state that is past and which nobody needs any more could not be: it stays as long as
// somebody has a node.
func (v *Volume) unload(idle time.Duration) bool {
	if !v.mu.TryLock() {
		return false
	}
	defer v.mu.Unlock()
	if v.st != nil {
		recent := time.Since(time.Unix(0, v.used.Load())) < idle
		if recent || v.isBusy() || v.readonly && v.isHeld() {
			return false
		}
		v.closeState()
		v.m.unloaded.Store(true)
	}
	return !v.isHeld()
}

// isHeld reports whether somebody has a node besides the root, or something open.
func (v *Volume) isHeld() bool {
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	return len(v.nodes) > 1 || len(v.orphans) > 0 || v.root != nil && (v.root.children > 0 || v.root.pins > 0)
}

// isBusy reports whether there is something open, work under way, or an inode without a name, of which only the node knows.
func (v *Volume) isBusy() bool {
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	if len(v.orphans) > 0 {
		return true
	}
	for _, n := range v.nodes {
		if n.pins > 0 {
			return true
		}
	}
	return false
}

// closeState lets the state go. The caller holds mu alone.
func (v *Volume) closeState() {
	if v.st != nil {
		v.st.base.Close()
		v.st = nil
	}
}

// Close gives the volume back.
func (v *Volume) Close() { v.m.giveBack(v) }

// Root implements overlay.Volume. The root is always held.
func (v *Volume) Root() overlay.Inode { return v.root }

// Layer gives the number of the layer on top, for tests and diagnostics.
func (v *Volume) Layer() uint64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.layer
}

// Statfs implements overlay.Volume.
func (v *Volume) Statfs() (st unix.Statfs_t, err error) {
	err = unix.Fstatfs(v.m.pool.fd, &st)
	return st, err
}

// ino gives the inode number that programs see. All volumes of a mount have one device number, and programs tell files apart by the two.
func (v *Volume) ino(id checkpoint.ID) uint64 {
	salt := v.salt
	if id.Birth == bornHere {
		salt = ^salt
	}
	return mix(mix(salt)+id.Ino)>>2 | 1<<62
}

// mix is the finisher of SplitMix64, which is one to one.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
