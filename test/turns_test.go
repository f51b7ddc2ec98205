package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/turn"
)

// scripted is a turn of the scripted agent: what it says, and what it does to the files before it fails, or not.
type scripted struct {
	says  string
	does  string // a shell script
	fails error
}

// TurnMessages is what the user says.
func (s scripted) TurnMessages() []any {
	return []any{session.Message{Role: "user", Content: "please " + s.says}}
}

// agent is a scripted agent in a workspace.
type agent struct {
	*tried
	env    []string
	began  []*session.Turn
	states map[string]asOf // by turn, after it completed
}

// asOf is how all of it was.
type asOf struct {
	files treestate.State
	state turn.State
}

// now captures files and conversation.
func (a *agent) now(ctx context.Context, of session.HasState) asOf {
	a.t.Helper()
	st, err := of.State(ctx)
	must(a.t, err)
	return asOf{a.capture(), st}
}

// is compares files and conversation with a asOf, in full.
func (a *agent) is(want asOf, got turn.State, when string) {
	a.t.Helper()
	if diff := treestate.Diff(want.files, a.capture()); len(diff) > 0 {
		a.t.Errorf("%s the files are not what they were:\n\t%s", when, strings.Join(diff, "\n\t"))
	}
	if !reflect.DeepEqual(want.state, got) {
		a.t.Errorf("%s the state is %s,\nnot %s", when, asJSON(a.t, got), asJSON(a.t, want.state))
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
}

// custom is the agent's own document.
type custom struct {
	Steps []string `json:"steps"`
}

// turn is the agent's handler.
func (a *agent) turn(ctx context.Context, t *session.Turn, in scripted) (session.TurnResult, error) {
	a.began = append(a.began, t)
	c := shell(in.does)
	c.Env = a.env
	if _, err := t.Exec(ctx, c); err != nil {
		return session.TurnResult{}, err
	}
	err := errors.Join(
		t.AddMessages(ctx, map[string]any{"role": "assistant", "content": "done: " + in.says, "number": json.Number("12345678901234567890")}),
		t.AddArtifact(ctx, "plan", []string{in.says, t.ID()}),
		t.AddArtifact(ctx, "of "+t.ID(), t.Index()),
		session.UpdateCustomAs(ctx, t, func(c *custom) error { c.Steps = append(c.Steps, in.says); return nil }),
		t.SaveBindings(ctx, map[string]any{"last": in.says}),
	)
	if err == nil {
		err = in.fails
	}
	if err == nil {
		a.states[t.ID()] = a.now(ctx, t) // it is what completes
	}
	return session.TurnResult{FinishReason: "stop"}, err
}

// inputs gives a closed channel with inputs.
func inputs[I any](list ...I) <-chan I {
	ch := make(chan I, len(list))
	for _, in := range list {
		ch <- in
	}
	close(ch)
	return ch
}

// installed is the conversation of an agent that installs packages of npm, whose update goes wrong.
func installed(t *testing.T) (steps []scripted, env []string) {
	t.Helper()
	for _, name := range []string{"npm", "node"} {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, err.Error())
		}
	}
	packages := t.TempDir()
	env = append(toolEnv(t, false), "npm_config_update_notifier=false", "npm_config_offline=true", "npm_config_audit=false", "npm_config_fund=false",
		"npm_config_cache="+filepath.Join(packages, "cache"), "P="+packages)
	script(t, packages, env, packagesSetup)
	return []scripted{
		{says: "install", does: `echo '{"name":"project","version":"1.0.0"}' >package.json; npm install "$P/kept-1.0.0.tgz" "$P/many-1.0.0.tgz"; echo 1 >src/one`},
		{says: "update", does: `npm install --foreground-scripts "$P/many-2.0.0.tgz"; grep -q patched node_modules/kept/lib/k320.js; ` + damage, fails: errSeeded},
		{says: "repair", does: `test "$(node -p 'require("./node_modules/many/lib/f7.js")')" = 7; ! grep -q patched node_modules/kept/lib/k320.js; echo 3 >src/three`},
	}, env
}

