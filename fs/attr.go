package fs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Lookup finds a name. That there is none is an answer that the kernel can remember: node ID 0.
func (s *filesystem) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	dir, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer dir.vol.let()
	since := s.invalidated.Load()
	n, a, err := s.lookup(dir, name)
	if err == unix.ENOENT && dir.vol.cache.negative > 0 {
		out.SetEntryTimeout(dir.vol.cache.negative) // an invalidation waits for this reply: see notifier.InvalEntry
		return fuse.OK
	}
	if err != nil {
		return status(err)
	}
	defer n.vol.let()
	s.fillEntry(out, n, &a, since)
	if s.noOpen && !n.vol.owned && !n.Inode.IsDir() {
		s.kernel.InodeNotify(n.num(), 0, 0) // as an open would have the kernel drop its pages
	}
	return fuse.OK
}

// lookup finds a name, which may be that of another volume. It adds a reference to the node, and holds its volume.
func (s *filesystem) lookup(dir node, name string) (node, overlay.Attr, error) {
	v, err := s.across(dir, name)
	if err != nil {
		return node{}, overlay.Attr{}, err
	}
	n, a := v.root, overlay.Attr{}
	if v != dir.vol {
		a, err = v.GetAttr(n, nil)
	} else {
		n, a, err = v.Lookup(dir.Inode, name)
	}
	if err != nil {
		v.let()
		return node{}, overlay.Attr{}, err
	}
	return node{v, n}, a, nil
}

// across gives the volume that a name in dir is of, and holds it: dir's own, or the one that has its root there.
func (s *filesystem) across(dir node, name string) (*volume, error) {
	if dir.vol.reserved(dir.Inode, name) {
		return nil, unix.ENOENT
	}
	if s.shelf != nil && (dir.vol == s.shelf.vol || name == overlay.StoreName && dir.Inode == s.main.root) {
		return s.shelf.at(dir, name)
	}
	dir.vol.hold()
	return dir.vol, nil
}

// Forget takes back references of the kernel.
func (s *filesystem) Forget(id, nlookup uint64) {
	n, refs, gone := s.nodes.forget(id, nlookup)
	if n.Inode == nil {
		return
	}
	if gone && n.Inode.IsDir() {
		s.listings.drop(n.Inode)
	}
	s.nodes.giveBack(n, refs, gone)
}

// fillEntry enters the reference that the volume has given, and tells the kernel of the node. since is what
// filesystem.invalidated was before the volume was asked.
func (s *filesystem) fillEntry(out *fuse.EntryOut, n node, a *overlay.Attr, since uint64) {
	if !s.nodes.ref(n) {
		n.vol.Forget(n.Inode, 1) // the kernel gets an ID that is stale
	}
	out.NodeId = n.num()
	out.Generation = 1
	fillAttr(&out.Attr, a)
	out.SetEntryTimeout(n.vol.cache.entry)
	out.SetAttrTimeout(s.attrTimeout(n.vol, since))
}

// attrTimeout is to be asked when the node has been entered, so that a notification either finds it or is found here.
func (s *filesystem) attrTimeout(v *volume, since uint64) time.Duration {
	if s.invalidated.Load() != since {
		return 0
	}
	return v.cache.attr
}

func fillAttr(out *fuse.Attr, a *overlay.Attr) {
	out.Ino = a.Ino
	out.Size, out.Blocks, out.Blksize = uint64(a.Size), uint64(a.Blocks), a.Blksize
	out.Atime, out.Atimensec = uint64(a.Atime.Sec), uint32(a.Atime.Nsec)
	out.Mtime, out.Mtimensec = uint64(a.Mtime.Sec), uint32(a.Mtime.Nsec)
	out.Ctime, out.Ctimensec = uint64(a.Ctime.Sec), uint32(a.Ctime.Nsec)
	out.Mode, out.Nlink = a.Mode, a.Nlink
	out.Uid, out.Gid = a.UID, a.GID
	out.Rdev = uint32(a.Rdev) // the kernel's own 32-bit form, which the low half of the C library's is
}

func (s *filesystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	since := s.invalidated.Load()
	a, err := n.vol.GetAttr(n.Inode, s.fileIf(in.Flags()&fuse.FUSE_GETATTR_FH != 0, in.Fh()))
	if err != nil {
		return status(err)
	}
	fillAttr(&out.Attr, &a)
	out.SetTimeout(s.attrTimeout(n.vol, since))
	return fuse.OK
}

// Statx is GetAttr with the birth time. The kernel asks for it only where a program wants that.
func (s *filesystem) Statx(_ <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	since := s.invalidated.Load()
	a, err := n.vol.GetAttr(n.Inode, s.fileIf(in.GetattrFlags&fuse.FUSE_GETATTR_FH != 0, in.Fh))
	if err != nil {
		return status(err)
	}
	fillStatx(&out.Statx, &a)
	out.SetTimeout(s.attrTimeout(n.vol, since))
	return fuse.OK
}

func fillStatx(out *fuse.Statx, a *overlay.Attr) {
	out.Mask = unix.STATX_BASIC_STATS
	if a.Btime != (unix.Timespec{}) {
		out.Mask |= unix.STATX_BTIME
		out.Btime = sxTime(a.Btime)
	}
	out.Ino, out.Mode, out.Nlink = a.Ino, uint16(a.Mode), a.Nlink
	out.Uid, out.Gid = a.UID, a.GID
	out.Size, out.Blocks, out.Blksize = uint64(a.Size), uint64(a.Blocks), a.Blksize
	out.Atime, out.Mtime, out.Ctime = sxTime(a.Atime), sxTime(a.Mtime), sxTime(a.Ctime)
	out.RdevMajor, out.RdevMinor = unix.Major(a.Rdev), unix.Minor(a.Rdev)
}

