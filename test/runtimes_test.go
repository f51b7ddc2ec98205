package test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/runtime"
	"github.com/hyperfs/hyperfs/session/turn"
)

// languages are the runtimes that work on files, and what they say there.
var languages = []struct {
	kind                     runtime.Kind
	where, change, remembers string
}{
	{runtime.Node, "process.cwd()", "let notes = {n: 1}; require('fs').writeFileSync('src/one', 'changed'); require('fs').unlinkSync('src/two'); require('fs').writeFileSync('made', 'x')",
		"[notes.n, require('fs').readFileSync('src/one', 'utf8'), require('fs').existsSync('src/two')]"},
	{runtime.CPython, "import os\nos.getcwd()", "import os\nnotes = {'n': 1}\nopen('src/one', 'w').write('changed')\nos.unlink('src/two')\nopen('made', 'w').write('x')",
		"import os\n[notes['n'], open('src/one').read(), os.path.exists('src/two')]"},
}

func needRuntime(t *testing.T, kind runtime.Kind) {
	t.Helper()
	if _, err := exec.LookPath(string(kind)); err != nil {
		missing(t, err.Error())
	}
}

// tell runs a program and gives its value.
func tell(t *testing.T, r interface {
	Execute(context.Context, string) (runtime.Result, error)
}, code string) string {
	t.Helper()
	result, err := r.Execute(context.Background(), code)
	must(t, err)
	return string(result.Value.Value)
}

// Both phases work in a branch that stands at the workspace's own path, and nobody else sees what they do there.
func TestRuntimesWorkInABranchAlone(t *testing.T) {
	t.Parallel()
	s := openTried(t, connections[0].config(t))
	ctx := context.Background()
	for _, l := range languages {
		t.Run(string(l.kind), func(t *testing.T) {
			needRuntime(t, l.kind)
			name := string(l.kind)
			_, err := s.Fork(ctx, overlay.ForkOptions{Name: name})
			must(t, err)
			before := s.capture()
			open := func(ctx context.Context) (runtime.CodeSession, error) {
				return s.StartRuntime(ctx, l.kind, session.RuntimeOptions{Branch: name})
			}
			shared, err := runtime.NewShared(runtime.SharedOptions{Open: open})
			must(t, err)
			defer func() { must(t, shared.Close()) }()
			first, err := open(ctx)
			must(t, err)
			must(t, shared.AdoptDistillerSession(ctx, first, runtime.AdoptOptions{}))
			if got := tell(t, shared, l.where); got != `"`+s.dir+`"` {
				t.Errorf("it works in %s", got)
			}
			_, err = shared.Execute(ctx, l.change)
			must(t, err)
			must(t, shared.BeginExecutorPhase(ctx, runtime.PhaseOptions{}))
			if got := tell(t, shared, strings.NewReplacer("notes.n", "1", "notes['n']", "1").Replace(l.remembers)); got != `[1,"changed",false]` {
				t.Errorf("the second phase finds %s", got)
			}
			if after := s.capture(); len(before) != len(after) || exists(filepath.Join(s.dir, "made")) {
				t.Error("the workspace has changed")
			}
			inBranch := filepath.Join(s.dir, ".hyperfs/branches", name)
			if text, err := os.ReadFile(filepath.Join(inBranch, "src/one")); string(text) != "changed" || exists(filepath.Join(inBranch, "src/two")) {
				t.Errorf("the branch has %q, %v", text, err)
			}
		})
	}
}

// A turn keeps conversation, files and variables; whoever resumes it finds all three.
func TestATurnThatIsResumedHasItsBindings(t *testing.T) {
	t.Parallel()
	for _, c := range connections {
		for _, l := range languages {
			t.Run(c.name+" "+string(l.kind), func(t *testing.T) {
				t.Parallel()
				needRuntime(t, l.kind)
				s := openTried(t, c.config(t))
				first, _ := turnWith(t, s, l.kind, session.RunnerOptions{Conversation: "c"}, func(ctx context.Context, r *runtime.Shared) error {
					_, err := r.Execute(ctx, l.change)
					return err
				}, nil)
				turnWith(t, s, l.kind, session.RunnerOptions{Conversation: "c"}, func(ctx context.Context, r *runtime.Shared) error {
					_, err := r.Execute(ctx, strings.NewReplacer("n: 1", "n: 2", "'n': 1", "'n': 2", "changed", "again", "src/two", "made").Replace(l.change))
					return err
				}, nil)
				turnWith(t, s, l.kind, session.RunnerOptions{Conversation: "c"}, func(ctx context.Context, r *runtime.Shared) error {
					if got := tell(t, r, l.remembers); got != `[2,"again",false]` {
						t.Errorf("the turn after two has %s", got)
					}
					return nil
				}, errSeeded)
				_, state := turnWith(t, s, l.kind, session.RunnerOptions{From: first}, func(ctx context.Context, r *runtime.Shared) error {
					if e := r.RestoredEntries(); len(e) != 1 || e[0].Name != "notes" {
						t.Errorf("restored are %+v", e)
					}
					if got := tell(t, r, l.remembers); got != `[1,"changed",false]` {
						t.Errorf("the turn that is resumed has %s", got)
					}
					return nil
				}, nil)
				if len(state.Messages) != 2 { // of the first turn, and of this one
					t.Errorf("the conversation has %d messages", len(state.Messages))
				}
			})
		}
	}
}

// turnWith makes a turn with a runtime that has the bindings of the turn before, and saves them again. It gives the turn's ID and the state that it leaves.
func turnWith(t *testing.T, s *tried, kind runtime.Kind, o session.RunnerOptions, fn func(context.Context, *runtime.Shared) error, fails error) (string, *turn.State) {
	t.Helper()
	ctx := context.Background()
	runner, err := session.NewRunner(ctx, s.Session, o)
	must(t, err)
	inputs := make(chan string, 1)
	inputs <- "input"
	close(inputs)
	result, err := session.RunTurns(ctx, runner, inputs, func(ctx context.Context, tn *session.Turn, input string) (session.TurnResult, error) {
		saved, _, err := session.BindingsAs[json.RawMessage](ctx, tn)
		if err != nil {
			return session.TurnResult{}, err
		}
		shared, err := runtime.NewShared(runtime.SharedOptions{RestoreState: saved})
		if err != nil {
			return session.TurnResult{}, err
		}
		defer shared.Close()
		r, err := s.StartRuntime(ctx, kind, session.RuntimeOptions{})
		if err != nil {
			return session.TurnResult{}, err
		}
		if err := shared.AdoptDistillerSession(ctx, r, runtime.AdoptOptions{}); err != nil {
			return session.TurnResult{}, errors.Join(err, r.Close())
		}
		if err := errors.Join(fn(ctx, shared), tn.AddMessages(ctx, session.Message{Role: "user", Content: input})); err != nil {
			return session.TurnResult{}, err
		}
		if saved, err = shared.Save(ctx); err != nil {
			return session.TurnResult{}, err
		}
		return session.TurnResult{}, errors.Join(tn.SaveBindings(ctx, saved), fails)
	})
	must(t, err)
	if fails == nil && result.LastError != nil || !errors.Is(result.LastError, fails) {
		t.Fatal(result.LastError)
	}
	return result.LastGood, result.LastGoodState
}
