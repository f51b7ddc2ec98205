//go:build linux

package branch_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"golang.org/x/sys/unix"
)

func TestRollbackAndUndoGoBackAndForth(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's", "dir/b": "b"})
	s.fork("x", "")
	x := s.tree("x")
	fork := s.capture("x")
	x.write("a", "first")
	x.rename("dir", "moved")
	first := s.snapshot("x")
	atFirst := s.capture("x")
	x.unlink("a")
	x.write("moved/new", "new")
	live := s.capture("x")
	for range 2 {
		s.rollback("x", first)
		s.same(atFirst, s.capture("x"))
		_, err := s.m.Undo(context.Background(), "x")
		s.ok(err)
		s.same(live, s.capture("x"))
	}
	s.rollback("x", mainPoint)
	s.same(fork, s.capture("x"))
	s.rollback("x", first) // forwards
	s.same(atFirst, s.capture("x"))
	s.reopen()
	s.same(atFirst, s.capture("x"))
	_, err := s.m.Undo(context.Background(), "x")
	s.ok(err)
	s.same(fork, s.capture("x"))
	s.sound()
}

func TestOpenFilesFollowARollback(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's", "gone": "restored", "c": "c"})
	s.fork("x", "")
	x := s.tree("x")
	id := s.snapshot("x")
	f, g := x.openFile("a", unix.O_RDWR), x.openFile("gone", unix.O_RDWR)
	defer f.Release()
	defer g.Release()
	x.writeFile(f, "CHANGE")
	x.unlink("gone")
	x.writeFile(g, "nobody's")
	x.write("new", "new one")
	n := x.openFile("new", unix.O_RDWR)
	defer n.Release()
	s.rollback("x", id)
	if got := x.readFile(f); got != "main's" {
		t.Errorf("a file that was changed reads %q", got)
	}
	if got := x.readFile(g); got != "restored" {
		t.Errorf("a file that was removed reads %q", got)
	}
	if got := x.readFile(n); got != "new one" {
		t.Errorf("a file that is no more reads %q", got)
	}
	if a, err := x.GetAttr(n.Inode(), n); err != nil || a.Nlink != 0 || a.Size != 7 {
		t.Errorf("a file that is no more: %+v, %v", a, err)
	}
	x.writeFile(f, "again!")
	x.writeFile(g, "again!!!")
	x.writeFile(n, "NEW ONE")
	x.has("a", "again!")
	x.has("gone", "again!!!")
	x.lacks("new")
	s.at(id).has("a", "main's")
	_, err := s.m.Undo(context.Background(), "x")
	s.ok(err)
	x.has("a", "CHANGE")
	x.has("new", "new one")
	x.lacks("gone")
	s.sound()
}

func TestAFileOfADiscardedStateGoesOnWhileItIsOpen(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's"})
	s.fork("x", "")
	x := s.tree("x")
	id := s.snapshot("x")
	x.write("new", "new one")
	f := x.openFile("new", unix.O_RDWR)
	_, err := s.m.Rollback(context.Background(), "x", id, overlay.RollbackOptions{Discard: true})
	s.ok(err)
	_, err = s.m.GC(context.Background())
	s.ok(err)
	if got := x.readFile(f); got != "new one" {
		t.Errorf("it reads %q", got)
	}
	x.writeFile(f, "NEW ONE")
	if got := x.readFile(f); got != "NEW ONE" {
		t.Errorf("after a write it reads %q", got)
	}
	if _, err := s.m.Undo(context.Background(), "x"); errs.CodeOf(err) != errs.Rollback {
		t.Errorf("undo after a discard gives %v", err)
	}
	f.Release()
	s.sound()
}

// told is what a notifier was told.
type told struct {
	*space
	names   []string
	inodes  []overlay.Inode
	flushed []overlay.Inode
	onFlush func()
}

func (n *told) InvalEntry(_ overlay.Inode, name string) { n.names = append(n.names, name) }
func (n *told) InvalInode(i overlay.Inode)              { n.inodes = append(n.inodes, i) }
func (n *told) FlushInode(i overlay.Inode) {
	n.flushed = append(n.flushed, i)
	if n.onFlush != nil {
		n.onFlush()
	}
}

