package scan

import (
	"bytes"
	"os"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// sync makes the changes of all filesystems last over a loss of power, as far as the disks themselves obey. The system has no such call for one.
func (d dir) sync() error { return unix.Sync() }

// syncsFiles says that sync is not enough: it waits for nothing.
const syncsFiles = true

// syncFile makes a file's content last over a loss of power.
func (d dir) syncFile(name string) error {
	f, err := d.open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync() // F_FULLFSYNC
}

func (d dir) stat(name string) (stat, error) {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return toStat(&st), err
}

func (d dir) self() (stat, error) { return statFd(d.fd) }

func statFile(f *os.File) (stat, error) { return statFd(int(f.Fd())) }

func statFd(fd int) (stat, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return toStat(&st), err
}

func toStat(st *unix.Stat_t) stat {
	s := stat{
		mode: uint32(st.Mode), uid: st.Uid, gid: st.Gid, nlink: uint32(st.Nlink),
		mtime: unix.TimespecToNsec(st.Mtim), ctime: unix.TimespecToNsec(st.Ctim), birth: unix.TimespecToNsec(st.Btim),
		dev: uint64(uint32(st.Dev)), ino: st.Ino,
	}
	switch s.kind() {
	case modeRegular:
		s.size, s.blocks = st.Size, st.Blocks
	case modeSymlink:
		s.size = st.Size
	case modeChar, modeBlock:
		s.rdev = uint64(uint32(st.Rdev))
	}
	return s
}

// hasWriter has no answer here. A write gives a file its new times at once; what is stored through a mapping does when it is
// written back.
func hasWriter(*os.File) bool { return false }

// noXattr says that there is no such extended attribute.
const noXattr = unix.ENOATTR

// xattrs gives all extended attributes that this user may read, sorted by name; none where the filesystem has no such thing,
// and of what is neither file nor directory nor symlink, which can't be opened for that.
func (d dir) xattrs(name string) (xs []checkpoint.Xattr, err error) {
	err = d.at(name, func(fd int) error {
		xs, err = xattrsOf(fd)
		return err
	})
	if err == unix.EOPNOTSUPP || err == unix.ENXIO {
		err = nil
	}
	return xs, err
}

func (d dir) selfXattrs() ([]checkpoint.Xattr, error) { return xattrsOf(d.fd) }

func xattrsOf(fd int) ([]checkpoint.Xattr, error) {
	return readXattrs(
		func(b []byte) (int, error) { return unix.Flistxattr(fd, b) },
		func(x string, b []byte) (int, error) { return unix.Fgetxattr(fd, x, b) })
}

// at calls fn with a descriptor of what name leads to, a symlink itself too.
func (d dir) at(name string, fn func(fd int) error) error {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_SYMLINK|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fn(fd)
}

// special makes a symlink or an empty file.
func (d dir) special(name string, e *entry) error {
	if e.kind() == modeSymlink {
		return unix.Symlinkat(e.target, d.fd, name)
	}
	fd, err := unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// makeable reports whether special can make such a thing: there are no calls for the others that are relative to a directory.
func makeable(e *entry) bool { return e.isRegular() || e.kind() == modeSymlink }

// chmod sets the mode of what is no symlink.
func (d dir) chmod(name string, mode uint32) error {
	return unix.Fchmodat(d.fd, name, mode&modePerm, unix.AT_SYMLINK_NOFOLLOW)
}

func (d dir) chmodSelf(mode uint32) error { return unix.Fchmod(d.fd, mode&modePerm) }

// dress gives name the attributes of e: owner, extended attributes, mode and modification time, in an order in which none
// undoes another.
func (d dir) dress(name string, e *entry) error {
	now, err := d.stat(name)
	if err != nil {
		return err
	}
	if now.uid != e.uid || now.gid != e.gid {
		if err := unix.Fchownat(d.fd, name, int(e.uid), int(e.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if err := d.dressXattrs(name, e); err != nil {
		return err
	}
	if now, err = d.stat(name); err != nil {
		return err
	}
	if now.mode != e.mode {
		if err := d.chmod(name, e.mode); err != nil {
			return err
		}
	}
	return d.setTime(name, e.mtime)
}

// dressXattrs opens the file for that only where something is to be changed: its mode may forbid it.
func (d dir) dressXattrs(name string, e *entry) error {
	now, err := d.xattrs(name)
	if err == nil && sameXattrs(now, e.xattrs) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.at(name, func(fd int) error { return setXattrs(fd, now, e.xattrs) })
}

func setXattrs(fd int, now, want []checkpoint.Xattr) error {
	return applyXattrs(now, want, func(x string, v []byte) error { return unix.Fsetxattr(fd, x, v, 0) },
		func(x string) error { return unix.Fremovexattr(fd, x) })
}

// setTime sets the modification time, and leaves that of the last access.
func (d dir) setTime(name string, mtime int64) error {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.UtimesNanoAt(d.fd, name, []unix.Timespec{st.Atim, unix.NsecToTimespec(mtime)}, unix.AT_SYMLINK_NOFOLLOW)
}

func (d dir) dressSelf(e *entry) error {
	now, err := d.self()
	if err != nil {
		return err
	}
	if now.uid != e.uid || now.gid != e.gid {
		if err := unix.Fchown(d.fd, int(e.uid), int(e.gid)); err != nil {
			return err
		}
	}
	xattrs, err := d.selfXattrs()
	if err != nil {
		return err
	}
	if err := setXattrs(d.fd, xattrs, e.xattrs); err != nil {
		return err
	}
	if err := d.chmodSelf(e.mode); err != nil {
		return err
	}
	return d.setTime(".", e.mtime)
}

// stableBirth says that birth times stay what they are.
func stableBirth(dir) bool { return true }

// mayFoldCase says that names that differ in case alone may be one name.
const mayFoldCase = true

// foldsCase reports whether two names in d that differ in case alone are one, by asking for the name of something there in
// another case. A directory in which nothing can be asked for is taken for the usual kind.
func foldsCase(d dir) bool {
	names, err := d.names(make([]byte, 32<<10))
	if err != nil {
		return true
	}
	for _, name := range names {
		other := string(bytes.ToUpper([]byte(name)))
		if other == name {
			other = string(bytes.ToLower([]byte(name)))
		}
		if other == name || slices.Contains(names, other) {
			continue
		}
		_, err := d.stat(other)
		return err == nil
	}
	return true
}