func sxTime(t unix.Timespec) fuse.SxTime {
	return fuse.SxTime{Sec: uint64(t.Sec), Nsec: uint32(t.Nsec)}
}

// setAttrBits are the kernel's bits for the tree's. FATTR_CTIME means nothing here: the lower keeps its own.
var setAttrBits = []struct{ kernel, tree uint32 }{
	{fuse.FATTR_MODE, overlay.SetMode},
	{fuse.FATTR_UID, overlay.SetUID},
	{fuse.FATTR_GID, overlay.SetGID},
	{fuse.FATTR_SIZE, overlay.SetSize},
	{fuse.FATTR_ATIME, overlay.SetAtime},
	{fuse.FATTR_MTIME, overlay.SetMtime},
	{fuse.FATTR_ATIME_NOW, overlay.SetAtimeNow},
	{fuse.FATTR_MTIME_NOW, overlay.SetMtimeNow},
	{fuse.FATTR_KILL_SUIDGID, overlay.SetKillPriv},
}

func (s *filesystem) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	set := overlay.SetAttr{
		Mode: in.Mode, UID: in.Uid, GID: in.Gid, Size: int64(in.Size),
		Atime: unix.Timespec{Sec: int64(in.Atime), Nsec: int64(in.Atimensec)},
		Mtime: unix.Timespec{Sec: int64(in.Mtime), Nsec: int64(in.Mtimensec)},
	}
	for _, b := range setAttrBits {
		if in.Valid&b.kernel != 0 {
			set.Valid |= b.tree
		}
	}
	if in.Valid&fuse.FATTR_MODE != 0 && privileged(unix.S_IFREG|in.Mode) && !n.Inode.IsDir() && !s.opens.mayGrant(n.Inode, in.Uid) {
		return fuse.EBUSY
	}
	since := s.invalidated.Load()
	if set.Valid&overlay.SetSize != 0 {
		defer s.changed(n.Inode, s)
		if s.noOpen && n.vol.main && set.Size > 0 {
			defer s.cuts.note(n.num())
		}
	}
	a, err := s.setAttr(n, in, &set)
	if err != nil {
		return status(err)
	}
	fillAttr(&out.Attr, &a)
	out.SetTimeout(s.attrTimeout(n.vol, since))
	return fuse.OK
}

func (s *filesystem) setAttr(n node, in *fuse.SetAttrIn, set *overlay.SetAttr) (overlay.Attr, error) {
	opened := in.Valid&fuse.FATTR_FH != 0
	if !s.noOpen || set.Valid&overlay.SetSize == 0 {
		return n.vol.SetAttr(n.Inode, s.fileIf(opened, in.Fh), set)
	}
	if opened || set.Size == 0 {
		return s.setSize(n, in, set)
	}
	defer s.sharedFiles.dropUnwritable(n.num()) // another inode may have taken its place
	return n.vol.SetAttr(n.Inode, nil, set)
}

// setSize is setAttr for who has the file open. O_TRUNC is one of them, though it says no more than truncate(2) to nothing, which is therefore taken for it. As with ftruncate(2), times are set also where the size stays as it
// is, and nobody is asked for rights.
func (s *filesystem) setSize(n node, in *fuse.SetAttrIn, set *overlay.SetAttr) (overlay.Attr, error) {
	var f *sharedFile
	var err error
	if set.Size == 0 {
		f, err = s.sharedFiles.takeEmptied(n, &in.InHeader)
		set.Valid &^= overlay.SetSize
	} else {
		f, err = s.sharedFiles.take(n, true, &in.InHeader)
	}
	if err != nil {
		return overlay.Attr{}, err
	}
	defer s.sharedFiles.done(f)
	if set.Valid == 0 {
		return n.vol.GetAttr(n.Inode, f.File)
	}
	return n.vol.SetAttr(n.Inode, f.File, set)
}

// fileIf gives the file of fh, or nil where the request has none.
func (s *filesystem) fileIf(has bool, fh uint64) overlay.File {
	if !has {
		return nil
	}
	if f := s.handles.get(fh); f != nil {
		return f.File
	}
	return nil
}

// privileged reports the bits that a write by somebody without CAP_FSETID takes away: set-user-ID, and set-group-ID of what
// the group may execute.
func privileged(mode uint32) bool {
	if mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	return mode&unix.S_ISUID != 0 || mode&(unix.S_ISGID|unix.S_IXGRP) == unix.S_ISGID|unix.S_IXGRP
}

// killPriv takes those bits away. The lower does not: it sees the daemon, which may have CAP_FSETID. It comes before
// the write, so that nobody can run what was written with them.
func (s *filesystem) killPriv(n node, f overlay.File) error {
	a, err := n.vol.GetAttr(n.Inode, f)
	if err != nil || !privileged(a.Mode) {
		return err
	}
	_, err = n.vol.SetAttr(n.Inode, f, &overlay.SetAttr{Valid: overlay.SetKillPriv})
	return err
}

func (s *filesystem) Readlink(_ <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return nil, st
	}
	defer n.vol.let()
	target, err := n.vol.Readlink(n.Inode)
	return []byte(target), s.stale.status(in.Pid, err)
}

func (s *filesystem) StatFs(_ <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	n, ok := s.node(in.NodeId)
	if !ok.Ok() {
		return ok
	}
	defer n.vol.let()
	st, err := n.vol.Statfs()
	if err != nil {
		return status(err)
	}
	out.FromStatfsT((*syscall.Statfs_t)(&syscall.Statfs_t{
		Bsize: st.Bsize, Frsize: st.Frsize, Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail,
		Files: st.Files, Ffree: st.Ffree, Namelen: st.Namelen,
	}))
	return fuse.OK
}
