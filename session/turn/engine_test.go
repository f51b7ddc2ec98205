//go:build linux

package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/owner"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

func TestFilesAndConversationGoOnTogether(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	two := h.run(turn.BeginOptions{Conversation: "c"}, "2")
	if two.Parent != one.ID || two.Index != 1 || two.Status != checkpoint.TurnCompleted || !two.Settled || two.PID != 0 {
		t.Errorf("the second turn is %+v", two)
	}
	if two.Base != one.ID {
		t.Errorf("its base is %s, though nothing had changed since %s", two.Base, one.ID)
	}
	st := h.state(two.ID)
	same(t, "messages", st.Messages, []json.RawMessage{message("1"), message("2")})
	same(t, "custom", st.Custom, "2")
	if h.checkpointStatus(two.ID) != checkpoint.Active || h.head("c") != two.ID {
		t.Errorf("its checkpoint is %s, the head %s", h.checkpointStatus(two.ID), h.head("c"))
	}
	b := h.begin(turn.BeginOptions{From: one.ID})
	h.holds("", "file", "1")
	if b.Conversation != "c" || b.Parent != one.ID || b.Index != 1 || b.Rollback == nil || string(b.State.Custom) != `"1"` || len(b.State.Messages) != 1 {
		t.Errorf("resumed was %+v", b)
	}
	h.end(b.ID, turn.EndOptions{Outcome: turn.Completed})
	if h.head("c") != b.ID {
		t.Errorf("the head is %s", h.head("c"))
	}
	_, err := h.w.Undo(ctx)
	must(t, err)
	h.holds("", "file", "2")
}

// statuses are the ways in which a turn can be. Each gives its ID.
var statuses = map[checkpoint.TurnStatus]func(h *host) string{
	checkpoint.TurnPending: func(h *host) string {
		id := h.begin(turn.BeginOptions{Conversation: "c"}).ID
		h.write("", "file", "pending")
		return id
	},
	checkpoint.TurnCompleted: func(h *host) string { return h.run(turn.BeginOptions{Conversation: "c"}, "completed").ID },
	checkpoint.TurnFailed: func(h *host) string {
		id := h.begin(turn.BeginOptions{Conversation: "c"}).ID
		h.write("", "file", "failed")
		h.end(id, turn.EndOptions{Outcome: turn.Failed})
		return id
	},
	checkpoint.TurnAborted: func(h *host) string {
		id := h.begin(turn.BeginOptions{Conversation: "c"}).ID
		h.write("", "file", "aborted")
		_, err := h.Abort(ctx, id, turn.AbortOptions{Reason: "no use"})
		must(h, err)
		return id
	},
}

