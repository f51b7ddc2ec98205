//go:build linux

package overlay

import (
	"io"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/gitpatch"
	"golang.org/x/sys/unix"
)

// trackedSides are the two states of a tracked file that differ.
type trackedSides struct{ old, new *gitpatch.File }

// diffTracked tells how tracked files differ between two checkpoints, or (to is nil then) one and now. A path that one of the two did not look at is left out: what it
// was then is not known.
func (w *Workspace) diffTracked(from checkpoint.Checkpoint, to *checkpoint.Checkpoint) ([]found, error) {
	var list []found
	for _, was := range w.trackedAt(from.Epoch) {
		if !was.kept() {
			continue
		}
		var f found
		var err error
		if to == nil {
			f, err = w.diffTrackedNow(&was)
		} else {
			later := w.trackedAt(to.Epoch)
			i := slices.IndexFunc(later, func(t trackedFile) bool { return t.Path == was.Path })
			if i < 0 {
				continue
			}
			f, err = w.diffTrackedFiles(&was, &later[i])
		}
		if err != nil {
			return nil, err
		}
		if f.Kind != "" {
			list = append(list, f)
		}
	}
	return list, nil
}

func (w *Workspace) diffTrackedNow(was *trackedFile) (found, error) {
	at, err := w.tree.findTracked(was.Path)
	if err != nil {
		return found{}, err
	}
	is := trackedFile{Path: was.Path}
	if at == nil {
		return w.trackedChange(was, &is, nil, nil), nil
	}
	defer at.close()
	is = w.tree.describeTracked(was.Path, &at.st)
	if was.Mode == 0 {
		return w.trackedChange(was, &is, nil, w.liveReader(was.Path)), nil
	}
	what, err := w.trackedDiffers(was, at)
	if err != nil || len(what) == 0 {
		return found{}, err
	}
	return w.trackedChange(was, &is, what, w.liveReader(was.Path)), nil
}

// liveReader gives the content that a tracked file has now, or the target of a symlink.
func (w *Workspace) liveReader(path string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		at, err := w.tree.findTracked(path)
		if err == nil && at == nil {
			err = unix.ENOENT
		}
		if err != nil {
			return nil, err
		}
		defer at.close()
		if uint32(at.st.Mode)&unix.S_IFMT == unix.S_IFLNK {
			target, err := readlinkAt(at.fd, at.name)
			return io.NopCloser(strings.NewReader(target)), err
		}
		return at.open()
	}
}

func (w *Workspace) diffTrackedFiles(was, is *trackedFile) (found, error) {
	var what []string
	switch {
	case was.Mode == 0 && is.Mode == 0:
		return found{}, nil
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
			return found{}, nil
		}
	}
	return w.trackedChange(was, is, what, func() (io.ReadCloser, error) { return w.trackedReader(is) }), nil
}

// trackedChange makes a change of two states that differ.
func (w *Workspace) trackedChange(was, is *trackedFile, what []string, open func() (io.ReadCloser, error)) found {
	f := found{Change: Change{Path: was.Path, OldMode: was.Mode, Mode: is.Mode, OldSize: was.Size, Size: is.Size, What: what}}
	sides := &trackedSides{
		old: gitFileOf(was, func() (io.ReadCloser, error) { return w.trackedReader(was) }),
		new: gitFileOf(is, open),
	}
	f.tracked = sides
	switch {
	case was.Mode == 0 && is.Mode == 0:
		return found{}
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
