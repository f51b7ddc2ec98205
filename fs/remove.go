package fs

import "github.com/hanwen/go-fuse/v2/fuse"

func (s *filesystem) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	dir, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer dir.vol.let()
	return status(dir.vol.Unlink(dir.Inode, name))
}

func (s *filesystem) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	dir, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer dir.vol.let()
	return status(dir.vol.Rmdir(dir.Inode, name))
}

func (s *filesystem) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	from, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer from.vol.let()
	to, st := s.node(in.Newdir)
	if !st.Ok() {
		return st
	}
	defer to.vol.let()
	if err := s.between(from, to); err != nil {
		return status(err)
	}
	if to.vol.reserved(to.Inode, newName) {
		return fuse.EPERM
	}
	return status(from.vol.Rename(from.Inode, oldName, to.Inode, newName, in.Flags))
}
