package treestate

import (
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// procPath names an open descriptor. Through it the xattrs of anything can be reached, even of what was opened with O_PATH
// because it is a symlink or a fifo or may not be read.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// xattrsAt gives the xattrs of a name that is not a directory, or one that may not be opened.
func (c *capturer) xattrsAt(dirfd int, name string) (map[string]string, error) {
	fd, err := unix.Openat(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return c.xattrs(procPath(fd))
}

// xattrs gives all xattrs that the caller may see of what a path leads to, or nil if there are none or the filesystem has none.
func (c *capturer) xattrs(path string) (map[string]string, error) {
	return c.listXattrs(
		func(buf []byte) (int, error) { return unix.Listxattr(path, buf) },
		func(name string, buf []byte) (int, error) { return unix.Getxattr(path, name, buf) },
	)
}

// xattrsOf is xattrs for an open file.
func (c *capturer) xattrsOf(fd int) (map[string]string, error) {
	return c.listXattrs(
		func(buf []byte) (int, error) { return unix.Flistxattr(fd, buf) },
		func(name string, buf []byte) (int, error) { return unix.Fgetxattr(fd, name, buf) },
	)
}

func (c *capturer) listXattrs(list func(buf []byte) (int, error), get func(name string, buf []byte) (int, error)) (map[string]string, error) {
	n, err := list(c.buf)
	if errors.Is(err, unix.ENOTSUP) || (err == nil && n == 0) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := strings.Split(strings.TrimSuffix(string(c.buf[:n]), "\x00"), "\x00")
	out := make(map[string]string, len(names))
	for _, name := range names {
		n, err := get(name, c.buf)
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			out[name] = "unreadable: " + err.Error()
			continue
		}
		if err != nil {
			return nil, err
		}
		out[name] = string(c.buf[:n])
	}
	return out, nil
}
