//go:build linux

package merge

import (
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Apply carries a plan out, op by op. It neither makes the parent safe before nor takes back what it has done when an op fails: that is
// for the caller. It refuses a plan that is not clean with BRANCH_CONFLICT, having done nothing.
func Apply(ctx context.Context, p *Plan, parent, theirs overlay.Volume) error {
	if !p.Clean() {
		return notClean(p)
	}
	a := &applier{plan: p, parent: newTree(parent), theirs: newTree(theirs)}
	defer func() {
		a.parent.forget()
		a.theirs.forget()
	}()
	for i := range p.Ops {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := a.do(&p.Ops[i]); err != nil {
			return errs.Ensure("merge", p.Ops[i].Path, err)
		}
	}
	return nil
}

type applier struct {
	plan           *Plan
	parent, theirs *tree
}

func (a *applier) do(op *Op) error {
	vol := a.parent.vol
	if op.Do == SetAttr {
		return a.setAttrs(op)
	}
	dir, err := a.parent.dir(path.Dir(op.Path))
	if err != nil {
		return err
	}
	name := path.Base(op.Path)
	switch op.Do {
	case Remove:
		if op.Type != "dir" {
			return vol.Unlink(dir, name)
		}
		a.parent.forget()
		return a.parent.inDir(op.Path, func(dir overlay.Inode, name string) error { return vol.Rmdir(dir, name) })
	case Mkdir:
		n, _, err := vol.Mkdir(dir, name, 0o700, &overlay.Caller{})
		if err == nil {
			vol.Forget(n, 1)
		}
		return err
	case Rename:
		defer a.parent.forget()
		return a.parent.inDir(op.From, func(from overlay.Inode, old string) error {
			return vol.Rename(from, old, dir, name, unix.RENAME_NOREPLACE)
		})
	case Link:
		return a.link(op, dir, name)
	case Put:
		return a.put(op, dir, name)
	}
	return errs.New(errs.Internal, "merge", op.Path, "there is no action %s", op.Do)
}

// inDir calls fn with the directory of a path and the name there.
func (t *tree) inDir(p string, fn func(dir overlay.Inode, name string) error) error {
	dir, err := t.dir(path.Dir(p))
	if err != nil {
		return err
	}
	return fn(dir, path.Base(p))
}

func (a *applier) link(op *Op, dir overlay.Inode, name string) error {
	return a.parent.at(op.From, func(n overlay.Inode, _ overlay.Attr) error {
		if op.Replace {
			if err := a.parent.vol.Unlink(dir, name); err != nil {
				return err
			}
		}
		if _, err := a.parent.vol.Link(n, dir, name); err != nil {
			return err
		}
		a.parent.vol.Forget(n, 1) // Link gives a reference, as Lookup does
		return nil
	})
}

// put makes or fills what is no directory.
func (a *applier) put(op *Op, dir overlay.Inode, name string) error {
	err := a.withSource(op, func(src source) error {
		if op.Replace {
			if err := a.parent.vol.Unlink(dir, name); err != nil {
				return err
			}
		}
		dst, err := a.target(op, dir, name)
		if err != nil || dst == nil {
			return err
		}
		defer dst.Release()
		return copyContent(dst, src)
	})
	if err != nil {
		return err
	}
	return a.setAttrs(op)
}

// source is a content.
type source interface {
	ReadAt(p []byte, off int64) (int, error)
}

// sink is what takes a content.
type sink interface {
	WriteAt(p []byte, off int64) (int, error)
}

// withSource calls fn with the content of a put, nil if it has none.
func (a *applier) withSource(op *Op, fn func(src source) error) error {
	from := a.theirs
	switch {
	case op.Type != "file":
		return fn(nil)
	case op.Source == FromMerge:
		return fn(a.plan.Text(op))
	case op.Source == FromOurs:
		from = a.parent
	}
	return from.open(op.From, func(f overlay.File) error { return fn(f) })
}

// target gives the file to be filled: a new one, or the one that is there, emptied. It is nil if there is nothing to be filled.
func (a *applier) target(op *Op, dir overlay.Inode, name string) (overlay.File, error) {
	vol, c := a.parent.vol, &overlay.Caller{}
	kind := map[string]uint32{"fifo": unix.S_IFIFO, "socket": unix.S_IFSOCK, "char": unix.S_IFCHR, "block": unix.S_IFBLK}[op.Type]
	var n overlay.Inode
	var f overlay.File
	var err error
	switch {
	case op.Type == "symlink":
		n, _, err = vol.Symlink(dir, name, op.Target, c)
	case kind != 0:
		n, _, err = vol.Mknod(dir, name, kind|0o600, uint32(op.Rdev), c)
	case op.Attrs.All:
		n, f, _, err = vol.Create(dir, name, unix.O_WRONLY|unix.O_EXCL, 0o600, false, c)
	default:
		if n, _, err = vol.Lookup(dir, name); err == nil {
			f, err = vol.Open(n, unix.O_WRONLY|unix.O_TRUNC, false, c)
			vol.Forget(n, 1)
			return f, err
		}
	}
	if err != nil {
		return nil, err
	}
	vol.Forget(n, 1)
	return f, nil
}

// copyContent fills an empty file, and leaves out what is zero: so holes stay holes.
func copyContent(dst sink, src source) error {
	buf := make([]byte, 128<<10)
	off, end := int64(0), int64(0)
	for {
		n, err := src.ReadAt(buf, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			break
		}
		if !allZero(buf[:n]) {
			if err := writeAll(dst, buf[:n], off); err != nil {
				return err
			}
			end = off + int64(n)
		}
		off += int64(n)
	}
	if end == off {
		return nil
	}
	return writeAll(dst, []byte{0}, off-1)
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

func writeAll(dst sink, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := dst.WriteAt(p, off)
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// setAttrs sets what an op says, in the order in which nothing undoes what was set before: chown(2) clears bits of the mode and
// capabilities, an ACL changes the mode, and all that changes nothing of the mtime.
func (a *applier) setAttrs(op *Op) error {
	x := op.Attrs
	if x == nil {
		return nil
	}
	return a.parent.at(op.Path, func(n overlay.Inode, now overlay.Attr) error {
		if err := a.chown(n, now, x); err != nil {
			return err
		}
		if err := a.setXattrs(n, x); err != nil {
			return err
		}
		in := overlay.SetAttr{}
		if x.Mode != nil {
			in.Valid, in.Mode = in.Valid|overlay.SetMode, *x.Mode
		}
		if x.Mtime != nil {
			in.Valid, in.Mtime = in.Valid|overlay.SetMtime, unix.NsecToTimespec(*x.Mtime)
		}
		if in.Valid == 0 {
			return nil
		}
		_, err := a.parent.vol.SetAttr(n, nil, &in)
		return err
	})
}

// chown leaves an owner who is the right one already alone: an ordinary user may not do more.
func (a *applier) chown(n overlay.Inode, now overlay.Attr, x *Attrs) error {
	in := overlay.SetAttr{}
	if x.UID != nil && *x.UID != now.UID {
		in.Valid, in.UID = in.Valid|overlay.SetUID, *x.UID
	}
	if x.GID != nil && *x.GID != now.GID {
		in.Valid, in.GID = in.Valid|overlay.SetGID, *x.GID
	}
	if in.Valid == 0 {
		return nil
	}
	_, err := a.parent.vol.SetAttr(n, nil, &in)
	return err
}

// setXattrs sets and removes. A new inode may have got some from its directory, such as an ACL, which go if they are not wanted.
func (a *applier) setXattrs(n overlay.Inode, x *Attrs) error {
	vol := a.parent.vol
	if x.All {
		have, err := xattrsOf(vol, n)
		if err != nil {
			return err
		}
		for _, w := range x.Xattrs {
			delete(have, w.Name)
		}
		for _, name := range sorted(have) {
			if strings.HasPrefix(name, "security.") {
				continue // a label of this place
			}
			if err := vol.RemoveXattr(n, name); err != nil {
				return err
			}
		}
	}
	for _, w := range x.Xattrs {
		err := error(nil)
		if w.Remove {
			err = vol.RemoveXattr(n, w.Name)
		} else {
			err = vol.SetXattr(n, w.Name, w.Value, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