func TestATurnThatFailsGivesFilesAndConversationBackTogether(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, mounts bool) {
		steps := []scripted{{says: "install", does: "mkdir -p d/e; echo 1 >src/one"}, {says: "update", does: damage, fails: errSeeded}, {says: "repair", does: "rm -r d; echo 3 >src/three"}}
		var env []string
		if mounts {
			steps, env = installed(t)
		}
		ctx := context.Background()
		a := &agent{tried: s, env: env, states: map[string]asOf{}}
		r, err := session.NewRunner(ctx, s.Session, session.RunnerOptions{Conversation: "fix", Agent: "builder"})
		must(t, err)
		ch := inputs(steps...)
		result, err := session.RunTurns(ctx, r, ch, a.turn)
		must(t, err)
		one, two := a.began[0], a.began[1]
		if result.LastGood != one.ID() || result.LastError != errSeeded || result.LastFinishReason != turn.ReasonFailed || result.Completed != 1 || len(ch) != 1 || result.Pending != "" {
			t.Errorf("the result is %+v, with %d inputs left", result, len(ch))
		}
		if two.Parent() != one.ID() || two.Index() != 1 || one.Index() != 0 || one.Parent() != "" {
			t.Errorf("the turns are %d of %q and %d of %q", one.Index(), one.Parent(), two.Index(), two.Parent())
		}
		a.is(a.states[one.ID()], *result.LastGoodState, "after the failure")
		record, err := s.Turn(ctx, two.ID())
		if err != nil || record.Status != checkpoint.TurnFailed || record.Error.Message != errSeeded.Error() || !record.Settled {
			t.Errorf("the turn that failed is %+v, %v", record, err)
		}
		if _, err := s.Get(ctx, two.ID()); errs.CodeOf(err) != errs.NotFound {
			t.Errorf("its checkpoint: %v", err)
		}

		result, err = session.RunTurns(ctx, r, ch, a.turn)
		must(t, err)
		three := a.began[2]
		if result.LastGood != three.ID() || result.LastError != nil || result.LastFinishReason != "stop" || three.Parent() != one.ID() || three.Index() != 1 {
			t.Errorf("the result is %+v, of turn %d after %s", result, three.Index(), three.Parent())
		}
		a.is(a.states[three.ID()], *result.LastGoodState, "at the end")
		c, err := session.CustomAs[custom](ctx, r)
		if err != nil || !reflect.DeepEqual(c.Steps, []string{"install", "repair"}) {
			t.Errorf("the custom document is %+v, %v", c, err)
		}
		messages, err := session.MessagesAs[session.Message](ctx, r)
		if err != nil || len(messages) != 4 || messages[2] != (session.Message{Role: "user", Content: "please repair"}) {
			t.Errorf("the messages are %+v, %v", messages, err)
		}
		k, err := s.Get(ctx, three.ID())
		if err != nil || k.CreatedBy != turn.CreatedBy || k.Status != checkpoint.Active || k.Agent != "builder" {
			t.Errorf("the checkpoint is %+v, %v", k, err)
		}

		// Back to the first turn, files and all.
		r, err = session.NewRunner(ctx, s.Session, session.RunnerOptions{From: one.ID()})
		must(t, err)
		_, err = session.RunTurns(ctx, r, inputs(0), func(ctx context.Context, turn *session.Turn, _ int) (session.TurnResult, error) {
			st, err := turn.State(ctx)
			a.is(a.states[one.ID()], st, "resumed")
			return session.TurnResult{}, err
		})
		must(t, err)
	})
}

// failingTurns are the ways in which a handler fails, after it has damaged the workspace.
var failingTurns = []struct {
	name    string
	then    func(ctx context.Context, t *session.Turn) error
	cancels bool
	is      func(error) bool
	code    string // in the turn's record
}{
	{name: "error", then: func(context.Context, *session.Turn) error { return errSeeded }, is: func(err error) bool { return err == errSeeded }},
	{name: "panic", then: func(context.Context, *session.Turn) error { panic(errSeeded) }, is: func(err error) bool {
		var p *session.PanicError
		return errors.As(err, &p) && errors.Is(err, errSeeded) && strings.Contains(string(p.Stack), "turns_test.go")
	}},
	{name: "panic with nil", then: func(context.Context, *session.Turn) error { panic(nil) }, is: func(err error) bool {
		var p *session.PanicError
		return errors.As(err, &p)
	}},
	{name: "end of the goroutine", then: func(context.Context, *session.Turn) error { runtime.Goexit(); return nil }, is: func(err error) bool { return err != nil }},
	{name: "cancelled context", cancels: true, then: func(ctx context.Context, t *session.Turn) error {
		_, err := t.Exec(ctx, shell("echo started >started; sleep 600"))
		return err
	}, is: func(err error) bool { return errors.Is(err, context.Canceled) }, code: "EXEC"},
	{name: "cancelled context, which the handler does not tell", cancels: true, then: func(ctx context.Context, _ *session.Turn) error { <-ctx.Done(); return nil },
		is: func(err error) bool { return errors.Is(err, context.Canceled) }},
	{name: "command that fails", then: func(ctx context.Context, t *session.Turn) error {
		_, err := t.Exec(ctx, shell("echo x >x; exit 3"))
		return err
	}, is: func(err error) bool { return errs.CodeOf(err) == errs.Exec }, code: "EXEC"},
	{name: "error of another kind", then: func(context.Context, *session.Turn) error {
		return errs.New(errs.Capacity, "think", "", "%w", errSeeded).WithDetails(map[string]int{"tokens": 7})
	}, is: func(err error) bool { return errors.Is(err, errSeeded) }, code: "CAPACITY"},
	{name: "error whose text can't be had", then: func(context.Context, *session.Turn) error { return (*mute)(nil) }, is: func(err error) bool { return err != nil }},
}

