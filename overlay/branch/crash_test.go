//go:build linux

package branch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"golang.org/x/sys/unix"
)

// envVictim makes this test binary do one thing to branches, and die in that, instead of running tests. Its value is three lines: main's
// directory, the store, and what to do.
const envVictim = "HYPERFS_TEST_BRANCH"

func TestMain(m *testing.M) {
	if of := os.Getenv(envVictim); of != "" {
		lines := strings.Split(of, "\n")
		s := &space{TB: victimTB{}, main: lines[0], dir: lines[1]}
		s.open()
		cuts[lines[2]].do(s)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// victimTB ends a process that did not die where it should have.
type victimTB struct{ testing.TB }

func (victimTB) Helper() {}

func (victimTB) Fatal(args ...any) {
	println("victim:", fmt.Sprint(args...))
	os.Exit(1)
}

func (victimTB) Fatalf(format string, args ...any) {
	println("victim:", fmt.Sprintf(format, args...))
	os.Exit(1)
}

// cut is something that can be cut short, and where.
type cut struct {
	do     func(s *space)
	points []string
}

const (
	cutBranch = "x"
	victimID  = "ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAV" // a checkpoint of the branch
)

// cuts are the changes that are tried. Each works in the branch that cutSpace makes.
var cuts = map[string]cut{
	"write": {func(s *space) { x := s.tree(cutBranch); f := x.openFile("old", unix.O_WRONLY); x.writeFile(f, "X") },
		[]string{"branch-copied", "branch-copy-recorded"}},
	"chmod then write": {func(s *space) {
		x := s.tree(cutBranch)
		_, err := x.SetAttr(x.node("old"), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600})
		s.ok(err)
		f := x.openFile("old", unix.O_WRONLY)
		x.writeFile(f, "X")
	}, []string{"branch-copied:2", "branch-copy-recorded:2"}},
	"create": {func(s *space) { s.tree(cutBranch).write("fresh/made", "") },
		[]string{"branch-copied", "branch-copy-recorded", "branch-made", "branch-made-recorded"}},
	"mkdir":       {func(s *space) { s.tree(cutBranch).mkdir("dir/made") }, []string{"branch-made", "branch-made-recorded"}},
	"unlink":      {func(s *space) { s.tree(cutBranch).unlink("fresh/f") }, []string{"branch-copied", "branch-removed"}},
	"unlink own":  {func(s *space) { s.tree(cutBranch).unlink("dir/own") }, []string{"branch-removed"}},
	"unlink link": {func(s *space) { s.tree(cutBranch).unlink("linked") }, []string{"branch-copied", "branch-copy-recorded", "branch-removed"}},
	"rename":      {func(s *space) { s.tree(cutBranch).rename("dir", "moved") }, []string{"branch-renamed"}},
	"rename over": {func(s *space) { s.tree(cutBranch).rename("old", "dir/own") }, []string{"branch-renamed"}},
	"exchange": {func(s *space) {
		x := s.tree(cutBranch)
		s.ok(x.Rename(x.Root(), "old", x.node("dir"), "own", unix.RENAME_EXCHANGE))
	}, []string{"branch-renamed"}},
	"link":               {func(s *space) { s.tree(cutBranch).link("old", "fresh/made") }, []string{"branch-copied", "branch-copied:2"}},
	"snapshot":           {func(s *space) { s.snapshot(cutBranch) }, []string{"branch-sealed"}},
	"rollback":           {func(s *space) { s.rollback(cutBranch, victimID) }, []string{"branch-rolled-back"}},
	"snapshot of a turn": {func(s *space) { s.snapshotOfTurn() }, nil}, // see turns_test.go
	"rollback of a turn": {func(s *space) { s.rollbackOfTurn() }, nil},
	"rollback with discard": {func(s *space) {
		_, err := s.m.Rollback(context.Background(), cutBranch, victimID, overlay.RollbackOptions{Discard: true})
		s.ok(err)
		_, err = s.m.GC(context.Background())
		s.ok(err)
	}, []string{"branch-rolled-back", "branch-freed"}},
	"drop of a checkpoint": {func(s *space) {
		s.snapshot(cutBranch)
		s.ok(s.m.DropCheckpoint(context.Background(), victimID))
		_, err := s.m.GC(context.Background())
		s.ok(err)
	}, []string{"branch-folded", "branch-freed"}},
	"fork": {func(s *space) { s.fork("made", victimID) }, []string{"branch-forked"}},
	"drop": {func(s *space) {
		s.ok(s.m.Drop(context.Background(), "other"))
		_, err := s.m.GC(context.Background())
		s.ok(err)
	}, []string{"branch-dropped", "branch-freed"}},
}

// cutSpace makes a branch with a checkpoint and changes since, and another one.
func cutSpace(t *testing.T) *space {
	s := newSpace(t, map[string]string{"old": "main's", "dir/a": "a", "fresh/f": "f", "linked": "two names"})
	s.ok(os.Link(filepath.Join(s.main, "linked"), filepath.Join(s.main, "also")))
	s.reopen()
	s.fork(cutBranch, "")
	s.fork("other", "")
	s.tree("other").write("old", "other's")
	x := s.tree(cutBranch)
	x.write("dir/own", "own")
	x.write("dir/a", "changed")
	_, err := s.m.Snapshot(context.Background(), cutBranch, overlay.SnapshotOptions{ID: victimID})
	s.ok(err)
	x.write("since", "since")
	x.unlink("dir/a")
	s.close()
	return s
}

// all gives the branches with all that they hold, but the times of directories, which are set after the change is committed.
func (s *space) all() map[string]treestate.State {
	s.Helper()
	states := map[string]treestate.State{}
	for _, b := range s.m.Branches(branch.Filter{}) {
		st := s.capture(b.Name)
		for p, e := range st {
			if e.Mtime = 0; e.IsRegular() || e.IsDir() {
				st[p] = e
			}
		}
		states[b.Name] = st
		list, err := s.m.List(b.Name, overlay.ListOptions{})
		s.ok(err)
		states[fmt.Sprintf("%s has %d checkpoints", b.Name, len(list))] = treestate.State{}
	}
	return states
}

func sameAll(a, b map[string]treestate.State) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if b[name] == nil || len(treestate.Diff(a[name], b[name])) > 0 {
			return false
		}
	}
	return true
}

