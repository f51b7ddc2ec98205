//go:build linux

package overlay

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"golang.org/x/sys/unix"
)

// made is what a slot is about to get.
type made struct {
	dir   *Node
	name  string
	mode  uint32
	owner *Caller
	kind  string // what that is called: create, mkdir, mknod, symlink
}

// format gives its type as far as it matters where it goes.
func (m made) format() uint32 {
	if m.kind == "mkdir" {
		return unix.S_IFDIR
	}
	return unix.S_IFREG
}

// create runs make, which fills an empty slot, with the slot's record made before, and gives the new inode its
// owner. The caller holds t.mu.
func (t *Tree) create(m made, fill func(dirfd int, mode uint32) error) (*Node, Attr, error) {
	if err := t.writable(m.dir, m.name); err != nil {
		return nil, Attr{}, err
	}
	if err := t.mayChange(m.dir, m.name, m.kind == "mkdir", m.kind); err != nil {
		return nil, Attr{}, err
	}
	m.dir.mu.Lock()
	defer m.dir.mu.Unlock()
	d, err := t.openDirRef(m.dir)
	if err != nil {
		return nil, Attr{}, err
	}
	defer d.done()
	return t.createLocked(m, d.fd, fill)
}

// createLocked is create for a caller who holds m.dir.mu and has the directory open.
func (t *Tree) createLocked(m made, dirfd int, fill func(dirfd int, mode uint32) error) (*Node, Attr, error) {
	if err := t.protectEmptySlot(m.dir, dirfd, m.name, m.format()); err != nil {
		return nil, Attr{}, err
	}
	crash.Point("create-recorded")
	if err := fill(dirfd, t.creationMode(m.dir, m.mode, m.owner)); err != nil {
		return nil, Attr{}, err
	}
	var st unix.Statx_t
	if err := statAt(dirfd, m.name, &st); err != nil {
		return nil, Attr{}, err
	}
	crash.Point("create-made")
	if err := t.giveTo(m.owner, dirfd, m.name, &st); err != nil {
		return nil, Attr{}, err
	}
	n := t.intern(&st, m.dir, m.name)
	if t.protecting {
		n.newIn.Store(uint64(t.epoch))
	}
	return n, t.visibleAt(dirfd, m.name, &st), nil
}

// protectEmptySlot records that a slot is empty that is about to get something of a type, or fails with EEXIST. The caller holds dir.mu.
func (t *Tree) protectEmptySlot(dir *Node, dirfd int, name string, gets uint32) error {
	if !t.protecting || dir.newIn.Load() == uint64(t.epoch) {
		return nil
	}
	var st unix.Statx_t
	if err := statAt(dirfd, name, &st); err == nil {
		return unix.EEXIST
	} else if err != unix.ENOENT {
		return err
	}
	return t.record(func(l *logTx) error { return t.recordChange(l, dir, name, checkpoint.Occupant{}, gets) })
}

// creationMode applies the caller's umask, but where the directory has a default ACL: then that takes its place (see acl(5)).
func (t *Tree) creationMode(dir *Node, mode uint32, c *Caller) uint32 {
	if c == nil || c.Umask == 0 || t.hasDefaultACL(dir) {
		return mode
	}
	return mode &^ c.Umask
}

func (t *Tree) hasDefaultACL(dir *Node) bool {
	if v := dir.defACL.Load(); v != 0 {
		return v == 2
	}
	d, err := t.openDirRef(dir)
	if err != nil {
		return false
	}
	defer d.done()
	_, err = unix.Getxattr(procPath(d.fd), "system.posix_acl_default", nil)
	if err == nil {
		dir.defACL.Store(2)
	} else {
		dir.defACL.Store(1)
	}
	return err == nil
}

