package scan

import (
	"context"
	"io"
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/gitpatch"
	"github.com/hyperfs/hyperfs/overlay"
)

// Patch writes what changed between two states, named as for Diff, as a patch that `git apply` takes. It holds what git
// knows: contents, the executable bit, symlinks, names; no directories, owners, times, xattrs or devices.
func (w *Workspace) Patch(ctx context.Context, from, to string, out io.Writer) error {
	leave, err := w.enter(ctx, "patch")
	if err != nil {
		return err
	}
	defer leave()
	return w.patch(ctx, from, to, out)
}

// patch does it for a caller who has entered.
func (w *Workspace) patch(ctx context.Context, from, to string, out io.Writer) error {
	d, head, err := w.newDiffer(ctx, "patch", from, to)
	if err != nil {
		return err
	}
	d.expand, d.flat = true, true
	if err := d.run(); err != nil {
		return errs.Ensure("patch", head.From, err)
	}
	var changes []gitpatch.Change
	for _, f := range d.found {
		c := gitpatch.Change{}
		if f.Kind != overlay.Created {
			c.Old = w.gitFile(d.a, f.old, false)
		}
		if f.Kind != overlay.Deleted {
			c.New = w.gitFile(d.b, f.new, to == "")
		}
		if c.Old != nil || c.New != nil {
			changes = append(changes, c)
		}
	}
	return errs.Wrap(errs.Internal, "patch", head.From, gitpatch.Write(out, changes))
}

// gitFile describes an entry for git; nil for what git does not know. What is live and has no backup is read from the tree.
func (w *Workspace) gitFile(m *manifest, i int32, live bool) *gitpatch.File {
	e := &m.entries[i]
	f := &gitpatch.File{Path: m.path(i), Size: e.size}
	switch e.kind() {
	case modeRegular:
		f.Mode = gitpatch.ModeFile
		if e.mode&0o100 != 0 {
			f.Mode = gitpatch.ModeExecutable
		}
		f.Open = func() (io.ReadCloser, error) { return w.openEntry(m, i, live) }
	case modeSymlink:
		f.Mode, f.Size = gitpatch.ModeSymlink, int64(len(e.target))
		f.Open = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(e.target)), nil }
	default:
		return nil
	}
	if !gitpatch.Representable(f.Path, f.Mode) {
		return nil
	}
	return f
}

// openEntry opens the content of a regular file.
func (w *Workspace) openEntry(m *manifest, i int32, live bool) (io.ReadCloser, error) {
	e := &m.entries[i]
	switch {
	case e.ref.Name != "":
		return w.backups.Open(e.ref)
	case e.size == 0:
		return io.NopCloser(strings.NewReader("")), nil
	case !live:
		return nil, errs.New(errs.Integrity, "read", m.path(i), "there is no backup of it")
	}
	return w.openLive(m.path(i))
}
