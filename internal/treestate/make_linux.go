package treestate

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Make makes dst, which must not exist, the tree that s tells of; Capture tells of it what s says. fill writes the content of a regular file into an
// empty one. It needs the same rights as Copy.
func (s State) Make(dst string, fill func(e Entry, fd int) error) error {
	if err := unix.Mkdir(dst, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: dst, Err: err}
	}
	top, err := unix.Open(dst, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dst, Err: err}
	}
	defer unix.Close(top)
	paths := s.Paths()
	for _, p := range paths { // parents first, and the first name of an inode before the others
		if err := makeEntry(top, s[p], fill); err != nil {
			return fail("make", p, err)
		}
	}
	slices.Reverse(paths)
	for _, p := range paths { // a directory's mtime comes last
		if e := s[p]; e.First == p {
			if err := dress(top, e); err != nil {
				return fail("set the attributes of", p, err)
			}
		}
	}
	return nil
}

// makeEntry makes a name, but not its attributes.
func makeEntry(top int, e Entry, fill func(e Entry, fd int) error) error {
	switch {
	case e.Unreadable != "":
		return fmt.Errorf("what it holds was unreadable: %s", e.Unreadable)
	case e.Path == ".":
		return nil
	case e.IsDir():
		return unix.Mkdirat(top, e.Path, 0o700)
	case e.First != e.Path:
		return unix.Linkat(top, e.First, top, e.Path, 0)
	case e.IsSymlink():
		return unix.Symlinkat(e.Target, top, e.Path)
	case !e.IsRegular():
		return unix.Mknodat(top, e.Path, e.Mode&unix.S_IFMT|0o600, int(e.Rdev))
	}
	fd, err := unix.Openat(top, e.Path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fill(e, fd)
}

// dress gives a path its attributes, in an order in which none undoes another.
func dress(top int, e Entry) error {
	if err := unix.Fchownat(top, e.Path, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if !e.IsSymlink() {
		if err := unix.Fchmodat(top, e.Path, e.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	for name, value := range e.Xattrs {
		if err := unix.Lsetxattr(procPath(top)+"/"+e.Path, name, []byte(value), 0); err != nil {
			return err
		}
	}
	ts := unix.NsecToTimespec(e.Mtime)
	return unix.UtimesNanoAt(top, e.Path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// Fill is what State.Make fills files by.
func (c *Contents) Fill(e Entry, fd int) error {
	data, ok := c.bySum[e.Sum]
	if !ok {
		return fmt.Errorf("its content is not kept: checksum %x", e.Sum)
	}
	const block = 64 << 10
	var zero [block]byte
	for off := 0; off < len(data); off += block {
		part := data[off:min(off+block, len(data))]
		if bytes.Equal(part, zero[:len(part)]) {
			continue // it stays a hole
		}
		if _, err := unix.Pwrite(fd, part, int64(off)); err != nil {
			return err
		}
	}
	return unix.Ftruncate(fd, int64(len(data)))
}

// keep adds the content of an open file, if it is not there yet.
func (c *Contents) keep(sum Sum, fd int, size int64) error {
	if _, ok := c.bySum[sum]; ok {
		return nil
	}
	data := make([]byte, size)
	for off := 0; off < len(data); {
		n, err := unix.Pread(fd, data[off:], int64(off))
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("it ends at %d, and has %d bytes", off, size)
		}
		off += n
	}
	c.add(sum, data)
	return nil
}
