package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
)

// entry answers a request that has made something in a directory.
func (s *filesystem) entry(dir uint64, name string, out *fuse.EntryOut, make func(dir node) (overlay.Inode, overlay.Attr, error)) fuse.Status {
	d, st := s.node(dir)
	if !st.Ok() {
		return st
	}
	defer d.vol.let()
	if d.vol.reserved(d.Inode, name) {
		return fuse.EPERM
	}
	since := s.invalidated.Load()
	n, a, err := make(d)
	if err != nil {
		return status(err)
	}
	s.fillEntry(out, node{d.vol, n}, &a, since)
	return fuse.OK
}

func (s *filesystem) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.entry(in.NodeId, name, out, func(dir node) (overlay.Inode, overlay.Attr, error) {
		return dir.vol.Mknod(dir.Inode, name, in.Mode, in.Rdev, callerOf(&in.InHeader, in.Umask))
	})
}

func (s *filesystem) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.entry(in.NodeId, name, out, func(dir node) (overlay.Inode, overlay.Attr, error) {
		return dir.vol.Mkdir(dir.Inode, name, in.Mode, callerOf(&in.InHeader, in.Umask))
	})
}

func (s *filesystem) Symlink(_ <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return s.entry(in.NodeId, name, out, func(dir node) (overlay.Inode, overlay.Attr, error) {
		return dir.vol.Symlink(dir.Inode, name, target, callerOf(in, 0))
	})
}

func (s *filesystem) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	n, st := s.node(in.Oldnodeid)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	return s.entry(in.NodeId, name, out, func(dir node) (overlay.Inode, overlay.Attr, error) {
		if err := s.between(n, dir); err != nil {
			return nil, overlay.Attr{}, err
		}
		a, err := dir.vol.Link(n.Inode, dir.Inode, name)
		return n.Inode, a, err
	})
}

// Create makes and opens a file. Where the kernel did not know that there is one (it can't be so in place), ESTALE makes it
// look again and open that.
func (s *filesystem) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	st := s.created(in, name, out, func(dir node, direct bool) (overlay.Inode, overlay.File, overlay.Attr, error) {
		return dir.vol.Create(dir.Inode, name, int(in.Flags), in.Mode, direct, callerOf(&in.InHeader, in.Umask))
	})
	if st == fuse.Status(syscall.EEXIST) && in.Flags&syscall.O_EXCL == 0 {
		return fuse.Status(syscall.ESTALE)
	}
	return st
}

// Tmpfile makes and opens a file without a name, for open(2) with O_TMPFILE.
func (s *filesystem) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	return s.created(in, "", out, func(dir node, direct bool) (overlay.Inode, overlay.File, overlay.Attr, error) {
		return dir.vol.Tmpfile(dir.Inode, int(in.Flags), in.Mode, direct, callerOf(&in.InHeader, in.Umask))
	})
}

// created answers a request that has made and opened a file.
func (s *filesystem) created(in *fuse.CreateIn, name string, out *fuse.CreateOut, make func(dir node, direct bool) (overlay.Inode, overlay.File, overlay.Attr, error)) fuse.Status {
	dir, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer dir.vol.let()
	if dir.vol.reserved(dir.Inode, name) {
		return fuse.EPERM
	}
	since := s.invalidated.Load()
	if s.noOpen {
		in.Flags = in.Flags&^syscall.O_ACCMODE | syscall.O_RDWR
	}
	n, h, a, err := make(dir, dir.vol.main && s.opens.passthrough())
	if err != nil {
		return status(err)
	}
	if s.noOpen {
		s.fillEntry(&out.EntryOut, node{dir.vol, n}, &a, since)
		s.sharedFiles.created(n.Num(), h, since+1)
		out.OpenFlags = fuse.FOPEN_NOFLUSH | fuse.FOPEN_KEEP_CACHE
		return fuse.OK
	}
	f, err := s.opens.created(dir.vol, h, int(in.Flags), in.Uid, since, &out.OpenOut)
	if err != nil {
		dir.vol.Forget(n, 1)
		return status(err)
	}
	out.Fh = s.handles.add(f)
	s.fillEntry(&out.EntryOut, node{dir.vol, n}, &a, since)
	return fuse.OK
}
