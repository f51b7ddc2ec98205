//go:build linux

package merge_test

import (
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// volume is a live tree as a volume.
type volume struct{ t *overlay.Tree }

type file struct{ *overlay.Handle }

func (f file) Inode() overlay.Inode { return f.Node() }

func (f file) CopyFileRange(offIn int64, out overlay.File, offOut int64, length, flags int) (int, error) {
	return f.Handle.CopyFileRange(offIn, out.(file).Handle, offOut, length, flags)
}

type dir struct{ *overlay.DirHandle }

func (d dir) Inode() overlay.Inode { return d.Node() }

func node(n overlay.Inode) *overlay.Node { return n.(*overlay.Node) }

func handle(f overlay.File) *overlay.Handle {
	if f == nil {
		return nil
	}
	return f.(file).Handle
}

func inode(n *overlay.Node, a overlay.Attr, err error) (overlay.Inode, overlay.Attr, error) {
	if err != nil {
		return nil, a, err
	}
	return n, a, nil
}

func (v volume) Root() overlay.Inode                       { return v.t.Root() }
func (v volume) Forget(n overlay.Inode, nlookup uint64)    { v.t.Forget(node(n), nlookup) }
func (v volume) Readlink(n overlay.Inode) (string, error)  { return v.t.Readlink(node(n)) }
func (v volume) Statfs() (unix.Statfs_t, error)            { return v.t.Statfs() }
func (v volume) Unlink(d overlay.Inode, name string) error { return v.t.Unlink(node(d), name) }
func (v volume) Rmdir(d overlay.Inode, name string) error  { return v.t.Rmdir(node(d), name) }

func (v volume) Lookup(d overlay.Inode, name string) (overlay.Inode, overlay.Attr, error) {
	return inode(v.t.Lookup(node(d), name))
}

func (v volume) GetAttr(n overlay.Inode, f overlay.File) (overlay.Attr, error) {
	return v.t.GetAttr(node(n), handle(f))
}

func (v volume) SetAttr(n overlay.Inode, f overlay.File, in *overlay.SetAttr) (overlay.Attr, error) {
	return v.t.SetAttr(node(n), handle(f), in)
}

func (v volume) OpenDir(n overlay.Inode) (overlay.Dir, error) {
	d, err := v.t.OpenDir(node(n))
	if err != nil {
		return nil, err
	}
	return dir{d}, nil
}

func (v volume) Open(n overlay.Inode, flags int, direct bool, c *overlay.Caller) (overlay.File, error) {
	h, err := v.t.Open(node(n), flags, direct, c)
	if err != nil {
		return nil, err
	}
	return file{h}, nil
}

func (v volume) Create(d overlay.Inode, name string, flags int, mode uint32, direct bool, c *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	n, h, a, err := v.t.Create(node(d), name, flags, mode, direct, c)
	if err != nil {
		return nil, nil, a, err
	}
	return n, file{h}, a, nil
}

func (v volume) Tmpfile(d overlay.Inode, flags int, mode uint32, direct bool, c *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	n, h, a, err := v.t.Tmpfile(node(d), flags, mode, direct, c)
	if err != nil {
		return nil, nil, a, err
	}
	return n, file{h}, a, nil
}

func (v volume) Mkdir(d overlay.Inode, name string, mode uint32, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	return inode(v.t.Mkdir(node(d), name, mode, c))
}

func (v volume) Mknod(d overlay.Inode, name string, mode, rdev uint32, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	return inode(v.t.Mknod(node(d), name, mode, rdev, c))
}

func (v volume) Symlink(d overlay.Inode, name, target string, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	return inode(v.t.Symlink(node(d), name, target, c))
}

func (v volume) Link(n, d overlay.Inode, name string) (overlay.Attr, error) {
	return v.t.Link(node(n), node(d), name)
}

func (v volume) Rename(oldDir overlay.Inode, oldName string, newDir overlay.Inode, newName string, flags uint32) error {
	return v.t.Rename(node(oldDir), oldName, node(newDir), newName, flags)
}

func (v volume) GetXattr(n overlay.Inode, name string, dest []byte) (int, error) {
	return v.t.GetXattr(node(n), name, dest)
}

func (v volume) ListXattr(n overlay.Inode, dest []byte) (int, error) {
	return v.t.ListXattr(node(n), dest)
}

func (v volume) SetXattr(n overlay.Inode, name string, value []byte, flags int) error {
	return v.t.SetXattr(node(n), name, value, flags)
}

func (v volume) RemoveXattr(n overlay.Inode, name string) error {
	return v.t.RemoveXattr(node(n), name)
}
