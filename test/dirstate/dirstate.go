//go:build linux

// Package dirstate makes an overlay.State of a plain directory that nobody changes, for tests of what is built on states of main.
package dirstate

import (
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Dir is a directory that nobody changes. It can be the State of any number of users at once.
type Dir struct {
	top   string
	root  checkpoint.ID
	paths map[checkpoint.ID]string // one of each inode
	names map[checkpoint.ID]uint32 // how many names each has
	users atomic.Int64
}

// Open reads the directory.
func Open(top string) (*Dir, error) {
	d := &Dir{top: top, paths: map[checkpoint.ID]string{}, names: map[checkpoint.ID]uint32{}}
	err := filepath.WalkDir(top, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		id, a, err := stat(path)
		if err != nil {
			return err
		}
		if path == top {
			d.root = id
		} else if filepath.Base(path) == overlay.StoreName && filepath.Dir(path) == top {
			return filepath.SkipDir
		}
		d.paths[id] = path
		if a.Mode&unix.S_IFMT != unix.S_IFDIR {
			d.names[id]++
		} else {
			d.names[id] = 1
		}
		return nil
	})
	return d, err
}

// State gives the directory to one user more.
func (d *Dir) State(checkpoint.Epoch) (overlay.State, error) {
	d.users.Add(1)
	return d, nil
}

// Users tells how many have it.
func (d *Dir) Users() int64 { return d.users.Load() }

// Close implements overlay.State.
func (d *Dir) Close() { d.users.Add(-1) }

// Root implements overlay.State.
func (d *Dir) Root() checkpoint.ID { return d.root }

func stat(path string) (checkpoint.ID, overlay.Attr, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return checkpoint.ID{}, overlay.Attr{}, err
	}
	ts := func(t unix.StatxTimestamp) unix.Timespec { return unix.Timespec{Sec: t.Sec, Nsec: int64(t.Nsec)} }
	a := overlay.Attr{
		Ino: st.Ino, Mode: uint32(st.Mode), Nlink: st.Nlink, UID: st.Uid, GID: st.Gid, Rdev: unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		Size: int64(st.Size), Blocks: int64(st.Blocks), Blksize: st.Blksize,
		Atime: ts(st.Atime), Mtime: ts(st.Mtime), Ctime: ts(st.Ctime), Btime: ts(st.Btime),
	}
	return checkpoint.ID{Ino: st.Ino, Birth: st.Btime.Sec*1e9 + int64(st.Btime.Nsec)}, a, nil
}

func (d *Dir) path(id checkpoint.ID) (string, error) {
	p, ok := d.paths[id]
	if !ok {
		return "", unix.ENOENT
	}
	return p, nil
}

// Lookup implements overlay.State.
func (d *Dir) Lookup(dir checkpoint.ID, name string) (overlay.StateEntry, error) {
	p, err := d.path(dir)
	if err != nil {
		return overlay.StateEntry{}, err
	}
	id, a, err := stat(p + "/" + name)
	return overlay.StateEntry{ID: id, Type: a.Mode & unix.S_IFMT}, err
}

// List implements overlay.State.
func (d *Dir) List(dir checkpoint.ID) ([]overlay.DirEntry, error) {
	p, err := d.path(dir)
	if err != nil {
		return nil, err
	}
	names, err := os.ReadDir(p)
	if err != nil {
		return nil, err
	}
	var list []overlay.DirEntry
	for _, e := range names {
		if dir == d.root && e.Name() == overlay.StoreName {
			continue
		}
		id, a, err := stat(p + "/" + e.Name())
		if err != nil {
			return nil, err
		}
		list = append(list, overlay.DirEntry{Name: e.Name(), Ino: id.Ino, Type: a.Mode & unix.S_IFMT})
	}
	return list, nil
}

// Attr implements overlay.State.
func (d *Dir) Attr(id checkpoint.ID) (overlay.Attr, error) {
	p, err := d.path(id)
	if err != nil {
		return overlay.Attr{}, err
	}
	_, a, err := stat(p)
	a.Nlink = d.names[id]
	return a, err
}

// Xattrs implements overlay.State.
func (d *Dir) Xattrs(id checkpoint.ID) ([]checkpoint.Xattr, error) {
	p, err := d.path(id)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(p, buf)
	if err != nil {
		return nil, err
	}
	var xs []checkpoint.Xattr
	for rest := buf[:n]; len(rest) > 0; {
		name := unix.ByteSliceToString(rest)
		rest = rest[len(name)+1:]
		v := make([]byte, 64<<10)
		k, err := unix.Lgetxattr(p, name, v)
		if err != nil {
			return nil, err
		}
		xs = append(xs, checkpoint.Xattr{Name: name, Value: v[:k]})
	}
	return xs, nil
}

// Readlink implements overlay.State.
func (d *Dir) Readlink(id checkpoint.ID) (string, error) {
	p, err := d.path(id)
	if err != nil {
		return "", err
	}
	return os.Readlink(p)
}

// Open implements overlay.State.
func (d *Dir) Open(id checkpoint.ID) (overlay.StateFile, error) {
	p, err := d.path(id)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return file(fd), nil
}

// file is a descriptor.
type file int

func (f file) ReadAt(p []byte, off int64) (int, error) { return unix.Pread(int(f), p, off) }

func (f file) Lseek(off int64, whence int) (int64, error) { return unix.Seek(int(f), off, whence) }

// CloneTo copies all but the holes.
func (f file) CloneTo(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f), &st); err != nil {
		return err
	}
	if err := unix.Ftruncate(fd, st.Size); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for off := int64(0); off < st.Size; {
		from, err := unix.Seek(int(f), off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(f), from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for off = from; off < end; {
			n, err := unix.Pread(int(f), buf[:min(end-off, int64(len(buf)))], off)
			if err != nil || n == 0 {
				return err
			}
			if _, err := unix.Pwrite(fd, buf[:n], off); err != nil {
				return err
			}
			off += int64(n)
		}
	}
	return nil
}

func (f file) Close() { _ = unix.Close(int(f)) }
