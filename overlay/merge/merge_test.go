//go:build linux

package merge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/merge"
	"golang.org/x/sys/unix"
)

// workspace is one of the trees that take part, changed through the versioned tree so that it has a diff.
type workspace struct {
	testing.TB
	dir  string
	w    *overlay.Workspace
	snap string
}

func openWorkspace(t testing.TB, dir string) *workspace {
	t.Helper()
	w, err := overlay.Open(overlay.Config{Workspace: dir, TmpfsDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	s := &workspace{TB: t, dir: dir, w: w}
	s.snap = s.snapshot()
	return s
}

func (s *workspace) snapshot() string {
	s.Helper()
	c, err := s.w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	s.check(err)
	return c.ID
}

func (s *workspace) rollback(id string) {
	s.Helper()
	_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{Discard: true})
	s.check(err)
}

func (s *workspace) volume() volume { return volume{s.w.Tree()} }

func (s *workspace) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *workspace) diff() []overlay.Change {
	s.Helper()
	d, err := s.w.Diff(context.Background(), s.snap, "", true)
	s.check(err)
	return d.Changes
}

func (s *workspace) state() treestate.State {
	s.Helper()
	st, err := treestate.Capture(s.dir, treestate.Options{})
	s.check(err)
	return st
}

// at calls fn with a path's directory and name.
func (s *workspace) at(p string, fn func(v volume, dir overlay.Inode, name string) error) {
	s.Helper()
	v := s.volume()
	dir := v.Root()
	if d := path.Dir(p); d != "." {
		for name := range strings.SplitSeq(d, "/") {
			n, _, err := v.Lookup(dir, name)
			if err != nil {
				s.Fatalf("%s: %v", p, err)
			}
			defer v.Forget(n, 1)
			if dir = n; !n.IsDir() {
				s.Fatalf("%s: %v", p, unix.ENOTDIR)
			}
		}
	}
	if err := fn(v, dir, path.Base(p)); err != nil {
		s.Fatalf("%s: %v", p, err)
	}
}

// node calls fn with what has a path.
func (s *workspace) node(p string, fn func(v volume, n overlay.Inode) error) {
	s.Helper()
	s.at(p, func(v volume, dir overlay.Inode, name string) error {
		n, _, err := v.Lookup(dir, name)
		if err != nil {
			return err
		}
		defer v.Forget(n, 1)
		return fn(v, n)
	})
}

var caller = &overlay.Caller{}

