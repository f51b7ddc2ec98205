package fs

import "github.com/hanwen/go-fuse/v2/fuse"

// metered answers requests by another filesystem, and times each. What go-fuse answers by itself, such as an interrupt, does not come here.
type metered struct {
	fuse.RawFileSystem
	m *meter
}

func (t metered) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	since := clock()
	return t.m.done(opLookup, since, t.RawFileSystem.Lookup(cancel, in, name, out))
}

func (t metered) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	since := clock()
	return t.m.done(opGetAttr, since, t.RawFileSystem.GetAttr(cancel, in, out))
}

func (t metered) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	since := clock()
	return t.m.done(opSetAttr, since, t.RawFileSystem.SetAttr(cancel, in, out))
}

func (t metered) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	since := clock()
	return t.m.done(opStatx, since, t.RawFileSystem.Statx(cancel, in, out))
}

func (t metered) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	since := clock()
	return t.m.done(opMknod, since, t.RawFileSystem.Mknod(cancel, in, name, out))
}

func (t metered) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	since := clock()
	return t.m.done(opMkdir, since, t.RawFileSystem.Mkdir(cancel, in, name, out))
}

func (t metered) Symlink(cancel <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	since := clock()
	return t.m.done(opSymlink, since, t.RawFileSystem.Symlink(cancel, in, target, name, out))
}

func (t metered) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	since := clock()
	return t.m.done(opLink, since, t.RawFileSystem.Link(cancel, in, name, out))
}

func (t metered) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	since := clock()
	return t.m.done(opUnlink, since, t.RawFileSystem.Unlink(cancel, in, name))
}

func (t metered) Rmdir(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	since := clock()
	return t.m.done(opRmdir, since, t.RawFileSystem.Rmdir(cancel, in, name))
}

func (t metered) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	since := clock()
	return t.m.done(opRename, since, t.RawFileSystem.Rename(cancel, in, oldName, newName))
}

func (t metered) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	since := clock()
	return t.m.done(opCreate, since, t.RawFileSystem.Create(cancel, in, name, out))
}

func (t metered) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	since := clock()
	return t.m.done(opTmpfile, since, t.RawFileSystem.Tmpfile(cancel, in, out))
}

func (t metered) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	since := clock()
	return t.m.done(opOpen, since, t.RawFileSystem.Open(cancel, in, out))
}

func (t metered) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	since := clock()
	return t.m.done(opLseek, since, t.RawFileSystem.Lseek(cancel, in, out))
}

func (t metered) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	since := clock()
	return t.m.done(opFlush, since, t.RawFileSystem.Flush(cancel, in))
}

func (t metered) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	since := clock()
	return t.m.done(opFsync, since, t.RawFileSystem.Fsync(cancel, in))
}

func (t metered) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	since := clock()
	return t.m.done(opFallocate, since, t.RawFileSystem.Fallocate(cancel, in))
}

func (t metered) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	since := clock()
	return t.m.done(opSetXattr, since, t.RawFileSystem.SetXAttr(cancel, in, name, value))
}

func (t metered) RemoveXAttr(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	since := clock()
	return t.m.done(opRemoveXattr, since, t.RawFileSystem.RemoveXAttr(cancel, in, name))
}

func (t metered) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, data []byte, out *fuse.IoctlOut, answer []byte) fuse.Status {
	since := clock()
	return t.m.done(opIoctl, since, t.RawFileSystem.Ioctl(cancel, in, data, out, answer))
}

func (t metered) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	since := clock()
	return t.m.done(opOpenDir, since, t.RawFileSystem.OpenDir(cancel, in, out))
}

func (t metered) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	since := clock()
	return t.m.done(opReadDir, since, t.RawFileSystem.ReadDir(cancel, in, out))
}

func (t metered) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	since := clock()
	return t.m.done(opReadDirPlus, since, t.RawFileSystem.ReadDirPlus(cancel, in, out))
}

func (t metered) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	since := clock()
	return t.m.done(opFsyncDir, since, t.RawFileSystem.FsyncDir(cancel, in))
}

func (t metered) StatFs(cancel <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	since := clock()
	return t.m.done(opStatFs, since, t.RawFileSystem.StatFs(cancel, in, out))
}

func (t metered) Forget(id, nlookup uint64) {
	since := clock()
	t.RawFileSystem.Forget(id, nlookup)
	t.m.done(opForget, since, fuse.OK)
}

func (t metered) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	since := clock()
	t.RawFileSystem.Release(cancel, in)
	t.m.done(opRelease, since, fuse.OK)
}

func (t metered) ReleaseDir(in *fuse.ReleaseIn) {
	since := clock()
	t.RawFileSystem.ReleaseDir(in)
	t.m.done(opReleaseDir, since, fuse.OK)
}

func (t metered) Readlink(cancel <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	since := clock()
	target, st := t.RawFileSystem.Readlink(cancel, in)
	return target, t.m.done(opReadlink, since, st)
}

func (t metered) GetXAttr(cancel <-chan struct{}, in *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	since := clock()
	size, st := t.RawFileSystem.GetXAttr(cancel, in, name, dest)
	return size, t.m.done(opGetXattr, since, st)
}

func (t metered) ListXAttr(cancel <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	since := clock()
	size, st := t.RawFileSystem.ListXAttr(cancel, in, dest)
	return size, t.m.done(opListXattr, since, st)
}

func (t metered) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	since := clock()
	n, st := t.RawFileSystem.CopyFileRange(cancel, in)
	t.m.written.Add(uint64(n))
	return n, t.m.done(opCopyFileRange, since, st)
}

func (t metered) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	since := clock()
	r, st := t.RawFileSystem.Read(cancel, in, buf)
	if r != nil {
		t.m.read.Add(uint64(r.Size()))
	}
	return r, t.m.done(opRead, since, st)
}

func (t metered) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	since := clock()
	n, st := t.RawFileSystem.Write(cancel, in, data)
	t.m.written.Add(uint64(n))
	return n, t.m.done(opWrite, since, st)
}

var _ fuse.RawFileSystem = metered{}
