//go:build linux

package branch

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// pool is where the inodes of all branches are: <xx>/<number>, in hexadecimal. xx changes after every 1,024 numbers: filesystems keep the
// inodes of a directory together, and those of directories apart, so that making one after the other in different directories is slow.
type pool struct {
	fd     int
	prefix string // leads to it through /proc
	root   bool   // we may give files away
	full   error  // of a rename over a directory that has names: rename(2) allows two, and programs see that of the filesystem

	mu     sync.Mutex
	busy   map[uint64]struct{} // what is there, or about to be, without a record, and must stay; guarded by mu
	closed bool                // guarded by mu

	liftMu sync.Mutex // held while the mode of a file is lifted
}

func openPool(dir *os.File) (*pool, error) {
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	p := &pool{fd: fd, prefix: "/proc/self/fd/" + strconv.Itoa(fd) + "/", root: unix.Geteuid() == 0, full: unix.ENOTEMPTY, busy: map[uint64]struct{}{}}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if st.Type == unix.XFS_SUPER_MAGIC {
		p.full = unix.EEXIST
	}
	return p, nil
}

func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return unix.Close(p.fd)
}

const hexDigits = "0123456789abcdef"

// shardShift is how many numbers follow each other in one directory, as a power of two.
const shardShift = 10

func shard(n uint64) string {
	n >>= shardShift
	return string([]byte{hexDigits[n>>4&15], hexDigits[n&15]})
}

func poolName(n uint64) string {
	b := append(make([]byte, 0, 20), hexDigits[n>>(shardShift+4)&15], hexDigits[n>>shardShift&15], '/')
	return string(strconv.AppendUint(b, n, 16))
}

// inShard calls fn, which puts an inode into the pool, again with its directory made if there was none.
func (p *pool) inShard(n uint64, fn func() error) error {
	err := fn()
	if err != unix.ENOENT {
		return err
	}
	if err := unix.Mkdirat(p.fd, shard(n), 0o700); err != nil && err != unix.EEXIST {
		return err
	}
	return fn()
}

// path names an inode for calls that take no descriptor. Symlinks there must not be followed.
func (p *pool) path(n uint64) string { return p.prefix + poolName(n) }

// keep says that an inode must stay though no record names it, until drop or let.
func (p *pool) keep(n uint64) {
	p.mu.Lock()
	p.busy[n] = struct{}{}
	p.mu.Unlock()
}

// let says that a record names it now.
func (p *pool) let(n uint64) {
	p.mu.Lock()
	delete(p.busy, n)
	p.mu.Unlock()
}

// drop removes an inode that no record names any more. When the pool is closed, the next start does.
func (p *pool) drop(n uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, n)
	if p.closed {
		return nil
	}
	return p.remove(n)
}

