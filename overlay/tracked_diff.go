//go:build linux

package overlay

import (
	"io"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/gitpatch"
	"golang.org/x/sys/unix"
)

// trackedSides are the two states of a tracked file that differ.
type trackedSides struct{ old, new *gitpatch.File }

// diffTracked tells how tracked files differ between the beginnings of two epochs. A path that one of the two did not look at is left out: what it was then is not known. What
// it gives can be read as long as the states of both are open.
func (w *Workspace) diffTracked(from, to checkpoint.Epoch) (list []found) {
	later := w.trackedAt(to)
	for _, was := range w.trackedAt(from) {
		i := slices.IndexFunc(later, func(t trackedFile) bool { return t.Path == was.Path })
		if i < 0 || !was.kept() {
			continue
		}
		if f := w.diffTrackedFiles(&was, &later[i]); f.Kind != "" {
			list = append(list, f)
		}
	}
	return list
}

func (w *Workspace) diffTrackedFiles(was, is *trackedFile) found {
	var what []string
	switch {
	case was.Mode == 0 && is.Mode == 0:
		return found{}
	case was.Mode == 0 || is.Mode == 0:
	case was.kind() != is.kind():
		what = []string{"type"}
	default:
		if was.Size != is.Size || was.Sum != is.Sum || string(was.Target) != string(is.Target) {
			what = append(what, "content")
		}
		if was.Mode != is.Mode {
			what = append(what, "mode")
		}
		if was.UID != is.UID || was.GID != is.GID {
			what = append(what, "owner")
		}
		if !sameXattrs(was.Xattrs, is.Xattrs) {
			what = append(what, "xattr")
		}
		if was.Mtime != is.Mtime {
			what = append(what, "mtime")
		}
		if len(what) == 0 {
			return found{}
		}
	}
	return w.trackedChange(was, is, what)
}

// trackedChange makes a change of two states that differ.
func (w *Workspace) trackedChange(was, is *trackedFile, what []string) found {
	f := found{Change: Change{Path: was.Path, OldMode: was.Mode, Mode: is.Mode, OldSize: was.Size, Size: is.Size, What: what}}
	f.tracked = &trackedSides{
		old: gitFileOf(was, func() (io.ReadCloser, error) { return w.trackedReader(was) }),
		new: gitFileOf(is, func() (io.ReadCloser, error) { return w.trackedReader(is) }),
	}
	switch {
	case was.Mode == 0:
		f.Kind, f.Type = Created, TypeName(is.Mode)
	case is.Mode == 0:
		f.Kind, f.Type = Deleted, TypeName(was.Mode)
	default:
		f.Kind, f.Type = Modified, TypeName(is.Mode)
		if was.kind() != is.kind() {
			f.OldType = TypeName(was.Mode)
		}
	}
	return f
}

// gitFileOf describes one side for git; nil for what git does not know, and for nothing.
func gitFileOf(t *trackedFile, open func() (io.ReadCloser, error)) *gitpatch.File {
	f := &gitpatch.File{Path: t.Path, Size: t.Size, Open: open}
	switch t.kind() {
	case unix.S_IFREG:
		f.Mode = gitpatch.ModeFile
		if t.Mode&0o100 != 0 {
			f.Mode = gitpatch.ModeExecutable
		}
	case unix.S_IFLNK:
		f.Mode = gitpatch.ModeSymlink
	default:
		return nil
	}
	if !gitpatch.Representable(t.Path, f.Mode) {
		return nil
	}
	return f
}
