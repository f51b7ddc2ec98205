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
// knows: contents, the executable bit, symlinks, names; no directories, owners, times, xattrs or devices. Errors are those of Diff, and INTEGRITY where
// something was changed while nobody watched, so that it is not known what it was.
func (w *Workspace) Patch(ctx context.Context, from, to string, out io.Writer) error {
	return w.entered("patch", func(leave func()) error { return w.patch(ctx, from, to, out, leave) })
}

// patch does it for a caller who holds w.admin; leave is called when that is not needed any more.
func (w *Workspace) patch(ctx context.Context, from, to string, out io.Writer, leave func()) error {
	return w.compare("patch", from, to, leave, func(_ string, c *Comparison) error { return c.Patch(ctx, out) })
}

// Patch writes what differs as a patch that `git apply` takes. INTEGRITY says that something is not known.
func (c *Comparison) Patch(ctx context.Context, out io.Writer) error {
	d := newDiffer(ctx, c)
	d.expand, d.deep = true, true
	list, err := d.run()
	if err != nil {
		return err
	}
	var changes []gitpatch.Change
	for _, f := range list {
		if c.isUnknown(f) {
			return errs.New(errs.Integrity, "patch", f.Path, "it was changed while hyperfs was not running, and what it was before is not known")
		}
		if g := c.gitChange(f); g.Old != nil || g.New != nil {
			changes = append(changes, g)
		}
	}
	return gitpatch.Write(out, changes)
}

func (c *Comparison) isUnknown(f found) bool {
	return f.tracked == nil && (f.Kind != Created && c.A.Unknown(f.old) || f.Kind != Deleted && c.B.Unknown(f.new))
}

// gitChange turns a change into what git sees of it, which may be nothing.
func (c *Comparison) gitChange(f found) (g gitpatch.Change) {
	if f.tracked != nil {
		return gitpatch.Change{Old: f.tracked.old, New: f.tracked.new}
	}
	oldPath := f.OldPath
	if oldPath == "" {
		oldPath = f.Path
	}
	if f.Kind != Created {
		g.Old = gitFile(c.A, oldPath, f.old, f.OldMode, f.OldSize)
	}
	if f.Kind != Deleted {
		g.New = gitFile(c.B, f.Path, f.new, f.Mode, f.Size)
	}
	return g
}

// gitFile describes one side for git; nil for what git does not know.
func gitFile(side Side, path string, id checkpoint.ID, mode uint32, size int64) *gitpatch.File {
	f := &gitpatch.File{Path: path, Size: size}
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.Mode = gitpatch.ModeFile
		if mode&0o100 != 0 {
			f.Mode = gitpatch.ModeExecutable
		}
		f.Open = func() (io.ReadCloser, error) {
			content, err := side.Open(id)
			return &sideReader{f: content}, err
		}
	case unix.S_IFLNK:
		f.Mode = gitpatch.ModeSymlink
		f.Open = func() (io.ReadCloser, error) {
			target, err := side.Readlink(id)
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
