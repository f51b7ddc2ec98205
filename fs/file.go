package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// fsyncDatasync is FUSE_FSYNC_FDATASYNC of linux/fuse.h.
const fsyncDatasync = 1

// copyMax is the largest copy in one request, in bytes: the reply has 32 bits for it.
const copyMax = 1 << 30

// Open opens a file, where the kernel asks for that at all: see sharedFiles.
func (s *filesystem) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if s.noOpen {
		return fuse.ENOSYS
	}
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	f, err := s.opens.open(n, int(in.Flags), callerOf(&in.InHeader, 0), out)
	if err != nil {
		return s.stale.status(in.Pid, err)
	}
	if in.Mode&fuse.OPEN_KILL_SUIDGID != 0 {
		if err := s.killPriv(n, f.File); err != nil {
			s.opens.close(f)
			return status(err)
		}
	}
	out.Fh = s.handles.add(f)
	return fuse.OK
}

func (s *filesystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if f := s.handles.remove(in.Fh); f != nil {
		s.opens.close(f)
	}
}

func (s *filesystem) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	f, st := s.use(in.NodeId, in.Fh, false, &in.InHeader)
	if !st.Ok() {
		return nil, st
	}
	defer s.end(f)
	n, err := f.ReadAt(buf, int64(in.Offset))
	if err != nil {
		return nil, status(err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (s *filesystem) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	f, st := s.use(in.NodeId, in.Fh, true, &in.InHeader)
	if !st.Ok() {
		return 0, st
	}
	defer s.end(f)
	if in.WriteFlags&fuse.WRITE_CACHE != 0 {
		s.writebacks.begun.Add(1)
		defer s.writebacks.ended.Add(1)
	}
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		if err := s.killPriv(f.node, f.File); err != nil {
			return 0, status(err)
		}
	}
	defer s.changed(f.Inode(), s)
	n, err := f.WriteAt(data, int64(in.Offset))
	if n > 0 {
		err = nil // the next write tells
	}
	return uint32(n), status(err)
}

// Lseek finds data and holes; the kernel does the rest itself.
func (s *filesystem) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	f, st := s.use(in.NodeId, in.Fh, false, &in.InHeader)
	if !st.Ok() {
		return st
	}
	defer s.end(f)
	off, err := f.Lseek(int64(in.Offset), int(in.Whence))
	out.Offset = uint64(off)
	return status(err)
}

// Flush has nothing to do, at no close of any file. ENOSYS keeps a kernel that does not know FOPEN_NOFLUSH from asking again.
func (s *filesystem) Flush(_ <-chan struct{}, _ *fuse.FlushIn) fuse.Status {
	return fuse.ENOSYS
}

func (s *filesystem) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	f, st := s.use(in.NodeId, in.Fh, false, &in.InHeader)
	if !st.Ok() {
		return st
	}
	defer s.end(f)
	return status(f.Fsync(in.FsyncFlags&fsyncDatasync != 0))
}

// Fallocate takes every mode that the lower has. The protocol has no flag that asks to clear set-user-ID here, so
// that is done for everybody but root.
func (s *filesystem) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	f, st := s.use(in.NodeId, in.Fh, true, &in.InHeader)
	if !st.Ok() {
		return st
	}
	defer s.end(f)
	if in.Uid != 0 {
		if err := s.killPriv(f.node, f.File); err != nil {
			return status(err)
		}
	}
	defer s.changed(f.Inode(), s)
	return status(f.Fallocate(in.Mode, int64(in.Offset), int64(in.Length)))
}

func (s *filesystem) CopyFileRange(_ <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	to, st := s.use(in.NodeIdOut, in.FhOut, true, &in.InHeader)
	if !st.Ok() {
		return 0, st
	}
	defer s.end(to)
	from, st := s.use(in.NodeId, in.FhIn, false, &in.InHeader) // after the other: they may be the same
	if !st.Ok() {
		return 0, st
	}
	defer s.end(from)
	if from.node.vol != to.node.vol {
		return 0, fuse.Status(unix.EOPNOTSUPP) // the kernel copies by itself then
	}
	if in.Uid != 0 {
		if err := s.killPriv(to.node, to.File); err != nil {
			return 0, status(err)
		}
	}
	defer s.changed(to.Inode(), s)
	n, err := from.CopyFileRange(int64(in.OffIn), to.File, int64(in.OffOut), int(min(in.Len, copyMax)), int(in.Flags))
	if err == unix.EXDEV {
		err = unix.EOPNOTSUPP
	}
	return uint32(max(n, 0)), status(err)
}
