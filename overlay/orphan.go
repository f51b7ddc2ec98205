//go:build linux

package overlay

import (
	"golang.org/x/sys/unix"
)

// OpensUnseen says that who has a node may have it open, without a handle: where the kernel opens files by itself. It is to be called before the tree is used.
//
// A regular file that loses its last name then gets a handle of the tree's own, until its node is forgotten.
func (t *Tree) OpensUnseen() { t.unseen = true }

// mayBeOpen reports whether somebody may have n open.
func (t *Tree) mayBeOpen(n *Node) bool {
	if t.isOpen(n) {
		return true
	}
	return t.unseen && t.isHeld(n)
}

// isHeld reports whether somebody has references of n.
func (t *Tree) isHeld(n *Node) bool {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	return n.lookups > 0
}

// openAgain opens a file for somebody who has had it open since its mode, or that of a directory above it, let them. The mode is lifted for a moment, in which nobody can see
// it; if the daemon dies then, the record has the old one.
func (t *Tree) openAgain(n *Node, flags int) (*Handle, error) {
	t.lockToLook()
	defer t.unlockLooked()
	n.mu.Lock()
	defer n.mu.Unlock()
	if wantsWrite(flags) {
		if err := t.mayChangeNode(n, "modify"); err != nil {
			return nil, err
		}
		if err := t.copyUpNode(n); err != nil {
			return nil, err
		}
	}
	if err := t.beginChange(); err != nil {
		return nil, err
	}
	fd, err := t.openLifted(n, flags, 0o600)
	if err != nil {
		return nil, err
	}
	h := t.newHandle(n, fd, wantsWrite(flags), false)
	h.readable = flags&unix.O_ACCMODE != unix.O_WRONLY
	return h, nil
}

// keepOpen is to be called before the inode that st describes loses a name. If that is its last, and somebody may have it open, it stays open. It fails
// where no more files can be opened.
func (t *Tree) keepOpen(st *unix.Statx_t, open func(flags int) (int, error)) error {
	if !t.unseen || st.Nlink > 1 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	n := t.known(t.idOf(st))
	if n == nil || !t.isHeld(n) {
		return nil
	}
	fd, err := t.dupHandle(n)
	for _, flags := range []int{unix.O_RDWR, unix.O_RDONLY, unix.O_WRONLY, unix.O_PATH} {
		if err == nil || err == unix.EMFILE || err == unix.ENFILE {
			break
		}
		fd, err = open(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC)
	}
	if err != nil {
		return err
	}
	t.adopt(n, fd)
	return nil
}

// keepOpenAt is keepOpen for what a directory has under a name.
func (t *Tree) keepOpenAt(dirfd int, name string, st *unix.Statx_t) error {
	return t.keepOpen(st, func(flags int) (int, error) { return unix.Openat(dirfd, name, flags, 0) })
}

// adopt keeps fd for as long as n is not forgotten, if it has no other that is kept so.
func (t *Tree) adopt(n *Node, fd int) {
	h := t.newHandle(n, fd, false, false)
	t.openMu.Lock()
	_, has := t.orphans[n]
	if !has {
		t.orphans[n] = h
		t.orphanCount.Add(1)
	}
	t.openMu.Unlock()
	if has {
		h.Release()
	}
}

// disown closes what adopt kept of a node that was forgotten.
func (t *Tree) disown(n *Node) {
	if t.orphanCount.Load() == 0 {
		return
	}
	t.openMu.Lock()
	h := t.orphans[n]
	if h != nil {
		delete(t.orphans, n)
		t.orphanCount.Add(-1)
	}
	t.openMu.Unlock()
	if h != nil {
		h.Release()
	}
}
