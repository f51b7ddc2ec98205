package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run a command, show what it changed, and keep it or roll it back",
		UsageText: "hyperfs run [--keep | --rollback | --ask] [-m MSG] [--quiet] -- CMD ARG…",
		Description: example("If the workspace is not mounted, the current directory is mounted in place while CMD runs; where there is no FUSE, it is\n"+
			"scanned before and after instead. A checkpoint is made first.\n"+
			"What CMD changed is kept if it ends with 0 and rolled back if not, unless a flag says otherwise. What is kept can\n"+
			"still be rolled back later. With --json the document comes on stdout, and CMD's own output on stderr.",
			"hyperfs run -- npm install left-pad", "hyperfs run --ask -- ./migrate.sh --all"),
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "keep", Usage: "keep what it changed, whatever its exit code"},
			&cli.BoolFlag{Name: "rollback", Usage: "roll back what it changed, whatever its exit code"},
			&cli.BoolFlag{Name: "ask", Usage: "ask on the terminal"},
			&cli.StringFlag{Name: "message", Aliases: []string{"m"}, Usage: "message of the checkpoint (default: the command)"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "do not show what changed"},
			jsonFlag(),
		}, mountFlags()...),
		Action: runAction,
	}
}

// shownChanges is how many changes run shows.
const shownChanges = 30

// runReply is what --json says of a run.
type runReply struct {
	ExitCode   int                     `json:"exit_code"`
	Checkpoint *checkpoint.Checkpoint  `json:"checkpoint,omitempty"` // that rolls back what was kept
	Kept       bool                    `json:"kept"`
	Rollback   *overlay.RollbackResult `json:"rollback,omitempty"`
	Changes    control.DiffReply       `json:"diff"`
}

// runner runs one command.
type runner struct {
	c       *cli.Context
	dir     string // where the command runs: absolute
	program string // absolute
	args    []string
	client  *control.Client
	signals *forwarder

	local *place       // the workspace, where this process has it open itself
	end   func() error // closes what local opened
}

func runAction(c *cli.Context) error {
	r, err := newRunner(c)
	if err != nil {
		return err
	}
	defer r.signals.stop()
	unmount, err := r.mounted()
	if err != nil {
		return err
	}
	code, err := r.attempt()
	if r.local == nil {
		r.client.Close()
	}
	if err := errors.Join(err, unmount()); err != nil {
		return err
	}
	if code != 0 {
		return exited(code)
	}
	return nil
}

// newRunner checks the arguments: nothing is mounted for a command that is not there.
func newRunner(c *cli.Context) (*runner, error) {
	modes := 0
	for _, f := range []string{"keep", "rollback", "ask"} {
		if c.Bool(f) {
			modes++
		}
	}
	switch {
	case c.Args().Len() == 0 || c.Args().First() == "":
		return nil, wrongArguments(c)
	case modes > 1:
		return nil, errs.New(control.Usage, "run", "", "only one of --keep, --rollback, --ask")
	case c.Bool("ask") && !isTerminal(c.App.Reader):
		return nil, errs.New(control.Usage, "run", "--ask", "stdin is not a terminal")
	}
	dir, err := base(c)
	if err != nil {
		return nil, err
	}
	r := &runner{c: c, dir: dir, args: c.Args().Slice()}
	if r.program, err = lookUp("run", dir, r.args[0]); err != nil {
		return nil, err
	}
	r.signals = newForwarder()
	return r, nil
}

// lookUp finds the program as a shell in dir would. The exit codes are the shell's too.
func lookUp(op, dir, name string) (string, error) {
	path := name
	if filepath.Base(name) != name && !filepath.IsAbs(name) {
		path = filepath.Join(dir, name)
	}
	found, err := exec.LookPath(path)
	if errors.Is(err, exec.ErrDot) {
		err = nil
	}
	switch {
	case err == nil:
		if !filepath.IsAbs(found) {
			found = filepath.Join(dir, found)
		}
		return found, nil
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return "", startFailed(op, 127, name, errors.New("command not found"))
	}
	return "", startFailed(op, 126, name, cause(errors.Unwrap(err)))
}

