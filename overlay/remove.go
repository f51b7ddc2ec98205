//go:build linux

package overlay

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"golang.org/x/sys/unix"
)

// Unlink takes a name away from what is not a directory.
func (t *Tree) Unlink(dir *Node, name string) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.atSlot(dir, name, func(dirfd int, st *unix.Statx_t) error {
		if isDir(st) {
			return unix.EISDIR
		}
		if err := t.mayChange(dir, name, false, "delete"); err != nil {
			return err
		}
		if err := t.copyUp(dir, dirfd, name, st); err != nil {
			return err
		}
		return t.removeSlot(dir, dirfd, name, st)
	})
}

// Rmdir takes away an empty directory.
func (t *Tree) Rmdir(dir *Node, name string) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	t.renameMu.Lock()
	defer t.renameMu.Unlock()
	return t.atSlot(dir, name, func(dirfd int, st *unix.Statx_t) error {
		if !isDir(st) {
			return unix.ENOTDIR
		}
		if t.isForeign(st) {
			return unix.EBUSY
		}
		if err := t.mayChange(dir, name, true, "delete"); err != nil {
			return err
		}
		if n := t.known(t.idOf(st)); n != nil {
			n.mu.Lock()
			defer n.mu.Unlock()
		}
		return t.removeSlot(dir, dirfd, name, st)
	})
}

// atSlot calls fn with what a slot holds, its directory being open and locked.
func (t *Tree) atSlot(dir *Node, name string, fn func(dirfd int, st *unix.Statx_t) error) error {
	if err := t.writable(dir, name); err != nil {
		return err
	}
	dir.mu.Lock()
	defer dir.mu.Unlock()
	d, err := t.openDirRef(dir)
	if err != nil {
		return err
	}
	defer d.done()
	var st unix.Statx_t
	if err := statAt(d.fd, name, &st); err != nil {
		return err
	}
	return fn(d.fd, &st)
}

// removeSlot empties a slot: what is old goes to the trash, what is new is deleted. The caller holds dir.mu and, of a
// directory that is removed, its mu.
func (t *Tree) removeSlot(dir *Node, dirfd int, name string, st *unix.Statx_t) error {
	keep, err := t.protectOccupant(dir, dirfd, name, st)
	if err != nil {
		return err
	}
	crash.Point("remove-recorded")
	id := t.idOf(st)
	if keep {
		if err := t.toTrash(dirfd, name, id, isDir(st)); err != nil {
			return err
		}
		t.tookAway(id, dir, name, st, true)
		return nil
	}
	if err := t.keepOpenAt(dirfd, name, st); err != nil {
		return err
	}
	if err := unix.Unlinkat(dirfd, name, removeFlag(st)); err != nil {
		return err
	}
	t.tookAway(id, dir, name, st, false)
	return nil
}

func removeFlag(st *unix.Statx_t) int {
	if isDir(st) {
		return unix.AT_REMOVEDIR
	}
	return 0
}

// tookAway notes that a program emptied a slot; kept says that what it held is in the trash now. The node of a directory
// ends here in any case: the kernel marks what it knows under its number as removed for good, so if the directory comes back, it
// must do so under another one.
func (t *Tree) tookAway(id checkpoint.ID, dir *Node, name string, st *unix.Statx_t, kept bool) {
	gone := isDir(st) || !kept && st.Nlink <= 1
	if n := t.known(id); n != nil && gone {
		last := *st
		last.Nlink = 0
		t.nodesMu.Lock()
		n.last = &last
		t.nodesMu.Unlock()
	}
	t.moved(id, dir, name, nil, "", kept && !isDir(st), gone)
}

// protectOccupant records what a slot holds before it is taken away, and reports whether it must be kept in the trash. A
// directory that is kept must be empty, as its entries would be lost from view: ENOTEMPTY.
func (t *Tree) protectOccupant(dir *Node, dirfd int, name string, st *unix.Statx_t) (keep bool, err error) {
	if !t.protecting {
		return false, nil
	}
	if n := t.known(t.idOf(st)); n != nil && n.newIn.Load() == uint64(t.epoch) && dir.newIn.Load() == uint64(t.epoch) {
		return false, nil // neither has a record, and none is made; rmdir finds out whether it is empty
	}
	if isDir(st) {
		if err := emptyDir(dirfd, name); err != nil {
			return false, err
		}
	}
	held := t.occupantOf(st)
	err = t.record(func(l *logTx) error {
		isNew, err := t.isNewAt(l, dir, name, st)
		if err != nil {
			return err
		}
		if keep = !isNew; keep {
			if err := t.recordNames(l, st, -1); err != nil {
				return err
			}
			if keep, err = t.isNeeded(l, dir, name, st); err != nil {
				return err
			}
		}
		if keep && isDir(st) {
			if err := t.recordRemovedDir(l, dir, name, st, held.ID); err != nil {
				return err
			}
			keep = t.canMoveDirs // otherwise rollback makes it anew
		}
		return t.recordChange(l, dir, name, held, 0)
	})
	return keep, err
}

// isNeeded reports whether an old inode that is about to lose a slot must be kept: the slot's record will name it, or
// another record does. Otherwise it is a further name, and the one that the checkpoint knows is still there.
func (t *Tree) isNeeded(l *logTx, dir *Node, name string, st *unix.Statx_t) (bool, error) {
	covered, err := t.loose(l, dir, name, isDir(st))
	if err == nil && !covered {
		covered, err = t.covered(l, dir, name)
	}
	if err != nil || !covered {
		return !covered, err
	}
	return l.Named(t.idOf(st))
}

// recordRemovedDir notes the attributes of an old directory that is about to be removed: moving it changes its
// modification time on some filesystems (XFS), its mode may have to be lifted for that, or it has to be made anew.
func (t *Tree) recordRemovedDir(l *logTx, dir *Node, name string, st *unix.Statx_t, id checkpoint.ID) error {
	has, err := l.HasAttr(t.epoch, id)
	if err != nil {
		return err
	}
	if !has {
		at := checkpoint.Slot{Dir: t.identity(dir), Name: name}
		if err := l.PutAttr(t.epoch, id, t.attrRecord(st, at)); err != nil {
			return err
		}
	}
	if t.canMoveDirs {
		return nil
	}
	d, err := t.openDirRef(dir)
	if err != nil {
		return err
	}
	defer d.done()
	if has, err := l.HasXattrs(t.epoch, id); err != nil || has {
		return err
	}
	fd, err := openDirAt(d.fd, name, st.Ino)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	xs, err := xattrsOf(procPath(fd))
	if err != nil {
		return err
	}
	return l.PutXattrs(t.epoch, id, xs)
}

// emptyDir fails with ENOTEMPTY where a directory has entries.
func emptyDir(dirfd int, name string) error {
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.EACCES { // one of ours that we may not read: only rmdir can tell
		return emptyUnreadableDir(dirfd, name)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 1024)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		empty := true
		eachDirent(buf[:n], func(e rawDirent) bool {
			empty = e.name == "." || e.name == ".."
			return empty
		})
		if !empty {
			return unix.ENOTEMPTY
		}
	}
}

func emptyUnreadableDir(dirfd int, name string) error {
	fd, err := unix.Openat(dirfd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := statFd(fd, &st); err != nil {
		return err
	}
	if err := chmodFd(fd, uint32(st.Mode)&0o7777|0o700); err != nil {
		return unix.EACCES
	}
	defer func() { _ = chmodFd(fd, uint32(st.Mode)&0o7777) }()
	return emptyDir(dirfd, name)
}
