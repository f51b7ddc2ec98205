//go:build linux

package overlay

import "golang.org/x/sys/unix"

// treeVolume is a Tree as a Volume. It takes no inodes, files and directories but the tree's own, and as both types are the same in
// memory, none of its methods allocates.
type treeVolume Tree

var (
	_ Volume = (*treeVolume)(nil)
	_ Inode  = (*Node)(nil)
	_ File   = (*Handle)(nil)
	_ Dir    = (*DirHandle)(nil)
)

// Volume gives the tree as one of the volumes of a mount.
func (t *Tree) Volume() Volume { return (*treeVolume)(t) }

// Inode gives what the handle has open.
func (h *Handle) Inode() Inode { return h.node }

// Inode gives what the handle has open.
func (d *DirHandle) Inode() Inode { return d.node }

// handleOf turns no File into no Handle.
func handleOf(f File) *Handle {
	if f == nil {
		return nil
	}
	return f.(*Handle)
}

// A nil pointer in an interface is not nil: so each of these gives one only where there is something to give.

func inodeOf(n *Node, a Attr, err error) (Inode, Attr, error) {
	if err != nil {
		return nil, Attr{}, err
	}
	return n, a, nil
}

func openedOf(n *Node, h *Handle, a Attr, err error) (Inode, File, Attr, error) {
	if err != nil {
		return nil, nil, Attr{}, err
	}
	return n, h, a, nil
}

func (v *treeVolume) tree() *Tree { return (*Tree)(v) }

func (v *treeVolume) Root() Inode { return v.root }

func (v *treeVolume) Forget(n Inode, nlookup uint64) { v.tree().Forget(n.(*Node), nlookup) }

func (v *treeVolume) Lookup(dir Inode, name string) (Inode, Attr, error) {
	return inodeOf(v.tree().Lookup(dir.(*Node), name))
}

func (v *treeVolume) GetAttr(n Inode, f File) (Attr, error) {
	return v.tree().GetAttr(n.(*Node), handleOf(f))
}

func (v *treeVolume) SetAttr(n Inode, f File, in *SetAttr) (Attr, error) {
	return v.tree().SetAttr(n.(*Node), handleOf(f), in)
}

func (v *treeVolume) Readlink(n Inode) (string, error) { return v.tree().Readlink(n.(*Node)) }

func (v *treeVolume) Statfs() (unix.Statfs_t, error) { return v.tree().Statfs() }

func (v *treeVolume) OpenDir(n Inode) (Dir, error) {
	d, err := v.tree().OpenDir(n.(*Node))
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (v *treeVolume) Open(n Inode, flags int, direct bool, c *Caller) (File, error) {
	h, err := v.tree().Open(n.(*Node), flags, direct, c)
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (v *treeVolume) Create(dir Inode, name string, flags int, mode uint32, direct bool, c *Caller) (Inode, File, Attr, error) {
	return openedOf(v.tree().Create(dir.(*Node), name, flags, mode, direct, c))
}

func (v *treeVolume) Tmpfile(dir Inode, flags int, mode uint32, direct bool, c *Caller) (Inode, File, Attr, error) {
	return openedOf(v.tree().Tmpfile(dir.(*Node), flags, mode, direct, c))
}

func (v *treeVolume) Mkdir(dir Inode, name string, mode uint32, c *Caller) (Inode, Attr, error) {
	return inodeOf(v.tree().Mkdir(dir.(*Node), name, mode, c))
}

func (v *treeVolume) Mknod(dir Inode, name string, mode, rdev uint32, c *Caller) (Inode, Attr, error) {
	return inodeOf(v.tree().Mknod(dir.(*Node), name, mode, rdev, c))
}

func (v *treeVolume) Symlink(dir Inode, name, target string, c *Caller) (Inode, Attr, error) {
	return inodeOf(v.tree().Symlink(dir.(*Node), name, target, c))
}

func (v *treeVolume) Link(n, dir Inode, name string) (Attr, error) {
	return v.tree().Link(n.(*Node), dir.(*Node), name)
}

func (v *treeVolume) Unlink(dir Inode, name string) error {
	return v.tree().Unlink(dir.(*Node), name)
}

func (v *treeVolume) Rmdir(dir Inode, name string) error { return v.tree().Rmdir(dir.(*Node), name) }

func (v *treeVolume) Rename(oldDir Inode, oldName string, newDir Inode, newName string, flags uint32) error {
	return v.tree().Rename(oldDir.(*Node), oldName, newDir.(*Node), newName, flags)
}

func (v *treeVolume) GetXattr(n Inode, name string, dest []byte) (int, error) {
	return v.tree().GetXattr(n.(*Node), name, dest)
}

func (v *treeVolume) ListXattr(n Inode, dest []byte) (int, error) {
	return v.tree().ListXattr(n.(*Node), dest)
}

func (v *treeVolume) SetXattr(n Inode, name string, value []byte, flags int) error {
	return v.tree().SetXattr(n.(*Node), name, value, flags)
}

func (v *treeVolume) RemoveXattr(n Inode, name string) error {
	return v.tree().RemoveXattr(n.(*Node), name)
}