// startFailed is the error of a command that could not be started: it says why, and has the exit code of a shell.
func startFailed(op string, code int, name string, err error) error {
	return &failed{code, errs.Wrap(control.Exec, op, name, err)}
}

// mounted makes sure that the workspace is mounted, and gives what undoes that.
func (r *runner) mounted() (func() error, error) {
	p, err := find(r.c.Context, r.c)
	switch {
	case err == nil && p.socket != "":
		r.client = control.NewClient(p.socket)
		return func() error { return nil }, nil
	case err != nil && control.CodeOf(err) == control.NotFound:
		if p.dir, err = startDir(r.c); err != nil {
			return nil, err
		}
	case control.CodeOf(err) == control.Busy:
		var e *control.Error
		errors.As(err, &e)
		p.dir = e.On // a dead mount, which mounting replaces
	case err != nil:
		return nil, err
	}
	o, err := mountOptionsOf(r.c, p.dir)
	if err != nil {
		return nil, err
	}
	backend, err := chooseBackend(r.c, o.Workspace, o.storeDir())
	if err != nil {
		return nil, err
	}
	if backend == checkpoint.BackendScan {
		r.local = &place{dir: o.Workspace, store: o.storeDir(), backend: backend, config: o.config(), ignores: saysIgnored(r.c)}
		return func() error { return r.end() }, r.openLocal()
	}
	done := progress(r.c, "mounting")
	err = startDaemon(r.c.Context, o)
	done()
	if err != nil {
		return nil, err
	}
	if r.client, err = control.Dial(r.c.Context, o.Workspace); err != nil {
		return nil, err
	}
	return func() error { return r.unmount(o.Workspace) }, nil
}

// openLocal opens the workspace in this process.
func (r *runner) openLocal() (err error) {
	r.client, r.end, err = r.local.open(context.WithoutCancel(r.c.Context))
	return err
}

// letting calls fn while others can use the workspace too: the command may want to.
func (r *runner) letting(fn func() (int, error)) (int, error) {
	if r.local == nil {
		return fn()
	}
	if err := r.end(); err != nil {
		return 0, err
	}
	code, err := fn()
	if e := r.openLocal(); e != nil {
		r.end = func() error { return nil }
		return code, errors.Join(err, e)
	}
	return code, err
}

// unmount takes the mount away that the run made. What the command left running may still use it: then it is detached.
func (r *runner) unmount(workspace string) error {
	ctx := context.WithoutCancel(r.c.Context)
	client, err := control.Dial(ctx, workspace)
	if control.CodeOf(err) == control.NotFound {
		return nil // somebody has unmounted it
	}
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err = client.Unmount(ctx, control.UnmountOptions{}); control.CodeOf(err) == control.Busy {
		fmt.Fprintf(r.c.App.ErrWriter, "hyperfs: a program still works in %s: it is detached, and stays mounted for that program\n", quote(workspace))
		_, err = client.Unmount(ctx, control.UnmountOptions{Lazy: true})
	}
	return err
}

// attempt makes a checkpoint, runs the command and decides what becomes of its changes.
func (r *runner) attempt() (int, error) {
	message := r.c.String("message")
	if message == "" {
		message = "run " + strings.Join(r.args, " ")
	}
	ctx := context.WithoutCancel(r.c.Context) // an interrupt is for the command; what follows it must still be done
	k, err := r.client.Snapshot(ctx, overlay.SnapshotOptions{Message: message})
	if err != nil {
		return 0, err
	}
	code, err := r.letting(r.execute)
	if err != nil {
		return 0, errors.Join(err, r.client.Drop(ctx, k.ID))
	}
	d, err := r.client.Diff(ctx, control.Between{From: k.ID}, false)
	if err != nil {
		return code, err
	}
	reply := runReply{ExitCode: code, Kept: true, Changes: control.NewDiffReply(d)}
	if len(d.Changes) == 0 {
		r.say("nothing changed")
		err = r.client.Drop(ctx, k.ID)
	} else {
		err = r.settle(ctx, k, d, &reply)
	}
	if err == nil && flagAnywhere(r.c, "json") {
		err = printJSON(r.c.App.Writer, reply)
	}
	return code, err
}