// giveTo makes the caller the owner of what the daemon has made for it, as the kernel would have: the group is the
// directory's where that has set-group-ID. Without rights over others' files the daemon serves only its own user.
func (t *Tree) giveTo(c *Caller, dirfd int, name string, st *unix.Statx_t) error {
	if c == nil || !t.privileged {
		return nil
	}
	uid, gid := c.UID, c.GID
	if gid != st.Gid {
		var parent unix.Statx_t
		if err := statFd(dirfd, &parent); err != nil {
			return err
		}
		if parent.Mode&unix.S_ISGID != 0 {
			gid = st.Gid
		}
	}
	if uid == st.Uid && gid == st.Gid {
		return nil
	}
	if err := unix.Fchownat(dirfd, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	mode := uint32(st.Mode)
	if mode&(unix.S_ISUID|unix.S_ISGID) != 0 && mode&unix.S_IFMT == unix.S_IFREG { // chown takes them away
		if err := unix.Fchmodat(dirfd, name, mode&0o7777, 0); err != nil {
			return err
		}
	}
	return statAt(dirfd, name, st)
}

// Mknod makes a file, a FIFO, a socket or a device. It adds a reference to the node that it gives.
func (t *Tree) Mknod(dir *Node, name string, mode, rdev uint32, c *Caller) (*Node, Attr, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.create(made{dir, name, mode, c, "mknod"}, func(dirfd int, mode uint32) error {
		return unix.Mknodat(dirfd, name, mode, int(rdev))
	})
}

// Mkdir makes a directory. It adds a reference to the node that it gives.
func (t *Tree) Mkdir(dir *Node, name string, mode uint32, c *Caller) (*Node, Attr, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.create(made{dir, name, mode, c, "mkdir"}, func(dirfd int, mode uint32) error {
		return unix.Mkdirat(dirfd, name, mode)
	})
}

// Symlink makes a symlink. It adds a reference to the node that it gives.
func (t *Tree) Symlink(dir *Node, name, target string, c *Caller) (*Node, Attr, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.create(made{dir, name, 0, c, "symlink"}, func(dirfd int, _ uint32) error {
		return unix.Symlinkat(target, dirfd, name)
	})
}

// Link gives n another name. It adds a reference to n.
func (t *Tree) Link(n *Node, dir *Node, name string) (Attr, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if err := t.writable(dir, name); err != nil {
		return Attr{}, err
	}
	if n.dir {
		return Attr{}, unix.EPERM
	}
	if err := t.mayLink(n, dir, name); err != nil {
		return Attr{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := t.copyUpNode(n); err != nil {
		return Attr{}, err
	}
	dir.mu.Lock()
	defer dir.mu.Unlock()
	d, err := t.openDirRef(dir)
	if err != nil {
		return Attr{}, err
	}
	defer d.done()
	from, err := t.reach(n)
	if err != nil {
		return Attr{}, unix.ENOENT
	}
	defer from.done()
	var st unix.Statx_t
	if err := statFd(from.fd, &st); err != nil {
		return Attr{}, err
	}
	if err := t.protectLink(n, &st, dir, d.fd, name); err != nil {
		return Attr{}, err
	}
	// Through /proc, as AT_EMPTY_PATH would take CAP_DAC_READ_SEARCH; see linkat(2).
	if err := unix.Linkat(unix.AT_FDCWD, procPath(from.fd), d.fd, name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return Attr{}, err
	}
	if err := statAt(d.fd, name, &st); err != nil {
		return Attr{}, err
	}
	t.nodesMu.Lock()
	if n.dead {
		t.nodes[n.id] = n
	}
	t.addName(n, dir, name)
	n.lookups++
	t.nodesMu.Unlock()
	t.disown(n) // its name leads to it now
	return t.visibleAt(d.fd, name, &st), nil
}

// protectLink records the empty slot, and that what it gets is old, if it is: linked describes that.
func (t *Tree) protectLink(n *Node, linked *unix.Statx_t, dir *Node, dirfd int, name string) error {
	if !t.protecting {
		return nil
	}
	var st unix.Statx_t
	if err := statAt(dirfd, name, &st); err == nil {
		return unix.EEXIST
	} else if err != unix.ENOENT {
		return err
	}
	return t.record(func(l *logTx) error {
		isNew, err := t.isNew(l, n)
		if err != nil {
			return err
		}
		if !isNew {
			if err := t.recordNames(l, linked, 1); err != nil {
				return err
			}
			to := checkpoint.Slot{Dir: t.identity(dir), Name: name}
			if err := l.MarkLinked(t.epoch, t.identity(n), to); err != nil {
				return err
			}
			if err := t.ensureLinkLoc(l, n); err != nil {
				return err
			}
			if err := t.ensureLoc(l, dir); err != nil {
				return err
			}
		}
		if err := t.recordExile(l, isNew, linked, dir, name); err != nil {
			return err
		}
		return t.recordChange(l, dir, name, checkpoint.Occupant{}, unix.S_IFREG)
	})
}

// mayLink fails with EROFS where strict mode stops it: what is ignored gets no protected name either, by which it could be changed.
func (t *Tree) mayLink(n, dir *Node, name string) error {
	if err := t.mayChange(dir, name, false, "link"); err != nil {
		return err
	}
	return t.mayChangeNode(n, "link")
}

// ensureLinkLoc notes where an inode with several names can be found.
func (t *Tree) ensureLinkLoc(l *logTx, n *Node) error {
	parent, name, ok := t.slotOf(n)
	if !ok {
		return nil
	}
	if err := t.ensureLoc(l, parent); err != nil {
		return err
	}
	return t.addLocs(l, t.identity(n), checkpoint.Slot{Dir: t.identity(parent), Name: name})
}
