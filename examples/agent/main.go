// An agent that makes a turn of each task: what it says, makes and remembers goes back together with the files. The last task it tries in two branches at once.
//
//	agent [WORKSPACE]
//
// The model is a script: a function of the messages so far, as that of a real agent is.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
)

// step is what the model wants: a command to be run, or, without one, its answer, which ends the turn.
type step struct {
	Say string `json:"say"`
	Run string `json:"run,omitempty"`
}

// memory is the custom document of the conversation.
type memory struct {
	Commands int `json:"commands"`
}

// scripts are the steps of the model by task. What it writes has to pass the tests.
var scripts = map[string][]step{
	"write a sum":      {{"A function, and its test.", "echo 'expr $1 + $2' >sum; echo 'test $(sh sum 2 3) = 5' >check; sh check"}, {Say: "It adds."}},
	"make it faster":   {{"Away with the old one.", "rm sum; echo 'echo 6' >fast"}, {"Now the tests.", "sh check"}, {Say: "It is fast."}},
	"multiply, wisely": {{"By the shell's own arithmetic.", "echo 'echo $(($1 * $2))' >product; echo 'test $(sh product 2 3) = 6' >>check; sh check"}, {Say: "It multiplies."}},
	"multiply, boldly": {{"By a loop.", "echo 'seq $1' >product; echo 'test $(sh product 2 3) = 6' >>check; sh check"}, {Say: "It multiplies."}},
}

// model gives the next step. A real one sends the messages to a server.
func model(messages []session.Message) step {
	task, done := "", 0
	for _, m := range messages {
		switch m.Role {
		case "user":
			task, done = fmt.Sprint(m.Content), 0
		case "assistant":
			done++
		}
	}
	return scripts[task][done]
}

// turn works on the task in the last message until the model has an answer. A command that fails fails the turn.
func turn(ctx context.Context, t *session.Turn, _ session.Message) (session.TurnResult, error) {
	for {
		messages, err := session.MessagesAs[session.Message](ctx, t)
		if err != nil {
			return session.TurnResult{}, err
		}
		next := model(messages)
		if err := t.AddMessages(ctx, session.Message{Role: "assistant", Content: next.Say}); err != nil {
			return session.TurnResult{}, err
		}
		if next.Run == "" {
			return session.TurnResult{FinishReason: "stop"}, t.AddArtifact(ctx, "answer", next.Say)
		}
		r, err := t.Exec(ctx, session.Command{Args: []string{"sh", "-ec", next.Run}, Capture: true})
		if err != nil {
			return session.TurnResult{}, err
		}
		if err := errors.Join(
			t.AddMessages(ctx, session.Message{Role: "tool", Content: string(r.Stdout)}),
			session.UpdateCustomAs(ctx, t, func(m *memory) error { m.Commands++; return nil }),
		); err != nil {
			return session.TurnResult{}, err
		}
	}
}

// work makes a turn of each task, until one fails.
func work(ctx context.Context, r *session.Runner, tasks ...string) (session.RunResult, error) {
	inputs := make(chan session.Message, len(tasks))
	for _, task := range tasks {
		inputs <- session.Message{Role: "user", Content: task}
	}
	close(inputs)
	return session.RunTurns(ctx, r, inputs, turn)
}

func run(ctx context.Context, s *session.Session) error {
	r, err := session.NewRunner(ctx, s, session.RunnerOptions{Conversation: "sums", Agent: "example"})
	if err != nil {
		return err
	}
	done, err := work(ctx, r, "write a sum", "make it faster")
	if err != nil {
		return err
	}
	fmt.Printf("%d of 2 turns completed; the last one %s\n", done.Completed, done.LastFinishReason)

	// Two ways from the last good turn, each in a branch with a copy of the conversation.
	var both sync.WaitGroup
	good := map[string]bool{}
	var mu sync.Mutex
	for _, way := range []string{"wisely", "boldly"} {
		both.Go(func() {
			r, err := session.NewRunner(ctx, s, session.RunnerOptions{From: done.LastGood, Fork: way, Agent: "example"})
			if err == nil {
				var done session.RunResult
				done, err = work(ctx, r, "multiply, "+way)
				err = errors.Join(err, done.LastError)
			}
			mu.Lock()
			defer mu.Unlock()
			good[way] = err == nil
		})
	}
	both.Wait()
	for _, way := range []string{"wisely", "boldly"} {
		fmt.Printf("%s: %v\n", way, good[way])
		if good[way] {
			_, err = s.PromoteBranch(ctx, way, overlay.MergeOptions{})
		} else {
			err = s.DropBranch(ctx, way)
		}
		if err != nil {
			return err
		}
	}
	m, err := session.CustomAs[memory](ctx, r)
	fmt.Printf("the conversation remembers %d command\n", m.Commands)
	return err
}

func main() {
	ctx := context.Background()
	workspace := "."
	if len(os.Args) > 1 {
		workspace = os.Args[1]
	}
	s, err := session.Open(ctx, session.Config{Workspace: workspace})
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(run(ctx, s), s.Close()); err != nil {
		log.Fatal(err)
	}
}
