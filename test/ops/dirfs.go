package ops

import (
	"errors"
	"os"
	"path"
	"sort"
	"strconv"

	"golang.org/x/sys/unix"
)

// DirFS is the FS of a real directory: the kernel does what it is told.
type DirFS struct{ root int }

// OpenDirFS opens the directory dir as an FS.
func OpenDirFS(dir string) (*DirFS, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return &DirFS{root: fd}, nil
}

// Close gives the directory back.
func (d *DirFS) Close() error { return unix.Close(d.root) }

// resolve opens the directory that holds path and gives the last name of path.
func (d *DirFS) resolve(p string) (dirfd int, name string, err error) {
	dir, name := path.Split(p)
	if dir == "" {
		dir = "."
	}
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	}
	dirfd, err = unix.Openat2(d.root, dir, &how)
	return dirfd, name, err
}

// at calls fn with the place of p.
func (d *DirFS) at(p string, fn func(dirfd int, name string) error) error {
	dirfd, name, err := d.resolve(p)
	if err != nil {
		return err
	}
	defer unix.Close(dirfd)
	return fn(dirfd, name)
}

// byProc calls fn with a path that leads to exactly the inode of p, a symlink included.
func (d *DirFS) byProc(p string, fn func(proc string) error) error {
	return d.at(p, func(dirfd int, name string) error {
		fd, err := unix.Openat(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return fn("/proc/self/fd/" + strconv.Itoa(fd))
	})
}

// Open implements FS.
func (d *DirFS) Open(p string, flags int, mode uint32) (File, error) {
	var f *dirFile
	err := d.at(p, func(dirfd int, name string) error {
		var st unix.Stat_t
		err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && special(st.Mode) && flags&unix.O_EXCL == 0 {
			return unix.ENXIO
		}
		fd, err := unix.Openat(dirfd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		f = &dirFile{fd: fd}
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// special reports whether opening a file of this mode would do something else than give its content.
func special(mode uint32) bool {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
		return false
	}
	return true
}

// Tmpfile implements FS.
func (d *DirFS) Tmpfile(dir string, mode uint32) (File, error) {
	var f *dirFile
	err := d.at(dir+"/.", func(dirfd int, _ string) error {
		fd, err := unix.Openat(dirfd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, mode)
		f = &dirFile{fd: fd}
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// LinkFile implements FS.
func (d *DirFS) LinkFile(f File, p string) error {
	return d.at(p, func(dirfd int, name string) error {
		proc := "/proc/self/fd/" + strconv.Itoa(f.(*dirFile).fd)
		return unix.Linkat(unix.AT_FDCWD, proc, dirfd, name, unix.AT_SYMLINK_FOLLOW)
	})
}

// ReadDir implements FS. The names are sorted.
func (d *DirFS) ReadDir(p string) ([]string, error) {
	var names []string
	err := d.at(p+"/.", func(dirfd int, _ string) error {
		fd, err := unix.Openat(dirfd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), p)
		defer f.Close()
		names, err = f.Readdirnames(-1)
		return err
	})
	sort.Strings(names)
	return names, err
}

// IsDir implements FS.
func (d *DirFS) IsDir(p string) (bool, error) {
	var st unix.Stat_t
	err := d.at(p, func(dirfd int, name string) error {
		return unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, err
}

// Truncate implements FS, by path and not through a descriptor.
func (d *DirFS) Truncate(p string, size int64) error {
	return d.byProc(p, func(proc string) error { return unix.Truncate(proc, size) })
}

// Mkdir implements FS.
func (d *DirFS) Mkdir(p string, mode uint32) error {
	return d.at(p, func(dirfd int, name string) error { return unix.Mkdirat(dirfd, name, mode) })
}

// Rmdir implements FS.
func (d *DirFS) Rmdir(p string) error {
	return d.at(p, func(dirfd int, name string) error { return unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR) })
}

// Unlink implements FS.
func (d *DirFS) Unlink(p string) error {
	return d.at(p, func(dirfd int, name string) error { return unix.Unlinkat(dirfd, name, 0) })
}

// Rename implements FS.
func (d *DirFS) Rename(from, to string, flags uint) error {
	return d.at(from, func(fromfd int, fromName string) error {
		return d.at(to, func(tofd int, toName string) error {
			return unix.Renameat2(fromfd, fromName, tofd, toName, flags)
		})
	})
}

// Link implements FS.
func (d *DirFS) Link(from, to string) error {
	return d.at(from, func(fromfd int, fromName string) error {
		return d.at(to, func(tofd int, toName string) error {
			return unix.Linkat(fromfd, fromName, tofd, toName, 0)
		})
	})
}

// Symlink implements FS.
func (d *DirFS) Symlink(target, p string) error {
	return d.at(p, func(dirfd int, name string) error { return unix.Symlinkat(target, dirfd, name) })
}

// Mknod implements FS.
func (d *DirFS) Mknod(p string, mode uint32, dev int) error {
	return d.at(p, func(dirfd int, name string) error { return unix.Mknodat(dirfd, name, mode, dev) })
}

// Chmod implements FS. It is EOPNOTSUPP for a symlink.
func (d *DirFS) Chmod(p string, mode uint32) error {
	return d.byProc(p, func(proc string) error { return unix.Chmod(proc, mode) })
}

// Chown implements FS.
func (d *DirFS) Chown(p string, uid, gid int) error {
	return d.byProc(p, func(proc string) error { return unix.Chown(proc, uid, gid) })
}

// Utimes implements FS.
func (d *DirFS) Utimes(p string, ns int64) error {
	ts := unix.NsecToTimespec(ns)
	return d.at(p, func(dirfd int, name string) error {
		return unix.UtimesNanoAt(dirfd, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// SetXattr implements FS.
func (d *DirFS) SetXattr(p, name string, value []byte) error {
	return d.byProc(p, func(proc string) error { return unix.Setxattr(proc, name, value, 0) })
}

// DelXattr implements FS.
func (d *DirFS) DelXattr(p, name string) error {
	return d.byProc(p, func(proc string) error { return unix.Removexattr(proc, name) })
}

// errno gives the name of the errno in err's chain.
func errno(err error) (string, bool) {
	var e unix.Errno
	if !errors.As(err, &e) {
		return "", false
	}
	if name := unix.ErrnoName(e); name != "" {
		return name, true
	}
	return strconv.Itoa(int(e)), true
}