func TestAChangeThatWasCutShortIsThereOrNot(t *testing.T) {
	for what, c := range cuts {
		for _, at := range c.points {
			t.Run(what+" at "+at, func(t *testing.T) { cutAt(t, what, at) })
		}
	}
}

func cutAt(t *testing.T, what, at string) {
	s := cutSpace(t)
	whole := &space{TB: t, main: s.main, dir: filepath.Join(t.TempDir(), "store")}
	s.ok(treestate.Copy(s.dir, whole.dir))
	s.open()
	before := s.all()
	s.close()
	whole.open()
	cuts[what].do(whole)
	after := whole.all()
	whole.close()
	states := []map[string]treestate.State{before, after}
	if what == "chmod then write" || what == "rollback with discard" || what == "drop" { // the first step may be all
		states = append(states, s.firstStep(what))
	}

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envVictim+"="+strings.Join([]string{s.main, s.dir, what}, "\n"), crash.EnvAt+"="+at)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
		t.Fatalf("the victim was not killed: %v\n%s", err, out)
	}
	s.open()
	now := s.all()
	for i, state := range states {
		if sameAll(state, now) {
			break
		} else if i == len(states)-1 {
			for name := range before {
				t.Errorf("%s is neither as before nor as after: %v, %v", name, treestate.Diff(before[name], now[name]), treestate.Diff(after[name], now[name]))
			}
		}
	}
	s.sound()
	s.unnamedIsGone()
}

// firstStep gives what is there after the first of two changes.
func (s *space) firstStep(what string) map[string]treestate.State {
	s.Helper()
	first := &space{TB: s.TB, main: s.main, dir: filepath.Join(s.TempDir(), "store")}
	s.ok(treestate.Copy(s.dir, first.dir))
	first.open()
	if what == "chmod then write" {
		x := first.tree(cutBranch)
		_, err := x.SetAttr(x.node("old"), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600})
		s.ok(err)
	}
	st := first.all()
	first.close()
	return st
}

// unnamedIsGone proves that the pool holds as much as the records name.
func (s *space) unnamedIsGone() {
	s.Helper()
	named := 0
	s.ok(s.store.View(func(tx *checkpoint.Tx) error {
		return tx.EachInodeOfLayers(func(uint64, checkpoint.ID, checkpoint.LayerInode) error { named++; return nil })
	}))
	if n := s.poolSize(); n != named {
		s.Errorf("%d inodes are in the pool, records name %d", n, named)
	}
}
