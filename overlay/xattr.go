//go:build linux

package overlay

import (
	"errors"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// GetXattr reads an extended attribute as getxattr(2) does: with an empty dest it gives the size.
func (t *Tree) GetXattr(n *Node, name string, dest []byte) (int, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var st unix.Statx_t
	ref, err := t.reachOpen(n, nil, &st)
	if err != nil {
		return 0, err
	}
	defer ref.done()
	return ref.getxattr(name, dest)
}

// ListXattr lists the names as listxattr(2) does.
func (t *Tree) ListXattr(n *Node, dest []byte) (int, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var st unix.Statx_t
	ref, err := t.reachOpen(n, nil, &st)
	if err != nil {
		return 0, err
	}
	defer ref.done()
	return ref.listxattr(dest)
}

// SetXattr is setxattr(2).
func (t *Tree) SetXattr(n *Node, name string, value []byte, flags int) error {
	return t.changeXattr(n, func(ref dirRef) error {
		if ref.h != nil {
			return unix.Fsetxattr(ref.fd, name, value, flags)
		}
		return unix.Setxattr(procPath(ref.fd), name, value, flags)
	})
}

// RemoveXattr is removexattr(2).
func (t *Tree) RemoveXattr(n *Node, name string) error {
	return t.changeXattr(n, func(ref dirRef) error {
		if ref.h != nil {
			return unix.Fremovexattr(ref.fd, name)
		}
		return unix.Removexattr(procPath(ref.fd), name)
	})
}

func (t *Tree) changeXattr(n *Node, change func(dirRef) error) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if n.foreign {
		return unix.EROFS
	}
	if err := t.mayChangeNode(n, "xattrs"); err != nil {
		return err
	}
	if err := t.beginChange(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := t.copyUpNode(n); err != nil {
		return err
	}
	var st unix.Statx_t
	ref, err := t.reachOpen(n, nil, &st)
	if err != nil {
		return err
	}
	defer ref.done()
	if err := t.protectReached(n, ref, &st, true, true); err != nil {
		return err
	}
	n.defACL.Store(0)
	n.xattrIn.CompareAndSwap(uint64(t.epoch)|noXattrs, 0) // also where nothing had to be recorded
	return change(ref)
}

// getxattr and listxattr go by the descriptor itself where it is a handle's: O_PATH takes the way through /proc.

func (r dirRef) getxattr(name string, dest []byte) (int, error) {
	if r.h != nil {
		return unix.Fgetxattr(r.fd, name, dest)
	}
	return unix.Getxattr(procPath(r.fd), name, dest)
}

func (r dirRef) listxattr(dest []byte) (int, error) {
	if r.h != nil {
		return unix.Flistxattr(r.fd, dest)
	}
	return unix.Listxattr(procPath(r.fd), dest)
}

// xattrs gives all extended attributes.
func (r dirRef) xattrs() ([]checkpoint.Xattr, error) {
	return xattrsBy(r.listxattr, r.getxattr)
}

// readXattrs gives all extended attributes of a node.
func (t *Tree) readXattrs(n *Node) ([]checkpoint.Xattr, error) {
	ref, err := t.reach(n)
	if err != nil {
		return nil, err
	}
	defer ref.done()
	return ref.xattrs()
}

// xattrsOf gives all extended attributes of what path names; none where the filesystem has no such thing.
func xattrsOf(path string) ([]checkpoint.Xattr, error) {
	return xattrsBy(func(b []byte) (int, error) { return unix.Listxattr(path, b) },
		func(name string, b []byte) (int, error) { return unix.Getxattr(path, name, b) })
}

// xattrsFd is xattrsOf for an open file.
func xattrsFd(fd int) ([]checkpoint.Xattr, error) {
	return xattrsBy(func(b []byte) (int, error) { return unix.Flistxattr(fd, b) },
		func(name string, b []byte) (int, error) { return unix.Fgetxattr(fd, name, b) })
}

func xattrsBy(list func([]byte) (int, error), get func(string, []byte) (int, error)) ([]checkpoint.Xattr, error) {
	n, err := list(nil)
	if err == unix.EOPNOTSUPP || err == nil && n == 0 { // as for most files, which need no buffer
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := growing(list)
	if err != nil || len(names) == 0 { // overlayfs counts its own, and does not list them
		return nil, err
	}
	var xs []checkpoint.Xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if name == "" { // overlayfs counts its own, and leaves them out of the list
			continue
		}
		v, err := growing(func(b []byte) (int, error) { return get(name, b) })
		if err == unix.ENODATA {
			continue
		}
		if err != nil {
			return nil, err
		}
		xs = append(xs, checkpoint.Xattr{Name: name, Value: v})
	}
	return xs, nil
}

// growing calls a function of the xattr family with a buffer that is large enough.
func growing(fn func([]byte) (int, error)) ([]byte, error) {
	var small [256]byte
	n, err := fn(small[:])
	if err == nil {
		return append([]byte(nil), small[:n]...), nil
	}
	for err == unix.ERANGE {
		if n, err = fn(nil); err != nil {
			return nil, err
		}
		buf := make([]byte, n+64)
		if n, err = fn(buf); err == nil {
			return buf[:n], nil
		}
	}
	return nil, err
}

// applyXattrs makes the extended attributes of what path names equal to xs.
func applyXattrs(path string, xs []checkpoint.Xattr) error {
	now, err := xattrsOf(path)
	if err != nil {
		return err
	}
	want := map[string]bool{}
	var failed error
	for _, x := range xs {
		want[x.Name] = true
		if err := unix.Setxattr(path, x.Name, x.Value, 0); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	for _, x := range now {
		if want[x.Name] {
			continue
		}
		if err := unix.Removexattr(path, x.Name); err != nil && err != unix.ENODATA {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func sameXattrs(a, b []checkpoint.Xattr) bool {
	if len(a) != len(b) {
		return false
	}
	have := map[string]string{}
	for _, x := range a {
		have[x.Name] = string(x.Value)
	}
	for _, x := range b {
		if v, ok := have[x.Name]; !ok || v != string(x.Value) {
			return false
		}
	}
	return true
}
