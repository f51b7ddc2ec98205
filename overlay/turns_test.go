//go:build linux

package overlay_test

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
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// envTurn makes this test binary end a turn, and die in that, instead of running tests. Its value is two lines: the workspace, and the checkpoint to roll
// back to, "" for a snapshot.
const envTurn = "HYPERFS_TEST_TURN"

// turnID is the turn that is ended, and the checkpoint that its snapshot makes.
const turnID = "ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAV"

func endTurnAndDie(of string) {
	dir, to, _ := strings.Cut(of, "\n")
	w, err := overlay.Open(overlay.Config{Workspace: dir, Tier: "pure-manifest", LargeMin: testLargeMin, BlockSize: testBlockSize, Hot: overlay.HotConfig{Off: true}})
	if err == nil {
		err = endTurn(w, to, overlay.SnapshotOptions{})
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	os.Exit(0)
}

// endTurn keeps a state, and commits a turn with a snapshot, or with a rollback.
func endTurn(w *overlay.Workspace, to string, o overlay.SnapshotOptions) error {
	defer w.Turns().Using()()
	blobs, err := w.Turns().Keep([]byte("state"), make([]byte, 100<<10))
	if err != nil {
		return err
	}
	commit := func(tx *checkpoint.Tx) error {
		return tx.PutTurn(checkpoint.Turn{ID: turnID, State: checkpoint.TurnState{Custom: &blobs[0], Bindings: &blobs[1]}})
	}
	if to == "" {
		o.ID, o.Commit = turnID, commit
		_, err = w.Snapshot(context.Background(), o)
	} else {
		_, err = w.Rollback(context.Background(), to, overlay.RollbackOptions{Commit: commit})
	}
	return err
}

// ended reports whether there is a record of the turn, and fails the test unless its state can be read then.
func (s *space) ended() bool {
	s.Helper()
	r, err := s.w.Turns().Get(turnID)
	if errs.CodeOf(err) == errs.NotFound {
		return false
	}
	s.ok(err)
	for _, b := range r.State.Blobs() {
		if _, err := s.w.Turns().Read(b); err != nil {
			s.Error(err)
		}
	}
	return true
}

func TestATurnIsOnTheSideOfItsFilesWhateverIsCut(t *testing.T) {
	commits := []string{"journal-appended:3", "journal-appended:4", "journal-appended:5", "journal-appended:6"} // those before are of the start
	for _, c := range []struct {
		what   string
		more   int // files that are changed: many are not recorded in one commit
		points []string
	}{
		{"snapshot", 0, []string{"turn-file-written", "turn-file-named", "turn-kept", "epoch-saved", "epoch-begun"}},
		{"rollback", 0, []string{"turn-kept", "epoch-saved", "epoch-begun", "rollback-apply", "rollback-put", "rollback-inode:2", "rollback-applied", "rollback-done"}},
		{"rollback", 100, []string{"epoch-saved", "rollback-intent", "rollback-recorded", "rollback-apply", "rollback-applied"}},
	} {
		sides := map[bool]int{}
		for _, at := range append(c.points, commits...) {
			t.Run(fmt.Sprint(c.what, c.more, " ", at), func(t *testing.T) { sides[cutTurn(t, c.what, at, c.more)]++ })
		}
		if sides[true] == 0 || sides[false] == 0 {
			t.Errorf("%s with %d files more: the turn had ended %d times, and had not %d times", c.what, c.more, sides[true], sides[false])
		}
	}
}

// cutTurn has a turn end in a process that dies at a point, and reports whether the turn has ended.
func cutTurn(t *testing.T, what, at string, more int) (done bool) {
	s, id, before := cutSpace(t, "pure-manifest", more)
	changed := s.state()
	s.ok(s.w.Close())
	to := ""
	if what == "rollback" {
		to = id
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envTurn+"="+s.dir+"\n"+to, crash.EnvAt+"="+at)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	died := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if !died && (err != nil || !strings.HasPrefix(at, "journal")) {
		t.Fatalf("it was not killed: %v: %s", err, out)
	}
	s.open()
	done = s.ended()
	if !died && !done {
		t.Error("it was not killed, and the turn has not ended")
	}
	want := changed
	if what == "rollback" && done {
		want = before
	}
	s.same(want)
	if _, err := s.w.Get(turnID); what == "snapshot" && (err == nil) != done {
		t.Errorf("the turn has ended: %v; its checkpoint: %v", done, err)
	}
	if what == "rollback" && done {
		s.undo()
		s.same(changed)
	}
	return done
}

func TestWhatCannotBeCommittedWithACheckpointLeavesNone(t *testing.T) {
	s := newSpace(t, fillSmall)
	first := s.snapshot()
	s.write("a", "1")
	second := s.snapshot()
	s.overwrite("b.txt", "changed", 0)
	before := s.state()
	no := errors.New("no")
	for _, direct := range []bool{false, true} {
		if direct {
			h, err := s.tr.Open(s.at("b.txt"), unix.O_RDWR, true, nil)
			s.ok(err)
			defer h.Release()
		}
		_, err := s.w.Snapshot(context.Background(), overlay.SnapshotOptions{ID: turnID, Parent: first, Commit: func(tx *checkpoint.Tx) error {
			s.ok(tx.PutTurn(checkpoint.Turn{ID: turnID}))
			return no
		}})
		if !errors.Is(err, no) {
			t.Fatalf("Snapshot: %v", err)
		}
		if list, err := s.w.List(overlay.ListOptions{IncludeInactive: true}); err != nil || len(list) != 2 || s.ended() {
			t.Errorf("there are %v, %v, and the turn has ended: %v", list, err, s.ended())
		}
		if n := s.w.Status().Newest; n != second {
			t.Errorf("the state comes from %s now, want %s", n, second)
		}
	}
	s.same(before)
	s.ok(endTurn(s.w, "", overlay.SnapshotOptions{}))
	if !s.ended() {
		t.Error("the turn has not ended")
	}
}

func TestWhatCannotBeCommittedWithARollbackLeavesAllAsItWas(t *testing.T) {
	for _, more := range []int{0, 100} {
		t.Run(fmt.Sprint(more, " files more"), func(t *testing.T) {
			s, id, before := cutSpace(t, "pure-manifest", more)
			changed := s.state()
			no := errors.New("no")
			calls := 0
			_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{Commit: func(tx *checkpoint.Tx) error {
				calls++
				s.ok(tx.PutTurn(checkpoint.Turn{ID: turnID}))
				return no
			}})
			if !errors.Is(err, no) || calls != 1 {
				t.Fatalf("Rollback: %v, after %d calls", err, calls)
			}
			if s.ended() || s.w.Status().Undo != "" {
				t.Errorf("the turn has ended: %v; the undo checkpoint: %q", s.ended(), s.w.Status().Undo)
			}
			s.same(changed)
			s.reopen()
			s.same(changed)
			s.ok(endTurn(s.w, id, overlay.SnapshotOptions{}))
			if !s.ended() {
				t.Error("the turn has not ended")
			}
			s.same(before)
		})
	}
}

func TestATurnEndsWithARollbackThatHasNothingToPutBack(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	before := s.state()
	s.ok(endTurn(s.w, id, overlay.SnapshotOptions{}))
	if !s.ended() {
		t.Error("the turn has not ended")
	}
	s.same(before)
}

func TestFsckFindsDamagedStatesOfTurns(t *testing.T) {
	s := newSpace(t, fillSmall)
	s.ok(endTurn(s.w, "", overlay.SnapshotOptions{}))
	files, err := filepath.Glob(filepath.Join(s.dir, overlay.StoreName, "turns", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("there are %v, %v", files, err)
	}
	before := s.w.Diagnostics().StoreBytes
	s.ok(os.WriteFile(files[0], append(make([]byte, 100<<10-1), 1), 0o600))
	problems, err := s.w.Fsck(context.Background(), false)
	if err != nil || len(problems) != 1 || problems[0].Where != turnID || !strings.Contains(problems[0].What, filepath.Base(files[0])) {
		t.Errorf("Fsck = %v, %v, want the turn and its blob", problems, err)
	}
	s.ok(os.Remove(files[0]))
	if after := s.w.Diagnostics().StoreBytes; after > before-100<<10 {
		t.Errorf("the store has %d bytes, and had %d with the blob", after, before)
	}
}

func TestUnchanged(t *testing.T) {
	for what, c := range map[string]struct {
		do   func(s *space)
		want bool
	}{
		"nothing": {func(*space) {}, true},
		"read": {func(s *space) {
			h, err := s.tr.Open(s.at("b.txt"), unix.O_RDONLY, false, nil)
			s.ok(err)
			h.Release()
		}, true},
		"write":     {func(s *space) { s.overwrite("b.txt", "x", 0) }, false},
		"create":    {func(s *space) { s.write("new", "") }, false},
		"mkdir":     {func(s *space) { s.mkdir("new") }, false},
		"unlink":    {func(s *space) { s.unlink("b.txt") }, false},
		"rename":    {func(s *space) { s.rename("b.txt", "c", 0) }, false},
		"link":      {func(s *space) { s.link("b.txt", "c") }, false},
		"truncate":  {func(s *space) { s.truncate("b.txt", 1) }, false},
		"xattr":     {func(s *space) { s.ok(s.tr.SetXattr(s.at("b.txt"), "user.x", []byte("x"), 0)) }, false},
		"chmod dir": {func(s *space) { s.chmod("dir", 0o700) }, false},
		"and back":  {func(s *space) { s.rename("b.txt", "c", 0); s.rename("c", "b.txt", 0) }, false}, // which is not looked for
		"rolled back": {func(s *space) {
			s.overwrite("b.txt", "x", 0)
			s.rollback(turnID)
		}, true},
		"undone": {func(s *space) {
			s.overwrite("b.txt", "x", 0)
			s.rollback(turnID)
			s.undo()
		}, false},
		"another checkpoint": {func(s *space) { s.snapshot() }, false},
		"dropped":            {func(s *space) { s.ok(s.w.Drop(context.Background(), turnID)) }, false},
		"open for writing past the daemon": {func(s *space) {
			h, err := s.tr.Open(s.at("b.txt"), unix.O_RDWR, true, nil)
			s.ok(err)
			s.Cleanup(h.Release)
		}, false},
		"that, closed again": {func(s *space) {
			h, err := s.tr.Open(s.at("b.txt"), unix.O_RDWR, true, nil)
			s.ok(err)
			h.Release()
		}, false},
		"open for writing": {func(s *space) { s.handle("b.txt") }, true},
		"reopened":         {func(s *space) { s.reopen() }, false},
		"closed":           {func(s *space) { s.ok(s.w.Close()) }, false},
		"mapped": {func(s *space) {
			h := s.handle("b.txt")
			s.tr.SetNotifier(&dirtyPages{flush: func() { _, err := h.WriteAt([]byte("x"), 0); s.ok(err) }})
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSpace(t, fillSmall)
			s.snapshot()
			s.overwrite("b.txt", "then", 0)
			_, err := s.w.Snapshot(context.Background(), overlay.SnapshotOptions{ID: turnID})
			s.ok(err)
			if !s.w.Unchanged(turnID) || s.w.Unchanged("ckpt_x") || s.w.Unchanged("") {
				t.Errorf("at once: %v; one that there is not: %v, %v", s.w.Unchanged(turnID), s.w.Unchanged("ckpt_x"), s.w.Unchanged(""))
			}
			c.do(s)
			if got := s.w.Unchanged(turnID); got != c.want {
				t.Errorf("Unchanged = %v", got)
			}
		})
	}
}

func TestAFileThatIsOpenPastTheDaemonAtTheCheckpointMayHaveChanged(t *testing.T) {
	s := newSpace(t, fillSmall)
	h, err := s.tr.Open(s.at("b.txt"), unix.O_RDWR, true, nil)
	s.ok(err)
	id := s.snapshot()
	if s.w.Unchanged(id) {
		t.Error("it is open, and is said to be unchanged")
	}
	h.Release()
	if s.w.Unchanged(id) {
		t.Error("it was open, and is said to be unchanged")
	}
}

func TestTrackedFilesAreNeverKnownToBeUnchanged(t *testing.T) {
	s := deps(t)
	id := s.snapshot()
	if !s.w.Unchanged(id) {
		t.Error("without tracked files, it is not known")
	}
	_, err := s.w.Track(context.Background(), []string{"node_modules/.cache/meta.json"})
	s.ok(err)
	for range 2 {
		if s.w.Unchanged(id) {
			t.Error("with tracked files, it is said to be known")
		}
		id = s.snapshot()
	}
}

// dirtyPages are written back when they are asked for, the first time.
type dirtyPages struct {
	heard
	flush func()
}

func (d *dirtyPages) FlushInode(overlay.Inode) {
	if fn := d.flush; fn != nil {
		d.flush = nil
		fn()
	}
}

// chmod gives a path another mode.
func (s *space) chmod(path string, mode uint32) {
	s.Helper()
	_, err := s.tr.SetAttr(s.at(path), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: mode})
	s.ok(err)
}
