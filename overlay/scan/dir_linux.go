package scan

import (
	"errors"
	"os"
	"strconv"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// sync makes all changes of d's filesystem last over a loss of power.
func (d dir) sync() error { return unix.Syncfs(d.fd) }

// syncsFiles says that sync is not enough.
const syncsFiles = false

func (dir) syncFile(string) error { return nil }

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

// hasWriter reports whether somebody has the file open for writing or mapped so, as far as that can be known: a lease
// for reading is only given where nobody has.
func hasWriter(f *os.File) bool {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return errors.Is(err, unix.EAGAIN)
	}
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return false
}

// noXattr says that there is no such extended attribute.
const noXattr = unix.ENODATA

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

// makeable reports whether special can make such a thing.
func makeable(*entry) bool { return true }

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
	xattrs, err := xattrsOf(path)
	if err != nil {
		return err
	}
	err = applyXattrs(xattrs, e.xattrs, func(x string, v []byte) error { return unix.Setxattr(path, x, v, 0) },
		func(x string) error { return unix.Removexattr(path, x) })
	if err != nil {
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

// stableBirth reports whether birth times of the filesystem stay what they are: on an overlayfs they change with a
// file's first write.
func stableBirth(d dir) bool {
	const overlayfsMagic = 0x794c7630
	var fs unix.Statfs_t
	return unix.Fstatfs(d.fd, &fs) == nil && int64(fs.Type) != overlayfsMagic
}
