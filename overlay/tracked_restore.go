//go:build linux

package overlay

import (
	"bytes"
	"io"
	"os"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// planTracked gives the tracked files that a rollback has to look at, proved to be what was saved. What is in their way in an ignored place ends it, before
// anything is touched.
func (w *Workspace) planTracked(c checkpoint.Checkpoint) ([]trackedFile, error) {
	var list []trackedFile
	for _, f := range w.trackedAt(c.Epoch) {
		if !f.kept() {
			continue
		}
		if f.Copy != "" {
			file, err := w.tracked.open(&f)
			if err != nil {
				return nil, integrity(f.Path, "its copy can't be used: %w", err)
			}
			_ = file.Close()
		}
		if err := w.checkWay(&f); err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}

// checkWay refuses what can't be put back: something that is no directory is on the way to it, or it is a directory. Where that is protected, the
// rollback itself sees to it.
func (w *Workspace) checkWay(f *trackedFile) error {
	if f.Mode == 0 {
		return nil
	}
	path := ""
	for name := range strings.SplitSeq(f.Path, "/") {
		path = below(path, name)
		at, err := w.tree.findTracked(path)
		if err != nil || at == nil {
			return err
		}
		dir := isDir(&at.st)
		at.close()
		if dir == (path != f.Path) {
			continue
		}
		if !w.tree.ignore.ignoresAny(path, dir) {
			return nil
		}
		return errs.New(errs.IgnoredPath, "rollback", f.Path, "it can't be put back: %s is in the way, which is ignored", path).
			WithHint("move it away and try again")
	}
	return nil
}

func (g *ignoring) ignoresAny(path string, isDir bool) bool {
	return g != nil && g.rules.Ignored(path, isDir)
}

// restoreTracked puts the tracked files back. It may run again after it was cut short.
func (r *restorer) restoreTracked() error {
	for _, f := range r.w.trackedAt(r.target.Epoch) {
		if !f.kept() {
			continue
		}
		if err := r.restoreTrackedFile(&f); err != nil {
			return errs.New(errs.Rollback, "rollback", f.Path, "%w", err).WithHint("mount the workspace again to finish the rollback")
		}
		crash.Point("rollback-tracked")
	}
	return nil
}

func (r *restorer) restoreTrackedFile(f *trackedFile) error {
	at, err := r.t.findTracked(f.Path)
	if err != nil {
		return err
	}
	if at != nil {
		defer at.close()
		if same, err := r.w.sameTracked(f, at); err != nil || same {
			return err
		}
		if isDir(&at.st) {
			r.t.log.Error("a tracked file can't be put back, as there is a directory in its place", "path", f.Path)
			return nil
		}
	} else if f.Mode == 0 {
		return nil
	}
	fd, err := r.makeParent(f.Path)
	if err == unix.ENOTDIR {
		r.t.log.Error("a tracked file can't be put back, as something is in the way", "path", f.Path)
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	staged := ""
	if f.Mode != 0 {
		if staged, err = r.stageTracked(f); err != nil {
			return err
		}
	}
	return r.putTracked(f, fd, at, staged)
}

// putTracked makes the change: staged is the name of what shall be there, in the store's tmp directory, "" for nothing. The directory keeps its modification time: what
// else is in it has changed, or not, without the rollback.
func (r *restorer) putTracked(f *trackedFile, fd int, at *trackedPlace, staged string) error {
	name := f.Path[strings.LastIndexByte(f.Path, '/')+1:]
	var dir unix.Statx_t
	if err := statFd(fd, &dir); err != nil {
		return err
	}
	if at != nil {
		if err := r.keepNamed(fd, name, r.t.idOf(&at.st)); err != nil {
			return err
		}
		if err := r.t.keepOpenAt(fd, name, &at.st); err != nil {
			return err
		}
	}
	var err error
	switch {
	case staged != "":
		err = unix.Renameat(r.t.tmpFd, staged, fd, name)
	case at != nil:
		err = unix.Unlinkat(fd, name, 0)
	}
	if err != nil {
		return err
	}
	r.result.Modified++
	if parent := r.t.known(r.t.idOf(&dir)); parent != nil {
		c := &slotChange{slot: checkpoint.Slot{Name: name}, dir: parent, want: checkpoint.Occupant{Mode: f.Mode}}
		if at != nil {
			c.held = r.t.occupantOf(&at.st)
			r.t.tookAway(r.t.idOf(&at.st), parent, name, &at.st, false)
		}
		r.tracked = append(r.tracked, c)
		r.forget(parent, name)
	}
	return setMtime(fd, nsOf(dir.Mtime))
}

// keepNamed gives what is about to be replaced a name in the trash, if the log names it.
func (r *restorer) keepNamed(fd int, name string, id checkpoint.ID) error {
	named := false
	err := r.t.store.View(func(tx *checkpoint.Tx) (err error) { named, err = tx.Named(id); return err })
	if err == nil && named {
		_, err = r.t.linkToTrash(fd, name, id)
	}
	return err
}

// makeParent opens the directory of a path, and makes it and those above it that are missing, as the directory above has it.
func (r *restorer) makeParent(path string) (int, error) {
	fd, missing, err := r.t.openParent(path)
	if err != nil {
		return -1, err
	}
	for _, name := range missing {
		next, err := r.makeDir(fd, name)
		_ = unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

func (r *restorer) makeDir(fd int, name string) (int, error) {
	var up unix.Statx_t
	if err := statFd(fd, &up); err != nil {
		return -1, err
	}
	if err := unix.Mkdirat(fd, name, uint32(up.Mode)&0o777|0o700); err != nil && err != unix.EEXIST {
		return -1, err
	}
	if r.t.privileged {
		if err := unix.Fchownat(fd, name, int(up.Uid), int(up.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return -1, err
		}
	}
	if err := setMtime(fd, nsOf(up.Mtime)); err != nil {
		return -1, err
	}
	if parent := r.t.known(r.t.idOf(&up)); parent != nil {
		r.tracked = append(r.tracked, &slotChange{slot: checkpoint.Slot{Name: name}, dir: parent, want: checkpoint.Occupant{Mode: unix.S_IFDIR}})
		r.forget(parent, name)
	}
	return unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// stageTracked makes what was at a path, in the store's tmp directory.
func (r *restorer) stageTracked(f *trackedFile) (name string, err error) {
	name = r.t.tempName()
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(r.t.tmpFd, name, 0)
		}
	}()
	if f.kind() == unix.S_IFLNK {
		if err := unix.Symlinkat(string(f.Target), r.t.tmpFd, name); err != nil {
			return name, err
		}
		if err := unix.Fchownat(r.t.tmpFd, name, int(f.UID), int(f.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return name, err
		}
		return name, unix.UtimesNanoAt(r.t.tmpFd, name, mtimeOnly(f.Mtime), unix.AT_SYMLINK_NOFOLLOW)
	}
	src, err := r.w.tracked.open(f)
	if err != nil {
		return name, err
	}
	defer src.Close()
	fd, err := unix.Openat(r.t.tmpFd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return name, err
	}
	dst := os.NewFile(uintptr(fd), name)
	defer dst.Close()
	if err := cloneOrCopy(dst, src); err != nil {
		return name, err
	}
	attr := checkpoint.Attr{Mode: f.Mode, UID: f.UID, GID: f.GID}
	if err := applyOwnerAndMode(fd, attr); err != nil {
		return name, err
	}
	if err := applyXattrs(procPath(fd), f.Xattrs); err != nil {
		return name, err
	}
	if err := applyOwnerAndMode(fd, attr); err != nil { // an ACL changes the mode
		return name, err
	}
	return name, setMtime(fd, f.Mtime)
}

// sameTracked reports whether what is there is what was kept.
func (w *Workspace) sameTracked(f *trackedFile, at *trackedPlace) (bool, error) {
	what, err := w.trackedDiffers(f, at)
	return len(what) == 0, err
}

// trackedDiffers tells in what that which is there differs from what was kept, as Change.What does. Both have the same type, or it is the type.
func (w *Workspace) trackedDiffers(f *trackedFile, at *trackedPlace) ([]string, error) {
	now := w.tree.describeTracked(f.Path, &at.st)
	if now.Ctime != 0 && now.Ctime == f.Ctime && now.ID == f.ID {
		return nil, nil
	}
	if now.kind() != f.kind() {
		return []string{"type"}, nil
	}
	content, xattrs, err := w.trackedContentDiffers(f, at)
	if err != nil {
		return nil, err
	}
	var what []string
	for _, d := range []struct {
		name string
		is   bool
	}{
		{"content", content}, {"mode", f.Mode != now.Mode}, {"owner", f.UID != now.UID || f.GID != now.GID}, {"xattr", xattrs}, {"mtime", f.Mtime != now.Mtime},
	} {
		if d.is {
			what = append(what, d.name)
		}
	}
	return what, nil
}

func (w *Workspace) trackedContentDiffers(f *trackedFile, at *trackedPlace) (content, xattrs bool, err error) {
	switch f.kind() {
	case unix.S_IFLNK:
		target, err := readlinkAt(at.fd, at.name)
		return target != string(f.Target), false, err
	case unix.S_IFREG:
	default:
		return false, false, nil
	}
	live, err := at.open()
	if err != nil {
		return false, false, err
	}
	defer live.Close()
	xs, err := xattrsFd(int(live.Fd()))
	if err != nil {
		return false, false, err
	}
	xattrs = !sameXattrs(xs, f.Xattrs)
	if int64(at.st.Size) != f.Size {
		return true, xattrs, nil
	}
	was, err := w.tracked.open(f)
	if err != nil {
		return false, false, err
	}
	defer was.Close()
	same, err := sameBytes(was, live)
	return !same, xattrs, err
}

// reader gives the content that a tracked file had, or the target of a symlink.
func (w *Workspace) trackedReader(f *trackedFile) (io.ReadCloser, error) {
	if f.kind() == unix.S_IFLNK {
		return io.NopCloser(bytes.NewReader(f.Target)), nil
	}
	return w.tracked.open(f)
}
