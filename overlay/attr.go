//go:build linux

package overlay

import (
	"golang.org/x/sys/unix"
)

// Attr are the attributes of an inode as statx(2) gives them. Nlink does not count a name in the trash.
type Attr struct {
	Ino                        uint64
	Mode, Nlink, UID, GID      uint32
	Rdev                       uint64
	Size, Blocks               int64 // bytes; units of 512 bytes
	Blksize                    uint32
	Atime, Mtime, Ctime, Btime unix.Timespec
}

// Bits of SetAttr.Valid.
const (
	SetMode = 1 << iota
	SetUID
	SetGID
	SetSize
	SetAtime
	SetMtime
	SetAtimeNow
	SetMtimeNow
	SetKillPriv // clear set-user-ID, and set-group-ID of what the group may execute
)

// SetAttr says which attributes to change.
type SetAttr struct {
	Valid          uint32
	Mode, UID, GID uint32
	Size           int64 // bytes
	Atime, Mtime   unix.Timespec
}

// kind names the change, as IgnoredWrite does.
func (in *SetAttr) kind() string {
	if in.Valid&SetSize != 0 {
		return "modify"
	}
	return "attributes"
}

func timespec(ts unix.StatxTimestamp) unix.Timespec {
	return unix.Timespec{Sec: ts.Sec, Nsec: int64(ts.Nsec)}
}

func attrOf(st *unix.Statx_t) Attr {
	return Attr{
		Ino: st.Ino, Mode: uint32(st.Mode), Nlink: st.Nlink, UID: st.Uid, GID: st.Gid,
		Rdev: unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		Size: int64(st.Size), Blocks: int64(st.Blocks), Blksize: st.Blksize,
		Atime: timespec(st.Atime), Mtime: timespec(st.Mtime), Ctime: timespec(st.Ctime), Btime: timespec(st.Btime),
	}
}

// visible turns what the lower says into what the tree shows: a name in the trash is not counted. again asks the lower once more.
//
// The collector may take that name away, and a change may add it, between the two questions. Where there is none, the names are counted once more after that was
// found out. Where there is one, nobody may touch it meanwhile: while a name is being removed, the kernel still finds it when it does not count it any more.
func (t *Tree) visible(st *unix.Statx_t, again func(*unix.Statx_t) error) Attr {
	if isDir(st) || st.Nlink <= 1 && !t.identityTrashed(st) {
		return attrOf(st)
	}
	id := t.idOf(st)
	recount := func() bool {
		next := *st
		if err := again(&next); err != nil || t.idOf(&next) != id {
			return false // it has gone from here: what was seen of it is as good as any
		}
		*st = next
		return true
	}
	trashed := t.inTrash(id)
	if !trashed && recount() {
		trashed = t.inTrash(id)
	}
	if trashed {
		t.trashMu.Lock()
		if recount() {
			trashed = t.inTrash(id)
		}
		t.trashMu.Unlock()
	}
	a := attrOf(st)
	if trashed && a.Nlink > 0 {
		a.Nlink--
	}
	return a
}

// visibleAt is visible for what a directory has under a name.
func (t *Tree) visibleAt(dirfd int, name string, st *unix.Statx_t) Attr {
	return t.visible(st, func(st *unix.Statx_t) error { return statAt(dirfd, name, st) })
}

// names gives how many names the tree shows of the inode that st describes, whichever of them that was by.
func (t *Tree) names(st *unix.Statx_t) uint32 {
	now := *st
	return t.visible(&now, func(st *unix.Statx_t) error {
		n := t.known(t.idOf(st))
		if n == nil {
			return unix.ESTALE
		}
		return t.statOpen(n, nil, st)
	}).Nlink
}

// identityTrashed reports whether the inode is known to have its only name in the trash.
func (t *Tree) identityTrashed(st *unix.Statx_t) bool {
	n := t.known(t.idOf(st))
	if n == nil {
		return false
	}
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	return n.trashed
}

