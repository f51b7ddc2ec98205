package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/attempt"
)

func attemptCommand() *cli.Command {
	return &cli.Command{
		Name:  "attempt",
		Usage: "run a command in the mounted workspace, and roll back what it did if it fails",
		UsageText: "hyperfs attempt [--parent ID] [--branch B] [--subagent S] [--agent A] [-m MSG] [--keep-on-failure] [--no-reconcile]\n" +
			"                   [--timeout D] [--env K=V]… -- CMD ARG…\n" +
			"hyperfs attempt --list\n" +
			"hyperfs attempt --abandon ID",
		Description: example("A checkpoint is made first. If CMD ends with 0, what it changed is shown and kept; else, or when its time is over, all is rolled back.\n"+
			"On Linux all processes that CMD has started end with it, as of exec. In main, and in each branch, there is one attempt at a time: others\n"+
			"fail at once. With --json the document comes on stdout, and CMD's own output on stderr.\n\n"+
			"--list shows the attempts that are under way. --abandon gives one up that nobody will end: the files stay as they are, and the\n"+
			"checkpoint stays, for a rollback. A command that runs in it goes on.",
			"hyperfs attempt -- npm install left-pad",
			"hyperfs attempt --agent planner --branch fix-1 --timeout 10m -- ./agent.sh",
			`hyperfs attempt -m "third try" --keep-on-failure --json -- make test`),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "parent", Usage: "`ID` of the checkpoint that it follows; its tags are taken over"},
			&cli.StringFlag{Name: "branch", EnvVars: []string{envBranch}, Usage: "work in this branch; a name that is no branch is a tag"},
			&cli.StringFlag{Name: "subagent", Usage: "subagent that it is for"},
			&cli.StringFlag{Name: "agent", Usage: "agent that it is for"},
			&cli.StringFlag{Name: "message", Aliases: []string{"m"}, Usage: "message of the checkpoint (default: the command)"},
			&cli.BoolFlag{Name: "keep-on-failure", Usage: "do not roll back"},
			&cli.BoolFlag{Name: "no-reconcile", Usage: "do not find out what was changed"},
			&cli.DurationFlag{Name: "timeout", Usage: "end CMD after `D`, as 90s or 1h30m (default: never)"},
			&cli.StringSliceFlag{Name: "env", Usage: "set a variable, as `K=V`; may be repeated"},
			&cli.BoolFlag{Name: "list", Usage: "list the attempts under way, oldest first"},
			&cli.StringFlag{Name: "abandon", Usage: "give up the attempt with the checkpoint `ID`"},
			jsonFlag(),
		},
		Action: attemptAction,
	}
}

// attemptReply is what --json says of an attempt.
type attemptReply struct {
	ExitCode int `json:"exit_code"` // as a shell shows it
	control.AttemptReply
}

// trial is one attempt with a command.
type trial struct {
	c      *cli.Context
	place  execPlace
	client *control.Client
	begun  attempt.Attempt

	signals *forwarder
}

func attemptAction(c *cli.Context) error {
	if c.Bool("list") || c.IsSet("abandon") {
		return othersAttempts(c)
	}
	if c.Args().Len() == 0 || c.Args().First() == "" {
		return wrongArguments(c)
	}
	if runtime.GOOS != "linux" && c.IsSet("timeout") {
		return errs.New(control.Unsupported, "attempt", "--timeout", "what CMD starts can be ended on Linux only")
	}
	o := attempt.Options{Message: c.String("message"), PID: os.Getpid(), PIDStart: attempt.StartOf(os.Getpid())}
	for name, field := range map[string]*string{"parent": &o.Parent, "branch": &o.Branch, "subagent": &o.Subagent, "agent": &o.Agent} {
		v, err := given(c, name)
		if err != nil {
			return err
		}
		*field = v
	}
	if o.Message == "" {
		o.Message = "attempt " + strings.Join(c.Args().Slice(), " ")
	}
	x, err := findExec(c)
	if err != nil {
		return err
	}
	signals := newForwarder() // what ended us before the attempt has would leave what CMD did
	defer signals.stop()
	t := &trial{c: c, place: x, client: control.NewClient(x.socket), signals: signals}
	defer t.client.Close()
	ctx := context.WithoutCancel(c.Context) // an interrupt is for the command
	if t.begun, err = t.client.BeginAttempt(ctx, o); err != nil {
		return err
	}
	return t.run(ctx)
}

