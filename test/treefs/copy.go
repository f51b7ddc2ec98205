package treefs

import (
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
	return s, s.Make(dst, f.fill)
}

// fill copies a content.
func (f *FS) fill(e treestate.Entry, fd int) error {
	n, err := f.node(e.Path)
	if err != nil {
		return err
	}
	h, err := f.vol.Open(n, unix.O_RDONLY, false, f.caller)
	if err != nil {
		return err
	}
	defer h.Release()
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
