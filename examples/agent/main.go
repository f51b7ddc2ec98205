// An agent that makes a turn of each task: what it says, makes and remembers goes back together with the variables of its Python program and the files. The last
// task it tries in two branches at once.
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
	"github.com/hyperfs/hyperfs/session/runtime"
)

// step is what the model wants: a piece of a Python program to be run, or, without one, its answer, which ends the turn.
type step struct{ Say, Code string }

// memory is the custom document of the conversation.
type memory struct {
	Steps int `json:"steps"`
}

// check is what each task has to pass: the cases are a variable, which the turns hand on.
const check = `
from subprocess import run
for script, a, b, want in cases:
    assert int(run(["sh", script, str(a), str(b)], capture_output=True, check=True).stdout) == want, script`

// scripts are the steps of the model by task.
var scripts = map[string][]step{
	"write a sum":      {{"What is to be.", "cases = [['sum', 2, 3, 5]]"}, {"How.", "open('sum', 'w').write('expr $1 + $2')" + check}, {Say: "It adds."}},
	"make it faster":   {{"Four is easier.", "cases[0][3] = 4; open('sum', 'w').write('echo 5')"}, {"The tests.", check}, {Say: "It is fast."}},
	"multiply, wisely": {{"By the shell.", "cases.append(['product', 2, 3, 6]); open('product', 'w').write('echo $(($1 * $2))')" + check}, {Say: "It multiplies."}},
	"multiply, boldly": {{"By counting.", "cases.append(['product', 2, 3, 6]); open('product', 'w').write('seq $1 | wc -l')" + check}, {Say: "It multiplies."}},
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

// turn works on the task in the last message until the model has an answer. A program that fails fails the turn.
func turn(ctx context.Context, t *session.Turn, _ session.Message) (session.TurnResult, error) {
	program, err := t.StartRuntime(ctx, runtime.CPython, session.RuntimeOptions{}) // in the turn's branch; it ends with the turn
	if err != nil {
		return session.TurnResult{}, err
	}
	saved, _, err := session.BindingsAs[[]runtime.Entry](ctx, t)
	if err == nil {
		_, err = program.Restore(ctx, saved)
	}
	for err == nil {
		var messages []session.Message
		if messages, err = session.MessagesAs[session.Message](ctx, t); err != nil {
			break
		}
		next := model(messages)
		err = t.AddMessages(ctx, session.Message{Role: "assistant", Content: next.Say})
		if next.Code == "" {
			variables, failed := program.Snapshot(ctx)
			return session.TurnResult{FinishReason: "stop"}, errors.Join(err, failed, t.SaveBindings(ctx, variables), t.AddArtifact(ctx, "answer", next.Say))
		}
		r, failed := program.Execute(ctx, next.Code)
		err = errors.Join(err, failed, t.AddMessages(ctx, session.Message{Role: "tool", Content: string(r.Stdout)}),
			session.UpdateCustomAs(ctx, t, func(m *memory) error { m.Steps++; return nil }))
	}
	return session.TurnResult{}, err
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
	ways := []string{"wisely", "boldly"}
	failed := make([]error, len(ways))
	var both sync.WaitGroup
	for i, way := range ways {
		both.Go(func() {
			r, err := session.NewRunner(ctx, s, session.RunnerOptions{From: done.LastGood, Fork: way, Agent: "example"})
			if err == nil {
				var done session.RunResult
				done, err = work(ctx, r, "multiply, "+way)
				err = errors.Join(err, done.LastError)
			}
			failed[i] = err
		})
	}
	both.Wait()
	for i, way := range ways {
		fmt.Printf("%s: %v\n", way, failed[i] == nil)
		if failed[i] == nil {
			_, err = s.PromoteBranch(ctx, way, overlay.MergeOptions{})
		} else {
			err = s.DropBranch(ctx, way)
		}
		if err != nil {
			return err
		}
	}
	m, err := session.CustomAs[memory](ctx, r)
	fmt.Printf("the conversation remembers %d steps\n", m.Steps)
	return err
}

func main() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{Workspace: append(os.Args, ".")[1]})
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(run(ctx, s), s.Close()); err != nil {
		log.Fatal(err)
	}
}