func TestNoStatusButPendingChanges(t *testing.T) {
	type want struct {
		status  checkpoint.TurnStatus
		settled bool
		code    errs.Code
		file    string
	}
	for from, to := range map[checkpoint.TurnStatus]map[string]want{
		checkpoint.TurnPending: {
			"update":   {checkpoint.TurnPending, false, "", "pending"},
			"complete": {checkpoint.TurnCompleted, true, "", "pending"},
			"fail":     {checkpoint.TurnFailed, true, "", "1"},
			"keep":     {checkpoint.TurnFailed, true, "", "pending"},
			"abort":    {checkpoint.TurnAborted, false, "", "pending"},
			"force":    {checkpoint.TurnAborted, true, "", "1"},
			"resume":   {checkpoint.TurnPending, false, errs.Disposed, "pending"},
		},
		checkpoint.TurnCompleted: {
			"update":   {checkpoint.TurnCompleted, true, errs.Disposed, "completed"},
			"complete": {checkpoint.TurnCompleted, true, errs.Disposed, "completed"},
			"fail":     {checkpoint.TurnCompleted, true, errs.Disposed, "completed"},
			"keep":     {checkpoint.TurnCompleted, true, errs.Disposed, "completed"},
			"abort":    {checkpoint.TurnCompleted, true, "", "completed"},
			"force":    {checkpoint.TurnCompleted, true, "", "completed"},
			"resume":   {checkpoint.TurnCompleted, true, "", "completed"},
		},
		checkpoint.TurnFailed: {
			"update":   {checkpoint.TurnFailed, true, errs.Disposed, "1"},
			"complete": {checkpoint.TurnFailed, true, errs.Disposed, "1"},
			"fail":     {checkpoint.TurnFailed, true, errs.Disposed, "1"},
			"keep":     {checkpoint.TurnFailed, true, errs.Disposed, "1"},
			"abort":    {checkpoint.TurnFailed, true, "", "1"},
			"force":    {checkpoint.TurnFailed, true, "", "1"},
			"resume":   {checkpoint.TurnFailed, true, errs.Disposed, "1"},
		},
		checkpoint.TurnAborted: {
			"update":   {checkpoint.TurnAborted, false, errs.Disposed, "aborted"},
			"complete": {checkpoint.TurnAborted, true, "", "1"},
			"fail":     {checkpoint.TurnAborted, true, "", "1"},
			"keep":     {checkpoint.TurnAborted, true, "", "aborted"},
			"abort":    {checkpoint.TurnAborted, false, "", "aborted"},
			"force":    {checkpoint.TurnAborted, true, "", "1"},
			"resume":   {checkpoint.TurnAborted, false, errs.Disposed, "aborted"},
		},
	} {
		for what, want := range to {
			t.Run(string(from)+" "+what, func(t *testing.T) {
				h := open(t)
				h.run(turn.BeginOptions{Conversation: "c"}, "1")
				id := statuses[from](h)
				var err error
				switch what {
				case "update":
					_, err = h.Update(ctx, id, turn.Update{Custom: quoted("new")})
				case "complete":
					_, err = h.End(ctx, id, turn.EndOptions{Outcome: turn.Completed})
				case "fail":
					_, err = h.End(ctx, id, turn.EndOptions{Outcome: turn.Failed, Error: &checkpoint.TurnError{Message: "tests fail"}})
				case "keep":
					_, err = h.End(ctx, id, turn.EndOptions{Outcome: turn.Failed, NoRollback: true})
				case "abort", "force":
					_, err = h.Abort(ctx, id, turn.AbortOptions{Force: what == "force"})
				case "resume":
					_, err = h.Begin(ctx, turn.BeginOptions{From: id, Conversation: "c"})
				}
				if errs.CodeOf(err) != want.code {
					t.Errorf("error %v, want %q", err, want.code)
				}
				for range 2 { // also what the store says
					if r := h.get(id); r.Status != want.status || r.Settled != want.settled {
						t.Errorf("it is %+v", r)
					}
					if what != "resume" {
						h.forget()
					}
				}
				h.holds("", "file", want.file)
				if completed := h.checkpointStatus(id) == checkpoint.Active; completed != (want.status == checkpoint.TurnCompleted) {
					t.Errorf("its checkpoint is %q", h.checkpointStatus(id))
				}
			})
		}
	}
}

func TestAFailedTurnSaysWhyAndGivesTheLastGoodState(t *testing.T) {
	h := open(t)
	good := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	b := h.begin(turn.BeginOptions{Conversation: "c", Message: "second"})
	h.write("", "file", "2")
	h.write("", "new", "2")
	h.update(b.ID, turn.Update{Custom: quoted("2")})
	r := h.end(b.ID, turn.EndOptions{Outcome: turn.Failed, Error: &checkpoint.TurnError{Message: "tests fail", Code: "E1", Details: json.RawMessage(`{"n":1e400}`)}, WithState: true})
	if r.LastGood != good.ID || r.Turn.FinishReason != turn.ReasonFailed || r.Turn.Error.Message != "tests fail" || string(r.Turn.Error.Details) != `{"n":1e400}` || r.Rollback == nil {
		t.Errorf("%+v", r)
	}
	same(t, "the state", r.State, h.state(good.ID))
	h.holds("", "file", "1")
	h.holds("", "new", "")
	if _, err := h.State(b.ID); errs.CodeOf(err) != errs.Disposed || !strings.Contains(err.Error(), good.ID) {
		t.Errorf("its state: %v", err)
	}
	_, err := h.w.Undo(ctx)
	must(t, err)
	h.holds("", "new", "2")
}