// settle shows what changed, and keeps it or rolls it back.
func (r *runner) settle(ctx context.Context, k checkpoint.Checkpoint, d overlay.Diff, reply *runReply) error {
	if err := r.show(d); err != nil {
		return err
	}
	if r.keeps(reply.ExitCode) {
		reply.Checkpoint = &k
		r.say("kept; hyperfs rollback " + k.ID + " takes it back")
		return nil
	}
	done := progress(r.c, "rolling back")
	result, err := r.client.Rollback(ctx, k.ID, overlay.RollbackOptions{})
	done()
	if err != nil {
		return err
	}
	reply.Kept, reply.Rollback = false, &result.RollbackResult
	r.say(rollbackText(result.RollbackResult))
	return r.client.Drop(ctx, k.ID) // what is there now is what it holds; undo has a checkpoint of its own
}

// show prints the first changes on stderr.
func (r *runner) show(d overlay.Diff) error {
	if r.c.Bool("quiet") || flagAnywhere(r.c, "json") {
		return nil
	}
	return showChanges(r.c.App.ErrWriter, d.Changes)
}

// showChanges prints the first changes.
func showChanges(out io.Writer, changes []overlay.Change) error {
	shown := changes[:min(len(changes), shownChanges)]
	if err := printChanges(out, shown); err != nil {
		return err
	}
	if more := len(changes) - len(shown); more > 0 {
		say(out, fmt.Sprintf("and %s (hyperfs diff shows all)", plural(more, "more change")))
	}
	return nil
}

// say tells the user something.
func say(out io.Writer, text string) { fmt.Fprintln(out, "hyperfs: "+text) }

// keeps decides whether the changes stay.
func (r *runner) keeps(code int) bool {
	switch {
	case r.c.Bool("keep"):
		return true
	case r.c.Bool("rollback"):
		return false
	case r.c.Bool("ask"):
		return r.ask(code)
	}
	return code == 0
}

// ask asks until it gets an answer. The end of the input is the answer that the exit code gives.
func (r *runner) ask(code int) bool {
	in := bufio.NewReader(r.c.App.Reader)
	question := fmt.Sprintf("exit code %d. Keep these changes? [Y/n] ", code)
	if code != 0 {
		question = fmt.Sprintf("exit code %d. Keep these changes? [y/N] ", code)
	}
	for {
		fmt.Fprint(r.c.App.ErrWriter, question)
		answer, err := in.ReadString('\n')
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return true
		case "n", "no":
			return false
		case "":
			return code == 0
		}
		if err != nil {
			return code == 0
		}
	}
}

// say tells the user something, unless told to be quiet.
func (r *runner) say(text string) {
	if !r.c.Bool("quiet") {
		say(r.c.App.ErrWriter, text)
	}
}

// execute runs the command and gives its exit code as a shell would: 128 and the number of the signal that ended it.
//
// Its directory is entered by path, now that the mount is there: the one that this process was started in is the lower one.
func (r *runner) execute() (int, error) {
	cmd := exec.Command(r.program, r.args[1:]...)
	cmd.Args[0] = r.args[0]
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "PWD="+r.dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r.c.App.Reader, r.c.App.Writer, r.c.App.ErrWriter
	if flagAnywhere(r.c, "json") {
		cmd.Stdout = r.c.App.ErrWriter
	}
	return runDirectly("run", cmd, r.signals)
}

// runDirectly runs a command as a shell would, and gives its exit code. What it leaves running goes on.
func runDirectly(op string, cmd *exec.Cmd, signals *forwarder) (int, error) {
	if err := cmd.Start(); err != nil {
		return 0, startFailed(op, 126, cmd.Args[0], cause(err))
	}
	signals.to(cmd.Process)
	defer signals.to(nil)
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, errs.Wrap(control.Exec, op, cmd.Args[0], err)
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}
