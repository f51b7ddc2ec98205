package treefs

import (
	"errors"
	"sort"
	"strings"

	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
	"golang.org/x/sys/unix"
)

var _ ops.FS = (*FS)(nil)

// Open implements ops.FS.
func (f *FS) Open(path string, flags int, mode uint32) (ops.File, error) {
	defer f.begin()()
	s, err := f.slot(path)
	if err != nil {
		return nil, err
	}
	n, err := f.lookup(s.dir, s.name)
	if errors.Is(err, unix.ENOENT) && flags&unix.O_CREAT != 0 {
		return f.create(s, flags, mode)
	}
	if err != nil {
		return nil, err
	}
	if flags&unix.O_CREAT != 0 && flags&unix.O_EXCL != 0 {
		return nil, unix.EEXIST
	}
	return f.openNode(n, flags)
}

func (f *FS) create(s slot, flags int, mode uint32) (ops.File, error) {
	n, h, _, err := f.vol.Create(s.dir, s.name, flags, unix.S_IFREG|mode, f.direct(), f.caller)
	if err != nil {
		return nil, err
	}
	f.keep(s, n)
	return &file{fs: f, h: h}, nil
}

// openNode refuses what the VFS refuses. The kernel sends O_TRUNC as a change of size, before the open or after it, unless the
// file system says that it takes it in the open: then O_CREAT and O_EXCL are gone too.
func (f *FS) openNode(n overlay.Inode, flags int) (ops.File, error) {
	a, err := f.vol.GetAttr(n, nil)
	if err != nil {
		return nil, err
	}
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return nil, unix.EISDIR
	case unix.S_IFLNK:
		return nil, unix.ELOOP
	case unix.S_IFREG:
	default:
		return nil, unix.ENXIO
	}
	h, err := f.vol.Open(n, flags&^(unix.O_CREAT|unix.O_EXCL), f.direct(), f.caller)
	if err != nil {
		return nil, err
	}
	return &file{fs: f, h: h}, nil
}

// direct chooses whether the next file bypasses the tree.
func (f *FS) direct() bool {
	f.opened++
	return f.o.Direct && f.opened%2 == 0
}

// begin starts a call on names: pages that were written through mappings reach the tree before anything else happens to it.
// What it returns ends the call.
func (f *FS) begin() (end func()) {
	f.Flush()
	return f.done
}

// Tmpfile implements ops.FS.
func (f *FS) Tmpfile(dir string, mode uint32) (ops.File, error) {
	defer f.begin()()
	d, err := f.dir(dir)
	if err != nil {
		return nil, err
	}
	n, h, _, err := f.vol.Tmpfile(d, unix.O_RDWR|unix.O_TMPFILE, unix.S_IFREG|mode, f.direct(), f.caller)
	if err != nil {
		return nil, err
	}
	return &file{fs: f, h: h, tmp: n}, nil
}

// LinkFile implements ops.FS.
func (f *FS) LinkFile(x ops.File, path string) error {
	defer f.begin()()
	s, err := f.slot(path)
	if err != nil {
		return err
	}
	_, err = f.vol.Link(x.(*file).h.Inode(), s.dir, s.name)
	f.forget(s)
	return err
}

// ReadDir implements ops.FS. The names are sorted.
func (f *FS) ReadDir(path string) ([]string, error) {
	defer f.begin()()
	n, err := f.dir(path)
	if err != nil {
		return nil, err
	}
	return f.readDir(n)
}

func (f *FS) readDir(n overlay.Inode) ([]string, error) {
	d, err := f.vol.OpenDir(n)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	var names []string
	for off := uint64(0); ; {
		e, ok, err := d.Next(off)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		off = e.Off
		if e.Name != "." && e.Name != ".." {
			names = append(names, e.Name)
		}
	}
	sort.Strings(names)
	return names, nil
}

// IsDir implements ops.FS.
func (f *FS) IsDir(path string) (bool, error) {
	defer f.begin()()
	n, err := f.node(path)
	return err == nil && n.IsDir(), err
}

// Truncate implements ops.FS.
func (f *FS) Truncate(path string, size int64) error {
	defer f.begin()()
	n, a, err := f.stat(path)
	if err != nil {
		return err
	}
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return unix.EISDIR
	case unix.S_IFREG:
		return f.setattr(n, &overlay.SetAttr{Valid: overlay.SetSize, Size: size})
	}
	return unix.EINVAL
}

func (f *FS) setattr(n overlay.Inode, in *overlay.SetAttr) error {
	_, err := f.vol.SetAttr(n, nil, in)
	return err
}

// Mkdir implements ops.FS.
func (f *FS) Mkdir(path string, mode uint32) error {
	return f.make(path, func(s slot) (overlay.Inode, overlay.Attr, error) {
		return f.vol.Mkdir(s.dir, s.name, mode, f.caller)
	})
}

// Symlink implements ops.FS.
func (f *FS) Symlink(target, path string) error {
	return f.make(path, func(s slot) (overlay.Inode, overlay.Attr, error) {
		return f.vol.Symlink(s.dir, s.name, target, f.caller)
	})
}

// Mknod implements ops.FS.
func (f *FS) Mknod(path string, mode uint32, dev int) error {
	return f.make(path, func(s slot) (overlay.Inode, overlay.Attr, error) {
		return f.vol.Mknod(s.dir, s.name, mode, uint32(dev), f.caller)
	})
}

func (f *FS) make(path string, fn func(slot) (overlay.Inode, overlay.Attr, error)) error {
	defer f.begin()()
	s, err := f.slot(path)
	if err != nil {
		return err
	}
	n, _, err := fn(s)
	if err == nil {
		f.keep(s, n)
	}
	return err
}

