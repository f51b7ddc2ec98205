package fs

import (
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// unchangeable is the part of a volume that has only directories and lets nobody change anything: EPERM, as of ZFS' .zfs, and not EROFS,
// since what is mounted can be written.
type unchangeable struct{}

func (unchangeable) SetAttr(overlay.Inode, overlay.File, *overlay.SetAttr) (overlay.Attr, error) {
	return overlay.Attr{}, unix.EPERM
}

func (unchangeable) Create(overlay.Inode, string, int, uint32, bool, *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	return nil, nil, overlay.Attr{}, unix.EPERM
}

func (unchangeable) Tmpfile(overlay.Inode, int, uint32, bool, *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	return nil, nil, overlay.Attr{}, unix.EPERM
}

func (unchangeable) Mkdir(overlay.Inode, string, uint32, *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	return nil, overlay.Attr{}, unix.EPERM
}

func (unchangeable) Mknod(overlay.Inode, string, uint32, uint32, *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	return nil, overlay.Attr{}, unix.EPERM
}

func (unchangeable) Symlink(overlay.Inode, string, string, *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	return nil, overlay.Attr{}, unix.EPERM
}

func (unchangeable) Link(overlay.Inode, overlay.Inode, string) (overlay.Attr, error) {
	return overlay.Attr{}, unix.EPERM
}

func (unchangeable) Unlink(overlay.Inode, string) error { return unix.EPERM }

func (unchangeable) Rmdir(overlay.Inode, string) error { return unix.EPERM }

func (unchangeable) Rename(overlay.Inode, string, overlay.Inode, string, uint32) error {
	return unix.EPERM
}

func (unchangeable) SetXattr(overlay.Inode, string, []byte, int) error { return unix.EPERM }

func (unchangeable) RemoveXattr(overlay.Inode, string) error { return unix.EPERM }

func (unchangeable) GetXattr(overlay.Inode, string, []byte) (int, error) { return 0, unix.ENODATA }

func (unchangeable) ListXattr(overlay.Inode, []byte) (int, error) { return 0, nil }

func (unchangeable) Readlink(overlay.Inode) (string, error) { return "", unix.EINVAL }

func (unchangeable) Open(overlay.Inode, int, bool, *overlay.Caller) (overlay.File, error) {
	return nil, unix.EISDIR
}