// othersAttempts lists what is under way, or gives up one of it.
func othersAttempts(c *cli.Context) error {
	id, err := given(c, "abandon")
	switch {
	case err != nil:
		return err
	case c.Args().Present() || id != "" && c.Bool("list"):
		return wrongArguments(c)
	case id == "":
		return withWorkspace(c, func(w *control.Client) error { return listAttempts(c, w) })
	}
	return withWorkspace(c, func(w *control.Client) error {
		r, err := w.AbandonAttempt(c.Context, id)
		if err != nil {
			return err
		}
		return output(c, control.NewAttemptReply(r), func(out io.Writer) error {
			_, err := fmt.Fprintf(out, "abandoned %s: the files stay as they are; hyperfs rollback%s %s takes them back\n", r.ID, inBranch(r.WorksIn), r.ID)
			return err
		})
	})
}

// inBranch gives the flag for where an attempt works.
func inBranch(name string) string {
	if name == overlay.MainBranch {
		return ""
	}
	return " --branch " + quote(name)
}

func listAttempts(c *cli.Context, w *control.Client) error {
	list, err := w.Attempts(c.Context)
	if err != nil {
		return err
	}
	return output(c, control.AttemptsReply{Attempts: list}, func(out io.Writer) error {
		return table(out, func(row func(...any)) {
			for _, a := range list {
				owner := "-"
				if a.PID != 0 {
					owner = fmt.Sprintf("process %d", a.PID)
				}
				row(a.ID, clock(a.CreatedAt), "in "+quote(a.WorksIn), owner, tags(a.Checkpoint), about(a.Checkpoint))
			}
		})
	})
}

// run runs the command, and ends the attempt as the command did. The command's error goes before what it was ended with.
func (t *trial) run(ctx context.Context) error {
	r, failure := t.execute()
	code := r.ShellCode()
	if failure == nil && code != 0 {
		failure = exited(code)
	}
	if err := t.show(ctx); err != nil {
		t.say("what was changed can't be shown: " + oneLine(err.Error()))
	}
	o := attempt.EndOptions{Outcome: attempt.Success, NoReconcile: !t.asJSON() || t.c.Bool("no-reconcile"), NoRollback: t.c.Bool("keep-on-failure")}
	if failure != nil {
		o.Outcome, o.Message = attempt.Failure, failure.Error()
	}
	result, err := t.client.EndAttempt(ctx, t.begun.ID, o)
	if err != nil && failure != nil && control.CodeOf(err) != control.AttemptRollback {
		why := errors.New(failure.Error()) // without its exit code: this is worse
		err = attempt.DoubleFault(&attempt.RollbackError{Checkpoint: t.begun.ID, Attempt: why, Rollback: err})
	}
	if err != nil {
		return err
	}
	t.tell(result)
	if _, ended := failure.(exited); t.asJSON() && (failure == nil || ended) {
		if err := printJSON(t.c.App.Writer, attemptReply{code, control.NewAttemptReply(result)}); err != nil {
			return err
		}
	}
	return failure
}

// execute runs the command where the attempt works.
func (t *trial) execute() (session.Result, error) {
	cmd, err := t.place.command(t.c, t.place.unlessHere(t.begun.WorksIn))
	if err != nil {
		return session.Result{}, err
	}
	if runtime.GOOS == "linux" {
		return execute(t.c, cmd)
	}
	return executeDirectly(context.Background(), t.place.op, cmd, t.signals)
}

func (t *trial) asJSON() bool { return flagAnywhere(t.c, "json") }

// show prints the first changes on stderr.
func (t *trial) show(ctx context.Context) error {
	if t.asJSON() || t.c.Bool("no-reconcile") {
		return nil
	}
	d, err := t.client.Diff(ctx, control.Between{From: t.begun.ID}, false)
	if err != nil {
		return err
	}
	if len(d.Changes) == 0 {
		t.say("nothing changed")
	}
	return showChanges(t.c.App.ErrWriter, d.Changes)
}

// tell says what has become of the attempt.
func (t *trial) tell(r attempt.Result) {
	switch {
	case t.asJSON():
	case r.RolledBack:
		t.say(rollbackText(*r.Rollback))
	default:
		t.say("kept; hyperfs rollback " + r.ID + " takes it back")
	}
}

func (t *trial) say(text string) { say(t.c.App.ErrWriter, text) }