// mute is an error whose text can't be had.
type mute struct{ text string }

func (m *mute) Error() string { return m.text }

func TestAFailingHandlerFailsItsTurnAndNotTheRunner(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		r, err := session.NewRunner(context.Background(), s.Session, session.RunnerOptions{Conversation: "c"})
		must(t, err)
		good, err := session.RunTurns(context.Background(), r, inputs("first"), func(ctx context.Context, turn *session.Turn, in string) (session.TurnResult, error) {
			return session.TurnResult{}, turn.AddMessages(ctx, session.Message{Role: "user", Content: in})
		})
		must(t, err)
		a := &agent{tried: s}
		before := a.now(context.Background(), r)
		for _, c := range failingTurns {
			ctx, cancel := context.WithCancel(context.Background())
			ch := inputs("bad", "later")
			var id string
			result, err := session.RunTurns(ctx, r, ch, func(ctx context.Context, turn *session.Turn, _ string) (session.TurnResult, error) {
				id = turn.ID()
				if _, err := turn.Exec(ctx, shell(damage)); err != nil {
					return session.TurnResult{}, err
				}
				if err := turn.AddMessages(ctx, session.Message{Role: "assistant", Content: "half"}); err != nil {
					return session.TurnResult{}, err
				}
				if c.cancels {
					time.AfterFunc(50*time.Millisecond, cancel)
				}
				return session.TurnResult{FinishReason: "stop"}, c.then(ctx, turn)
			})
			cancel()
			if err != nil || !c.is(result.LastError) || result.LastFinishReason != turn.ReasonFailed || result.LastGood != good.LastGood || len(ch) != 1 || result.Completed != 0 {
				t.Errorf("%s: %+v, %v, with %d inputs left", c.name, result, err, len(ch))
				continue
			}
			if took, ok := s.LastRollback(); !ok || result.Rollback == nil || took != result.Rollback.Duration {
				t.Errorf("%s: the last rollback took %v, that of the result is %+v", c.name, took, result.Rollback)
			}
			a.is(before, *result.LastGoodState, c.name+":")
			record, err := s.Turn(context.Background(), id)
			if err != nil || record.Status != checkpoint.TurnFailed || record.Error == nil || record.Error.Message == "" || record.Error.Code != c.code {
				t.Errorf("%s: the record is %s, %v", c.name, asJSON(t, record), err)
			}
			if c.code == "CAPACITY" && string(record.Error.Details) != `{"tokens":7}` {
				t.Errorf("%s: the details are %s", c.name, record.Error.Details)
			}
		}
	})
}

// What a handler leaves behind ends before the files go back.
func TestWhatAHandlerLeavesEndsWithItsTurn(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		r, err := session.NewRunner(context.Background(), s.Session, session.RunnerOptions{})
		must(t, err)
		before := s.capture()
		left := make(chan error, 2)
		var late *session.Turn
		result, err := session.RunTurns(context.Background(), r, inputs(0), func(_ context.Context, turn *session.Turn, _ int) (session.TurnResult, error) {
			late = turn
			go func() {
				_, err := turn.Exec(context.Background(), shell("while :; do date >>left; sleep 0.01; done"))
				left <- err
			}()
			go func() {
				_, err := session.RunAttempt(context.Background(), turn, func(ctx context.Context, _ *session.Attempt) (int, error) {
					<-ctx.Done()
					return 0, os.WriteFile(filepath.Join(s.dir, "attempted"), nil, 0o644)
				}, session.AttemptOptions{})
				left <- err
			}()
			for !exists(filepath.Join(s.dir, "left")) {
				time.Sleep(time.Millisecond)
			}
			return session.TurnResult{}, errSeeded
		})
		if err != nil || result.LastError != errSeeded {
			t.Error(result, err)
		}
		for range 2 {
			if err := <-left; err == nil {
				t.Error("what was left did not fail")
			}
		}
		if err := late.AddMessages(context.Background(), session.Message{Role: "user"}); errs.CodeOf(err) != errs.Disposed {
			t.Errorf("a message after the end gives %v", err)
		}
		if _, err := late.Exec(context.Background(), shell("echo late >late")); errs.CodeOf(err) != errs.Disposed {
			t.Errorf("a command after the end gives %v", err)
		}
		if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
			t.Errorf("\t%s", strings.Join(diff, "\n\t"))
		}
	})
}

func TestATurnThatIsAbortedEndsItsHandler(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, mounts bool) {
		ctx := context.Background()
		var events []string
		r, err := session.NewRunner(ctx, s.Session, session.RunnerOptions{Conversation: "c", OnEvent: func(ev session.TurnEvent) { events = append(events, ev.Type) }})
		must(t, err)
		before := s.capture()
		aborts := map[string]func(t *testing.T, id string){
			"the session": func(t *testing.T, id string) {
				_, err := s.AbortTurn(ctx, id, turn.AbortOptions{Reason: "enough"})
				must(t, err)
			},
			"the runner": func(t *testing.T, _ string) { must(t, r.Abort(ctx, "enough")) },
		}
		if mounts {
			aborts["another process"] = func(t *testing.T, id string) { hyperfsIn(t, s.dir, nil, "turns", "abort", "--reason", "enough", id) }
		}
		for who, abort := range aborts {
			for _, obeys := range []bool{true, false} {
				var cause error
				ch := inputs(1, 2)
				events = nil
				result, err := session.RunTurns(ctx, r, ch, func(ctx context.Context, turn *session.Turn, _ int) (session.TurnResult, error) {
					go func() {
						for !exists(filepath.Join(s.dir, "started")) {
							time.Sleep(time.Millisecond)
						}
						abort(t, turn.ID())
					}()
					_, err := turn.Exec(ctx, shell(damage+"\necho started >started; sleep 600"))
					cause = context.Cause(ctx)
					if !obeys {
						err = nil
					}
					return session.TurnResult{FinishReason: "stop"}, err
				})
				if err != nil || !errors.Is(result.LastError, session.ErrTurnAborted) || !strings.Contains(result.LastError.Error(), "enough") || result.LastFinishReason != turn.ReasonAborted ||
					result.LastGood != "" || len(ch) != 1 || result.Turn.Status != checkpoint.TurnAborted || !result.Turn.Settled {
					t.Errorf("%s: %+v, %v", who, result, err)
				}
				if !errors.Is(cause, session.ErrTurnAborted) {
					t.Errorf("%s: the cause is %v", who, cause)
				}
				if want := []string{turn.EventBegun, turn.EventAborted, turn.EventEnded}; !reflect.DeepEqual(events, want) {
					t.Errorf("%s: the events are %v", who, events)
				}
				if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
					t.Errorf("%s:\n\t%s", who, strings.Join(diff, "\n\t"))
				}
			}
		}
		if err := r.Abort(ctx, ""); errs.CodeOf(err) != errs.NotFound {
			t.Errorf("with no turn under way, an abort gives %v", err)
		}
	})
}

func TestADetachedRunGoesOnInTheBackground(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		r, err := session.NewRunner(context.Background(), s.Session, session.RunnerOptions{Conversation: "c"})
		must(t, err)
		if r.Detach() {
			t.Error("nothing runs that could be detached")
		}
		ctx, cancel := context.WithCancel(context.Background())
		release := make(chan struct{})
		var ids []string
		handler := func(ctx context.Context, turn *session.Turn, n int) (session.TurnResult, error) {
			ids = append(ids, turn.ID())
			if n == 2 {
				if !r.Detach() || r.Detach() {
					t.Error("it is detached once")
				}
				<-release
			}
			if err := ctx.Err(); err != nil {
				return session.TurnResult{}, err
			}
			_, err := turn.Exec(ctx, shell(fmt.Sprintf("echo %d >>made", n)))
			return session.TurnResult{FinishReason: "stop"}, err
		}
		result, err := session.RunTurns(ctx, r, inputs(1, 2, 3), handler)
		cancel() // who has left does not matter any more
		if err != nil || result.Pending == "" || result.Pending == result.LastGood || result.LastFinishReason != turn.ReasonDetached || result.Completed != 1 || result.LastGood == "" {
			t.Fatalf("%+v, %v", result, err)
		}
		record, err := s.Turn(context.Background(), result.Pending)
		if err != nil || record.Status != checkpoint.TurnPending || !record.Detached {
			t.Errorf("the turn is %+v, %v", record, err)
		}
		if _, err := session.RunTurns(context.Background(), r, inputs(9), handler); errs.CodeOf(err) != errs.Busy {
			t.Errorf("another run gives %v", err)
		}
		waiting, stop := context.WithCancel(context.Background())
		stop()
		if _, err := r.Wait(waiting); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting gives %v", err)
		}
		close(release)
		end, err := r.Wait(context.Background())
		if err != nil || end.Completed != 3 || end.LastGood != ids[2] || result.Pending != ids[1] || end.LastFinishReason != "stop" || end.Pending != "" || end.LastGoodState == nil {
			t.Errorf("%+v, %v, of %v", end, err, ids)
		}
		if text, err := os.ReadFile(filepath.Join(s.dir, "made")); string(text) != "1\n2\n3\n" {
			t.Errorf("%q, %v", text, err)
		}
		again, err := session.RunTurns(context.Background(), r, inputs(4), handler)
		if err != nil || again.Completed != 1 {
			t.Errorf("%+v, %v", again, err)
		}
	})
}

func TestClosingASessionFailsItsTurnAndSaysSo(t *testing.T) {
	t.Parallel()
	for _, detached := range []bool{false, true} {
		t.Run(fmt.Sprint("detached ", detached), func(t *testing.T) {
			t.Parallel()
			cfg := connections[0].config(t)
			cfg.KeepDaemon = true
			s := openTried(t, cfg)
			a := &agent{tried: s}
			ctx := context.Background()
			r, err := session.NewRunner(ctx, s.Session, session.RunnerOptions{Conversation: "c"})
			must(t, err)
			good, err := session.RunTurns(ctx, r, inputs(0), func(context.Context, *session.Turn, int) (session.TurnResult, error) {
				return session.TurnResult{}, nil
			})
			must(t, err)
			before := a.now(ctx, r)
			var id string
			closed := make(chan error, 1)
			ch := make(chan int, 2)
			ch <- 1
			ch <- 2
			result, err := session.RunTurns(ctx, r, ch, func(ctx context.Context, turn *session.Turn, _ int) (session.TurnResult, error) {
				id = turn.ID()
				go func() { closed <- func() error { waitFor(t, filepath.Join(s.dir, "started")); return s.Close() }() }()
				if detached {
					r.Detach()
				}
				_, err := turn.Exec(ctx, shell(damage+"\necho started >started; sleep 600"))
				return session.TurnResult{}, err
			})
			if detached {
				if err != nil || result.Pending != id {
					t.Errorf("%+v, %v", result, err)
				}
				result, err = r.Wait(ctx)
			}
			if err != nil || errs.CodeOf(result.LastError) != errs.Exec && errs.CodeOf(result.LastError) != errs.Disposed || result.LastGood != good.LastGood || result.LastFinishReason != turn.ReasonFailed || len(ch) != 1 {
				t.Errorf("%+v, %v", result, err)
			}
			must(t, <-closed)
			if _, err := session.RunTurns(ctx, r, ch, func(context.Context, *session.Turn, int) (session.TurnResult, error) {
				return session.TurnResult{}, nil
			}); errs.CodeOf(err) != errs.Disposed {
				t.Errorf("a closed session runs turns: %v", err)
			}
			s.Session, err = session.Open(ctx, session.Config{Workspace: s.dir, Start: session.StartNothing})
			must(t, err)
			record, err := s.Turn(ctx, id)
			if err != nil || record.Status != checkpoint.TurnFailed || !record.Settled {
				t.Errorf("the turn is %+v, %v", record, err)
			}
			st, err := s.TurnState(ctx, good.LastGood)
			must(t, err)
			a.is(before, st, "after the session was closed")
			client := s.Client()
			t.Cleanup(func() {
				_, err := client.Unmount(context.Background(), control.UnmountOptions{Force: true})
				must(t, err)
			})
		})
	}
}

// waitFor waits until there is a file.
func waitFor(t *testing.T, path string) {
	t.Helper()
	must(t, within(hangAfter, func() error {
		for !exists(path) {
			time.Sleep(time.Millisecond)
		}
		return nil
	}))
}

// A conversation is forked with its files, and both go on side by side.
func TestAnOlderTurnIsResumedInABranch(t *testing.T) {
	t.Parallel()
	s := openTried(t, connections[0].config(t))
	ctx := context.Background()
	a := &agent{tried: s, states: map[string]asOf{}}
	r, err := session.NewRunner(ctx, s.Session, session.RunnerOptions{Conversation: "main line"})
	must(t, err)
	_, err = session.RunTurns(ctx, r, inputs(scripted{says: "one", does: "echo 1 >n"}, scripted{says: "two", does: "echo 2 >n; rm src/two"}), a.turn)
	must(t, err)
	one, two := a.began[0], a.began[1]
	fork, err := session.NewRunner(ctx, s.Session, session.RunnerOptions{From: one.ID(), Fork: "a/b"})
	if err == nil {
		_, err = session.RunTurns(ctx, fork, inputs(0), func(context.Context, *session.Turn, int) (session.TurnResult, error) {
			return session.TurnResult{}, nil
		})
	}
	if errs.CodeOf(err) != errs.Usage {
		t.Fatalf("a name that is none gives %v", err)
	}
	fork, err = session.NewRunner(ctx, s.Session, session.RunnerOptions{From: one.ID(), Fork: "other"})
	must(t, err)
	before := s.capture()

	// The first turn there fails, and the next one still begins with the state and the files of the turn that was resumed.
	for _, failure := range []error{errSeeded, nil} {
		result, err := session.RunTurns(ctx, fork, inputs("three"), func(ctx context.Context, turn *session.Turn, in string) (session.TurnResult, error) {
			st, err := turn.State(ctx)
			must(t, err)
			if st.Conversation == "main line" {
				t.Errorf("the conversation is %q", st.Conversation)
			}
			st.Conversation = "main line"
			if want := a.states[one.ID()].state; !reflect.DeepEqual(st, want) || turn.Parent() != one.ID() || turn.Branch() != "other" || turn.Index() != 1 {
				t.Errorf("turn %d after %s in %s begins with %s,\nnot %s", turn.Index(), turn.Parent(), turn.Branch(), asJSON(t, st), asJSON(t, want))
			}
			c := shell(`test "$(cat n)" = 1; test -e src/two; echo 3 >n; echo "$HYPERFS_BRANCH $HYPERFS_TURN"; pwd`)
			c.Capture = true
			out, err := turn.Exec(ctx, c)
			if want := "other " + turn.ID() + "\n" + s.dir + "\n"; err != nil || string(out.Stdout) != want {
				t.Errorf("%q, %v", out.Stdout, err)
			}
			// An attempt in a turn works where the turn does.
			tried, err := session.RunAttempt(ctx, turn, func(ctx context.Context, at *session.Attempt) (string, error) {
				_, err := at.Exec(ctx, shell("rm n"))
				return at.Branch(), errors.Join(err, errSeeded)
			}, session.AttemptOptions{})
			if tried.Value != "other" || !tried.RolledBack {
				t.Errorf("the attempt is %+v, %v", tried, err)
			}
			return session.TurnResult{}, errors.Join(turn.AddMessages(ctx, session.Message{Role: "user", Content: in}), failure)
		})
		if err != nil || (result.LastError != nil) != (failure != nil) {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
		t.Errorf("main has changed:\n\t%s", strings.Join(diff, "\n\t"))
	}

	// Both go on at once.
	var both sync.WaitGroup
	for n, r := range map[string]*session.Runner{"4": r, "5": fork} {
		both.Go(func() {
			result, err := session.RunTurns(ctx, r, inputs(1, 2, 3), func(ctx context.Context, turn *session.Turn, _ int) (session.TurnResult, error) {
				_, err := turn.Exec(ctx, shell("echo "+n+" >>n"))
				return session.TurnResult{}, errors.Join(err, turn.AddMessages(ctx, session.Message{Role: "user", Content: n}))
			})
			if err != nil || result.LastError != nil || result.Completed != 3 {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
	both.Wait()
	for dir, want := range map[string]string{s.dir: "2\n4\n4\n4\n", filepath.Join(s.dir, overlay.StoreName, "branches/other"): "3\n5\n5\n5\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, "n")); string(text) != want {
			t.Errorf("%s has %q, %v", dir, text, err)
		}
	}
	list, err := s.Conversations(ctx)
	if err != nil || len(list) != 2 {
		t.Errorf("the conversations are %+v, %v", list, err)
	}
	if st, err := s.TurnState(ctx, two.ID()); err != nil || !reflect.DeepEqual(st, a.states[two.ID()].state) {
		t.Errorf("the state of a completed turn has changed: %s, %v", asJSON(t, st), err)
	}
}

// A runner works in a branch that there is.
func TestARunnerWorksInABranch(t *testing.T) {
	t.Parallel()
	s := openTried(t, connections[0].config(t))
	ctx := context.Background()
	_, err := s.Fork(ctx, overlay.ForkOptions{Name: "try"})
	must(t, err)
	before := s.capture()
	dir := filepath.Join(s.dir, overlay.StoreName, "branches/try")
	in := func() treestate.State {
		st, err := treestate.Capture(dir, treestate.Options{})
		must(t, err)
		return st
	}
	branch := in()
	r, err := session.NewRunner(ctx, s.Session, session.RunnerOptions{Conversation: "c", Branch: "try"})
	must(t, err)
	for _, failure := range []error{errSeeded, nil} {
		result, err := session.RunTurns(ctx, r, inputs(0), func(ctx context.Context, turn *session.Turn, _ int) (session.TurnResult, error) {
			_, err := turn.Exec(ctx, shell(damage))
			if turn.Dir() != dir || turn.Branch() != "try" {
				t.Errorf("it works in %s, %s", turn.Branch(), turn.Dir())
			}
			return session.TurnResult{}, errors.Join(err, failure)
		})
		if err != nil || errors.Is(result.LastError, errSeeded) != (failure != nil) {
			t.Fatalf("%+v, %v", result, err)
		}
		if diff := treestate.Diff(branch, in()); (len(diff) == 0) != (failure != nil) {
			t.Errorf("after %v:\n\t%s", failure, strings.Join(diff, "\n\t"))
		}
	}
	again, err := session.NewRunner(ctx, s.Session, session.RunnerOptions{Conversation: "c"}) // where it has worked
	must(t, err)
	result, err := session.RunTurns(ctx, again, inputs(0), func(_ context.Context, turn *session.Turn, _ int) (session.TurnResult, error) {
		return session.TurnResult{FinishReason: turn.Branch()}, nil
	})
	if err != nil || result.LastFinishReason != "try" || result.Turn.Index != 1 {
		t.Errorf("%+v, %v", result, err)
	}
	if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
		t.Errorf("main has changed:\n\t%s", strings.Join(diff, "\n\t"))
	}
}

// envTurnVictim makes this test binary an agent that never ends its turn, in the workspace that it names.
const envTurnVictim = "HYPERFS_TEST_TURN_VICTIM"

func turnVictim(dir string) error {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{Workspace: dir, Start: session.StartNothing})
	if err != nil {
		return err
	}
	r, err := session.NewRunner(ctx, s, session.RunnerOptions{Conversation: "c"})
	if err != nil {
		return err
	}
	result, err := session.RunTurns(ctx, r, inputs(0), func(ctx context.Context, t *session.Turn, _ int) (session.TurnResult, error) {
		if err := t.AddMessages(ctx, session.Message{Role: "user", Content: "lost"}); err != nil {
			return session.TurnResult{}, err
		}
		_, err := t.Exec(ctx, shell(damage+"\necho $$ >pid.tmp; mv pid.tmp pid; exec sleep 600"))
		return session.TurnResult{}, err
	})
	return errors.Join(err, result.LastError)
}

func TestTheTurnOfAnAgentThatWasKilledIsEndedByTheNext(t *testing.T) {
	t.Parallel()
	s := openTried(t, connections[0].config(t))
	ctx := context.Background()
	a := &agent{tried: s, states: map[string]asOf{}}
	var settled []turn.Turn
	r, err := session.NewRunner(ctx, s.Session, session.RunnerOptions{Conversation: "c", OnEvent: func(ev session.TurnEvent) {
		if ev.Type == turn.EventEnded && ev.Turn.FinishReason == turn.ReasonInterrupted {
			settled = append(settled, ev.Turn)
		}
	}})
	must(t, err)
	_, err = session.RunTurns(ctx, r, inputs(scripted{says: "one", does: "echo 1 >n"}), a.turn)
	must(t, err)
	one := a.began[0].ID()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envTurnVictim+"="+s.dir)
	must(t, cmd.Start())
	waitFor(t, filepath.Join(s.dir, "pid"))
	if _, err := session.RunTurns(ctx, r, inputs(scripted{}), a.turn); errs.CodeOf(err) != errs.AttemptInProgress {
		t.Errorf("while it is at work, another turn gives %v", err)
	}
	pid, err := os.ReadFile(filepath.Join(s.dir, "pid"))
	must(t, err)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	must(t, within(hangAfter, func() error { // its helper ends the command
		for exists("/proc/" + strings.TrimSpace(string(pid))) {
			time.Sleep(time.Millisecond)
		}
		return nil
	}))
	var begun asOf
	result, err := session.RunTurns(ctx, r, inputs(0), func(ctx context.Context, turn *session.Turn, _ int) (session.TurnResult, error) {
		begun = a.now(ctx, turn)
		return session.TurnResult{}, nil
	})
	if err != nil || result.Completed != 1 || result.Turn.Parent != one {
		t.Errorf("%+v, %v", result, err)
	}
	a.is(a.states[one], begun.state, "the next turn begins, and")
	if len(settled) != 1 || settled[0].Status != checkpoint.TurnFailed || !settled[0].Settled {
		t.Errorf("what was ended is %+v", settled)
	}
}

// The example of an agent loses a turn, goes two ways at once, and keeps the one that passes.
func TestTheExampleOfAnAgentWorks(t *testing.T) {
	t.Parallel()
	needMount(t)
	bin, err := checked.path()
	must(t, err)
	example, err := agentic.path()
	must(t, err)
	ws := filepath.Join(memory(t), "workspace")
	must(t, os.Mkdir(ws, 0o755))
	t.Cleanup(func() { _ = detach(ws) })
	cmd := exec.Command(example, ws)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(bin)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	const want = "1 of 2 turns completed; the last one failed\nwisely: true\nboldly: false\nthe conversation remembers 2 steps\n"
	if err != nil || string(out) != want {
		t.Fatalf("%v\n%s", err, out)
	}
	script(t, ws, nil, `test "$(sh sum 2 3)" = 5; test "$(sh sum 4 4)" = 8; test "$(sh product 2 3)" = 6`)
}

// What a turn was given is in the daemon's memory. One that ends in order keeps it for the next; after kill -9 the turn can't complete any more, and fails.
func TestATurnOutlivesItsDaemonOrFails(t *testing.T) {
	t.Parallel()
	bin, err := checked.path()
	must(t, err)
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) {
			t.Parallel()
			s := openTried(t, session.Config{Program: bin, Backend: session.BackendScan, KeepDaemon: true})
			ctx := context.Background()
			t.Cleanup(func() {
				_, err := checked.run(nil, "-C", s.dir, "unmount")
				must(t, err)
			})
			r, err := session.NewRunner(ctx, s.Session, session.RunnerOptions{Conversation: "c"})
			must(t, err)
			before := s.capture()
			result, err := session.RunTurns(ctx, r, inputs(session.Message{Role: "user", Content: "kept"}), func(ctx context.Context, turn *session.Turn, _ session.Message) (session.TurnResult, error) {
				if _, err := turn.Exec(ctx, shell(damage)); err != nil {
					return session.TurnResult{}, err
				}
				d, err := s.Diagnostics(ctx)
				must(t, err)
				if killed {
					script(t, "/", nil, fmt.Sprintf("kill -9 %d; while kill -0 %[1]d 2>/dev/null; do sleep 0.01; done", d.Daemon.PID))
				} else if _, err := checked.run(nil, "-C", s.dir, "unmount"); err != nil {
					t.Error(err)
				}
				_, err = checked.run(nil, "serve", s.dir)
				must(t, err)
				return session.TurnResult{FinishReason: "stop"}, nil
			})
			if err != nil || (result.LastError != nil) != killed || (result.LastFinishReason == turn.ReasonFailed) != killed {
				t.Fatalf("%+v, %v", result, err)
			}
			diff := treestate.Diff(before, s.capture())
			if killed && len(diff) > 0 {
				t.Errorf("the files are not what they were:\n\t%s", strings.Join(diff, "\n\t"))
			}
			if !killed && (len(diff) == 0 || len(result.LastGoodState.Messages) != 1) {
				t.Errorf("%d files have changed, and the state is %+v", len(diff), result.LastGoodState)
			}
		})
	}
}