func writeAll(f overlay.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// What follows is what a user does. Contents are written in place; save replaces the file as editors do.

func (s *workspace) create(p, text string) {
	s.Helper()
	s.at(p, func(v volume, dir overlay.Inode, name string) error {
		n, f, _, err := v.Create(dir, name, unix.O_WRONLY|unix.O_EXCL, 0o644, false, caller)
		if err != nil {
			return err
		}
		defer v.Forget(n, 1)
		defer f.Release()
		return writeAll(f, text)
	})
}

func (s *workspace) write(p, text string) {
	s.Helper()
	s.node(p, func(v volume, n overlay.Inode) error {
		f, err := v.Open(n, unix.O_WRONLY|unix.O_TRUNC, false, caller)
		if err != nil {
			return err
		}
		defer f.Release()
		return writeAll(f, text)
	})
}

func (s *workspace) save(p, text string) {
	s.Helper()
	s.create(p+".tmp", text)
	s.rename(p+".tmp", p)
}

func (s *workspace) mkdir(p string) {
	s.Helper()
	s.at(p, func(v volume, dir overlay.Inode, name string) error {
		n, _, err := v.Mkdir(dir, name, 0o755, caller)
		if err == nil {
			v.Forget(n, 1)
		}
		return err
	})
}

func (s *workspace) symlink(target, p string) {
	s.Helper()
	s.at(p, func(v volume, dir overlay.Inode, name string) error {
		n, _, err := v.Symlink(dir, name, target, caller)
		if err == nil {
			v.Forget(n, 1)
		}
		return err
	})
}

func (s *workspace) mknod(p string, mode, rdev uint32) {
	s.Helper()
	s.at(p, func(v volume, dir overlay.Inode, name string) error {
		n, _, err := v.Mknod(dir, name, mode, rdev, caller)
		if err == nil {
			v.Forget(n, 1)
		}
		return err
	})
}

func (s *workspace) rm(p string) {
	s.Helper()
	s.at(p, func(v volume, dir overlay.Inode, name string) error { return v.Unlink(dir, name) })
}

func (s *workspace) rmdir(p string) {
	s.Helper()
	s.at(p, func(v volume, dir overlay.Inode, name string) error { return v.Rmdir(dir, name) })
}

func (s *workspace) move(from, to string, flags uint32) {
	s.Helper()
	s.at(from, func(v volume, old overlay.Inode, oldName string) error {
		s.at(to, func(_ volume, dir overlay.Inode, name string) error {
			return v.Rename(old, oldName, dir, name, flags)
		})
		return nil
	})
}

func (s *workspace) rename(from, to string) { s.Helper(); s.move(from, to, 0) }
func (s *workspace) swap(a, b string)       { s.Helper(); s.move(a, b, unix.RENAME_EXCHANGE) }

func (s *workspace) link(from, to string) {
	s.Helper()
	s.node(from, func(v volume, n overlay.Inode) error {
		s.at(to, func(_ volume, dir overlay.Inode, name string) error {
			_, err := v.Link(n, dir, name)
			if err == nil {
				v.Forget(n, 1)
			}
			return err
		})
		return nil
	})
}

func (s *workspace) set(p string, in overlay.SetAttr) {
	s.Helper()
	s.node(p, func(v volume, n overlay.Inode) error { _, err := v.SetAttr(n, nil, &in); return err })
}

func (s *workspace) chmod(p string, mode uint32) {
	s.Helper()
	s.set(p, overlay.SetAttr{Valid: overlay.SetMode, Mode: mode})
}

func (s *workspace) chown(p string, uid, gid uint32) {
	s.Helper()
	if os.Getuid() != 0 {
		s.Skip("only root can give files away")
	}
	s.set(p, overlay.SetAttr{Valid: overlay.SetUID | overlay.SetGID, UID: uid, GID: gid})
}

func (s *workspace) touch(p string, ns int64) {
	s.Helper()
	s.set(p, overlay.SetAttr{Valid: overlay.SetMtime, Mtime: unix.NsecToTimespec(ns)})
}

func (s *workspace) setXattr(p, name, value string) {
	s.Helper()
	s.node(p, func(v volume, n overlay.Inode) error { return v.SetXattr(n, name, []byte(value), 0) })
}

func (s *workspace) removeXattr(p, name string) {
	s.Helper()
	s.node(p, func(v volume, n overlay.Inode) error { return v.RemoveXattr(n, name) })
}

// trees are the three trees of a merge, made alike.
type trees struct {
	base, ours, theirs *workspace
}

func newTrees(t testing.TB, fill func(w *workspace)) *trees {
	t.Helper()
	top := t.TempDir()
	seed := filepath.Join(top, "base")
	if err := os.Mkdir(seed, 0o755); err != nil {
		t.Fatal(err)
	}
	base := openWorkspace(t, seed)
	fill(base)
	for _, name := range []string{"ours", "theirs"} {
		if err := treestate.Copy(seed, filepath.Join(top, name)); err != nil {
			t.Fatal(err)
		}
	}
	return &trees{base, openWorkspace(t, filepath.Join(top, "ours")), openWorkspace(t, filepath.Join(top, "theirs"))}
}

// plan plans the merge of theirs into ours.
func (x *trees) plan(t testing.TB, policy merge.Policy) *merge.Plan {
	t.Helper()
	p, err := x.make(policy)
	if err != nil {
		t.Fatalf("%v\nours %s\ntheirs %s", err, text(x.ours.diff()), text(x.theirs.diff()))
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func (x *trees) make(policy merge.Policy) (*merge.Plan, error) {
	return merge.Make(context.Background(), merge.Input{
		Base:   x.base.volume(),
		Ours:   merge.Side{Volume: x.ours.volume(), Changes: x.ours.diff(), Agent: "alice"},
		Theirs: merge.Side{Volume: x.theirs.volume(), Changes: x.theirs.diff(), Agent: "bob"},
		Policy: policy,
	})
}

func (x *trees) apply(t testing.TB, p *merge.Plan) {
	t.Helper()
	if err := merge.Apply(context.Background(), p, x.ours.volume(), x.theirs.volume()); err != nil {
		t.Fatalf("%v\n%s", err, text(p))
	}
}

func text(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// listing gives a tree as lines: what it is, whose links, for reading and comparing.
func listing(s treestate.State, dir string) string {
	var b strings.Builder
	for _, p := range s.Paths() {
		e := s[p]
		if p == "." {
			continue
		}
		fmt.Fprintf(&b, "%s", p)
		switch e.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			b.WriteString("/")
		case unix.S_IFREG:
			c, _ := os.ReadFile(filepath.Join(dir, p))
			fmt.Fprintf(&b, "=%s", strings.ReplaceAll(string(c), "\n", "|"))
		case unix.S_IFLNK:
			fmt.Fprintf(&b, "->%s", e.Target)
		default:
			fmt.Fprintf(&b, " %s", treestate.TypeName(e.Mode))
		}
		if e.First != p {
			fmt.Fprintf(&b, " (%s)", e.First)
		}
		if m := e.Mode & 0o7777; m != 0o644 && m != 0o755 && m != 0o777 {
			fmt.Fprintf(&b, " %#o", m)
		}
		if e.UID != 0 || e.GID != 0 {
			fmt.Fprintf(&b, " %d:%d", e.UID, e.GID)
		}
		for _, name := range slices.Sorted(maps.Keys(e.Xattrs)) {
			fmt.Fprintf(&b, " %s=%s", name, e.Xattrs[name])
		}
		b.WriteString("\x01")
	}
	return b.String()
}
