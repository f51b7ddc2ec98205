package treefs

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Capture is treestate.Capture through the tree: what its callers see, with the names that the FS remembers.
func (f *FS) Capture() (treestate.State, error) {
	defer f.begin()()
	c := &capturer{fs: f, state: make(treestate.State), names: make(map[overlay.Inode][]string), buf: make([]byte, 64<<10)}
	if err := c.dir(f.vol.Root(), "."); err != nil {
		return nil, err
	}
	for _, paths := range c.names {
		for _, p := range paths {
			e := c.state[p]
			e.First = slices.Min(paths)
			c.state[p] = e
		}
	}
	return c.state, nil
}

// capturer is one capture under way.
type capturer struct {
	fs    *FS
	state treestate.State
	names map[overlay.Inode][]string // the paths of each node
	buf   []byte
}

func (c *capturer) dir(n overlay.Inode, path string) error {
	names, err := c.fs.readDir(n)
	if err != nil {
		return fmt.Errorf("list %q: %w", path, err)
	}
	if err := c.add(n, path); err != nil {
		return err
	}
	for _, name := range names {
		p := name
		if path != "." {
			p = path + "/" + name
		}
		child, err := c.fs.lookup(n, name)
		if err != nil {
			return fmt.Errorf("look up %q, which is listed: %w", p, err)
		}
		if child.IsDir() {
			err = c.dir(child, p)
		} else {
			err = c.add(child, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *capturer) add(n overlay.Inode, path string) error {
	a, err := c.fs.vol.GetAttr(n, nil)
	if err != nil {
		return fmt.Errorf("stat %q: %w", path, err)
	}
	e := treestate.Entry{Path: path, Mode: a.Mode, UID: a.UID, GID: a.GID, Mtime: a.Mtime.Nano()}
	switch {
	case e.IsDir():
	case e.IsRegular():
		e.Size, e.Nlink = a.Size, a.Nlink
		e.Sum, err = c.sum(n)
	case e.IsSymlink():
		e.Size, e.Nlink = a.Size, a.Nlink
		e.Target, err = c.fs.vol.Readlink(n)
	default:
		e.Nlink, e.Rdev = a.Nlink, uint64(a.Rdev)
	}
	if err != nil {
		return fmt.Errorf("read %q: %w", path, err)
	}
	if e.Xattrs, err = c.xattrs(n); err != nil {
		return fmt.Errorf("list the xattrs of %q: %w", path, err)
	}
	c.state[path] = e
	c.names[n] = append(c.names[n], path)
	return nil
}

func (c *capturer) sum(n overlay.Inode) (sum treestate.Sum, err error) {
	h, err := c.fs.vol.Open(n, unix.O_RDONLY, false, c.fs.caller)
	if err != nil {
		return sum, err
	}
	defer h.Release()
	var hash treestate.Hash
	buf := c.buf
	for off := int64(0); ; {
		k, err := h.ReadAt(buf, off)
		_, _ = hash.Write(buf[:k])
		off += int64(k)
		if err == io.EOF || k == 0 && err == nil {
			return hash.Sum(), nil
		}
		if err != nil {
			return sum, err
		}
	}
}

func (c *capturer) xattrs(n overlay.Inode) (map[string]string, error) {
	buf := c.buf
	k, err := c.fs.vol.ListXattr(n, buf)
	if err != nil || k == 0 {
		return nil, err
	}
	out := make(map[string]string)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:k]), "\x00"), "\x00") {
		k, err := c.fs.vol.GetXattr(n, name, buf)
		if err != nil {
			return nil, err
		}
		out[name] = string(buf[:k])
	}
	return out, nil
}
