//go:build unix

package scan

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// dir is an open directory. Everything in it is reached by its name from here: no path is longer than a name, and no
// symlink is followed.
type dir struct{ fd int }

func openTop(path string) (dir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return dir{fd}, err
}

func (d dir) close() { _ = unix.Close(d.fd) }

// descriptor is what package strategy takes for a directory.
func (d dir) descriptor() int { return d.fd }

// sub opens a directory in d.
func (d dir) sub(name string) (dir, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	return dir{fd}, err
}

// again opens d once more, with a position of its own.
func (d dir) again() (dir, error) {
	fd, err := unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return dir{fd}, err
}

// open opens a regular file for reading. It waits for nothing, whatever name leads to by now.
func (d dir) open(name string) (*os.File, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (d dir) readlink(name string) (string, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(d.fd, name, buf)
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

func (d dir) mkdir(name string) error  { return unix.Mkdirat(d.fd, name, 0o700) }
func (d dir) unlink(name string) error { return unix.Unlinkat(d.fd, name, 0) }
func (d dir) rmdir(name string) error  { return unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) }
func (d dir) rename(name, newName string) error {
	return unix.Renameat(d.fd, name, d.fd, newName)
}

// link gives name, which is not followed, a second name in the directory to.
func (d dir) link(name string, to dir, newName string) error {
	return unix.Linkat(d.fd, name, to.fd, newName, 0)
}

// mayOwn reports whether this user can give an inode such an owner.
func mayOwn(uid, gid uint32) bool {
	if os.Geteuid() == 0 {
		return true
	}
	groups, err := os.Getgroups()
	return int(uid) == os.Geteuid() && err == nil && (int(gid) == os.Getegid() || slices.Contains(groups, int(gid)))
}

// owns reports whether this user may change the attributes of an inode.
func owns(st *stat) bool { return privileged() || int(st.uid) == os.Geteuid() }

func privileged() bool { return os.Geteuid() == 0 }

// isMissing reports whether an error says that a name is not there, or leads to something else than it did.
func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOTDIR)
}

func isDenied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// names lists the directory, sorted.
func (d dir) names(buf []byte) ([]string, error) {
	if _, err := unix.Seek(d.fd, 0, 0); err != nil {
		return nil, err
	}
	var names []string
	for {
		n, err := unix.ReadDirent(d.fd, buf)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	slices.Sort(names)
	return names, nil
}
