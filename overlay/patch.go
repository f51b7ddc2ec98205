//go:build linux

package overlay

import (
	"context"
	"io"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/gitpatch"
	"golang.org/x/sys/unix"
)

// Patch writes what changed between two states, named as for Diff, as a patch that `git apply` takes. It holds what git
// knows: contents, the executable bit, symlinks, names; no directories, owners, times, xattrs or devices.
func (w *Workspace) Patch(ctx context.Context, from, to string, out io.Writer) error {
	leave, err := w.enter("patch", true)
	if err != nil {
		return err
	}
	defer leave()
	return w.patch(ctx, from, to, out)
}

// patch does it for a caller who holds w.admin.
func (w *Workspace) patch(ctx context.Context, from, to string, out io.Writer) error {
	var d *differ
	var diff Diff
	var changes []gitpatch.Change
	defer func() {
		if d != nil {
			d.close()
		}
	}()
	return w.inspect(func() (err error) {
		if d != nil {
			d.close()
		}
		changes = nil
		if d, diff, err = w.newDiffer(ctx, "patch", from, to, true); err != nil {
			return err
		}
		d.deep = true
		list, err := d.run()
		for _, f := range list {
			c := d.gitChange(f)
			if c.Old != nil || c.New != nil {
				changes = append(changes, c)
			}
		}
		return errs.Ensure("patch", diff.From, err)
	}, func() error {
		return errs.Wrap(errs.Internal, "patch", diff.From, gitpatch.Write(out, changes))
	})
}

// gitChange turns a change into what git sees of it, which may be nothing.
func (d *differ) gitChange(f found) gitpatch.Change {
	if f.tracked != nil {
		return gitpatch.Change{Old: f.tracked.old, New: f.tracked.new}
	}
	oldPath := f.OldPath
	if oldPath == "" {
		oldPath = f.Path
	}
	var c gitpatch.Change
	if f.Kind != Created {
		c.Old = d.a.gitFile(oldPath, f.old, f.OldMode, f.OldSize)
	}
	if f.Kind != Deleted {
		c.New = d.b.gitFile(f.Path, f.new, f.Mode, f.Size)
	}
	return c
}

// gitFile describes one side for git; nil for what git does not know.
func (v *view) gitFile(path string, id checkpoint.ID, mode uint32, size int64) *gitpatch.File {
	f := &gitpatch.File{Path: path, Size: size}
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.Mode = gitpatch.ModeFile
		if mode&0o100 != 0 {
			f.Mode = gitpatch.ModeExecutable
		}
		f.Open = func() (io.ReadCloser, error) { return v.open(id) }
	case unix.S_IFLNK:
		f.Mode = gitpatch.ModeSymlink
		f.Open = func() (io.ReadCloser, error) {
			target, err := v.readlink(id)
			return io.NopCloser(strings.NewReader(target)), err
		}
	default:
		return nil
	}
	if !gitpatch.Representable(path, f.Mode) {
		return nil
	}
	return f
}
