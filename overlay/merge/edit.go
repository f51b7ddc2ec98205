//go:build linux

package merge

import (
	"context"
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Edit has an editor of the live tree carry a plan out, op by op: all or none is done when the editor is. It refuses a plan that is not
// clean with BRANCH_CONFLICT.
func Edit(ctx context.Context, p *Plan, e *overlay.Editor, theirs overlay.Volume) error {
	if !p.Clean() {
		return notClean(p)
	}
	x := &editing{plan: p, e: e, theirs: newTree(theirs)}
	defer x.theirs.forget()
	for i := range p.Ops {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := x.do(&p.Ops[i]); err != nil {
			return errs.Ensure("merge", p.Ops[i].Path, err)
		}
	}
	return nil
}

// notClean is the error of a plan that can't be carried out.
func notClean(p *Plan) error {
	return errs.New(errs.BranchConflict, "merge", "", "there are %d conflicts", len(p.Conflicts))
}

type editing struct {
	plan   *Plan
	e      *overlay.Editor
	theirs *tree
}

func (x *editing) do(op *Op) error {
	switch op.Do {
	case Remove:
		return x.e.Remove(op.Path)
	case Rename:
		return x.e.Rename(op.From, op.Path)
	case Mkdir:
		a, xs := op.Attrs.onto(newAttr(unix.S_IFDIR|0o700), nil)
		return x.e.Make(op.Path, overlay.Made{Attr: a, Xattrs: xs})
	case Link:
		if op.Replace {
			if err := x.e.Remove(op.Path); err != nil {
				return err
			}
		}
		return x.e.Link(op.From, op.Path)
	case SetAttr:
		a, xs, err := x.e.Stat(op.Path)
		if err != nil {
			return err
		}
		a, xs = op.Attrs.onto(a, xs)
		return x.e.SetAttr(op.Path, a, xs)
	case Put:
		return x.put(op)
	}
	return errs.New(errs.Internal, "merge", op.Path, "there is no action %s", op.Do)
}

// put makes or fills what is no directory.
func (x *editing) put(op *Op) error {
	a, xs, err := x.e.Stat(op.Path)
	there := err == nil
	if err != nil && err != unix.ENOENT {
		return err
	}
	return x.withSource(op, func(src source) error {
		fresh := !there || op.Replace
		if there && op.Replace {
			if err := x.e.Remove(op.Path); err != nil {
				return err
			}
		}
		if fresh {
			a, xs = newAttr(modes[op.Type]|0o600), nil
			a.Rdev = op.Rdev
		}
		a, xs = op.Attrs.onto(a, xs)
		m := overlay.Made{Attr: a, Xattrs: xs, Target: op.Target}
		if src != nil {
			m.Fill = func(f *os.File) error { return copyContent(f, src) }
		}
		if fresh {
			return x.e.Make(op.Path, m)
		}
		return x.e.Put(op.Path, m)
	})
}

// withSource calls fn with the content of a put, nil if it has none.
func (x *editing) withSource(op *Op, fn func(src source) error) error {
	switch {
	case op.Type != "file":
		return fn(nil)
	case op.Source == FromMerge:
		return fn(x.plan.Text(op))
	case op.Source == FromOurs:
		return x.e.Read(op.From, func(r overlay.ReaderAt) error { return fn(r) })
	}
	return x.theirs.open(op.From, func(f overlay.File) error { return fn(f) })
}

// modes are the types of what a put makes.
var modes = map[string]uint32{
	"file": unix.S_IFREG, "symlink": unix.S_IFLNK, "fifo": unix.S_IFIFO, "socket": unix.S_IFSOCK, "char": unix.S_IFCHR, "block": unix.S_IFBLK,
}

// newAttr is what an inode is like that nothing more is said of.
func newAttr(mode uint32) overlay.Attr {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME, &now) // it can't fail
	return overlay.Attr{Mode: mode, UID: uint32(unix.Geteuid()), GID: uint32(unix.Getegid()), Mtime: now}
}

// onto gives what attributes and xattrs become. x may be nil.
func (x *Attrs) onto(a overlay.Attr, xs []checkpoint.Xattr) (overlay.Attr, []checkpoint.Xattr) {
	if x == nil {
		return a, xs
	}
	if x.Mode != nil {
		a.Mode = a.Mode&unix.S_IFMT | *x.Mode&0o7777
	}
	if x.UID != nil {
		a.UID = *x.UID
	}
	if x.GID != nil {
		a.GID = *x.GID
	}
	if x.Mtime != nil {
		a.Mtime = unix.NsecToTimespec(*x.Mtime)
	}
	return a, x.xattrsOnto(xs)
}

func (x *Attrs) xattrsOnto(old []checkpoint.Xattr) []checkpoint.Xattr {
	said := map[string]bool{}
	var xs []checkpoint.Xattr
	for _, w := range x.Xattrs {
		if said[w.Name] = true; !w.Remove {
			xs = append(xs, checkpoint.Xattr{Name: w.Name, Value: w.Value})
		}
	}
	for _, w := range old {
		if !said[w.Name] && !x.All {
			xs = append(xs, w)
		}
	}
	return xs
}
