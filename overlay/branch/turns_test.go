//go:build linux

package branch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/treefs"
)

// turnID is the turn that is ended, and the checkpoint that its snapshot makes.
const turnID = "ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAW"

func putTurn(tx *checkpoint.Tx) error { return tx.PutTurn(checkpoint.Turn{ID: turnID}) }

func (s *space) snapshotOfTurn() {
	s.Helper()
	_, err := s.m.Snapshot(context.Background(), cutBranch, overlay.SnapshotOptions{ID: turnID, Commit: putTurn})
	s.ok(err)
}

func (s *space) rollbackOfTurn() {
	s.Helper()
	_, err := s.m.Rollback(context.Background(), cutBranch, victimID, overlay.RollbackOptions{Commit: putTurn})
	s.ok(err)
}

// ended reports whether there is a record of the turn.
func (s *space) ended() bool {
	s.Helper()
	_, err := s.store.Turns().Get(turnID)
	if errs.CodeOf(err) == errs.NotFound {
		return false
	}
	s.ok(err)
	return true
}

func TestATurnIsOnTheSideOfItsBranchWhateverIsCut(t *testing.T) {
	for what, last := range map[string]string{"snapshot of a turn": "branch-sealed", "rollback of a turn": "branch-rolled-back"} {
		sides := map[bool]int{}
		points := []string{last}
		for nth := range 3 { // commits, among them those of the start
			points = append(points, fmt.Sprint("journal-appended:", nth+1))
		}
		for _, at := range points {
			t.Run(what+" at "+at, func(t *testing.T) { sides[cutTurn(t, what, at)]++ })
		}
		if sides[true] == 0 || sides[false] == 0 {
			t.Errorf("%s: the turn had ended %d times, and had not %d times", what, sides[true], sides[false])
		}
	}
}

// cutTurn has a turn end in a process that dies at a point, if it passes that, and reports whether the turn has ended.
func cutTurn(t *testing.T, what, at string) bool {
	s := cutSpace(t)
	s.open()
	changed := s.capture(cutBranch)
	v, err := s.m.At(victimID)
	s.ok(err)
	want, err := treefs.NewVolume(v, treefs.Options{}).Capture()
	s.ok(err)
	v.Close()
	s.close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envVictim+"="+strings.Join([]string{s.main, s.dir, what}, "\n"), crash.EnvAt+"="+at)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() && !strings.HasPrefix(at, "journal") {
		t.Fatalf("the victim was not killed: %v\n%s", err, out)
	}
	s.open()
	done := s.ended()
	if what == "snapshot of a turn" || !done {
		want = changed
	}
	s.same(want, s.capture(cutBranch))
	_, err = s.m.Checkpoint(turnID)
	if is := what == "snapshot of a turn" && done; (err == nil) != is {
		t.Errorf("the turn has ended: %v; its checkpoint: %v", done, err)
	}
	s.sound()
	return done
}

func TestWhatCannotBeCommittedWithABranchLeavesItAsItWas(t *testing.T) {
	s := cutSpace(t)
	s.open()
	before, no := s.all(), errors.New("no")
	refuse := func(tx *checkpoint.Tx) error { s.ok(putTurn(tx)); return no }
	if _, err := s.m.Snapshot(context.Background(), cutBranch, overlay.SnapshotOptions{ID: turnID, Commit: refuse}); !errors.Is(err, no) {
		t.Errorf("Snapshot: %v", err)
	}
	if _, err := s.m.Rollback(context.Background(), cutBranch, victimID, overlay.RollbackOptions{Commit: refuse}); !errors.Is(err, no) {
		t.Errorf("Rollback: %v", err)
	}
	for range 2 {
		if s.ended() || !sameAll(before, s.all()) {
			t.Errorf("the turn has ended: %v; the branches are as before: %v", s.ended(), sameAll(before, s.all()))
		}
		s.sound()
		s.reopen()
	}
	s.rollbackOfTurn()
	s.rollbackOfTurn() // there is nothing to put back
	if !s.ended() {
		t.Error("the turn has not ended")
	}
}

func TestUnchangedBranch(t *testing.T) {
	for what, c := range map[string]struct {
		do         func(s *space, x tree)
		want, fork bool // as to the checkpoint, and to the fork point
	}{
		"nothing":            {func(*space, tree) {}, true, false},
		"read":               {func(_ *space, x tree) { x.has("old", "main's") }, true, false},
		"write":              {func(_ *space, x tree) { x.write("old", "x") }, false, false},
		"write of its own":   {func(_ *space, x tree) { x.write("dir/own", "x") }, false, false},
		"create":             {func(_ *space, x tree) { x.write("new", "") }, false, false},
		"unlink":             {func(_ *space, x tree) { x.unlink("old") }, false, false},
		"rename":             {func(_ *space, x tree) { x.rename("old", "new") }, false, false},
		"chmod":              {func(s *space, x tree) { s.chmod(x, "old") }, false, false},
		"rolled back":        {func(s *space, x tree) { x.write("old", "x"); s.rollback(cutBranch, victimID) }, true, false},
		"undone":             {func(s *space, x tree) { s.wroteAndUndone(x) }, false, false},
		"another checkpoint": {func(s *space, _ tree) { s.snapshot(cutBranch) }, false, false},
		"dropped":            {func(s *space, _ tree) { s.ok(s.m.DropCheckpoint(context.Background(), victimID)) }, false, false},
		"reopened":           {func(s *space, _ tree) { s.reopen() }, true, false},
		"reopened, written":  {func(s *space, x tree) { x.write("old", "x"); s.reopen() }, false, false},
		"forked":             {func(s *space, _ tree) { s.fork("y", victimID) }, true, false},
		"at its fork point":  {func(s *space, _ tree) { s.rollback(cutBranch, mainPoint) }, false, true},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSpace(t, map[string]string{"old": "main's", "dir/a": "a"})
			s.fork(cutBranch, "")
			if !s.m.Unchanged(cutBranch, mainPoint) || s.m.Unchanged(cutBranch, "ckpt_x") || s.m.Unchanged("other", mainPoint) {
				t.Error("of a new branch it is not known that it is what it was forked from, or it is known of another")
			}
			x := s.tree(cutBranch)
			x.write("dir/own", "own")
			_, err := s.m.Snapshot(context.Background(), cutBranch, overlay.SnapshotOptions{ID: victimID})
			s.ok(err)
			c.do(s, x)
			if got := s.m.Unchanged(cutBranch, victimID); got != c.want {
				t.Errorf("since its checkpoint: %v", got)
			}
			if got := s.m.Unchanged(cutBranch, mainPoint); got != c.fork {
				t.Errorf("since its fork point: %v", got)
			}
			if what == "forked" && !s.m.Unchanged("y", victimID) {
				t.Error("the branch that was forked is not known to be unchanged")
			}
		})
	}
}

func (s *space) chmod(x tree, path string) {
	s.Helper()
	_, err := x.SetAttr(x.node(path), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600})
	s.ok(err)
}

func (s *space) wroteAndUndone(x tree) {
	s.Helper()
	x.write("old", "x")
	s.rollback(cutBranch, victimID)
	_, err := s.m.Undo(context.Background(), cutBranch)
	s.ok(err)
}
