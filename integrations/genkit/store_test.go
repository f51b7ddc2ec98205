package genkit_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	genkit "github.com/firebase/genkit/go/core/x/session"
	"github.com/hyperfs/hyperfs/control"
	store "github.com/hyperfs/hyperfs/integrations/genkit"
	"github.com/hyperfs/hyperfs/session"
)

// memory is what the sessions of these tests remember.
type memory struct {
	Steps []string       `json:"steps"`
	Notes map[string]int `json:"notes,omitempty"`
}

// open opens a workspace in this process, so that no mount is needed.
func open(t *testing.T, dir string) *session.Session {
	t.Helper()
	s, err := session.Open(context.Background(), session.Config{Workspace: dir, Start: session.StartInProcess})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func steps(t *testing.T, s *genkit.Session[memory], want ...string) {
	t.Helper()
	have := s.State().Steps
	if len(have) != len(want) {
		t.Fatalf("the session remembers %q, should %q", have, want)
	}
	for i := range want {
		if have[i] != want[i] {
			t.Fatalf("the session remembers %q, should %q", have, want)
		}
	}
}

func TestASessionAndItsFilesGoBackTogether(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	write(t, dir, "plan", "none")
	s := open(t, dir)
	st := store.NewStore[memory](s, store.Options{Agent: "tester"})

	g, err := genkit.New(ctx, genkit.WithID[memory]("talk"), genkit.WithStore[memory](st))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"one", "two", "three"} {
		write(t, dir, "plan", step)
		write(t, dir, step, step)
		m := g.State()
		m.Steps = append(m.Steps, step)
		if err := g.UpdateState(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	turns, err := st.Turns(ctx, "talk")
	if err != nil || len(turns) != 4 {
		t.Fatalf("%d saves, %v; should be that of New and three", len(turns), err)
	}
	if turns[2].Agent != "tester" {
		t.Errorf("the checkpoint's agent is %q", turns[2].Agent)
	}

	d, err := st.Rewind(ctx, turns[2].ID)
	if err != nil || len(d.State.Steps) != 2 {
		t.Fatalf("going back gives %+v, %v", d, err)
	}
	if have := read(t, dir, "plan"); have != "two" {
		t.Errorf("the file is of step %q, the session of step two", have)
	}
	if _, err := os.Stat(filepath.Join(dir, "three")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of step three is left: %v", err)
	}
	if g, err = genkit.Load(ctx, st, "talk"); err != nil {
		t.Fatal(err)
	}
	steps(t, g, "one", "two")

	if _, err := s.Undo(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if have := read(t, dir, "plan"); have != "three" {
		t.Errorf("undo has left the file of step %q", have)
	}
}

func TestWhatWasSavedIsThereAfterARestart(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	s := open(t, dir)
	st := store.NewStore[memory](s, store.Options{})
	if d, err := st.Get(ctx, "talk"); d != nil || err != nil {
		t.Fatalf("before anything was saved there is %+v, %v", d, err)
	}
	if _, err := genkit.Load(ctx, st, "talk"); !errors.As(err, new(*genkit.NotFoundError)) {
		t.Fatalf("a session that is not there: %v", err)
	}
	want := memory{Steps: []string{"only"}, Notes: map[string]int{"n": 1<<53 + 1}}
	if err := st.Save(ctx, "talk", &genkit.Data[memory]{ID: "talk", State: want}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := store.NewStore[memory](open(t, dir), store.Options{})
	d, err := again.Get(ctx, "talk")
	if err != nil || d == nil || d.ID != "talk" || d.State.Notes["n"] != want.Notes["n"] || d.State.Steps[0] != "only" {
		t.Fatalf("after a restart there is %+v, %v", d, err)
	}
}

func TestSavesOfManySessionsWaitForEachOther(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	s := open(t, dir)
	stores := []*store.Store[memory]{store.NewStore[memory](s, store.Options{}), store.NewStore[memory](s, store.Options{})}
	const sessions, saves = 4, 5
	var all sync.WaitGroup
	for i := range sessions {
		all.Go(func() {
			g, err := genkit.New(ctx, genkit.WithID[memory](string(rune('a'+i))), genkit.WithStore[memory](stores[i%2]))
			for j := range saves {
				if err == nil {
					err = g.UpdateState(ctx, memory{Steps: make([]string, j+1)})
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range sessions {
		d, err := stores[0].Get(ctx, string(rune('a'+i)))
		if err != nil || d == nil || len(d.State.Steps) != saves {
			t.Errorf("session %d: %+v, %v", i, d, err)
		}
	}
}

func TestWithinATurnASaveIsOfThatTurn(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	s := open(t, dir)
	st := store.NewStore[memory](s, store.Options{})
	r, err := session.NewRunner(ctx, s, session.RunnerOptions{Conversation: "talk"})
	if err != nil {
		t.Fatal(err)
	}
	inputs := make(chan string, 2)
	inputs <- "good"
	inputs <- "bad"
	close(inputs)
	res, err := session.RunTurns(ctx, r, inputs, func(ctx context.Context, turn *session.Turn, in string) (session.TurnResult, error) {
		write(t, dir, "file", in)
		outside, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if err := st.Save(outside, "talk", &genkit.Data[memory]{}); control.CodeOf(err) != control.AttemptInProgress {
			t.Errorf("a save beside the turn: %v", err)
		}
		ctx = store.WithTurn(ctx, turn)
		if err := st.Save(ctx, "talk", &genkit.Data[memory]{State: memory{Steps: []string{in}}}); err != nil {
			return session.TurnResult{}, err
		}
		if d, err := st.Get(ctx, "talk"); err != nil || d.State.Steps[0] != in {
			t.Errorf("the turn sees %+v, %v", d, err)
		}
		if in == "bad" {
			return session.TurnResult{}, errors.New("it went wrong")
		}
		return session.TurnResult{}, nil
	})
	if err != nil || res.Completed != 1 || res.LastError == nil {
		t.Fatalf("the runner gives %+v, %v", res, err)
	}
	d, err := st.Get(ctx, "talk")
	if err != nil || d.State.Steps[0] != "good" || read(t, dir, "file") != "good" {
		t.Fatalf("after the failure there is %+v, %v, and the file of turn %q", d, err, read(t, dir, "file"))
	}
}

func TestBadInputIsRefused(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	st := store.NewStore[func()](s, store.Options{})
	if err := st.Save(ctx, "", &genkit.Data[func()]{}); err == nil {
		t.Error("a session without an ID was saved")
	}
	if err := st.Save(ctx, "talk", nil); err == nil {
		t.Error("no data were saved")
	}
	if err := st.Save(ctx, "talk", &genkit.Data[func()]{State: func() {}}); err == nil {
		t.Error("a state without a JSON form was saved")
	}
	if _, err := st.Rewind(ctx, "ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAV"); control.CodeOf(err) != control.NotFound {
		t.Errorf("going back to what is not there: %v", err)
	}
	m := store.NewStore[memory](s, store.Options{})
	if _, err := genkit.New(ctx, genkit.WithID[memory]("text"), genkit.WithStore[memory](m)); err != nil {
		t.Fatal(err)
	}
	if _, err := store.NewStore[int](s, store.Options{}).Get(ctx, "text"); err == nil {
		t.Error("a state of another type was read")
	}
}
