//go:build linux

package overlay

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// On overlayfs, a file that has several names in a lower layer gets another inode when it is changed through one of
// them: the change copies it up, and the link is broken (see "Non-standard behavior" in the kernel's
// overlayfs.rst; the index feature avoids it). So that records name the inode that the change will really reach, the
// copy is made before them. What rollback then can't restore is the link; it was broken underneath.

// copiesUp reports whether a change of the file would make another inode of it.
func (t *Tree) copiesUp(st *unix.Statx_t) bool {
	return !t.births && uint32(st.Mode)&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1
}

// copyUp makes the copy of what a slot holds, and describes what it holds then.
func (t *Tree) copyUp(dir *Node, dirfd int, name string, st *unix.Statx_t) error {
	if !t.copiesUp(st) {
		return nil
	}
	changed, err := copyUpAt(dirfd, name, st)
	if err != nil || !changed {
		return err
	}
	id := t.idOf(st)
	if err := statAt(dirfd, name, st); err != nil {
		return err
	}
	t.moved(id, dir, name, nil, "", false, false)
	t.forgetLater(link{dir, name})
	return nil
}

// copyUpNode does it for an inode that is about to be changed. Its other names stay behind with the old inode. The
// caller holds n.mu.
func (t *Tree) copyUpNode(n *Node) error {
	if t.births || !n.regular {
		return nil
	}
	var st unix.Statx_t
	if err := t.stat(n, &st); err != nil || !t.copiesUp(&st) {
		return nil // without a name it is not in a lower layer; anything else shows when it is changed
	}
	p, err := t.placeOf(n)
	if err != nil {
		return nil
	}
	defer p.done()
	changed, err := copyUpAt(p.dir.fd, p.name, &st)
	if err != nil || !changed {
		return err
	}
	if err := statAt(p.dir.fd, p.name, &st); err != nil {
		return err
	}
	for _, l := range t.becomes(n, t.idOf(&st)) {
		t.forgetLater(l)
	}
	return nil
}

// copyUpAt opens the file for writing, which copies it, and reports whether that has made another inode of it.
func copyUpAt(dirfd int, name string, st *unix.Statx_t) (bool, error) {
	fd, err := unix.Openat(dirfd, name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.EACCES || err == unix.ETXTBSY {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var now unix.Statx_t
	if err := statAt(dirfd, name, &now); err != nil {
		return false, err
	}
	return now.Ino != st.Ino, nil
}

// becomes makes n stand for another inode, under its first name only, and gives the names that it lost.
func (t *Tree) becomes(n *Node, id checkpoint.ID) []link {
	t.nodesMu.Lock()
	defer t.nodesMu.Unlock()
	lost := n.links
	for _, l := range lost {
		l.parent.children--
		t.release(l.parent)
	}
	n.links = nil
	if t.nodes[n.id] == n {
		delete(t.nodes, n.id)
	}
	n.id = id
	n.blocks.Store(nil)
	t.nodes[id] = n
	return lost
}

// forgetLater has the kernel forget a name, when the operation that it waits for is through.
func (t *Tree) forgetLater(l link) {
	t.notifyLater(l.parent, func() { t.notifier.InvalEntry(l.parent, l.name) })
}

// notifyLater runs fn, which notifies the kernel of something about n, outside of the operation under way.
func (t *Tree) notifyLater(n *Node, fn func()) {
	if t.notifier == nil {
		return
	}
	t.pin(n)
	go func() {
		defer t.unpin(n)
		fn()
	}()
}
