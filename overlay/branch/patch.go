//go:build linux

package branch

import (
	"context"
	"io"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/gitpatch"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Patch writes what changed between two states of a branch, named as for Diff, as a patch that `git apply` takes. It holds what git
// knows: contents, the executable bit, symlinks, names; no directories, owners, times, xattrs or devices.
func (m *Manager) Patch(ctx context.Context, name, from, to string, out io.Writer) error {
	return m.compare(ctx, "patch", name, from, to, func(d *differ) error {
		d.expand, d.deep = true, true
		list, err := d.run()
		if err != nil {
			return err
		}
		var changes []gitpatch.Change
		for _, f := range list {
			if c := d.gitChange(f); c.Old != nil || c.New != nil {
				changes = append(changes, c)
			}
		}
		return gitpatch.Write(out, changes)
	})
}

// gitChange turns a change into what git sees of it, which may be nothing.
func (d *differ) gitChange(f found) gitpatch.Change {
	oldPath := f.OldPath
	if oldPath == "" {
		oldPath = f.Path
	}
	var c gitpatch.Change
	if f.Kind != overlay.Created {
		c.Old = d.a.gitFile(oldPath, f.old, f.OldMode, f.OldSize)
	}
	if f.Kind != overlay.Deleted {
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
		f.Open = func() (io.ReadCloser, error) {
			c, err := v.openID(id)
			if err != nil {
				return nil, err
			}
			return &reader{c: c}, nil
		}
	case unix.S_IFLNK:
		f.Mode = gitpatch.ModeSymlink
		f.Open = func() (io.ReadCloser, error) {
			target, err := v.readlink(v.p, id, v.inodes[id])
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

// reader reads a content from the start to the end.
type reader struct {
	c   *content
	off int64
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.c.readAt(p, r.off)
	r.off += int64(n)
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

func (r *reader) Close() error {
	r.c.release()
	return nil
}
