package attempt_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/scan"
	"github.com/hyperfs/hyperfs/session/attempt"
)

var ctx = context.Background()

// workspace is a real one with one file, and an engine for it.
type workspace struct {
	*scan.Workspace
	*attempt.Engine
	t   *testing.T
	dir string
}

func open(t *testing.T) *workspace {
	t.Helper()
	dir := t.TempDir()
	w, err := scan.Open(overlay.Config{Workspace: dir})
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	ws := &workspace{Workspace: w, t: t, dir: dir}
	ws.Engine = attempt.New(ws)
	ws.write("file", "old")
	return ws
}

func (w *workspace) write(name, text string) {
	w.t.Helper()
	must(w.t, os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o644))
}

func (w *workspace) holds(name, text string) {
	w.t.Helper()
	if b, err := os.ReadFile(filepath.Join(w.dir, name)); string(b) != text {
		w.t.Errorf("%s holds %q, %v, want %q", name, b, err, text)
	}
}

func (w *workspace) begin(o attempt.Options) attempt.Attempt {
	w.t.Helper()
	a, err := w.Begin(ctx, o)
	must(w.t, err)
	return a
}

func (w *workspace) status(id string) checkpoint.Status {
	w.t.Helper()
	c, err := w.Get(id)
	must(w.t, err)
	return c.Status
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, code errs.Code, mentions string) {
	t.Helper()
	if errs.CodeOf(err) != code || !strings.Contains(err.Error(), mentions) {
		t.Errorf("error = %v (%s), want %s that mentions %q", err, errs.CodeOf(err), code, mentions)
	}
}

func TestASuccessStaysAndSaysWhatChanged(t *testing.T) {
	w := open(t)
	a := w.begin(attempt.Options{Agent: "planner", Message: "first"})
	if a.CreatedBy != "run-attempt" || a.Agent != "planner" || a.Message != "first" || a.WorksIn != overlay.MainBranch {
		t.Errorf("the checkpoint is %+v", a)
	}
	w.write("file", "changed")
	w.write("new", "new")
	r, err := w.End(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Success})
	must(t, err)
	if r.Reconcile == nil || len(r.Reconcile.Created) != 1 || len(r.Reconcile.Modified) != 1 || r.RolledBack || r.Duration <= 0 {
		t.Errorf("the result is %+v", r)
	}
	w.holds("file", "changed")
	if w.status(a.ID) != checkpoint.Active || len(w.Active()) != 0 {
		t.Errorf("the checkpoint is %s, and %v is under way", w.status(a.ID), w.Active())
	}
}

func TestAFailureGoesBackAndCanBeUndone(t *testing.T) {
	w := open(t)
	a := w.begin(attempt.Options{})
	w.write("file", "changed")
	gone, cancel := context.WithCancel(ctx)
	cancel() // who asked for it may be gone
	r, err := w.End(gone, a.ID, attempt.EndOptions{Outcome: attempt.Failure, Message: "tests fail"})
	must(t, err)
	if !r.RolledBack || r.Rollback == nil || r.Rollback.Modified == 0 || r.Reconcile != nil {
		t.Errorf("the result is %+v", r)
	}
	w.holds("file", "old")
	if w.status(a.ID) != checkpoint.Disposed {
		t.Errorf("the checkpoint is %s", w.status(a.ID))
	}
	_, err = w.Undo(ctx)
	must(t, err)
	w.holds("file", "changed")
}

func TestAFailureCanBeKept(t *testing.T) {
	w := open(t)
	a := w.begin(attempt.Options{})
	w.write("file", "changed")
	r, err := w.End(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Failure, NoRollback: true})
	must(t, err)
	w.holds("file", "changed")
	if r.RolledBack || w.status(a.ID) != checkpoint.Active {
		t.Errorf("%+v, the checkpoint is %s", r, w.status(a.ID))
	}
}

func TestOneAttemptAtATime(t *testing.T) {
	w := open(t)
	a := w.begin(attempt.Options{})
	_, err := w.Begin(ctx, attempt.Options{Branch: "a-tag"})
	wantCode(t, err, errs.AttemptInProgress, a.ID)
	if list := w.Active(); len(list) != 1 || list[0].ID != a.ID {
		t.Errorf("under way are %v", list)
	}
	r, err := w.Abandon(ctx, a.ID)
	must(t, err)
	if r.Outcome != attempt.Abandoned || w.status(a.ID) != checkpoint.Active {
		t.Errorf("%+v, the checkpoint is %s", r, w.status(a.ID))
	}
	w.begin(attempt.Options{})
}