func TestTheFirstTurnCanFailToo(t *testing.T) {
	h := open(t)
	b := h.begin(turn.BeginOptions{})
	if b.Conversation == "" || b.Base == "" || b.Parent != "" || h.checkpointStatus(b.Base) != checkpoint.Active {
		t.Errorf("%+v", b)
	}
	h.write("", "file", "1")
	r := h.end(b.ID, turn.EndOptions{Outcome: turn.Failed, WithState: true})
	h.holds("", "file", "0")
	if r.LastGood != "" || r.State == nil || len(r.State.Messages) != 0 {
		t.Errorf("%+v", r)
	}
	h.close()
	h.open()
	if _, err := h.Collect(ctx); err != nil { // if it was not done in the background before
		t.Fatal(err)
	}
	if s := h.checkpointStatus(b.Base); s == checkpoint.Active {
		t.Errorf("the checkpoint that it began with is %s", s)
	}
}

func TestWhatWasChangedBetweenTurnsIsKeptByAFailure(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	h.write("", "file", "by hand")
	b := h.begin(turn.BeginOptions{Conversation: "c"})
	if b.Base == one.ID || b.Parent != one.ID {
		t.Errorf("%+v", b)
	}
	h.write("", "file", "2")
	h.end(b.ID, turn.EndOptions{Outcome: turn.Failed})
	h.holds("", "file", "by hand")
}

func TestOneTurnAtATimeInEachLine(t *testing.T) {
	h := open(t)
	first := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	b := h.begin(turn.BeginOptions{Conversation: "c"})
	_, err := h.Begin(ctx, turn.BeginOptions{Conversation: "d"})
	wantCode(t, err, errs.AttemptInProgress, b.ID)
	var e *errs.Error
	if !errors.As(err, &e) || e.On != b.ID {
		t.Errorf("%v is about %q", err, e.On)
	}
	f := h.begin(turn.BeginOptions{From: first.ID, Fork: "fix"})
	if f.WorksIn != "fix" || f.Conversation == "c" || f.Index != 1 {
		t.Errorf("the fork is %+v", f)
	}
	if list := h.UnderWay(); len(list) != 2 {
		t.Errorf("under way are %v", list)
	}
	_, err = h.Begin(ctx, turn.BeginOptions{Branch: "fix"})
	wantCode(t, err, errs.AttemptInProgress, f.ID)
}

