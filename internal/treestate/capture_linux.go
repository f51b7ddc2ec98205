package treestate

import (
	"errors"
	"fmt"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

// Capture reads the whole tree below dir. It changes nothing in it: no mtime ever, and no atime where the kernel lets us
// say so. What the caller may not read is recorded as unreadable; any other failure ends the capture.
//
// It works with directory descriptors, so neither the length of paths nor the bytes in names matter. It holds one
// descriptor for each level of the tree.
func Capture(dir string, o Options) (State, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return CaptureAt(fd, o)
}

// CaptureAt is Capture for an open directory. It does not close dirfd.
func CaptureAt(dirfd int, o Options) (State, error) {
	c := &capturer{o: o, state: make(State), inode: make(map[string]inodeKey), buf: make([]byte, 256<<10)}
	if err := c.dir(dirfd, "."); err != nil {
		return nil, err
	}
	c.state.linkGroups(c.inode)
	return c.state, nil
}

// capturer is one capture under way.
type capturer struct {
	o     Options
	state State
	inode map[string]inodeKey
	buf   []byte // for reading content and xattrs
}

// add puts e in the state.
func (c *capturer) add(e Entry, st *unix.Stat_t) {
	c.state[e.Path] = e
	c.inode[e.Path] = inodeKey{dev: st.Dev, ino: st.Ino}
}

// dir captures the directory fd and all that is below it.
func (c *capturer) dir(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail("stat", path, err)
	}
	e := entryOf(path, &st)
	var err error
	if e.Xattrs, err = c.xattrs(procPath(fd)); err != nil {
		return fail("list the xattrs of", path, err)
	}
	names, err := c.names(fd, path)
	switch {
	case errors.Is(err, unix.EACCES):
		e.Unreadable = err.Error()
	case err != nil:
		return fail("list", path, err)
	}
	c.add(e, &st)
	for _, name := range names {
		if err := c.name(fd, name, join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// names lists a directory through a descriptor of its own, so that the offset of fd does not matter.
func (c *capturer) names(fd int, path string) ([]string, error) {
	list, err := openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(list)
	buf := make([]byte, 64<<10)
	var names []string
	for {
		n, err := unix.Getdents(list, buf)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	if path == "." && !c.o.KeepName {
		names = without(names, StoreName)
	}
	sort.Strings(names)
	return names, nil
}

// name captures one name of the directory fd.
func (c *capturer) name(fd int, name, path string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail("stat", path, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return c.subdir(fd, name, path, &st)
	}
	e := entryOf(path, &st)
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFREG && (c.o.Holes || !c.o.NoHash) {
		err = c.regular(fd, name, &e, &st)
	} else {
		err = c.unopened(fd, name, &e)
	}
	if err != nil {
		return fail("read", path, err)
	}
	c.add(e, &st)
	return nil
}

// unopened fills in what can be told without opening.
func (c *capturer) unopened(dirfd int, name string, e *Entry) (err error) {
	if e.IsSymlink() {
		if e.Target, err = readlinkat(dirfd, name); err != nil {
			return err
		}
	}
	e.Xattrs, err = c.xattrsAt(dirfd, name)
	return err
}

// subdir captures a directory that may turn out to be unreadable or closed to us.
func (c *capturer) subdir(fd int, name, path string, st *unix.Stat_t) error {
	sub, err := openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err == nil {
		defer unix.Close(sub)
		return c.dir(sub, path)
	}
	if !errors.Is(err, unix.EACCES) {
		return fail("open", path, err)
	}
	e := entryOf(path, st)
	e.Unreadable = err.Error()
	if e.Xattrs, err = c.xattrsAt(fd, name); err != nil {
		return fail("list the xattrs of", path, err)
	}
	c.add(e, st)
	return nil
}

// regular fills in the xattrs of a regular file, its checksum and, if they are wanted, its extents.
func (c *capturer) regular(dirfd int, name string, e *Entry, st *unix.Stat_t) error {
	fd, err := openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		e.Unreadable = err.Error()
		return c.unopened(dirfd, name, e)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if e.Xattrs, err = c.xattrsOf(fd); err != nil {
		return err
	}
	if c.o.Holes {
		e.Allocated = st.Blocks * 512
		if e.Data, err = dataExtents(fd, e.Size); err != nil {
			return err
		}
	}
	if c.o.NoHash {
		return nil
	}
	return c.content(fd, e)
}

// content fills in the checksum, and keeps what was read if that is wanted.
func (c *capturer) content(fd int, e *Entry) error {
	var h Hash
	off := int64(0)
	for {
		n, err := unix.Pread(fd, c.buf, off)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		_, _ = h.Write(c.buf[:n])
		off += int64(n)
	}
	if off != e.Size {
		return fmt.Errorf("it has %d bytes, but stat says %d", off, e.Size)
	}
	e.Sum = h.Sum()
	if c.o.Contents == nil {
		return nil
	}
	return c.o.Contents.keep(e.Sum, fd, e.Size)
}

// dataExtents walks a file with SEEK_DATA and SEEK_HOLE.
func dataExtents(fd int, size int64) ([]Extent, error) {
	var data []Extent
	for off := int64(0); off < size; {
		start, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole up to the end
		}
		if err != nil {
			return nil, err
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		data = append(data, Extent{Off: start, Len: end - start})
		off = end
	}
	return data, nil
}

func entryOf(path string, st *unix.Stat_t) Entry {
	e := Entry{Path: path, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Mtime: st.Mtim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return e
	case unix.S_IFREG, unix.S_IFLNK:
		e.Size = st.Size
	case unix.S_IFCHR, unix.S_IFBLK:
		e.Rdev = st.Rdev
	}
	e.Nlink = uint32(st.Nlink)
	return e
}

// openat opens without touching the atime where we may: O_NOATIME is the right of a file's owner and of root.
func openat(dirfd int, name string, flags int) (int, error) {
	fd, err := unix.Openat(dirfd, name, flags|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) {
		return unix.Openat(dirfd, name, flags|unix.O_CLOEXEC, 0)
	}
	return fd, err
}

func readlinkat(dirfd int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dirfd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

func without(names []string, name string) []string {
	out := names[:0]
	for _, n := range names {
		if n != name {
			out = append(out, n)
		}
	}
	return out
}

// fail says what was being done to what; it gives nil for nil.
func fail(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q: %w", op, path, err)
}