func TestWhatWasAbandonedBeforehandDoesNotBegin(t *testing.T) {
	w := open(t)
	id := w.Reserve()
	_, err := w.Abandon(ctx, id)
	wantCode(t, err, errs.NotFound, id)
	_, err = w.Begin(ctx, attempt.Options{ID: id})
	wantCode(t, err, errs.Disposed, id)
	w.begin(attempt.Options{})
}

func TestOfManyThatBeginAtOnceOneDoes(t *testing.T) {
	w := open(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	begun := 0
	for range 8 {
		all.Go(func() {
			_, err := w.Begin(ctx, attempt.Options{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				begun++
			} else if errs.CodeOf(err) != errs.AttemptInProgress {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if begun != 1 {
		t.Errorf("%d began", begun)
	}
}

func TestWhatIsNotUnderWayCannotEnd(t *testing.T) {
	w := open(t)
	_, err := w.End(ctx, "ckpt_nothing", attempt.EndOptions{Outcome: attempt.Success})
	wantCode(t, err, errs.NotFound, "ckpt_nothing")
	a := w.begin(attempt.Options{})
	_, err = w.End(ctx, a.ID, attempt.EndOptions{Outcome: "finished"})
	wantCode(t, err, errs.Usage, "outcome")
	_, err = w.End(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Success})
	must(t, err)
	_, err = w.End(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Failure})
	wantCode(t, err, errs.NotFound, a.ID)
	_, err = w.Abandon(ctx, a.ID)
	wantCode(t, err, errs.NotFound, a.ID)
}

func TestTagsAreThoseOfTheParentUnlessTheyAreGiven(t *testing.T) {
	w := open(t)
	p, err := w.Snapshot(ctx, overlay.SnapshotOptions{Branch: "tagged", Subagent: "tester", Agent: "planner"})
	must(t, err)
	a := w.begin(attempt.Options{Parent: p.ID, Agent: "another"})
	if a.Parent != p.ID || a.Branch != "tagged" || a.Subagent != "tester" || a.Agent != "another" || a.WorksIn != overlay.MainBranch {
		t.Errorf("the checkpoint is %+v", a)
	}
	_, err = w.Abandon(ctx, a.ID)
	must(t, err)
	must(t, w.Drop(ctx, p.ID))
	_, err = w.Begin(ctx, attempt.Options{Parent: p.ID})
	wantCode(t, err, errs.Disposed, p.ID)
	_, err = w.Begin(ctx, attempt.Options{Parent: "ckpt_nothing"})
	wantCode(t, err, errs.NotFound, "ckpt_nothing")
	w.begin(attempt.Options{}) // what was refused is not under way
}

func TestAnAttemptWithoutItsCheckpointIsInNobodysWay(t *testing.T) {
	w := open(t)
	a := w.begin(attempt.Options{})
	must(t, w.Drop(ctx, a.ID))
	w.begin(attempt.Options{})
}

// sleeps makes this program do nothing, for a while.
const sleeps = "HYPERFS_TEST_SLEEPS"

func TestMain(m *testing.M) {
	if os.Getenv(sleeps) != "" {
		time.Sleep(10 * time.Minute)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// sleeper is a process that does nothing. It ends with the test.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	c := exec.Command(exe)
	c.Env = append(os.Environ(), sleeps+"=1")
	must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

func TestAnAttemptWhoseOwnerIsGoneIsAbandoned(t *testing.T) {
	w := open(t)
	c := sleeper(t)
	a := w.begin(attempt.Options{PID: c.Process.Pid})
	w.write("file", "changed")
	_, err := w.Begin(ctx, attempt.Options{})
	wantCode(t, err, errs.AttemptInProgress, a.ID)
	must(t, c.Process.Kill())
	for start := time.Now(); attempt.StartOf(c.Process.Pid) != 0; time.Sleep(time.Millisecond) { // it is a zombie then
		if time.Since(start) > 10*time.Second {
			t.Fatal("it does not end")
		}
	}
	w.begin(attempt.Options{})
	w.holds("file", "changed")
	if w.status(a.ID) != checkpoint.Active {
		t.Errorf("the checkpoint is %s", w.status(a.ID))
	}
	_, err = w.Begin(ctx, attempt.Options{PID: c.Process.Pid})
	wantCode(t, err, errs.Usage, "pid")
}

func TestAnotherProcessWithTheOwnersNumberIsNotTheOwner(t *testing.T) {
	w := open(t)
	c := sleeper(t)
	pid := c.Process.Pid
	a := w.begin(attempt.Options{PID: pid, PIDStart: attempt.StartOf(pid) + 1}) // as of another PID namespace
	must(t, c.Process.Kill())
	_ = c.Wait()
	_, err := w.Begin(ctx, attempt.Options{})
	wantCode(t, err, errs.AttemptInProgress, a.ID)
}

// broken can't go back, or find out what has changed.
type broken struct {
	*scan.Workspace
	rollback, reconcile error
}

func (b *broken) Rollback(context.Context, string, overlay.RollbackOptions) (overlay.RollbackResult, error) {
	return overlay.RollbackResult{}, b.rollback
}

func (b *broken) Reconcile(context.Context, string) (overlay.ReconcileResult, error) {
	return overlay.ReconcileResult{}, b.reconcile
}

func TestAFailureThatCannotGoBackSaysBoth(t *testing.T) {
	w := open(t)
	seeded := errs.New(errs.Integrity, "rollback", "file", "its preimage is damaged")
	e := attempt.New(&broken{Workspace: w.Workspace, rollback: seeded})
	a, err := e.Begin(ctx, attempt.Options{})
	must(t, err)
	_, err = e.End(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Failure, Message: "tests fail"})
	wantCode(t, err, errs.AttemptRollback, "tests fail")
	var both *attempt.RollbackError
	if !errors.Is(err, seeded) || !errors.As(err, &both) || both.Checkpoint != a.ID || both.Attempt.Error() != "tests fail" {
		t.Errorf("%v does not carry both", err)
	}
	if w.status(a.ID) != checkpoint.Active || len(e.Active()) != 0 {
		t.Errorf("the checkpoint is %s, and %v is under way", w.status(a.ID), e.Active())
	}
}

func TestASuccessThatCannotBeLookedAtStaysUnderWay(t *testing.T) {
	w := open(t)
	e := attempt.New(&broken{Workspace: w.Workspace, reconcile: errs.New(errs.Integrity, "reconcile", "", "seeded")})
	a, err := e.Begin(ctx, attempt.Options{})
	must(t, err)
	_, err = e.End(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Success})
	wantCode(t, err, errs.Integrity, "seeded")
	_, err = e.End(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Success, NoReconcile: true})
	must(t, err)
}

func TestSubscribersHearOfAttempts(t *testing.T) {
	w := open(t)
	events, cancel := w.Subscribe()
	defer cancel()
	a := w.begin(attempt.Options{})
	w.write("new", "")
	_, err := w.End(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Success})
	must(t, err)
	for _, want := range []string{"snapshot", attempt.EventBegun, attempt.EventEnded} {
		select {
		case ev := <-events:
			if ev.Type != want || ev.Checkpoint != a.ID {
				t.Errorf("%s of %s, want %s", ev.Type, ev.Checkpoint, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no %s", want)
		}
	}
}

func TestNoneBeginsWhereABranchIsHeld(t *testing.T) {
	w := open(t)
	release, err := w.Hold(overlay.MainBranch)
	must(t, err)
	again, err := w.Hold(overlay.MainBranch)
	must(t, err)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := w.Begin(short, attempt.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an attempt that nobody waits for any more: %v", err)
	}
	begun := make(chan attempt.Attempt)
	go func() {
		a, err := w.Begin(ctx, attempt.Options{})
		if err != nil {
			t.Error(err)
		}
		begun <- a
	}()
	release()
	select {
	case a := <-begun:
		t.Fatalf("%s begins while it is held", a.ID)
	case <-time.After(20 * time.Millisecond):
	}
	again()
	a := <-begun
	if _, err := w.Hold(overlay.MainBranch); err == nil {
		t.Error("it can be held while an attempt is under way")
	} else {
		wantCode(t, err, errs.AttemptInProgress, a.ID)
	}
	_, err = w.End(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Success})
	must(t, err)
	release, err = w.Hold(overlay.MainBranch)
	must(t, err)
	release()
}

// TestAttemptsAndHoldsExcludeEachOther has many of both at once.
func TestAttemptsAndHoldsExcludeEachOther(t *testing.T) {
	w := open(t)
	var held, under atomic.Int32
	var all sync.WaitGroup
	check := func() {
		if held.Load() > 0 && under.Load() > 0 {
			t.Error("an attempt is under way where it is held")
		}
	}
	for range 4 {
		all.Go(func() {
			for range 20 {
				a, err := w.Begin(ctx, attempt.Options{})
				if errs.CodeOf(err) == errs.AttemptInProgress {
					continue
				}
				must(t, err)
				under.Add(1)
				check()
				under.Add(-1)
				_, err = w.Abandon(ctx, a.ID)
				must(t, err)
			}
		})
		all.Go(func() {
			for range 200 {
				release, err := w.Hold(overlay.MainBranch)
				if err != nil {
					continue
				}
				held.Add(1)
				check()
				held.Add(-1)
				release()
			}
		})
	}
	all.Wait()
}
