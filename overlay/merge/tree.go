//go:build linux

package merge

import (
	"bytes"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// tree reads a volume by path. "." is the root.
type tree struct {
	vol  overlay.Volume
	dirs map[string]overlay.Inode // held until forget
}

func newTree(v overlay.Volume) *tree { return &tree{vol: v, dirs: map[string]overlay.Inode{}} }

// forget gives all references back. It must be called before a directory of the volume loses its path.
func (t *tree) forget() {
	for _, n := range t.dirs {
		t.vol.Forget(n, 1)
	}
	clear(t.dirs)
}

func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// dir gives a directory. It stays held.
func (t *tree) dir(p string) (overlay.Inode, error) {
	if p == "." {
		return t.vol.Root(), nil
	}
	if n, ok := t.dirs[p]; ok {
		return n, nil
	}
	parent, err := t.dir(path.Dir(p))
	if err != nil {
		return nil, err
	}
	n, _, err := t.vol.Lookup(parent, path.Base(p))
	if err != nil {
		return nil, err
	}
	if !n.IsDir() {
		t.vol.Forget(n, 1)
		return nil, unix.ENOTDIR
	}
	t.dirs[p] = n
	return n, nil
}

// at calls fn with what has a path.
func (t *tree) at(p string, fn func(n overlay.Inode, a overlay.Attr) error) error {
	if p == "." {
		a, err := t.vol.GetAttr(t.vol.Root(), nil)
		if err != nil {
			return err
		}
		return fn(t.vol.Root(), a)
	}
	dir, err := t.dir(path.Dir(p))
	if err != nil {
		return err
	}
	n, a, err := t.vol.Lookup(dir, path.Base(p))
	if err != nil {
		return err
	}
	defer t.vol.Forget(n, 1)
	return fn(n, a)
}

func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// stat gives the attributes, and whether there is such a path.
func (t *tree) stat(p string) (attr overlay.Attr, ok bool, err error) {
	err = t.at(p, func(_ overlay.Inode, a overlay.Attr) error { attr = a; return nil })
	if isMissing(err) {
		return attr, false, nil
	}
	return attr, err == nil, err
}

func (t *tree) list(p string) ([]overlay.DirEntry, error) {
	n, err := t.dir(p)
	if err != nil {
		return nil, err
	}
	d, err := t.vol.OpenDir(n)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	var all []overlay.DirEntry
	for off := uint64(0); ; {
		e, ok, err := d.Next(off)
		if err != nil || !ok {
			return all, err
		}
		off = e.Off
		if e.Name == "." || e.Name == ".." || p == "." && e.Name == overlay.StoreName {
			continue
		}
		all = append(all, e)
	}
}

func (t *tree) readlink(p string) (target string, err error) {
	err = t.at(p, func(n overlay.Inode, _ overlay.Attr) (err error) {
		target, err = t.vol.Readlink(n)
		return err
	})
	return target, err
}

func (t *tree) xattrs(p string) (all map[string]string, err error) {
	err = t.at(p, func(n overlay.Inode, _ overlay.Attr) (err error) {
		all, err = xattrsOf(t.vol, n)
		return err
	})
	return all, err
}

// xattrsOf gives all extended attributes; none where the filesystem has no such thing.
func xattrsOf(v overlay.Volume, n overlay.Inode) (map[string]string, error) {
	list, err := sized(func(dest []byte) (int, error) { return v.ListXattr(n, dest) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value, err := sized(func(dest []byte) (int, error) { return v.GetXattr(n, name, dest) })
		if err != nil {
			return nil, err
		}
		all[name] = string(value)
	}
	return all, nil
}

// sized calls a function of the xattr kind until its answer fits.
func sized(call func(dest []byte) (int, error)) ([]byte, error) {
	for {
		n, err := call(nil)
		if err != nil || n == 0 {
			return nil, err
		}
		buf := make([]byte, n)
		n, err = call(buf)
		if errors.Is(err, unix.ERANGE) {
			continue // it has grown
		}
		return buf[:max(n, 0)], err
	}
}

// reader reads an open file from its beginning.
type reader struct {
	f   overlay.File
	off int64
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.f.ReadAt(p, r.off)
	r.off += int64(n)
	if n == 0 && err == nil && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

// open calls fn with the regular file that has a path.
func (t *tree) open(p string, fn func(f overlay.File) error) error {
	return t.at(p, func(n overlay.Inode, _ overlay.Attr) error {
		f, err := t.vol.Open(n, unix.O_RDONLY, false, &overlay.Caller{})
		if err != nil {
			return err
		}
		defer f.Release()
		return fn(f)
	})
}

// read gives a whole file. The caller knows that it is small.
func (t *tree) read(p string) (all []byte, err error) {
	err = t.open(p, func(f overlay.File) (err error) {
		all, err = io.ReadAll(&reader{f: f})
		return err
	})
	return all, err
}

// sameFile compares the contents of two regular files.
func sameFile(x *tree, px string, y *tree, py string) (same bool, err error) {
	err = x.open(px, func(fx overlay.File) error {
		return y.open(py, func(fy overlay.File) (err error) {
			same, err = sameBytes(&reader{f: fx}, &reader{f: fy})
			return err
		})
	})
	return same, err
}

func sameBytes(x, y io.Reader) (bool, error) {
	bx, by := make([]byte, 256<<10), make([]byte, 256<<10)
	for {
		nx, err := full(x, bx)
		if err != nil {
			return false, err
		}
		ny, err := full(y, by)
		if err != nil || !bytes.Equal(bx[:nx], by[:ny]) {
			return false, err
		}
		if nx < len(bx) {
			return true, nil
		}
	}
}

// full fills p as far as there is something.
func full(r io.Reader, p []byte) (int, error) {
	n, err := io.ReadFull(r, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n, err
}
