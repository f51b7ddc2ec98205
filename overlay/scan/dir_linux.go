package scan

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
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

// sync makes all changes of d's filesystem last over a loss of power.
func (d dir) sync() error { return unix.Syncfs(d.fd) }

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

// names lists the directory, sorted.
func (d dir) names(buf []byte) ([]string, error) {
	if _, err := unix.Seek(d.fd, 0, 0); err != nil {
		return nil, err
	}
	var names []string
	for {
		n, err := unix.Getdents(d.fd, buf)
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

const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME | unix.STATX_MNT_ID

func (d dir) stat(name string) (stat, error) {
	var st unix.Statx_t
	err := unix.Statx(d.fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statMask, &st)
	return toStat(&st), err
}

func (d dir) self() (stat, error) { return statFd(d.fd) }

func statFile(f *os.File) (stat, error) { return statFd(int(f.Fd())) }

func statFd(fd int) (stat, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, statMask, &st)
	return toStat(&st), err
}

func toStat(st *unix.Statx_t) stat {
	s := stat{
		mode: uint32(st.Mode), uid: st.Uid, gid: st.Gid, nlink: st.Nlink,
		mtime: nanoseconds(st.Mtime), ctime: nanoseconds(st.Ctime),
		dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino, mount: st.Mnt_id,
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		s.birth = nanoseconds(st.Btime)
	}
	switch s.kind() {
	case modeRegular:
		s.size, s.blocks = int64(st.Size), int64(st.Blocks)
	case modeSymlink:
		s.size = int64(st.Size)
	case modeChar, modeBlock:
		s.rdev = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
	}
	return s
}

func nanoseconds(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// open opens a regular file for reading. It waits for nothing, whatever name leads to by now.
func (d dir) open(name string) (*os.File, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// hasWriter reports whether somebody has the file open for writing or mapped so, as far as that can be known: a lease
// for reading is only given where nobody has.
func hasWriter(f *os.File) bool {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return errors.Is(err, unix.EAGAIN)
	}
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return false
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

// procPath names what a descriptor refers to. Calls that follow it reach that very inode, a symlink too.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// xattrs gives all extended attributes that this user may read, sorted by name; none where the filesystem has no such thing.
func (d dir) xattrs(name string) ([]checkpoint.Xattr, error) {
	path := procPath(d.fd) + "/" + name
	return readXattrs(
		func(b []byte) (int, error) { return unix.Llistxattr(path, b) },
		func(x string, b []byte) (int, error) { return unix.Lgetxattr(path, x, b) })
}

func (d dir) selfXattrs() ([]checkpoint.Xattr, error) { return xattrsOf(procPath(d.fd)) }

func xattrsOf(path string) ([]checkpoint.Xattr, error) {
	return readXattrs(
		func(b []byte) (int, error) { return unix.Listxattr(path, b) },
		func(x string, b []byte) (int, error) { return unix.Getxattr(path, x, b) })
}

func readXattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) ([]checkpoint.Xattr, error) {
	names, err := growing(list)
	if err == unix.EOPNOTSUPP || err == nil && len(names) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var xs []checkpoint.Xattr
	for _, name := range bytes.Split(bytes.TrimSuffix(names, []byte{0}), []byte{0}) {
		v, err := growing(func(b []byte) (int, error) { return get(string(name), b) })
		if err == unix.ENODATA {
			continue
		}
		if err != nil {
			return nil, err
		}
		xs = append(xs, checkpoint.Xattr{Name: string(name), Value: v})
	}
	slices.SortFunc(xs, func(a, b checkpoint.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return xs, nil
}

// growing calls a function of the xattr family with a buffer that is large enough.
func growing(fn func([]byte) (int, error)) ([]byte, error) {
	var small [256]byte
	n, err := fn(small[:])
	if err == nil {
		return append([]byte{}, small[:n]...), nil
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

// special makes what is neither a file with content nor a directory.
func (d dir) special(name string, e *entry) error {
	switch e.kind() {
	case modeSymlink:
		return unix.Symlinkat(e.target, d.fd, name)
	case modeRegular:
		return unix.Mknodat(d.fd, name, modeRegular|0o600, 0)
	}
	return unix.Mknodat(d.fd, name, e.kind()|0o600, int(e.rdev))
}

// chmod sets the mode of what is no symlink.
func (d dir) chmod(name string, mode uint32) error {
	return d.at(name, func(fd int) error { return unix.Chmod(procPath(fd), mode&modePerm) })
}

func (d dir) chmodSelf(mode uint32) error { return unix.Fchmod(d.fd, mode&modePerm) }

// at calls fn with a descriptor that is good for its attributes alone.
func (d dir) at(name string, fn func(fd int) error) error {
	fd, err := unix.Openat(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fn(fd)
}

// dress gives name the attributes of e: owner, extended attributes, mode and modification time, in an order in which none
// undoes another.
func (d dir) dress(name string, e *entry) error {
	return d.at(name, func(fd int) error { return dressFd(fd, e) })
}

func (d dir) dressSelf(e *entry) error { return dressFd(d.fd, e) }

func dressFd(fd int, e *entry) error {
	now, err := statFd(fd)
	if err != nil {
		return err
	}
	path := procPath(fd)
	if now.uid != e.uid || now.gid != e.gid {
		if err := unix.Chown(path, int(e.uid), int(e.gid)); err != nil {
			return err
		}
	}
	if err := applyXattrs(path, e.xattrs); err != nil {
		return err
	}
	if e.kind() != modeSymlink {
		if now, err = statFd(fd); err != nil {
			return err
		}
		if now.mode != e.mode {
			if err := unix.Chmod(path, e.mode&modePerm); err != nil {
				return err
			}
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(e.mtime)}, 0)
}

// applyXattrs makes the extended attributes of what path names equal to want.
func applyXattrs(path string, want []checkpoint.Xattr) error {
	now, err := xattrsOf(path)
	if err != nil {
		return err
	}
	for _, x := range now {
		if findXattr(want, x.Name) == nil {
			if err := unix.Removexattr(path, x.Name); err != nil && err != unix.ENODATA {
				return err
			}
		}
	}
	for _, x := range want {
		if is := findXattr(now, x.Name); is != nil && bytes.Equal(is.Value, x.Value) {
			continue
		}
		if err := unix.Setxattr(path, x.Name, x.Value, 0); err != nil {
			return err
		}
	}
	return nil
}

func findXattr(xs []checkpoint.Xattr, name string) *checkpoint.Xattr {
	for i := range xs {
		if xs[i].Name == name {
			return &xs[i]
		}
	}
	return nil
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

// stableBirth reports whether birth times of the filesystem stay what they are: on an overlayfs they change with a
// file's first write.
func stableBirth(d dir) bool {
	const overlayfsMagic = 0x794c7630
	var fs unix.Statfs_t
	return unix.Fstatfs(d.fd, &fs) == nil && int64(fs.Type) != overlayfsMagic
}

// isMissing reports whether an error says that a name is not there, or leads to something else than it did.
func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOTDIR)
}

func isDenied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }
