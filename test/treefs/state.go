package treefs

import (
	"fmt"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// CaptureState is treestate.Capture of a state of the past.
func CaptureState(s overlay.State) (treestate.State, error) {
	c := &stateCapturer{s: s, state: make(treestate.State), names: make(map[checkpoint.ID][]string)}
	if err := c.entry(s.Root(), unix.S_IFDIR, "."); err != nil {
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

// stateCapturer is one capture under way.
type stateCapturer struct {
	s     overlay.State
	state treestate.State
	names map[checkpoint.ID][]string // the paths of each inode
}

// entry captures what is at a path, and all that is below it.
func (c *stateCapturer) entry(id checkpoint.ID, kind uint32, path string) error {
	e, err := CaptureInode(c.s, id, path)
	if err != nil {
		return err
	}
	if e.Mode&unix.S_IFMT != kind {
		return fmt.Errorf("%q has the type %#o, and its directory says %#o", path, e.Mode&unix.S_IFMT, kind)
	}
	c.state[path] = e
	c.names[id] = append(c.names[id], path)
	if !e.IsDir() {
		return nil
	}
	list, err := c.s.List(id)
	if err != nil {
		return fmt.Errorf("list %q: %w", path, err)
	}
	for _, below := range list {
		p := below.Name
		if path != "." {
			p = path + "/" + p
		}
		if _, twice := c.state[p]; twice {
			return fmt.Errorf("%q is listed twice", p)
		}
		at, err := c.s.Lookup(id, below.Name)
		if err != nil {
			return fmt.Errorf("look up %q, which is listed: %w", p, err)
		}
		if at.ID.Ino != below.Ino || at.Type != below.Type {
			return fmt.Errorf("%q is inode %d of type %#o, and listed as %d of type %#o", p, at.ID.Ino, at.Type, below.Ino, below.Type)
		}
		if err := c.entry(at.ID, at.Type, p); err != nil {
			return err
		}
	}
	return nil
}

// CaptureInode tells what an inode of a state was like, all but who shares it.
func CaptureInode(s overlay.State, id checkpoint.ID, path string) (treestate.Entry, error) {
	a, err := s.Attr(id)
	if err != nil {
		return treestate.Entry{}, fmt.Errorf("stat %q: %w", path, err)
	}
	e := treestate.Entry{Path: path, Mode: a.Mode, UID: a.UID, GID: a.GID, Mtime: a.Mtime.Nano()}
	switch {
	case e.IsDir():
		if a.Nlink != 1 {
			return e, fmt.Errorf("the directory %q has %d links", path, a.Nlink)
		}
	case e.IsRegular():
		e.Size, e.Nlink = a.Size, a.Nlink
		e.Sum, err = sumOf(s, id, a.Size)
	case e.IsSymlink():
		e.Size, e.Nlink = a.Size, a.Nlink
		e.Target, err = s.Readlink(id)
	default:
		e.Nlink, e.Rdev = a.Nlink, a.Rdev
	}
	if err != nil {
		return e, fmt.Errorf("read %q: %w", path, err)
	}
	xs, err := s.Xattrs(id)
	if err != nil {
		return e, fmt.Errorf("list the xattrs of %q: %w", path, err)
	}
	for _, x := range xs {
		if e.Xattrs == nil {
			e.Xattrs = map[string]string{}
		}
		e.Xattrs[x.Name] = string(x.Value)
	}
	return e, nil
}

func sumOf(s overlay.State, id checkpoint.ID, size int64) (treestate.Sum, error) {
	f, err := s.Open(id)
	if err != nil {
		return treestate.Sum{}, err
	}
	defer f.Close()
	return SumFile(f, size)
}

// SumFile reads the content that a file had, which is of size bytes.
func SumFile(f overlay.StateFile, size int64) (sum treestate.Sum, err error) {
	var hash treestate.Hash
	buf := make([]byte, 64<<10)
	for off := int64(0); ; {
		n, err := f.ReadAt(buf, off)
		if err != nil {
			return sum, err
		}
		if n == 0 {
			if off != size {
				return sum, fmt.Errorf("it ends at %d, and has %d bytes", off, size)
			}
			return hash.Sum(), nil
		}
		_, _ = hash.Write(buf[:n])
		off += int64(n)
	}
}
