//go:build linux

package branch

import (
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// GetXattr implements overlay.Volume.
func (v *Volume) GetXattr(i overlay.Inode, name string, dest []byte) (size int, err error) {
	err = v.inspect(i, func(n *node, e inode) error {
		if e.pool != 0 {
			size, err = unix.Lgetxattr(v.m.pool.path(e.pool), name, dest)
			return err
		}
		xs, err := v.st.base.Xattrs(n.id)
		if err != nil {
			return err
		}
		for _, x := range xs {
			if x.Name == name {
				size, err = into(dest, x.Value)
				return err
			}
		}
		return unix.ENODATA
	})
	return max(size, 0), err
}

// ListXattr implements overlay.Volume.
func (v *Volume) ListXattr(i overlay.Inode, dest []byte) (size int, err error) {
	err = v.inspect(i, func(n *node, e inode) error {
		if e.pool != 0 {
			size, err = unix.Llistxattr(v.m.pool.path(e.pool), dest)
			return err
		}
		xs, err := v.st.base.Xattrs(n.id)
		if err != nil {
			return err
		}
		var names []byte
		for _, x := range xs {
			names = append(append(names, x.Name...), 0)
		}
		size, err = into(dest, names)
		return err
	})
	if err == unix.ENODATA {
		return 0, nil
	}
	return max(size, 0), err
}

// into answers as getxattr(2) does: with an empty dest it gives the size.
func into(dest, value []byte) (int, error) {
	if len(dest) == 0 {
		return len(value), nil
	}
	if len(dest) < len(value) {
		return 0, unix.ERANGE
	}
	return copy(dest, value), nil
}

func (v *Volume) inspect(i overlay.Inode, fn func(n *node, e inode) error) error {
	n, err := v.own(i)
	if err == nil {
		err = v.enter()
	}
	if err != nil {
		return err
	}
	defer v.leave()
	err = v.settled(n, func(e inode) error { return fn(n, e) })
	if err == unix.ENOENT && v.isDead(n) { // its pool inode went with a layer; see node.last
		err = unix.ENODATA
	}
	return err
}

// SetXattr implements overlay.Volume.
func (v *Volume) SetXattr(i overlay.Inode, name string, value []byte, flags int) error {
	return v.changeXattr(i, func(path string) error { return unix.Lsetxattr(path, name, value, flags) })
}

// RemoveXattr implements overlay.Volume.
func (v *Volume) RemoveXattr(i overlay.Inode, name string) error {
	return v.changeXattr(i, func(path string) error { return unix.Lremovexattr(path, name) })
}

func (v *Volume) changeXattr(i overlay.Inode, change func(path string) error) error {
	n, err := v.own(i)
	if err == nil {
		err = v.enterToChange()
	}
	if err != nil {
		return err
	}
	defer v.leave()
	n.mu.Lock()
	defer n.mu.Unlock()
	e, err := v.copyUp(n, metadata)
	if err != nil {
		return err
	}
	return change(v.m.pool.path(e.pool))
}