func TestARollbackTellsWhatChangedAndNothingElse(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "", "same": "", "dir/b": "", "other/c": "", "unknown/d": ""})
	s.fork("x", "")
	x := s.tree("x")
	id := s.snapshot("x")
	n := &told{space: s}
	s.m.SetNotifier(n)
	a := x.node("a")
	x.node("same")
	x.node("dir/b")
	other := x.node("other/c")
	x.write("a", "changed")
	x.rename("dir/b", "moved")
	x.write("new", "")
	s.rollback("x", id)
	slices.Sort(n.names)
	if want := []string{"b", "moved", "new"}; !slices.Equal(n.names, want) {
		t.Errorf("told to forget the names %q, want %q", n.names, want)
	}
	if !slices.Contains(n.inodes, a) || slices.Contains(n.inodes, other) || !slices.Contains(n.inodes, x.Root()) {
		t.Error("not told to forget what changed, or told more")
	}
}

func TestASnapshotHoldsWhatWasStoredThroughMappings(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "before"})
	s.fork("x", "")
	x := s.tree("x")
	f := x.openFile("a", unix.O_RDWR)
	defer f.Release()
	n := &told{space: s, onFlush: func() { x.writeFile(f, "mapped") }}
	s.m.SetNotifier(n)
	id := s.snapshot("x")
	if len(n.flushed) != 1 || n.flushed[0] != f.Inode() {
		t.Errorf("flushed %v", n.flushed)
	}
	s.at(id).has("a", "mapped")
}

func TestARollbackWithoutAllItNeedsTouchesNothing(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's"})
	s.fork("x", "")
	x := s.tree("x")
	x.write("a", "first")
	id := s.snapshot("x")
	before := s.inPool()
	x.write("a", "second")
	for _, path := range before {
		if b, err := os.ReadFile(path); err == nil && string(b) == "first" {
			s.ok(os.Remove(path))
		}
	}
	if _, err := s.m.Rollback(context.Background(), "x", id, overlay.RollbackOptions{}); errs.CodeOf(err) != errs.Integrity {
		t.Errorf("the rollback gives %v", err)
	}
	x.has("a", "second")
	problems, err := s.m.Fsck(context.Background())
	s.ok(err)
	if len(problems) != 1 {
		t.Errorf("fsck finds %v", problems)
	}
}

// inPool gives the paths of what is in the pool.
func (s *space) inPool() (paths []string) {
	s.Helper()
	paths, err := filepath.Glob(filepath.Join(s.dir, "branches", "*", "*"))
	s.ok(err)
	return paths
}

func TestWhatNoRecordNamesIsFoundAndRemoved(t *testing.T) {
	s := newSpace(t, nil)
	s.fork("x", "")
	dir := filepath.Join(s.dir, "branches", "2a")
	s.ok(os.Mkdir(dir, 0o700))
	stray := filepath.Join(dir, "abcd")
	for _, remove := range []func(){func() { _, err := s.m.GC(context.Background()); s.ok(err) }, s.reopen} {
		s.ok(os.WriteFile(stray, nil, 0o600))
		if problems, err := s.m.Fsck(context.Background()); err != nil || len(problems) != 1 {
			t.Errorf("fsck finds %v, %v", problems, err)
		}
		remove()
		if _, err := os.Lstat(stray); err == nil {
			t.Error("it is still there")
		}
	}
}

