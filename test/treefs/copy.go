package treefs

import (
	"path/filepath"
	"slices"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Copy makes dst, which must not exist, what the volume holds, as treestate.Copy does for a directory. It gives what was captured for that.
func (f *FS) Copy(dst string) (treestate.State, error) {
	s, err := f.Capture()
	if err != nil {
		return nil, err
	}
	defer f.begin()()
	paths := s.Paths()
	for _, p := range paths { // parents first
		if err := f.copyOne(dst, s[p]); err != nil {
			return nil, err
		}
	}
	slices.Reverse(paths)
	for _, p := range paths { // a directory's mtime comes last
		if err := dress(filepath.Join(dst, p), s[p]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (f *FS) copyOne(dst string, e treestate.Entry) error {
	to := filepath.Join(dst, e.Path)
	switch {
	case e.IsDir():
		return unix.Mkdir(to, 0o700)
	case e.First != e.Path:
		return unix.Link(filepath.Join(dst, e.First), to)
	case e.IsSymlink():
		return unix.Symlink(e.Target, to)
	case e.IsRegular():
		return f.copyContent(to, e.Path)
	}
	return unix.Mknod(to, e.Mode&unix.S_IFMT|0o600, int(e.Rdev))
}

func (f *FS) copyContent(to, path string) error {
	n, err := f.node(path)
	if err != nil {
		return err
	}
	h, err := f.vol.Open(n, unix.O_RDONLY, false, f.caller)
	if err != nil {
		return err
	}
	defer h.Release()
	fd, err := unix.Open(to, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return copyAll(fd, h)
}

func copyAll(fd int, h overlay.File) error {
	buf := make([]byte, 64<<10)
	for off := int64(0); ; {
		k, err := h.ReadAt(buf, off)
		if err != nil || k == 0 {
			return err
		}
		if _, err := unix.Pwrite(fd, buf[:k], off); err != nil {
			return err
		}
		off += int64(k)
	}
}

// dress gives a copy its attributes, in an order in which none undoes another.
func dress(path string, e treestate.Entry) error {
	if err := unix.Lchown(path, int(e.UID), int(e.GID)); err != nil {
		return err
	}
	if !e.IsSymlink() {
		if err := unix.Chmod(path, e.Mode&0o7777); err != nil {
			return err
		}
	}
	for name, value := range e.Xattrs {
		if err := unix.Lsetxattr(path, name, []byte(value), 0); err != nil {
			return err
		}
	}
	ts := unix.NsecToTimespec(e.Mtime)
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}
