package fs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// BoundBranch gives the branch that is bind-mounted at path, or has a branch mount there, which has no symlinks, and where the mount is that has it, "" if this
// namespace does not know. There is none where path is no mountpoint, or shows something else.
func BoundBranch(path string) (name, mountpoint string) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", ""
	}
	top := topMount(string(mounts), path)
	if branch, of, ok := top.ofBranch(); ok {
		return branch, of
	}
	rest, ok := strings.CutPrefix(top.root, filepath.Join("/", overlay.StoreName, string(Branches))+"/")
	if top.kind != mountType || !ok {
		return "", ""
	}
	for _, m := range parseMounts(string(mounts)) {
		if m.device == top.device && m.root == "/" {
			mountpoint = m.point
		}
	}
	name, _, _ = strings.Cut(rest, "/") // of a branch that was dropped the kernel adds "//deleted"
	return name, mountpoint
}

// Bind shows a directory of a mount at another path too, for root. It goes with the mount.
func Bind(dir, at string) error {
	err := unix.Mount(dir, at, "", unix.MS_BIND, "")
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return errs.New(errs.Unsupported, "mount", at, "%w", err).WithHint("it needs CAP_SYS_ADMIN")
	}
	return mountError(at, err)
}

// Unbind takes away what Bind has made; see Server.Unmount.
func Unbind(at string, lazy bool) error { return unmount(at, lazy) }

// unbindAll takes away all binds of the mount, which would keep it alive after its end, and gives them. If one is in use all stay, unless lazy.
// An ordinary user has none: the kernel lets only root make them.
func (m *Server) unbindAll(lazy bool) (gone []mountEntry, err error) {
	if !m.fs.root {
		return nil, nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, mountError(m.mountpoint, err)
	}
	own := topMount(string(mounts), m.mountpoint)
	for _, b := range slices.Backward(parseMounts(string(mounts))) {
		if own.kind != mountType || b.device != own.device || b.point == m.mountpoint {
			continue
		}
		err := unmount(b.point, lazy)
		if errors.Is(err, unix.EINVAL) {
			continue // it went with another one, as mounts that are shared do
		}
		if err != nil {
			m.rebind(gone)
			return nil, err
		}
		gone = append(gone, b)
	}
	return gone, nil
}

// rebind puts binds back because the mount stays.
func (m *Server) rebind(binds []mountEntry) {
	for _, b := range slices.Backward(binds) {
		if err := Bind(filepath.Join(m.mountpoint, b.root), b.point); err != nil {
			m.fs.log.Warn("a bind of the mount could not be put back", "at", b.point, "err", err)
		}
	}
}
