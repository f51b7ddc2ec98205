package fs

import "github.com/hanwen/go-fuse/v2/fuse"

func (s *filesystem) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	s.counts.add(opUnlink)
	dir, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	return status(s.tree.Unlink(dir, name))
}

func (s *filesystem) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	s.counts.add(opRmdir)
	dir, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	return status(s.tree.Rmdir(dir, name))
}

func (s *filesystem) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	s.counts.add(opRename)
	from, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	to, st := s.node(in.Newdir)
	if !st.Ok() {
		return st
	}
	return status(s.tree.Rename(from, oldName, to, newName, in.Flags))
}