func TestDroppedBranchesLeaveNothing(t *testing.T) {
	ctx := context.Background()
	s := newSpace(t, map[string]string{"a": "main's"})
	s.fork("x", "")
	x := s.tree("x")
	x.write("a", "x's")
	id := s.snapshot("x")
	x.write("b", "")
	s.fork("child", id)
	if err := s.m.Drop(ctx, "x"); errs.CodeOf(err) != errs.Busy {
		t.Errorf("dropping a branch with a child gives %v", err)
	}
	s.ok(s.m.DropCheckpoint(ctx, id))
	s.tree("child").has("a", "x's")
	if got := s.m.PinnedEpochs(); !slices.Equal(got, []checkpoint.Epoch{mainEpoch}) {
		t.Errorf("pinned: %v", got)
	}
	s.ok(s.m.Drop(ctx, "child"))
	s.ok(s.m.Drop(ctx, "x"))
	if _, err := x.find("a"); err != unix.ESTALE {
		t.Errorf("a lookup in a dropped branch gives %v", err)
	}
	if b, err := s.m.Get("x"); err != nil || b.Status != checkpoint.BranchDropped {
		t.Errorf("Get gives %v, %v", b, err)
	}
	_, err := s.m.GC(ctx)
	s.ok(err)
	if n := s.poolSize(); n != 0 {
		t.Errorf("%d inodes are left in the pool", n)
	}
	if got, err := s.store.PinnedEpochs(); len(got) != 0 || err != nil {
		t.Errorf("still pinned: %v, %v", got, err)
	}
	if _, err := s.m.Get("x"); errs.CodeOf(err) != errs.NotFound {
		t.Errorf("after gc Get gives %v", err)
	}
	s.fork("x", "")
	s.tree("x").has("a", "main's")
}

func TestForkRefusesBadNames(t *testing.T) {
	s := newSpace(t, nil)
	s.fork("taken", "")
	for name, want := range map[string]errs.Code{
		"": errs.Usage, ".": errs.Usage, "..": errs.Usage, "main": errs.Usage, "a/b": errs.Usage, "a\nb": errs.Usage,
		"\xff": errs.Usage, string(make([]byte, 256)): errs.Usage, "taken": errs.Busy, "fine — ü": "",
	} {
		_, err := s.m.Fork(context.Background(), name, "", branch.ForkOptions{})
		if errs.CodeOf(err) != want {
			t.Errorf("%q gives %v, want %q", name, err, want)
		}
	}
	for _, from := range []string{"nonsense"} {
		if _, err := s.m.Fork(context.Background(), "x", from, branch.ForkOptions{}); errs.CodeOf(err) != errs.NotFound {
			t.Errorf("a fork from %q gives %v", from, err)
		}
	}
}

func TestAForkThatCannotBeCommittedLeavesNothing(t *testing.T) {
	s := newSpace(t, nil)
	s.refuse = unix.ENOSPC
	if _, err := s.m.Fork(context.Background(), "x", "", branch.ForkOptions{}); errs.CodeOf(err) != errs.Capacity {
		t.Errorf("it gives %v", err)
	}
	s.refuse = nil
	if got := s.m.PinnedEpochs(); len(got) != 0 {
		t.Errorf("pinned: %v", got)
	}
	s.fork("x", "")
	s.sound()
}

func TestLineageChildrenAndTags(t *testing.T) {
	ctx := context.Background()
	s := newSpace(t, nil)
	_, err := s.m.Fork(ctx, "a", "", branch.ForkOptions{Subagent: "sub"})
	s.ok(err)
	id := s.snapshot("a")
	s.fork("b", id)
	s.fork("c", s.snapshot("b"))
	s.reopen()
	line, err := s.m.Lineage("c")
	s.ok(err)
	var names []string
	for _, b := range line {
		names = append(names, b.Name)
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("the lineage of c is %q", names)
	}
	a, err := s.m.Get("a")
	s.ok(err)
	if a.Agent != "of main" || !slices.Equal(a.Children, []string{"b"}) || a.Parent != branch.Main || a.ForkPoint != mainPoint {
		t.Errorf("a is %+v", a)
	}
	c, err := s.m.Get("c")
	s.ok(err)
	if c.Subagent != "sub" || c.Parent != "b" || len(c.Children) != 0 {
		t.Errorf("c is %+v", c)
	}
	if kids, err := s.m.Children(branch.Main); err != nil || len(kids) != 1 || kids[0].Name != "a" {
		t.Errorf("main's children are %v, %v", kids, err)
	}
	if list := s.m.Branches(branch.Filter{Subagent: "sub", Parent: "b"}); len(list) != 1 || list[0].Name != "c" {
		t.Errorf("the filter gives %v", list)
	}
	list, err := s.m.List("a", overlay.ListOptions{})
	s.ok(err)
	if len(list) != 1 || list[0].ID != id || list[0].Parent != mainPoint || list[0].Subagent != "sub" {
		t.Errorf("a's checkpoints are %+v", list)
	}
}