func (p *pool) remove(n uint64) error {
	name := poolName(n)
	err := unix.Unlinkat(p.fd, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		if err = unix.Unlinkat(p.fd, name, unix.AT_REMOVEDIR); err == unix.ENOTEMPTY {
			err = os.RemoveAll(p.path(n)) // a death in createIn has left something
		}
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// each calls fn for every inode that is there.
func (p *pool) each(fn func(n uint64) error) error {
	for i := range 256 {
		dir := shard(uint64(i) << shardShift)
		entries, err := os.ReadDir(p.prefix + dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			n, err := strconv.ParseUint(e.Name(), 16, 64)
			if err != nil || shard(n) != dir {
				continue // not ours
			}
			if err := fn(n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pool) stat(n uint64) (overlay.Attr, error) { return statAt(p.fd, poolName(n)) }

func statAt(dirfd int, name string) (overlay.Attr, error) {
	var st unix.Statx_t
	if err := unix.Statx(dirfd, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return overlay.Attr{}, err
	}
	return overlay.Attr{
		Ino: st.Ino, Mode: uint32(st.Mode), Nlink: st.Nlink, UID: st.Uid, GID: st.Gid,
		Rdev: unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		Size: int64(st.Size), Blocks: int64(st.Blocks), Blksize: st.Blksize,
		Atime: timespec(st.Atime), Mtime: timespec(st.Mtime), Ctime: timespec(st.Ctime), Btime: timespec(st.Btime),
	}, nil
}

func timespec(ts unix.StatxTimestamp) unix.Timespec {
	return unix.Timespec{Sec: ts.Sec, Nsec: int64(ts.Nsec)}
}

// open opens a regular file. Who gets here has the right to, which the kernel has checked when the program opened the file; the mode may have
// changed since, or be that of a file whose owner asks for a change only.
func (p *pool) open(n uint64, flags int) (int, error) {
	flags |= unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(p.fd, poolName(n), flags, 0)
	if err != unix.EACCES {
		return fd, err
	}
	err = p.lifted(n, func() (err error) { fd, err = unix.Openat(p.fd, poolName(n), flags, 0); return err })
	return fd, err
}

// lifted calls fn while the owner, who we are, may read and write an inode.
func (p *pool) lifted(n uint64, fn func() error) error {
	p.liftMu.Lock()
	defer p.liftMu.Unlock()
	a, err := p.stat(n)
	if err != nil {
		return err
	}
	mode := a.Mode & 0o7777
	if err := unix.Fchmodat(p.fd, poolName(n), mode|0o600, 0); err != nil {
		return unix.EACCES
	}
	defer func() { _ = unix.Fchmodat(p.fd, poolName(n), mode, 0) }()
	return fn()
}

// made is an inode that the pool is about to get.
type made struct {
	mode   uint32 // type and permissions
	rdev   uint64
	target string // of a symlink
}

// create makes an inode. Its permissions are the daemon's affair until setMode.
func (p *pool) create(n uint64, m made) error {
	return p.inShard(n, func() error { return m.at(p.fd, poolName(n), 0o600) })
}

// at makes the inode under a name, with permissions.
func (m made) at(dirfd int, name string, perm uint32) error {
	switch m.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return unix.Mkdirat(dirfd, name, perm|0o100)
	case unix.S_IFLNK:
		return unix.Symlinkat(m.target, dirfd, name)
	}
	return unix.Mknodat(dirfd, name, m.mode&unix.S_IFMT|perm, int(m.rdev))
}

// createIn makes an inode that inherits the default ACL of a directory of the pool: in there, from where it is moved.
func (p *pool) createIn(dir, n uint64, m made) error {
	at, err := unix.Openat(p.fd, poolName(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	perm := m.mode & 0o7777
	if m.mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.Mkdirat(at, "new", perm)
	} else {
		err = m.at(at, "new", perm)
	}
	if err != nil {
		return err
	}
	return p.inShard(n, func() error { return unix.Renameat(at, "new", p.fd, poolName(n)) })
}

func (p *pool) setMode(n uint64, mode uint32) error {
	return unix.Fchmodat(p.fd, poolName(n), mode&0o7777, 0)
}

func (p *pool) setOwner(n uint64, uid, gid int) error {
	return unix.Fchownat(p.fd, poolName(n), uid, gid, unix.AT_SYMLINK_NOFOLLOW)
}

func (p *pool) setTimes(n uint64, atime, mtime unix.Timespec) error {
	return unix.UtimesNanoAt(p.fd, poolName(n), []unix.Timespec{atime, mtime}, unix.AT_SYMLINK_NOFOLLOW)
}

// touch gives an inode the modification time now.
func (p *pool) touch(n uint64) error {
	return p.setTimes(n, unix.Timespec{Nsec: unix.UTIME_OMIT}, unix.Timespec{Nsec: unix.UTIME_NOW})
}

// bump gives an inode whose names changed the change time now, by a change to what it has already.
func (p *pool) bump(n uint64) error {
	a, err := p.stat(n)
	if err != nil {
		return err
	}
	if a.Mode&unix.S_IFMT == unix.S_IFLNK {
		return p.setOwner(n, -1, -1)
	}
	return p.setMode(n, a.Mode)
}

func (p *pool) readlink(n uint64) (string, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		k, err := unix.Readlinkat(p.fd, poolName(n), buf)
		if err != nil {
			return "", err
		}
		if k < size {
			return string(buf[:k]), nil
		}
	}
}

// xattrs gives all extended attributes of an inode.
func (p *pool) xattrs(n uint64) ([]checkpoint.Xattr, error) {
	path := p.path(n)
	names, err := growing(func(b []byte) (int, error) { return unix.Llistxattr(path, b) })
	if err == unix.EOPNOTSUPP || len(names) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var xs []checkpoint.Xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		v, err := growing(func(b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
		if err == unix.ENODATA {
			continue
		}
		if err != nil {
			return nil, err
		}
		xs = append(xs, checkpoint.Xattr{Name: name, Value: v})
	}
	return xs, nil
}

// growing calls a function of the xattr family with a buffer that is large enough.
func growing(fn func([]byte) (int, error)) ([]byte, error) {
	buf := make([]byte, 256)
	for {
		n, err := fn(buf)
		if err == nil {
			return buf[:n], nil
		}
		if err != unix.ERANGE {
			return nil, err
		}
		if n, err = fn(nil); err != nil {
			return nil, err
		}
		buf = make([]byte, n+64)
	}
}

// give makes an inode somebody's. Where we may not do that it stays ours, and its record is to have the owner that give returns.
func (p *pool) give(n uint64, uid, gid uint32) (checkpoint.LayerOwner, error) {
	own, err := p.stat(n)
	if err != nil || own.UID == uid && own.GID == gid {
		return checkpoint.LayerOwner{}, err
	}
	err = p.setOwner(n, int(uid), int(gid))
	if err == unix.EPERM || err == unix.EINVAL { // EINVAL: our user namespace has no such user
		return checkpoint.LayerOwner{Set: true, UID: uid, GID: gid}, nil
	}
	return checkpoint.LayerOwner{}, err
}

// describe gives a new inode the other attributes of what it is a copy of, the times last.
func (p *pool) describe(n uint64, a *overlay.Attr, xs []checkpoint.Xattr) error {
	path := p.path(n)
	for _, x := range xs {
		if err := unix.Lsetxattr(path, x.Name, x.Value, 0); err != nil {
			return err
		}
	}
	if a.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := p.setMode(n, a.Mode); err != nil {
			return err
		}
	}
	return p.setTimes(n, a.Atime, a.Mtime)
}

// cloneFd copies the content of a file of the pool into an empty one: by a reflink, or else all but the holes.
func cloneFd(from, to int) error {
	if unix.IoctlFileClone(to, from) == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	if err := unix.Ftruncate(to, st.Size); err != nil {
		return err
	}
	for off := int64(0); off < st.Size; {
		start, err := unix.Seek(from, off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(from, start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := copyBytes(from, to, start, end); err != nil {
			return err
		}
		off = end
	}
	return nil
}

func copyBytes(from, to int, off, end int64) error {
	for off < end {
		in, out := off, off
		n, err := unix.CopyFileRange(from, &in, to, &out, int(min(end-off, 1<<30)), 0)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EXDEV || err == unix.EOPNOTSUPP || err == unix.EINVAL || err == unix.ENOSYS {
			return copySlowly(from, to, off, end)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		off += int64(n)
	}
	return nil
}

func copySlowly(from, to int, off, end int64) error {
	buf := make([]byte, min(end-off, 1<<20))
	for off < end {
		n, err := unix.Pread(from, buf[:min(end-off, int64(len(buf)))], off)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if err := writeAll(to, buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

func writeAll(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}
