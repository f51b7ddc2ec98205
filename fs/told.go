package fs

import (
	"github.com/hyperfs/hyperfs/overlay"
)

// told is a branch as a mount of its own shows it, while the mount of the workspace shows it too and the kernel keeps for good what it has heard there. So
// whatever is changed here is told there before the change is answered. No kernel lock of this mount is waited for there; the other way round
// nothing may be told that is waited for: see branchMounts.
type told struct {
	overlay.Volume
	to overlay.Notifier
}

// toldFile is a file of a told volume.
type toldFile struct {
	overlay.File
	vol told
}

// plain gives the file that the volume knows.
func plain(f overlay.File) overlay.File {
	if t, ok := f.(toldFile); ok {
		return t.File
	}
	return f
}

// file gives a file that tells.
func (t told) file(f overlay.File) overlay.File {
	if f == nil {
		return nil
	}
	return toldFile{f, t}
}

// names tells that names of a directory have changed.
func (t told) names(dir overlay.Inode, names ...string) {
	for _, name := range names {
		t.to.InvalEntry(dir, name)
	}
	t.to.InvalInode(dir)
}

// held calls fn, and tells of the inodes that names held before: they have other numbers of links then.
func (t told) held(fn func() error, slots ...toldSlot) error {
	var nodes []overlay.Inode
	for _, s := range slots {
		if n, _, err := t.Volume.Lookup(s.dir, s.name); err == nil {
			nodes = append(nodes, n)
		}
	}
	err := fn()
	for _, s := range slots {
		t.names(s.dir, s.name)
	}
	for _, n := range nodes {
		t.to.InvalInode(n)
		t.Volume.Forget(n, 1)
	}
	return err
}

type toldSlot struct {
	dir  overlay.Inode
	name string
}

func (t told) GetAttr(n overlay.Inode, f overlay.File) (overlay.Attr, error) {
	return t.Volume.GetAttr(n, plain(f))
}

func (t told) SetAttr(n overlay.Inode, f overlay.File, in *overlay.SetAttr) (overlay.Attr, error) {
	defer t.to.InvalInode(n)
	return t.Volume.SetAttr(n, plain(f), in)
}

// Open may truncate.
func (t told) Open(n overlay.Inode, flags int, direct bool, c *overlay.Caller) (overlay.File, error) {
	if wantsWrite(flags) {
		defer t.to.InvalInode(n)
	}
	f, err := t.Volume.Open(n, flags, direct, c)
	return t.file(f), err
}

func (t told) Create(dir overlay.Inode, name string, flags int, mode uint32, direct bool, c *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	defer t.names(dir, name)
	n, f, a, err := t.Volume.Create(dir, name, flags, mode, direct, c)
	return n, t.file(f), a, err
}

func (t told) Tmpfile(dir overlay.Inode, flags int, mode uint32, direct bool, c *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	n, f, a, err := t.Volume.Tmpfile(dir, flags, mode, direct, c)
	return n, t.file(f), a, err
}

func (t told) Mkdir(dir overlay.Inode, name string, mode uint32, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	defer t.names(dir, name)
	return t.Volume.Mkdir(dir, name, mode, c)
}

func (t told) Mknod(dir overlay.Inode, name string, mode, rdev uint32, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	defer t.names(dir, name)
	return t.Volume.Mknod(dir, name, mode, rdev, c)
}

func (t told) Symlink(dir overlay.Inode, name, target string, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	defer t.names(dir, name)
	return t.Volume.Symlink(dir, name, target, c)
}

func (t told) Link(n, dir overlay.Inode, name string) (overlay.Attr, error) {
	defer t.to.InvalInode(n)
	defer t.names(dir, name)
	return t.Volume.Link(n, dir, name)
}

func (t told) Unlink(dir overlay.Inode, name string) error {
	return t.held(func() error { return t.Volume.Unlink(dir, name) }, toldSlot{dir, name})
}

func (t told) Rmdir(dir overlay.Inode, name string) error {
	return t.held(func() error { return t.Volume.Rmdir(dir, name) }, toldSlot{dir, name})
}

func (t told) Rename(oldDir overlay.Inode, oldName string, newDir overlay.Inode, newName string, flags uint32) error {
	return t.held(func() error { return t.Volume.Rename(oldDir, oldName, newDir, newName, flags) }, toldSlot{oldDir, oldName}, toldSlot{newDir, newName})
}

func (t told) SetXattr(n overlay.Inode, name string, value []byte, flags int) error {
	defer t.to.InvalInode(n)
	return t.Volume.SetXattr(n, name, value, flags)
}

func (t told) RemoveXattr(n overlay.Inode, name string) error {
	defer t.to.InvalInode(n)
	return t.Volume.RemoveXattr(n, name)
}

func (f toldFile) WriteAt(p []byte, off int64) (int, error) {
	defer f.vol.to.InvalInode(f.Inode())
	return f.File.WriteAt(p, off)
}

func (f toldFile) Fallocate(mode uint32, off, length int64) error {
	defer f.vol.to.InvalInode(f.Inode())
	return f.File.Fallocate(mode, off, length)
}

func (f toldFile) CopyFileRange(offIn int64, out overlay.File, offOut int64, length, flags int) (int, error) {
	defer f.vol.to.InvalInode(out.Inode())
	return f.File.CopyFileRange(offIn, plain(out), offOut, length, flags)
}
