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
	s.counts.add(opLookup)
	dir, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	since := s.invalidated.Load()
	n, a, err := s.tree.Lookup(dir, name)
	if err == unix.ENOENT && s.cache.negative > 0 {
		out.SetEntryTimeout(s.cache.negative) // an invalidation waits for this reply: see notifier.InvalEntry
		return fuse.OK
	}
	if err != nil {
		return status(err)
	}
	s.fillEntry(out, n, &a, since)
	return fuse.OK
}

// Forget takes back references of the kernel.
func (s *filesystem) Forget(id, nlookup uint64) {
	s.counts.add(opForget)
	n, refs, gone := s.nodes.forget(id, nlookup)
	if n == nil {
		return
	}
	if gone && n.IsDir() {
		s.listings.drop(n)
	}
	s.tree.Forget(n, refs)
}

// fillEntry enters the reference that the tree has given, and tells the kernel of the node. since is what
// filesystem.invalidated was before the tree was asked.
func (s *filesystem) fillEntry(out *fuse.EntryOut, n *overlay.Node, a *overlay.Attr, since uint64) {
	s.nodes.ref(n)
	out.NodeId = n.Num()
	out.Generation = 1
	fillAttr(&out.Attr, a)
	out.SetEntryTimeout(s.cache.entry)
	out.SetAttrTimeout(s.attrTimeout(since))
}

// attrTimeout is to be asked when the node has been entered, so that a notification either finds it or is found here.
func (s *filesystem) attrTimeout(since uint64) time.Duration {
	if s.invalidated.Load() != since {
		return 0
	}
	return s.cache.attr
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
	s.counts.add(opGetAttr)
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	since := s.invalidated.Load()
	a, err := s.tree.GetAttr(n, s.handleIf(in.Flags()&fuse.FUSE_GETATTR_FH != 0, in.Fh()))
	if err != nil {
		return status(err)
	}
	fillAttr(&out.Attr, &a)
	out.SetTimeout(s.attrTimeout(since))
	return fuse.OK
}

// Statx is GetAttr with the birth time. The kernel asks for it only where a program wants that.
func (s *filesystem) Statx(_ <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	s.counts.add(opStatx)
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	since := s.invalidated.Load()
	a, err := s.tree.GetAttr(n, s.handleIf(in.GetattrFlags&fuse.FUSE_GETATTR_FH != 0, in.Fh))
	if err != nil {
		return status(err)
	}
	fillStatx(&out.Statx, &a)
	out.SetTimeout(s.attrTimeout(since))
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
	s.counts.add(opSetAttr)
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
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
	if in.Valid&fuse.FATTR_MODE != 0 && privileged(unix.S_IFREG|in.Mode) && !n.IsDir() && !s.opens.mayGrant(n, in.Uid) {
		return fuse.EBUSY
	}
	since := s.invalidated.Load()
	a, err := s.tree.SetAttr(n, s.handleIf(in.Valid&fuse.FATTR_FH != 0, in.Fh), &set)
	if err != nil {
		return status(err)
	}
	fillAttr(&out.Attr, &a)
	out.SetTimeout(s.attrTimeout(since))
	return fuse.OK
}

// handleIf gives the handle of fh, or nil where the request has none.
func (s *filesystem) handleIf(has bool, fh uint64) *overlay.Handle {
	if !has {
		return nil
	}
	if f := s.handles.get(fh); f != nil {
		return f.Handle
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
func (s *filesystem) killPriv(n *overlay.Node, h *overlay.Handle) error {
	a, err := s.tree.GetAttr(n, h)
	if err != nil || !privileged(a.Mode) {
		return err
	}
	_, err = s.tree.SetAttr(n, h, &overlay.SetAttr{Valid: overlay.SetKillPriv})
	return err
}

func (s *filesystem) Readlink(_ <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	s.counts.add(opReadlink)
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return nil, st
	}
	target, err := s.tree.Readlink(n)
	return []byte(target), s.stale.status(in.Pid, err)
}

func (s *filesystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	s.counts.add(opStatFs)
	st, err := s.tree.Statfs()
	if err != nil {
		return status(err)
	}
	out.FromStatfsT((*syscall.Statfs_t)(&syscall.Statfs_t{
		Bsize: st.Bsize, Frsize: st.Frsize, Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail,
		Files: st.Files, Ffree: st.Ffree, Namelen: st.Namelen,
	}))
	return fuse.OK
}
