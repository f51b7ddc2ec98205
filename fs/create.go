package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
)

// entry answers a request that has made something in a directory.
func (s *filesystem) entry(dir uint64, out *fuse.EntryOut, make func(dir *overlay.Node) (*overlay.Node, overlay.Attr, error)) fuse.Status {
	d, st := s.node(dir)
	if !st.Ok() {
		return st
	}
	since := s.invalidated.Load()
	n, a, err := make(d)
	if err != nil {
		return status(err)
	}
	s.fillEntry(out, n, &a, since)
	return fuse.OK
}

func (s *filesystem) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	s.counts.add(opMknod)
	return s.entry(in.NodeId, out, func(dir *overlay.Node) (*overlay.Node, overlay.Attr, error) {
		return s.tree.Mknod(dir, name, in.Mode, in.Rdev, callerOf(&in.InHeader, in.Umask))
	})
}

func (s *filesystem) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	s.counts.add(opMkdir)
	return s.entry(in.NodeId, out, func(dir *overlay.Node) (*overlay.Node, overlay.Attr, error) {
		return s.tree.Mkdir(dir, name, in.Mode, callerOf(&in.InHeader, in.Umask))
	})
}

func (s *filesystem) Symlink(_ <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	s.counts.add(opSymlink)
	return s.entry(in.NodeId, out, func(dir *overlay.Node) (*overlay.Node, overlay.Attr, error) {
		return s.tree.Symlink(dir, name, target, callerOf(in, 0))
	})
}

func (s *filesystem) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	s.counts.add(opLink)
	n, st := s.node(in.Oldnodeid)
	if !st.Ok() {
		return st
	}
	return s.entry(in.NodeId, out, func(dir *overlay.Node) (*overlay.Node, overlay.Attr, error) {
		a, err := s.tree.Link(n, dir, name)
		return n, a, err
	})
}

// Create makes and opens a file. Where the kernel did not know that there is one (it can't be so in place), ESTALE makes it
// look again and open that.
func (s *filesystem) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	s.counts.add(opCreate)
	st := s.created(in, out, func(dir *overlay.Node, direct bool) (*overlay.Node, *overlay.Handle, overlay.Attr, error) {
		return s.tree.Create(dir, name, int(in.Flags), in.Mode, direct, callerOf(&in.InHeader, in.Umask))
	})
	if st == fuse.Status(syscall.EEXIST) && in.Flags&syscall.O_EXCL == 0 {
		return fuse.Status(syscall.ESTALE)
	}
	return st
}

// Tmpfile makes and opens a file without a name, for open(2) with O_TMPFILE.
func (s *filesystem) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	s.counts.add(opTmpfile)
	return s.created(in, out, func(dir *overlay.Node, direct bool) (*overlay.Node, *overlay.Handle, overlay.Attr, error) {
		return s.tree.Tmpfile(dir, int(in.Flags), in.Mode, direct, callerOf(&in.InHeader, in.Umask))
	})
}

func (s *filesystem) created(in *fuse.CreateIn, out *fuse.CreateOut, make func(dir *overlay.Node, direct bool) (*overlay.Node, *overlay.Handle, overlay.Attr, error)) fuse.Status {
	dir, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	since := s.invalidated.Load()
	n, h, a, err := make(dir, s.opens.passthrough())
	if err != nil {
		return status(err)
	}
	f, err := s.opens.created(h, int(in.Flags), in.Uid, &out.OpenOut)
	if err != nil {
		s.tree.Forget(n, 1)
		return status(err)
	}
	out.Fh = s.handles.add(f)
	s.fillEntry(&out.EntryOut, n, &a, since)
	return fuse.OK
}
