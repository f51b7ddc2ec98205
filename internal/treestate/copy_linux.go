package treestate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

// Copy makes dst, which must not exist, an exact copy of src: what Capture tells of one it tells of the other, with the
// mtimes of directories, hard links, xattrs and holes. Content is cloned where the filesystem can. It needs the rights to
// set what it copies: in general it has to be root, or the owner of everything. A StoreName in the top is left out.
func Copy(src, dst string) error {
	from, err := unix.Open(src, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: src, Err: err}
	}
	defer unix.Close(from)
	if err := unix.Mkdir(dst, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: dst, Err: err}
	}
	to, err := unix.Open(dst, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dst, Err: err}
	}
	defer unix.Close(to)
	c := &copier{
		capturer: capturer{buf: make([]byte, 256<<10)},
		top:      to,
		done:     make(map[inodeKey]string),
	}
	return c.dir(from, to, ".")
}

// copier is one copy under way.
type copier struct {
	capturer
	top  int                 // the copy's top directory
	done map[inodeKey]string // of inodes with several names: the first one that was copied
}

// dir copies the content of a directory, then its attributes: its mtime must come last.
func (c *copier) dir(from, to int, path string) error {
	names, err := c.names(from, path)
	if err != nil {
		return fail("list", path, err)
	}
	for _, name := range names {
		if err := c.name(from, to, name, join(path, name)); err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return fail("stat", path, err)
	}
	return c.attributes(procPath(from), procPath(to), &st, path)
}

func (c *copier) name(from, to int, name, path string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail("stat", path, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return c.subdir(from, to, name, path)
	}
	key := inodeKey{st.Dev, st.Ino}
	if first, ok := c.done[key]; ok {
		return fail("link", path, unix.Linkat(c.top, first, to, name, 0))
	}
	if st.Nlink > 1 {
		c.done[key] = path
	}
	if err := c.create(from, to, name, &st); err != nil {
		return fail("copy", path, err)
	}
	src, err := unix.Openat(from, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", path, err)
	}
	defer unix.Close(src)
	dst, err := unix.Openat(to, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", path, err)
	}
	defer unix.Close(dst)
	return c.attributes(procPath(src), procPath(dst), &st, path)
}

func (c *copier) subdir(from, to int, name, path string) error {
	src, err := openat(from, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return fail("open", path, err)
	}
	defer unix.Close(src)
	if err := unix.Mkdirat(to, name, 0o700); err != nil {
		return fail("mkdir", path, err)
	}
	dst, err := openat(to, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return fail("open", path, err)
	}
	defer unix.Close(dst)
	return c.dir(src, dst, path)
}

// create makes the inode with its content, but not its attributes.
func (c *copier) create(from, to int, name string, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.regular(from, to, name, st.Size)
	case unix.S_IFLNK:
		target, err := readlinkat(from, name)
		if err != nil {
			return err
		}
		return unix.Symlinkat(target, to, name)
	}
	return unix.Mknodat(to, name, st.Mode&unix.S_IFMT|0o600, int(st.Rdev))
}

func (c *copier) regular(from, to int, name string, size int64) error {
	src, err := openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	dst, err := unix.Openat(to, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if unix.IoctlFileClone(dst, src) == nil {
		return nil
	}
	data, err := dataExtents(src, size)
	if err != nil {
		return err
	}
	for _, x := range data {
		if err := copyRange(dst, src, x, c.buf); err != nil {
			return err
		}
	}
	return unix.Ftruncate(dst, size)
}

func copyRange(dst, src int, x Extent, buf []byte) error {
	for off := x.Off; off < x.Off+x.Len; {
		n, err := unix.Pread(src, buf[:min(int64(len(buf)), x.Off+x.Len-off)], off)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil // the extent was rounded up to a block
		}
		if _, err := unix.Pwrite(dst, buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// attributes copies owner, mode, xattrs and mtime, in an order in which none undoes another. Both are paths of descriptors.
func (c *copier) attributes(src, dst string, st *unix.Stat_t, path string) error {
	if err := unix.Chown(dst, int(st.Uid), int(st.Gid)); err != nil {
		return fail("chown", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(dst, st.Mode&0o7777); err != nil {
			return fail("chmod", path, err)
		}
	}
	attrs, err := c.xattrs(src)
	if err != nil {
		return fail("list the xattrs of", path, err)
	}
	names := make([]string, 0, len(attrs))
	for n := range attrs {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		if err := unix.Setxattr(dst, n, []byte(attrs[n]), 0); err != nil {
			return fail(fmt.Sprintf("set xattr %q of", n), path, err)
		}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return fail("set the times of", path, unix.UtimesNanoAt(unix.AT_FDCWD, dst, times, 0))
}

// Remove deletes dir and all that is below it, whatever the modes of its directories are. What isn't there is no error.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	if err := liftModes(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// liftModes lets the owner into every directory.
func liftModes(dir string) error {
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		list, err := f.ReadDir(256)
		for _, d := range list {
			if d.IsDir() {
				if err := liftModes(dir + "/" + d.Name()); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
