//go:build linux

package overlay

import (
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// Replacing keeps an old inode itself as the preimage: it goes to the trash whole, by a hard link, and a new inode takes its
// slot before anything is written. It is done only where nobody can notice but by the inode number: the file has one name,
// and nobody has it open. Whoever calls Open opens an inode once at a time (as fs/ does), so that nobody gets the old one
// while it is replaced. Everything else is left to a copy.

// replaceForTruncate puts a new, empty inode in the place of an old one that is about to be emptied. The caller holds n.mu.
func (t *Tree) replaceForTruncate(n *Node) (bool, error) {
	if t.cheapSave() {
		return false, nil
	}
	byLink := t.keepsByLink()
	return t.replace(n, func(st *unix.Statx_t) bool {
		return st.Size >= replaceMin || byLink && !t.tier.hot.Takes(int64(st.Size))
	}, nil)
}

// replaceForWrite puts a copy in the place of an old inode that is about to be opened for writing: that is how the tier posix-link
// keeps preimages. A large file may be opened for writing and never written, so it is copied at its first write, when it is open. The caller
// holds n.mu.
func (t *Tree) replaceForWrite(n *Node) (bool, error) {
	if !t.keepsByLink() || !t.births { // on overlayfs it can't be known who has a file mapped
		return false, nil
	}
	return t.replace(n, func(st *unix.Statx_t) bool {
		return int64(st.Size) <= t.largeMin && !t.tier.hot.Takes(int64(st.Size))
	}, t.copyInto)
}

// keepsByLink reports whether the tier keeps old inodes themselves.
func (t *Tree) keepsByLink() bool { return t.tier.Kind() == strategy.PosixLink }

// replace replaces the inode of n if that can be done and is wanted for what st describes. fill gives the new one its
// content; nil leaves it empty.
func (t *Tree) replace(n *Node, wanted func(st *unix.Statx_t) bool, fill fillFunc) (bool, error) {
	if !t.protecting || !n.regular || n.newIn.Load() == uint64(t.epoch) || n.contentIn.Load() == uint64(t.epoch) || t.isOpen(n) {
		return false, nil
	}
	parent, name, ok := t.slotOf(n)
	if !ok {
		return false, nil
	}
	var st unix.Statx_t
	if err := t.stat(n, &st); err != nil {
		return false, err
	}
	if st.Nlink != 1 || !wanted(&st) {
		return false, nil
	}
	parent.mu.Lock()
	defer parent.mu.Unlock()
	if p, nm, ok := t.slotOf(n); !ok || p != parent || nm != name {
		return false, nil // renamed meanwhile
	}
	return t.replaceInode(n, parent, name, &st, fill)
}

// fillFunc writes what the new inode, open as dst, holds at first.
type fillFunc func(n *Node, dst *os.File, st *unix.Statx_t) error

// copyInto gives the new inode the bytes and the modification time of the old one. It fails where somebody has that mapped.
func (t *Tree) copyInto(n *Node, dst *os.File, st *unix.Statx_t) error {
	old, err := t.openNode(n, unix.O_RDONLY)
	if err != nil {
		return err
	}
	src := os.NewFile(uintptr(old), "old")
	defer src.Close()
	if !onlyOurs(old) {
		return unix.EBUSY
	}
	if err := strategy.Copy(dst, src); err != nil {
		return err
	}
	if t.syncCopies {
		if err := unix.Fdatasync(int(dst.Fd())); err != nil {
			return err
		}
	}
	return setMtime(int(dst.Fd()), nsOf(st.Mtime))
}

// onlyOurs reports whether fd is all that its file is open with: that is when the kernel grants a write lease (fcntl(2),
// F_SETLEASE; check_conflicting_open in fs/locks.c), as a mapping counts as an open file. The lease lasts for a moment only.
func onlyOurs(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return err == nil
}

// replaceInode does it. Whatever stands in its way is left to a copy, but a failure of the log.
func (t *Tree) replaceInode(n, parent *Node, name string, st *unix.Statx_t, fill fillFunc) (bool, error) {
	isNew := false
	err := t.record(func(l *logTx) (err error) {
		isNew, err = t.isNew(l, n)
		return err
	})
	if err != nil || isNew {
		return false, err
	}
	d, err := t.openDirRef(parent)
	if err != nil {
		return false, err
	}
	defer d.done()
	tmp, err := t.twin(n, st, fill)
	if err != nil {
		return false, nil
	}
	var dirSt, tmpSt unix.Statx_t
	ok := statFd(d.fd, &dirSt) == nil && statAt(t.tmpFd, tmp, &tmpSt) == nil && unix.Faccessat(d.fd, ".", unix.W_OK, unix.AT_EACCESS) == nil
	if ok {
		if err := t.record(func(l *logTx) error { return t.recordChange(l, parent, name, t.occupantOf(st), uint32(st.Mode)) }); err != nil {
			_ = unix.Unlinkat(t.tmpFd, tmp, 0)
			return false, err
		}
		id := t.idOf(st)
		crash.Point("truncate-recorded")
		linked, err := t.linkToTrash(d.fd, name, id)
		crash.Point("truncate-linked")
		ok = err == nil
		if ok {
			if err := unix.Renameat(t.tmpFd, tmp, d.fd, name); err != nil {
				ok = false
				if linked {
					_ = unix.Unlinkat(t.trashFd, id.String(), 0)
				}
			}
		}
	}
	if !ok {
		_ = unix.Unlinkat(t.tmpFd, tmp, 0)
		return false, nil
	}
	_ = setMtime(d.fd, nsOf(dirSt.Mtime)) // writing a file does not change its directory
	t.replaceIdentity(n, t.idOf(&tmpSt))
	t.tier.saved.add(keptTrash, 0)
	n.attrIn.Store(0)
	n.contentIn.Store(0)
	n.xattrIn.Store(0)
	n.oldIn.Store(0)
	n.newIn.Store(uint64(t.epoch))
	t.notifyLater(parent, func() { t.notifier.InvalInode(parent) }) // its listing shows the old inode number
	if fill != nil {
		t.notifyLater(n, func() { t.notifier.InvalInode(n) }) // as do its attributes, which a truncation renews anyway
	}
	return true, nil
}

// twin makes a file in the store that has mode, owner and xattrs of n, and what fill writes.
func (t *Tree) twin(n *Node, st *unix.Statx_t, fill fillFunc) (name string, err error) {
	xs, err := t.readXattrs(n)
	if err != nil {
		return "", err
	}
	name = t.tempName()
	fd, err := unix.Openat(t.tmpFd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if fill != nil {
		err = fill(n, f, st) // first: a write takes set-user-ID and capabilities away
	}
	if err == nil {
		err = applyOwnerAndMode(fd, checkpoint.Attr{Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid})
	}
	if err == nil {
		err = applyXattrs(procPath(fd), xs)
	}
	if err != nil {
		_ = unix.Unlinkat(t.tmpFd, name, 0)
	}
	return name, err
}
