package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

func turnsRunCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "make a turn of one command",
		UsageText: "hyperfs turns run [--conversation NAME] [--from ID] [--branch B] [--fork NAME] [--finish-reason R] [--timeout D] [--env K=V]… -- CMD ARG…",
		Description: example("The turn completes if CMD ends with 0; else it has failed, and the files go back. CMD has HYPERFS_TURN and HYPERFS_CONVERSATION set, so that hyperfs turns update in it\n"+
			"needs no ID. Aborting the turn ends CMD. On Linux all processes that CMD has started end with it, as of exec. With --json the document comes on stdout, and\n"+
			"CMD's own output on stderr. The exit code is CMD's, or 1 where that is 0 and the turn was aborted.",
			"hyperfs turns run --conversation fix --agent planner -- ./agent.sh",
			`hyperfs turns run -c fix -- sh -c 'make && hyperfs turns update --message "assistant=built"'`),
		Flags: append(beginFlags(), fromFlag(),
			&cli.StringFlag{Name: "finish-reason", Usage: "why it has completed, if it does"},
			&cli.DurationFlag{Name: "timeout", Usage: "end CMD after `D`, as 90s or 1h30m (default: never)"},
			&cli.StringSliceFlag{Name: "env", Usage: "set a variable, as `K=V`; may be repeated"},
			jsonFlag()),
		Action: turnsRun,
	}
}

// turnRunReply is what --json says of a turn around a command.
type turnRunReply struct {
	ExitCode int `json:"exit_code"` // as a shell shows it
	turn.Result
}

// turnRun is one turn around a command.
type turnRun struct {
	c       *cli.Context
	place   execPlace
	client  *control.Client
	begun   turn.Begun
	signals *forwarder
}

func turnsRun(c *cli.Context) error {
	if c.Args().Len() == 0 || c.Args().First() == "" {
		return wrongArguments(c)
	}
	if runtime.GOOS != "linux" && c.IsSet("timeout") {
		return errs.New(control.Unsupported, nameOf(c), "--timeout", "what CMD starts can be ended on Linux only")
	}
	o, err := beginOptions(c)
	if err != nil {
		return err
	}
	reason, err := given(c, "finish-reason")
	if err != nil {
		return err
	}
	o.PID, o.PIDStart, o.NoState = os.Getpid(), attempt.StartOf(os.Getpid()), true
	if o.Message == "" {
		o.Message = strings.Join(c.Args().Slice(), " ")
	}
	x, err := findExec(c)
	if err != nil {
		return err
	}
	signals := newForwarder() // what ended us before the turn has would leave what CMD did
	defer signals.stop()
	r := &turnRun{c: c, place: x, client: control.NewClient(x.socket), signals: signals}
	defer r.client.Close()
	ctx := context.WithoutCancel(c.Context) // an interrupt is for the command
	if r.begun, err = r.client.BeginTurn(ctx, o); err != nil {
		return err
	}
	tellBegun(c, r.begun)
	return r.run(ctx, reason)
}

// run runs the command, and ends the turn as the command did.
func (r *turnRun) run(ctx context.Context, reason string) error {
	done, failure := r.execute(ctx)
	code := done.ShellCode()
	if failure == nil && code != 0 {
		failure = exited(code)
	}
	o := turn.EndOptions{Outcome: turn.Completed, FinishReason: reason}
	if failure != nil {
		o = turn.EndOptions{Outcome: turn.Failed, Error: &checkpoint.TurnError{Message: (attempt.EndOptions{Message: failure.Error()}).Shortened().Message}}
		if _, ended := failure.(exited); !ended {
			o.Error.Code = string(errs.CodeOf(failure))
		}
	}
	result, err := r.client.EndTurn(ctx, r.begun.ID, o)
	if err != nil && failure == nil { // it can't be committed: then it has failed
		failure = err
		result, err = r.client.EndTurn(ctx, r.begun.ID, turn.EndOptions{Outcome: turn.Failed,
			Error: &checkpoint.TurnError{Message: (attempt.EndOptions{Message: failure.Error()}).Shortened().Message, Code: string(errs.CodeOf(failure))}})
	}
	if err != nil {
		return err
	}
	if result.Turn.Status == checkpoint.TurnAborted { // which has ended the command, or made nothing of what it did
		failure = exited(cmp.Or(code, 1))
	}
	_, ended := failure.(exited)
	switch {
	case !flagAnywhere(r.c, "json"):
		say(r.c.App.ErrWriter, endedText(result))
	case failure == nil || ended:
		if err := printJSON(r.c.App.Writer, turnRunReply{code, result}); err != nil {
			return err
		}
	}
	return failure
}

// execute runs the command where the turn works, until it ends or somebody has aborted the turn.
func (r *turnRun) execute(ctx context.Context) (session.Result, error) {
	cmd, err := r.place.command(r.c, r.place.unlessHere(r.begun.WorksIn))
	if err != nil {
		return session.Result{}, err
	}
	cmd.Env = append([]string{envTurn + "=" + r.begun.ID, envConversation + "=" + r.begun.Conversation}, cmd.Env...)
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { r.watch(ctx, cancel) })
	defer watch.Wait()
	defer cancel()
	if runtime.GOOS == "linux" {
		return executeUntil(ctx, cmd, r.signals)
	}
	return executeDirectly(ctx, r.place.op, cmd, r.signals)
}

// watch calls end when the turn is not pending any more, until ctx ends.
func (r *turnRun) watch(ctx context.Context, end func()) {
	for ctx.Err() == nil {
		t, err := r.client.WaitTurn(ctx, r.begun.ID)
		if err == nil {
			say(r.c.App.ErrWriter, fmt.Sprintf("the turn is %s: the command is ended", t.Status))
			end()
			return
		}
		select {
		case <-time.After(time.Second): // the daemon may come back
		case <-ctx.Done():
		}
	}
}
