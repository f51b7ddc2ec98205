package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// errProof is what the echo gets for the name that proves that it is known. No filesystem says so of a name that it does not have.
const errProof = unix.ENOTUNIQ

// echoed answers the requests of the echo, and leaves all others to the filesystem. The echo changes nothing: what it asks for is on its errand,
// and is answered as if it had been done; or it is refused. What it looks up on its way is as for anybody, and so are WRITE requests with its
// process ID: dirty pages of others, which the kernel may write back when the echo comes along.
type echoed struct {
	*filesystem
	echo *echo
}

// asks reports whether a request comes from the echo. The kernel says so, and the number is no other process's as long as this one is not buried.
func (s echoed) asks(in *fuse.InHeader) bool { return in.Pid != 0 && in.Pid == s.echo.pid.Load() }

// due gives what the echo is to do next with a name. Without an errand that is nothing.
func (s echoed) due(dir uint64, name string) (*errand, act, bool) {
	x := s.echo.task.Load()
	if x == nil {
		return nil, act{}, false
	}
	a, ok := x.due(dir, name)
	return x, a, ok
}

// Lookup has the echo find what it is to remove, and not what it is to add. Others never see that: no timeout makes the kernel ask again, with the
// directory locked between this answer and what the echo does.
func (s echoed) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if !s.asks(in) {
		st := s.filesystem.Lookup(cancel, in, name, out)
		if st.Ok() && out.NodeId == 0 && s.echo.pending.Load() > 0 {
			out.SetEntryTimeout(0) // see echo.tell
		}
		return st
	}
	x, a, ok := s.due(in.NodeId, name)
	switch {
	case x != nil && in.NodeId == fuse.FUSE_ROOT_ID && name == x.proof:
		return fuse.Status(errProof)
	case !ok:
		return s.filesystem.Lookup(cancel, in, name, out)
	case s.exists(in.NodeId, name) != x.adds(name): // somebody was quicker, who has raised an event of their own
		return fuse.EPERM
	case a.Verb == actAdd:
		return fuse.ENOENT
	}
	fillStandIn(out, in, x.standIn(name), a.Dir)
	return fuse.OK
}

// exists reports whether a name means something in truth.
func (s echoed) exists(dir uint64, name string) bool {
	d, st := s.node(dir)
	if !st.Ok() {
		return false
	}
	defer d.vol.let()
	n, _, err := s.lookup(d, name)
	if err != nil {
		return false
	}
	n.vol.Forget(n.Inode, 1)
	n.vol.let()
	return true
}

// fillStandIn makes up an inode that the caller may remove.
func fillStandIn(out *fuse.EntryOut, in *fuse.InHeader, num uint64, dir bool) {
	out.NodeId, out.Generation = num, 1
	out.Attr.Ino, out.Attr.Nlink, out.Attr.Mode = num, 1, unix.S_IFREG|0o600
	if dir {
		out.Attr.Nlink, out.Attr.Mode = 2, unix.S_IFDIR|0o700
	}
	out.Attr.Uid, out.Attr.Gid = in.Uid, in.Gid
}

func (s echoed) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	if !s.asks(in) {
		return s.filesystem.Unlink(cancel, in, name)
	}
	return s.removed(in, name, false)
}

func (s echoed) Rmdir(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	if !s.asks(in) {
		return s.filesystem.Rmdir(cancel, in, name)
	}
	return s.removed(in, name, true)
}

// removed lets the echo remove a stand-in. If it was given none, the kernel has had an answer by itself, and would take the real inode for removed:
// by ESTALE it is made to ask, which it does once.
func (s echoed) removed(in *fuse.InHeader, name string, dir bool) fuse.Status {
	x, a, ok := s.due(in.NodeId, name)
	if !ok || a.Verb != actRemove || a.Dir != dir {
		return fuse.EPERM
	}
	switch given, first := x.given(name); {
	case given:
		x.did(name)
		return fuse.OK
	case first && x.adds(name):
		return fuse.Status(unix.ESTALE)
	}
	return fuse.EPERM
}

func (s echoed) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if !s.asks(&in.InHeader) {
		return s.filesystem.Mknod(cancel, in, name, out)
	}
	return s.added(&in.InHeader, name, false, out)
}

func (s echoed) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if !s.asks(&in.InHeader) {
		return s.filesystem.Mkdir(cancel, in, name, out)
	}
	return s.added(&in.InHeader, name, true, out)
}

// added lets the echo have a stand-in, though the name means something real: the kernel takes the attributes of what is new for the latest, and so might
// take a size for that of the real inode that was its before a write.
func (s echoed) added(in *fuse.InHeader, name string, dir bool, out *fuse.EntryOut) fuse.Status {
	x, a, ok := s.due(in.NodeId, name)
	if !ok || a.Verb != actAdd || a.Dir != dir {
		return fuse.EPERM
	}
	fillStandIn(out, in, x.standIn(name), dir)
	x.did(name)
	return fuse.OK
}

// SetAttr tells what there is. The kernel has the inode locked meanwhile, as for any change of its size.
func (s echoed) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if !s.asks(&in.InHeader) {
		return s.filesystem.SetAttr(cancel, in, out)
	}
	const times = fuse.FATTR_ATIME | fuse.FATTR_MTIME | fuse.FATTR_ATIME_NOW | fuse.FATTR_MTIME_NOW | fuse.FATTR_CTIME
	if in.Valid&^times != 0 {
		return fuse.EPERM
	}
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	since := s.invalidated.Load()
	a, err := n.vol.GetAttr(n.Inode, nil)
	if err != nil {
		return status(err)
	}
	fillAttr(&out.Attr, &a)
	out.SetTimeout(s.attrTimeout(n.vol, since))
	return fuse.OK
}

// What follows the echo never asks for.

func (s echoed) Symlink(cancel <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	if s.asks(in) {
		return fuse.EPERM
	}
	return s.filesystem.Symlink(cancel, in, target, name, out)
}

func (s echoed) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if s.asks(&in.InHeader) {
		return fuse.EPERM
	}
	return s.filesystem.Link(cancel, in, name, out)
}

func (s echoed) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	if s.asks(&in.InHeader) {
		return fuse.EPERM
	}
	return s.filesystem.Rename(cancel, in, oldName, newName)
}

func (s echoed) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if s.asks(&in.InHeader) {
		return fuse.EPERM
	}
	return s.filesystem.Create(cancel, in, name, out)
}

func (s echoed) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	if s.asks(&in.InHeader) {
		return fuse.EPERM
	}
	return s.filesystem.Tmpfile(cancel, in, out)
}

func (s echoed) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if s.asks(&in.InHeader) {
		return fuse.EPERM
	}
	return s.filesystem.Open(cancel, in, out)
}

func (s echoed) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	if s.asks(&in.InHeader) {
		return fuse.EPERM
	}
	return s.filesystem.SetXAttr(cancel, in, attr, data)
}

func (s echoed) RemoveXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string) fuse.Status {
	if s.asks(in) {
		return fuse.EPERM
	}
	return s.filesystem.RemoveXAttr(cancel, in, attr)
}

var _ fuse.RawFileSystem = echoed{}