// Rmdir implements ops.FS.
func (f *FS) Rmdir(path string) error { return f.remove(path, true) }

// Unlink implements ops.FS.
func (f *FS) Unlink(path string) error { return f.remove(path, false) }

func (f *FS) remove(path string, dir bool) error {
	defer f.begin()()
	s, err := f.slot(path)
	if err != nil {
		return err
	}
	n, err := f.lookup(s.dir, s.name)
	if err != nil {
		return err
	}
	switch {
	case dir && !n.IsDir():
		return unix.ENOTDIR
	case !dir && n.IsDir():
		return unix.EISDIR
	case dir:
		err = f.vol.Rmdir(s.dir, s.name)
	default:
		err = f.vol.Unlink(s.dir, s.name)
	}
	if err == nil {
		f.forget(s)
	}
	return err
}

// Rename implements ops.FS.
func (f *FS) Rename(from, to string, flags uint) error {
	defer f.begin()()
	a, err := f.slot(from)
	if err != nil {
		return err
	}
	b, err := f.slot(to)
	if err != nil {
		return err
	}
	same, err := f.mayRename(a, b, from, to, flags)
	if same || err != nil {
		return err
	}
	if err := f.vol.Rename(a.dir, a.name, b.dir, b.name, uint32(flags)); err != nil {
		return err
	}
	f.move(a, b, flags&unix.RENAME_EXCHANGE != 0)
	return nil
}

// mayRename refuses what the VFS refuses, in its order. Of two names of one inode there is nothing to rename.
func (f *FS) mayRename(a, b slot, from, to string, flags uint) (same bool, err error) {
	exchange := flags&unix.RENAME_EXCHANGE != 0
	old, err := f.lookup(a.dir, a.name)
	if err != nil {
		return false, err
	}
	target, err := f.lookup(b.dir, b.name)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, err
	}
	switch {
	case target != nil && flags&unix.RENAME_NOREPLACE != 0:
		return false, unix.EEXIST
	case target == nil && exchange:
		return false, unix.ENOENT
	case strings.HasPrefix(to, from+"/"):
		return false, unix.EINVAL
	case strings.HasPrefix(from, to+"/") && exchange:
		return false, unix.EINVAL
	case strings.HasPrefix(from, to+"/"):
		return false, unix.ENOTEMPTY
	case target == old:
		return true, nil
	case target == nil || exchange:
		return false, nil
	case old.IsDir() && !target.IsDir():
		return false, unix.ENOTDIR
	case !old.IsDir() && target.IsDir():
		return false, unix.EISDIR
	}
	return false, nil
}

// Link implements ops.FS.
func (f *FS) Link(from, to string) error {
	defer f.begin()()
	old, err := f.slot(from)
	if err != nil {
		return err
	}
	s, err := f.slot(to)
	if err != nil {
		return err
	}
	n, err := f.lookup(old.dir, old.name)
	if err != nil {
		return err
	}
	if _, err := f.lookup(s.dir, s.name); err == nil {
		return unix.EEXIST
	}
	if n.IsDir() {
		return unix.EPERM
	}
	_, err = f.vol.Link(n, s.dir, s.name)
	f.forget(s)
	return err
}

// Chmod implements ops.FS.
func (f *FS) Chmod(path string, mode uint32) error {
	defer f.begin()()
	n, a, err := f.stat(path)
	if err != nil {
		return err
	}
	if a.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.EOPNOTSUPP
	}
	return f.setattr(n, &overlay.SetAttr{Valid: overlay.SetMode, Mode: a.Mode&unix.S_IFMT | mode})
}

// Chown implements ops.FS.
func (f *FS) Chown(path string, uid, gid int) error {
	defer f.begin()()
	n, err := f.node(path)
	if err != nil {
		return err
	}
	in := &overlay.SetAttr{Valid: overlay.SetUID | overlay.SetGID, UID: uint32(uid), GID: uint32(gid)}
	return f.setattr(n, in)
}

// Utimes implements ops.FS.
func (f *FS) Utimes(path string, ns int64) error {
	defer f.begin()()
	n, err := f.node(path)
	if err != nil {
		return err
	}
	ts := unix.NsecToTimespec(ns)
	return f.setattr(n, &overlay.SetAttr{Valid: overlay.SetAtime | overlay.SetMtime, Atime: ts, Mtime: ts})
}

// SetXattr implements ops.FS.
func (f *FS) SetXattr(path, name string, value []byte) error {
	return f.xattr(path, name, func(n overlay.Inode) error { return f.vol.SetXattr(n, name, value, 0) })
}

// DelXattr implements ops.FS.
func (f *FS) DelXattr(path, name string) error {
	return f.xattr(path, name, func(n overlay.Inode) error { return f.vol.RemoveXattr(n, name) })
}

// xattr refuses what the VFS refuses: user xattrs of what is neither a file nor a directory, ACLs of symlinks.
func (f *FS) xattr(path, name string, fn func(overlay.Inode) error) error {
	defer f.begin()()
	n, a, err := f.stat(path)
	if err != nil {
		return err
	}
	kind := a.Mode & unix.S_IFMT
	switch {
	case strings.HasPrefix(name, "user.") && kind != unix.S_IFREG && kind != unix.S_IFDIR:
		return unix.EPERM
	case strings.HasPrefix(name, "system.posix_acl_") && kind == unix.S_IFLNK:
		return unix.EOPNOTSUPP
	}
	return fn(n)
}