// Lookup finds a name. It adds a reference to the node that it gives.
func (t *Tree) Lookup(dir *Node, name string) (*Node, Attr, error) {
	if t.hidden(dir, name) {
		return nil, Attr{}, unix.ENOENT
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, err := t.openDirRef(dir)
	if err != nil {
		return nil, Attr{}, err
	}
	defer d.done()
	var st unix.Statx_t
	if err := statAt(d.fd, name, &st); err != nil {
		return nil, Attr{}, err
	}
	a := t.visibleAt(d.fd, name, &st)
	return t.intern(&st, dir, name), a, nil
}

// GetAttr gives the attributes of a node, through a handle of it if there is one (h may be nil).
func (t *Tree) GetAttr(n *Node, h *Handle) (Attr, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.getAttr(n, h)
}

func (t *Tree) getAttr(n *Node, h *Handle) (Attr, error) {
	var st unix.Statx_t
	err := t.statOpen(n, h, &st)
	if err != nil {
		return Attr{}, err
	}
	return t.visible(&st, func(st *unix.Statx_t) error { return t.statOpen(n, h, st) }), nil
}

// statOpen describes a node that has a name or an open handle.
func (t *Tree) statOpen(n *Node, h *Handle, st *unix.Statx_t) error {
	if h != nil {
		return statFd(h.fd, st)
	}
	err := t.stat(n, st)
	if err != unix.ESTALE {
		return err
	}
	fd, err := t.dupHandle(n)
	if err != nil {
		return t.lastStat(n, st)
	}
	defer unix.Close(fd)
	return statFd(fd, st)
}

// SetAttr changes attributes, through a handle if there is one (h may be nil), and gives all as they are then.
func (t *Tree) SetAttr(n *Node, h *Handle, in *SetAttr) (Attr, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if n.foreign {
		return Attr{}, unix.EROFS
	}
	if h == nil || !h.writable { // else it was asked when the file was opened
		if err := t.mayChangeNode(n, in.kind()); err != nil {
			return Attr{}, err
		}
	}
	if err := t.beginChange(); err != nil {
		return Attr{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := t.copyUpNode(n); err != nil {
		return Attr{}, err
	}
	if h == nil && in.Valid&SetSize != 0 && in.Size == 0 { // open(2) with O_TRUNC comes as this where opens are not seen
		if _, err := t.replaceForTruncate(n); err != nil {
			return Attr{}, err
		}
	}
	var st unix.Statx_t
	ref, err := t.reachOpen(n, h, &st)
	if err != nil {
		return Attr{}, err
	}
	defer ref.done()
	if err := t.protectForSetAttr(n, ref, &st, in); err != nil {
		return Attr{}, err
	}
	if err := applySetAttr(h, ref, in); err != nil {
		return Attr{}, err
	}
	if err := statFd(ref.fd, &st); err != nil {
		return Attr{}, err
	}
	return t.visible(&st, func(st *unix.Statx_t) error { return statFd(ref.fd, st) }), nil
}

// protectForSetAttr makes the preimage safe of what ref refers to and, if st.Mask is set, st describes. The caller holds n.mu.
func (t *Tree) protectForSetAttr(n *Node, ref dirRef, st *unix.Statx_t, in *SetAttr) error {
	if !t.protecting {
		return nil
	}
	if in.Valid&SetSize != 0 {
		return t.protectSpan(n, span{max(in.Size, 0), toEnd}, notOpened)
	}
	changesXattrs := in.Valid&(SetMode|SetUID|SetGID|SetKillPriv) != 0 // ACLs and capabilities
	return t.protectReached(n, ref, st, changesXattrs, false)
}

// applySetAttr changes the inode that ref refers to.
func applySetAttr(h *Handle, ref dirRef, in *SetAttr) error {
	fd := ref.fd
	if in.Valid&SetSize != 0 {
		if err := truncate(h, fd, in.Size); err != nil {
			return err
		}
	}
	if in.Valid&(SetUID|SetGID) != 0 {
		if err := chownFd(fd, in); err != nil {
			return err
		}
	}
	if in.Valid&SetMode != 0 {
		if err := ref.chmod(in.Mode & 0o7777); err != nil {
			return err
		}
	}
	if in.Valid&SetKillPriv != 0 {
		if err := killPriv(fd); err != nil {
			return err
		}
	}
	if in.Valid&(SetAtime|SetMtime|SetAtimeNow|SetMtimeNow) != 0 {
		return setTimes(fd, in)
	}
	return nil
}

// truncate is the call that the program made: with the size that the file has already, only ftruncate(2) changes its mtime on every
// filesystem.
func truncate(h *Handle, fd int, size int64) error {
	return ignoringEINTR(func() error {
		if h != nil && h.writable {
			return unix.Ftruncate(h.fd, size)
		}
		return unix.Truncate(procPath(fd), size)
	})
}

func chownFd(fd int, in *SetAttr) error {
	uid, gid := -1, -1
	if in.Valid&SetUID != 0 {
		uid = int(in.UID)
	}
	if in.Valid&SetGID != 0 {
		gid = int(in.GID)
	}
	return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH)
}

// chmod is fchmod(2) where the descriptor is a handle's.
func (r dirRef) chmod(mode uint32) error {
	if r.h != nil {
		return unix.Fchmod(r.fd, mode)
	}
	return chmodFd(r.fd, mode)
}

// chmodFd changes the mode through /proc, which also takes an O_PATH descriptor; fchmodat2(2) would need Linux 6.6.
func chmodFd(fd int, mode uint32) error { return unix.Chmod(procPath(fd), mode) }

func killPriv(fd int) error {
	var st unix.Statx_t
	if err := statFd(fd, &st); err != nil {
		return err
	}
	mode := uint32(st.Mode) & 0o7777
	keep := mode &^ unix.S_ISUID
	if mode&unix.S_IXGRP != 0 {
		keep &^= unix.S_ISGID
	}
	if keep == mode {
		return nil
	}
	return chmodFd(fd, keep)
}

func setTimes(fd int, in *SetAttr) error {
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	switch {
	case in.Valid&SetAtimeNow != 0:
		ts[0].Nsec = unix.UTIME_NOW
	case in.Valid&SetAtime != 0:
		ts[0] = in.Atime
	}
	switch {
	case in.Valid&SetMtimeNow != 0:
		ts[1].Nsec = unix.UTIME_NOW
	case in.Valid&SetMtime != 0:
		ts[1] = in.Mtime
	}
	return utimesFd(fd, ts)
}

// Readlink gives the target of a symlink.
func (t *Tree) Readlink(n *Node) (string, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	ref, err := t.reach(n)
	if err != nil {
		return "", err
	}
	defer ref.done()
	return readlinkAt(ref.fd, "")
}

// Statfs describes the filesystem underneath.
func (t *Tree) Statfs() (st unix.Statfs_t, err error) {
	err = unix.Fstatfs(t.rootFd, &st)
	return st, err
}