// TestNoTurnBeginsInABranchThatIsBeingMerged has one wait, which then finds that there is no such branch any more.
func TestNoTurnBeginsInABranchThatIsBeingMerged(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	h.run(turn.BeginOptions{From: one.ID, Fork: "fix", Conversation: "d"}, "fork")
	release, err := h.Hold(ctx, "fix")
	must(t, err)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := h.Begin(short, turn.BeginOptions{Branch: "fix"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a turn that nobody waits for any more: %v", err)
	}
	h.run(turn.BeginOptions{Conversation: "c"}, "2") // elsewhere they begin
	waiting := make(chan error)
	go func() {
		_, err := h.Begin(ctx, turn.BeginOptions{Branch: "fix"})
		waiting <- err
	}()
	select {
	case err := <-waiting:
		t.Fatalf("it does not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	_, err = h.w.Merge(ctx, "fix", overlay.MergeOptions{OnConflict: overlay.ConflictTheirs})
	must(t, err)
	release()
	wantCode(t, <-waiting, errs.Disposed, "fix")
	if list := h.UnderWay(); len(list) != 0 {
		t.Errorf("under way are %v", list)
	}
	b := h.begin(turn.BeginOptions{})
	if _, err := h.Hold(ctx, overlay.MainBranch); err == nil {
		t.Error("it can be held while a turn is under way")
	} else {
		wantCode(t, err, errs.AttemptInProgress, b.ID)
	}
}

func TestAForkGoesOnBesideMain(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	two := h.run(turn.BeginOptions{Conversation: "c"}, "2")
	f := h.run(turn.BeginOptions{From: one.ID, Fork: "fix", Conversation: "d"}, "fork")
	three := h.run(turn.BeginOptions{Conversation: "c"}, "3")
	if f.WorksIn != "fix" || f.Conversation != "d" || three.Parent != two.ID || h.head("d") != f.ID {
		t.Errorf("%+v, %+v", f, three)
	}
	h.holds("", "file", "3")
	h.holds("fix", "file", "fork")
	same(t, "messages of the fork", h.state(f.ID).Messages, []json.RawMessage{message("1"), message("fork")})
	same(t, "messages of main", h.state(three.ID).Messages, []json.RawMessage{message("1"), message("2"), message("3")})
	b := h.begin(turn.BeginOptions{Conversation: "d"}) // it goes on where its head worked
	h.write("fix", "file", "bad")
	h.end(b.ID, turn.EndOptions{Outcome: turn.Failed})
	h.holds("fix", "file", "fork")
	if b.WorksIn != "fix" || b.Parent != f.ID {
		t.Errorf("%+v", b)
	}
	now := h.begin(turn.BeginOptions{Conversation: "c", Fork: "now"}) // of what there is
	h.holds("now", "file", "3")
	h.write("now", "file", "bad")
	h.end(now.ID, turn.EndOptions{Outcome: turn.Failed})
	h.holds("now", "file", "3")
	h.holds("", "file", "3")
	must(t, h.w.DropBranch(ctx, "fix"))
	_, err := h.Begin(ctx, turn.BeginOptions{Conversation: "d"})
	wantCode(t, err, errs.Disposed, "fix")
	if st := h.state(f.ID); string(st.Custom) != `"fork"` {
		t.Errorf("its state is %s", st.Custom)
	}
}

func TestAFailedForkLeavesNothing(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{}, "1")
	h.begin(turn.BeginOptions{From: one.ID, Fork: "taken"})
	_, err := h.Begin(ctx, turn.BeginOptions{From: one.ID, Fork: "taken"})
	wantCode(t, err, errs.AttemptInProgress, "taken")
	_, err = h.Begin(ctx, turn.BeginOptions{From: one.ID, Fork: "a/b"})
	if err == nil {
		t.Error("a branch has the name a/b")
	}
	list, err := h.w.Branches(true)
	must(t, err)
	if len(list) != 1 || len(h.UnderWay()) != 1 {
		t.Errorf("there are %v, and under way %v", list, h.UnderWay())
	}
}

func TestAConversationThatBeganWithAnothersStateDoesNotLoseIt(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	b := h.begin(turn.BeginOptions{From: one.ID, Conversation: "d"})
	h.end(b.ID, turn.EndOptions{Outcome: turn.Failed})
	b = h.begin(turn.BeginOptions{Conversation: "d"})
	if b.Parent != one.ID || len(b.State.Messages) != 1 || b.State.Conversation != "d" {
		t.Errorf("it goes on with %+v", b)
	}
	h.end(b.ID, turn.EndOptions{Outcome: turn.Completed})
	_, err := h.Begin(ctx, turn.BeginOptions{From: one.ID, Conversation: "d"})
	wantCode(t, err, errs.Usage, "d has turns")
}

func TestWhatIsAbortedBeforeItBeginsDoesNotBegin(t *testing.T) {
	h := open(t)
	id := h.w.Reserve()
	_, err := h.Abort(ctx, id, turn.AbortOptions{})
	wantCode(t, err, errs.NotFound, id)
	_, err = h.Begin(ctx, turn.BeginOptions{ID: id})
	wantCode(t, err, errs.Disposed, id)
}

func TestOptionsOfBeginAreChecked(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	c, err := h.w.Snapshot(ctx, overlay.SnapshotOptions{})
	must(t, err)
	for _, tt := range []struct {
		o    turn.BeginOptions
		code errs.Code
		on   string
	}{
		{turn.BeginOptions{ID: "mine"}, errs.Usage, "id"},
		{turn.BeginOptions{ID: one.ID}, errs.Usage, "id"},
		{turn.BeginOptions{ID: c.ID}, errs.Usage, "id"},
		{turn.BeginOptions{Conversation: "a\nb"}, errs.Usage, "conversation"},
		{turn.BeginOptions{Conversation: ".."}, errs.Usage, "conversation"},
		{turn.BeginOptions{Conversation: strings.Repeat("x", 2000)}, errs.Usage, "conversation"},
		{turn.BeginOptions{From: "ckpt_none"}, errs.NotFound, "ckpt_none"},
		{turn.BeginOptions{From: c.ID}, errs.NotFound, c.ID},
		{turn.BeginOptions{Branch: "none"}, errs.NotFound, "none"},
		{turn.BeginOptions{Fork: "main"}, errs.Usage, "fork"},
		{turn.BeginOptions{PID: -1}, errs.Usage, "pid"},
		{turn.BeginOptions{PIDStart: 7}, errs.Usage, "pid_start"},
	} {
		_, err := h.Begin(ctx, tt.o)
		var e *errs.Error
		if !errors.As(err, &e) || e.Code != tt.code || e.On != tt.on {
			t.Errorf("%+v: %v, want %s about %s", tt.o, err, tt.code, tt.on)
		}
	}
	if list := h.UnderWay(); len(list) != 0 {
		t.Errorf("under way are %v", list)
	}
}

func TestFilesThatAreGoneAreSaid(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	h.run(turn.BeginOptions{Conversation: "c"}, "2")
	must(t, h.w.Drop(ctx, one.ID))
	if r := h.get(one.ID); !r.FilesGone {
		t.Errorf("%+v", r)
	}
	if st := h.state(one.ID); string(st.Custom) != `"1"` {
		t.Errorf("its state is %s", st.Custom)
	}
	_, err := h.Begin(ctx, turn.BeginOptions{From: one.ID})
	wantCode(t, err, errs.Disposed, one.ID)
	h.holds("", "file", "2")
}

// sleeps makes this program do nothing, for a while.
const sleeps = "HYPERFS_TEST_SLEEPS"

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

func TestATurnWhoseOwnerIsGoneIsInterrupted(t *testing.T) {
	for _, aborted := range []bool{false, true} {
		t.Run(fmt.Sprint(aborted), func(t *testing.T) {
			h := open(t)
			one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
			c := sleeper(t)
			b := h.begin(turn.BeginOptions{Conversation: "c", PID: c.Process.Pid})
			h.write("", "file", "2")
			if aborted {
				_, err := h.Abort(ctx, b.ID, turn.AbortOptions{})
				must(t, err)
			}
			_, err := h.Begin(ctx, turn.BeginOptions{Conversation: "c"})
			wantCode(t, err, errs.AttemptInProgress, b.ID)
			must(t, c.Process.Kill())
			for start := time.Now(); owner.StartOf(c.Process.Pid) != 0; time.Sleep(time.Millisecond) {
				if time.Since(start) > 10*time.Second {
					t.Fatal("it does not end")
				}
			}
			h.reopen()
			if _, err := h.List(turn.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			h.holds("", "file", "2") // looking rolls nothing back
			next := h.begin(turn.BeginOptions{Conversation: "c"})
			h.holds("", "file", "1")
			if next.Parent != one.ID || len(next.Settled) != 1 || next.Settled[0].ID != b.ID {
				t.Errorf("%+v", next)
			}
			want := checkpoint.TurnFailed
			reason := turn.ReasonInterrupted
			if aborted {
				want, reason = checkpoint.TurnAborted, turn.ReasonAborted
			}
			if r := h.get(b.ID); r.Status != want || r.FinishReason != reason || !r.Settled {
				t.Errorf("it is %+v", r)
			}
		})
	}
}

func TestOwnersCanBeChanged(t *testing.T) {
	h := open(t)
	c := sleeper(t)
	b := h.begin(turn.BeginOptions{PID: c.Process.Pid})
	yes := true
	h.update(b.ID, turn.Update{Owner: &turn.Owner{PID: os.Getpid()}, Detached: &yes})
	must(t, c.Process.Kill())
	_ = c.Wait()
	_, err := h.Begin(ctx, turn.BeginOptions{})
	wantCode(t, err, errs.AttemptInProgress, b.ID)
	h.forget()
	if r := h.get(b.ID); r.PID != os.Getpid() || !r.Detached || r.Unsaved {
		t.Errorf("%+v", r)
	}
	_, err = h.Update(ctx, b.ID, turn.Update{Owner: &turn.Owner{PID: c.Process.Pid}})
	wantCode(t, err, errs.Usage, "pid")
}

func TestATurnGoesOnAfterAnOrderlyEndOfTheDaemon(t *testing.T) {
	h := open(t)
	h.run(turn.BeginOptions{Conversation: "c"}, "1")
	b := h.begin(turn.BeginOptions{Conversation: "c"})
	h.write("", "file", "2")
	h.update(b.ID, turn.Update{AddMessages: []json.RawMessage{message("2")}, AddArtifacts: []turn.Artifact{{Name: "a", Data: json.RawMessage("1.10")}}})
	h.reopen()
	if _, err := h.Collect(ctx); err != nil { // what it has is not freed
		t.Fatal(err)
	}
	h.update(b.ID, turn.Update{Custom: quoted("2")})
	h.reopen()
	r := h.end(b.ID, turn.EndOptions{Outcome: turn.Completed, WithState: true})
	same(t, "messages", r.State.Messages, []json.RawMessage{message("1"), message("2")})
	if string(r.State.Custom) != `"2"` || len(r.State.Artifacts) != 1 || string(r.State.Artifacts[0].Data) != "1.10" {
		t.Errorf("%+v", r.State)
	}
	h.holds("", "file", "2")
}

func TestATurnWhoseStateIsLostCannotComplete(t *testing.T) {
	h := open(t)
	h.run(turn.BeginOptions{Conversation: "c"}, "1")
	b := h.begin(turn.BeginOptions{Conversation: "c"})
	h.write("", "file", "2")
	h.update(b.ID, turn.Update{Custom: quoted("2")})
	h.forget()
	_, err := h.End(ctx, b.ID, turn.EndOptions{Outcome: turn.Completed})
	wantCode(t, err, errs.Disposed, "lost")
	_, err = h.Update(ctx, b.ID, turn.Update{Custom: quoted("2")})
	wantCode(t, err, errs.Disposed, "lost")
	_, err = h.State(b.ID)
	wantCode(t, err, errs.Disposed, "lost")
	h.end(b.ID, turn.EndOptions{Outcome: turn.Failed})
	h.holds("", "file", "1")

	b = h.begin(turn.BeginOptions{Conversation: "c"}) // one that was given nothing loses nothing
	h.forget()
	h.end(b.ID, turn.EndOptions{Outcome: turn.Completed})
}

func TestOfManyThatBeginAtOnceOneDoes(t *testing.T) {
	h := open(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	begun := 0
	for range 8 {
		all.Go(func() {
			_, err := h.Begin(ctx, turn.BeginOptions{Conversation: "c"})
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
	if begun != 1 || len(h.UnderWay()) != 1 {
		t.Errorf("%d began", begun)
	}
}

func TestAFailureThatCannotGoBackSaysBothAndStaysUnderWay(t *testing.T) {
	h := open(t)
	b := h.begin(turn.BeginOptions{Conversation: "c"})
	h.write("", "file", "1")
	must(t, h.w.Drop(ctx, b.Base)) // somebody has taken away what it goes back to
	_, err := h.End(ctx, b.ID, turn.EndOptions{Outcome: turn.Failed, Error: &checkpoint.TurnError{Message: "tests fail"}})
	wantCode(t, err, errs.AttemptRollback, "tests fail")
	var both *attempt.RollbackError
	if !errors.As(err, &both) || both.Checkpoint != b.Base || both.Attempt.Error() != "tests fail" || errs.CodeOf(both.Rollback) != errs.Rollback {
		t.Errorf("%v does not carry both", err)
	}
	if r := h.get(b.ID); r.Status != checkpoint.TurnPending {
		t.Errorf("it is %+v", r)
	}
	_, err = h.Abort(ctx, b.ID, turn.AbortOptions{Force: true})
	wantCode(t, err, errs.AttemptRollback, "aborted")
	if r := h.get(b.ID); r.Status != checkpoint.TurnAborted || r.Settled {
		t.Errorf("it is %+v", r)
	}
	h.end(b.ID, turn.EndOptions{Outcome: turn.Failed, NoRollback: true})
	h.holds("", "file", "1")
	h.begin(turn.BeginOptions{Conversation: "c"})
}

func TestATurnThatCannotBecomeACheckpointStaysPending(t *testing.T) {
	h := open(t)
	b := h.begin(turn.BeginOptions{Conversation: "c"})
	_, err := h.w.Snapshot(ctx, overlay.SnapshotOptions{ID: b.ID}) // somebody else has used its ID
	must(t, err)
	u := &turn.Update{AddMessages: []json.RawMessage{message("1")}}
	_, err = h.End(ctx, b.ID, turn.EndOptions{Outcome: turn.Completed, Update: u})
	wantCode(t, err, errs.Usage, b.ID)
	if r := h.get(b.ID); r.Status != checkpoint.TurnPending || len(h.state(b.ID).Messages) != 0 {
		t.Errorf("it is %+v", r)
	}
	h.forget()
	if r := h.get(b.ID); r.Status != checkpoint.TurnPending {
		t.Errorf("in the store it is %+v", r)
	}
}

func TestOldTurnsAreForgotten(t *testing.T) {
	h := open(t)
	h.keep = 3
	h.forget()
	var ids []string
	for i := range 6 {
		ids = append(ids, h.run(turn.BeginOptions{Conversation: "c"}, fmt.Sprint(i)).ID)
		b := h.begin(turn.BeginOptions{Conversation: "c"})
		h.end(b.ID, turn.EndOptions{Outcome: turn.Failed})
	}
	other := h.run(turn.BeginOptions{Conversation: "d"}, "of another conversation")
	f, err := h.Collect(ctx)
	must(t, err)
	list, err := h.List(turn.ListOptions{Conversation: "c"})
	must(t, err)
	if len(list) != 6 || list[0].ID != ids[3] {
		t.Errorf("%d turns are kept, freed were %+v", len(list), f)
	}
	for _, id := range ids[:3] {
		if s := h.checkpointStatus(id); s == checkpoint.Active {
			t.Errorf("the checkpoint of an old turn is %s", s)
		}
	}
	if st := h.state(ids[5]); len(st.Messages) != 6 { // those of the old ones too
		t.Errorf("the newest has %d messages", len(st.Messages))
	}
	h.get(other.ID)
	problems, err := h.w.Fsck(ctx, true)
	must(t, err)
	if len(problems) > 0 {
		t.Errorf("fsck: %v", problems)
	}
	h.begin(turn.BeginOptions{From: ids[3]})
	_, err = h.DeleteConversation(ctx, "c")
	wantCode(t, err, errs.Busy, "c")
}

func TestAConversationCanBeForgotten(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	d := h.run(turn.BeginOptions{From: one.ID, Conversation: "d"}, "2")
	f, err := h.DeleteConversation(ctx, "c")
	must(t, err)
	if f.Turns != 1 || h.checkpointStatus(one.ID) == checkpoint.Active {
		t.Errorf("%+v", f)
	}
	if st := h.state(d.ID); len(st.Messages) != 2 {
		t.Errorf("%+v", st)
	}
	_, err = h.DeleteConversation(ctx, "c")
	wantCode(t, err, errs.NotFound, "c")
	h.holds("", "file", "2")
	if st := h.Stats(); st.Turns != 1 || st.Conversations != 1 || st.Bytes == 0 {
		t.Errorf("%+v", st)
	}
}

func TestARollbackOfTheFilesAloneSaysWhatItLeaves(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	two := h.run(turn.BeginOptions{Conversation: "c"}, "2")
	d := h.run(turn.BeginOptions{Conversation: "d"}, "3")
	leaves := func(r overlay.RollbackResult, err error) []turn.Leaves {
		t.Helper()
		must(t, err)
		l, err := h.Leaves(r)
		must(t, err)
		return l
	}
	r, err := h.w.Rollback(ctx, one.ID, overlay.RollbackOptions{})
	same(t, "back to the first", leaves(r, err), []turn.Leaves{{Conversation: "c", Head: two.ID, At: one.ID}, {Conversation: "d", Head: d.ID, At: one.ID}})
	r, err = h.w.Undo(ctx)
	same(t, "undone", leaves(r, err), []turn.Leaves(nil))
	r, err = h.w.Rollback(ctx, two.ID, overlay.RollbackOptions{})
	same(t, "back to the second", leaves(r, err), []turn.Leaves{{Conversation: "d", Head: d.ID, At: two.ID}})
	r, err = h.w.Rollback(ctx, one.ID, overlay.RollbackOptions{})
	same(t, "further back", leaves(r, err), []turn.Leaves{{Conversation: "c", Head: two.ID, At: one.ID}})
}

func TestADamagedRecordIsNamedAndNothingGoesOnPastIt(t *testing.T) {
	h := open(t)
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	const id = "ckpt_\xff" // JSON can't hold it: what is read is of another turn
	must(t, h.w.Turns().Put(turn.Turn{ID: id, Conversation: "c", Status: checkpoint.TurnCompleted}))
	h.forget()
	_, err := h.Get(id)
	wantCode(t, err, errs.Integrity, id)
	_, err = h.Begin(ctx, turn.BeginOptions{Conversation: "c"})
	wantCode(t, err, errs.Integrity, id)
	_, err = h.Collect(ctx)
	wantCode(t, err, errs.Integrity, "record")
	list, err := h.List(turn.ListOptions{})
	must(t, err)
	if len(list) != 1 || list[0].ID != one.ID || len(h.Damaged()) != 1 || len(h.Stats().Damaged) != 1 {
		t.Errorf("listed are %v", list)
	}
	b := h.begin(turn.BeginOptions{From: one.ID})
	h.holds("", "file", "1")
	h.end(b.ID, turn.EndOptions{Outcome: turn.Completed})
	b = h.begin(turn.BeginOptions{}) // a new conversation has no last turn
	h.end(b.ID, turn.EndOptions{Outcome: turn.Completed})
	if ok, err := h.ForgetDamaged(one.ID); ok || err != nil {
		t.Errorf("a turn that is whole was forgotten: %v, %v", ok, err)
	}
	if ok, err := h.ForgetDamaged(id); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	h.forget()
	h.begin(turn.BeginOptions{Conversation: "c"})
	if _, err := h.Collect(ctx); err != nil {
		t.Error(err)
	}
}

func TestSubscribersHearOfTurns(t *testing.T) {
	h := open(t)
	events, cancel := h.w.Subscribe()
	defer cancel()
	one := h.run(turn.BeginOptions{Conversation: "c"}, "1")
	b := h.begin(turn.BeginOptions{Conversation: "c"})
	h.update(b.ID, turn.Update{Custom: json.RawMessage(`{"a":1,"b":2}`)})
	h.update(b.ID, turn.Update{CustomPatch: json.RawMessage(`[{"op":"remove","path":"/a"}]`)})
	h.update(b.ID, turn.Update{Custom: json.RawMessage(`{"b":2.0,"c":12345678901234567890}`)})
	_, err := h.Abort(ctx, b.ID, turn.AbortOptions{})
	must(t, err)
	h.end(b.ID, turn.EndOptions{Outcome: turn.Completed})
	for _, want := range []struct{ typ, id, patch string }{
		{turn.EventBegun, one.ID, ""},
		{turn.EventUpdated, one.ID, `[{"op":"replace","path":"","value":"1"}]`},
		{turn.EventEnded, one.ID, ""},
		{turn.EventBegun, b.ID, ""},
		{turn.EventUpdated, b.ID, `[{"op":"replace","path":"","value":{"a":1,"b":2}}]`},
		{turn.EventUpdated, b.ID, `[{"op":"remove","path":"/a"}]`},
		{turn.EventUpdated, b.ID, ""},
		{turn.EventAborted, b.ID, ""},
		{turn.EventEnded, b.ID, ""},
	} {
		for {
			var ev overlay.Event
			select {
			case ev = <-events:
			case <-time.After(10 * time.Second):
				t.Fatalf("no %s", want.typ)
			}
			if !strings.HasPrefix(ev.Type, "turn-") {
				continue
			}
			u, _ := ev.Data.(turn.UpdateEvent)
			if ev.Type != want.typ || ev.Checkpoint != want.id || want.patch != "" && string(u.CustomPatch) != want.patch {
				t.Errorf("%s of %s, %s, want %+v", ev.Type, ev.Checkpoint, u.CustomPatch, want)
			}
			if want.typ == turn.EventUpdated && want.patch == "" {
				if s := string(u.CustomPatch); !strings.Contains(s, "12345678901234567890") || !strings.Contains(s, "2.0") {
					t.Errorf("the patch is %s", s)
				}
			}
			break
		}
	}
}
