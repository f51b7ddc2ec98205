package session_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/hyperfs/hyperfs/session"
)

// tasks gives a closed channel with inputs.
func tasks[I any](list ...I) <-chan I {
	ch := make(chan I, len(list))
	for _, in := range list {
		ch <- in
	}
	close(ch)
	return ch
}

// Each input becomes a turn. One that fails takes back what was done and said in it, and the runner says where one can go on.
func ExampleRunTurns() {
	s, remove := project()
	defer remove()
	ctx := context.Background()
	r, err := session.NewRunner(ctx, s, session.RunnerOptions{Conversation: "fix", Agent: "builder"})
	if err != nil {
		log.Fatal(err)
	}
	result, err := session.RunTurns(ctx, r, tasks("true", "rm main.ts; false"), func(ctx context.Context, t *session.Turn, script string) (session.TurnResult, error) {
		if err := t.AddMessages(ctx, session.Message{Role: "user", Content: script}); err != nil {
			return session.TurnResult{}, err
		}
		_, err := t.Exec(ctx, session.Command{Args: []string{"sh", "-c", script}})
		return session.TurnResult{FinishReason: "stop"}, err
	})
	fmt.Println(err, result.Completed, result.LastFinishReason, len(result.LastGoodState.Messages))
	var exit *session.ExitError
	fmt.Println(errors.As(result.LastError, &exit), result.LastGood == result.Turn.Parent)
	_, err = os.Stat(filepath.Join(s.Workspace(), "main.ts"))
	fmt.Println(err)
	// Output:
	// <nil> 1 failed 1
	// true true
	// <nil>
}

// An input that carries messages has them added before its handler runs. What an agent remembers is a document of its own type.
func ExampleUpdateCustomAs() {
	type memory struct{ Seen []any }
	s, remove := project()
	defer remove()
	ctx := context.Background()
	r, err := session.NewRunner(ctx, s, session.RunnerOptions{OnEvent: func(ev session.TurnEvent) {
		if ev.Update != nil && ev.Update.CustomPatch != nil {
			fmt.Printf("%s %s\n", ev.Type, ev.Update.CustomPatch)
		}
	}})
	if err != nil {
		log.Fatal(err)
	}
	inputs := tasks(session.Message{Role: "user", Content: "one"}, session.Message{Role: "user", Content: "two"})
	_, err = session.RunTurns(ctx, r, inputs, func(ctx context.Context, t *session.Turn, in session.Message) (session.TurnResult, error) {
		return session.TurnResult{}, session.UpdateCustomAs(ctx, t, func(m *memory) error { m.Seen = append(m.Seen, in.Content); return nil })
	})
	m, _ := session.CustomAs[memory](ctx, r)
	messages, _ := session.MessagesAs[session.Message](ctx, r)
	fmt.Println(err, m.Seen, messages)
	// Output:
	// turn-updated [{"op":"replace","path":"","value":{"Seen":["one"]}}]
	// turn-updated [{"op":"replace","path":"","value":{"Seen":["one","two"]}}]
	// <nil> [one two] [{user one} {user two}]
}

// Any turn can be resumed: its files and its conversation come back together.
func ExampleNewRunner_resume() {
	s, remove := project()
	defer remove()
	ctx := context.Background()
	file := filepath.Join(s.Workspace(), "main.ts")
	write := func(ctx context.Context, t *session.Turn, text string) (session.TurnResult, error) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return session.TurnResult{}, err
		}
		return session.TurnResult{}, t.AddArtifact(ctx, "last", text)
	}
	r, err := session.NewRunner(ctx, s, session.RunnerOptions{Conversation: "c"})
	if err != nil {
		log.Fatal(err)
	}
	first, _ := session.RunTurns(ctx, r, tasks("one"), write)
	_, _ = session.RunTurns(ctx, r, tasks("two"), write)
	if r, err = session.NewRunner(ctx, s, session.RunnerOptions{From: first.LastGood}); err != nil {
		log.Fatal(err)
	}
	_, err = session.RunTurns(ctx, r, tasks("three"), func(ctx context.Context, t *session.Turn, in string) (session.TurnResult, error) {
		text, _ := os.ReadFile(file)
		last, _, err := session.ArtifactAs[string](ctx, t, "last")
		fmt.Printf("turn %d begins with %s and %s\n", t.Index(), text, last)
		return session.TurnResult{}, err
	})
	fmt.Println(err)
	// Output:
	// turn 1 begins with one and one
	// <nil>
}
