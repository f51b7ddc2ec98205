package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
)

func execCommand() *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Usage:     "run a command in the workspace, or in a branch that stands at the workspace's own path",
		UsageText: "hyperfs exec [--branch B] [--timeout D] [--env K=V]… [--sandbox [--write PATH]…] [--network host | none] -- CMD ARG…",
		Description: example("When CMD ends, or its time is over, so do all processes that it has started, daemons too. In a branch it has HYPERFS_BRANCH set,\n"+
			"so that hyperfs commands in it are about that branch; without --branch that is not passed on.\n"+
			"With --json the document comes on stdout, and CMD's own output on stderr.",
			"hyperfs exec --branch try -- npm test", "hyperfs exec --branch try --sandbox --network none --timeout 1h -- ./agent.sh"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "branch", Usage: "what CMD finds at the workspace's path is the branch `B`"},
			&cli.DurationFlag{Name: "timeout", Usage: "end CMD after `D`, as 90s or 1h30m (default: never)"},
			&cli.StringSliceFlag{Name: "env", Usage: "set a variable, as `K=V`; may be repeated"},
			&cli.BoolFlag{Name: "sandbox", Usage: "CMD may change the workspace and /tmp only, and has no rights of root over the system"},
			&cli.StringSliceFlag{Name: "write", Usage: "and `PATH`; may be repeated"},
			&cli.StringFlag{Name: "network", Value: string(session.NetworkHost), Usage: "what CMD reaches: host, or none but a loopback device of its own"},
			jsonFlag(),
		},
		Action: execAction,
	}
}

// execReply is what --json says of a command.
type execReply struct {
	ExitCode int           `json:"exit_code"` // as a shell shows it: 128 and the number of the signal that ended it
	Duration time.Duration `json:"duration_ns"`
}

func execAction(c *cli.Context) error {
	if c.Args().Len() == 0 || c.Args().First() == "" {
		return wrongArguments(c)
	}
	x, err := findExec(c)
	if err != nil {
		return err
	}
	branch, err := given(c, "branch")
	if err != nil {
		return err
	}
	cmd, err := x.command(c, branch)
	if err != nil {
		return err
	}
	r, err := execute(c, cmd)
	if err != nil {
		return err
	}
	if flagAnywhere(c, "json") {
		if err := printJSON(c.App.Writer, execReply{r.ShellCode(), r.Duration}); err != nil {
			return err
		}
	}
	if code := r.ShellCode(); code != 0 {
		return exited(code)
	}
	return nil
}

// execPlace is where a command is to run.
type execPlace struct {
	place
	op         string // the command of ours that is to use it, for errors
	status     control.StatusReply
	mountpoint string // "" where the workspace is served without a mount
}

// findExec finds the workspace, for which a daemon must answer: else nothing would keep what the command changes.
func findExec(c *cli.Context) (execPlace, error) {
	p, err := find(c.Context, c)
	if err != nil {
		return execPlace{}, err
	}
	return askExec(c, p)
}

// askExec asks the daemon of a place.
func askExec(c *cli.Context, p place) (x execPlace, err error) {
	x.place, x.op = p, nameOf(c)
	if x.socket == "" {
		return x, errs.New(control.NotFound, x.op, x.dir, "it is not mounted").WithHint("hyperfs mount " + x.dir)
	}
	client := control.NewClient(x.socket)
	defer client.Close()
	if x.status, err = client.Status(c.Context); err != nil {
		return x, err
	}
	if x.status.Daemon.Detached {
		return x, errs.New(control.Busy, x.op, x.dir, "its mount is detached").WithHint("hyperfs mount, once the programs that use it have ended")
	}
	x.mountpoint = x.status.Daemon.Mountpoint
	return x, nil
}

// command makes the command of the flags, which is to find a branch at the workspace's path, or what is there for us if that is "".
func (x execPlace) command(c *cli.Context, branch string) (cmd session.Command, err error) {
	cmd = session.Command{
		Args: c.Args().Slice(), Workspace: x.mountpoint, Env: c.StringSlice("env"), Timeout: new(c.Duration("timeout")),
		Network: session.Network(c.String("network")), AcceptFailure: true,
		Stdin: c.App.Reader, Stdout: c.App.Writer, Stderr: c.App.ErrWriter,
	}
	if x.mountpoint == "" {
		cmd.Workspace = x.status.Workspace
	}
	if flagAnywhere(c, "json") {
		cmd.Stdout = c.App.ErrWriter
	}
	if branch != "" {
		cmd.Workspace = x.status.Workspace
		if cmd.Source, err = x.branch(branch); err != nil {
			return cmd, err
		}
		tellBranch(&cmd, branch)
	} else {
		name, _ := boundBranch(cmd.Workspace) // we may run in a branch ourselves
		tellBranch(&cmd, name)
	}
	if cmd.Dir, err = x.startIn(c, cmd.Workspace, branch); err != nil {
		return cmd, err
	}
	switch {
	case c.Bool("sandbox"):
		cmd.Sandbox, err = x.sandbox(c)
	case c.IsSet("write"):
		err = errs.New(control.Usage, "exec", "--write", "it belongs to --sandbox: without that, all can be written to")
	}
	return cmd, err
}

// unlessHere gives the name of a branch, or "" if we find it, or main, at the workspace's path ourselves.
func (x execPlace) unlessHere(branch string) string {
	if shown, _ := boundBranch(x.mountpoint); branch == shown || shown == "" && branch == overlay.MainBranch {
		return ""
	}
	return branch
}

// tellBranch makes hyperfs commands in cmd be about the branch that cmd finds at the workspace's path, "" being main, whatever our own environment
// says. What --env says goes before.
func tellBranch(cmd *session.Command, branch string) {
	if branch == "" {
		cmd.Unset = append(cmd.Unset, envBranch)
		return
	}
	cmd.Env = append([]string{envBranch + "=" + branch}, cmd.Env...)
}

// branch gives the directory of a branch.
func (x execPlace) branch(name string) (string, error) {
	if name == "" || name != filepath.Base(name) || !filepath.IsLocal(name) || name == "." {
		return "", errs.New(control.Usage, x.op, "--branch", "%q is no name of a branch", name)
	}
	if x.mountpoint == "" {
		return "", errs.New(control.Unsupported, x.op, x.status.Workspace, "branches need a mount").WithHint("hyperfs unmount, then hyperfs mount")
	}
	dir := x.branchDir(name)
	_, err := os.Stat(dir)
	if in, _ := boundBranch(x.mountpoint); in != "" && err != nil {
		return "", errs.New(control.Unsupported, x.op, name, "from here only the branch %s can be seen", quote(in)).WithHint("ask outside of hyperfs exec --branch")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", errs.New(control.NotFound, x.op, name, "there is no such branch").WithHint("hyperfs branches lists them")
	}
	return dir, errs.Wrap(control.Path, x.op, dir, cause(err))
}

// shelf gives the directory of branches and checkpoints, "" where there is none.
func (x execPlace) shelf() string {
	if x.mountpoint == "" {
		return ""
	}
	return filepath.Join(x.mountpoint, overlay.StoreName)
}

// branchDir gives where a branch is in the mount, "" where there is none.
func (x execPlace) branchDir(name string) string {
	if x.mountpoint == "" || name == "" {
		return ""
	}
	return filepath.Join(x.shelf(), "branches", name)
}

// startIn gives the directory that we were called in, below root where that was in the workspace or in the branch, and else root.
func (x execPlace) startIn(c *cli.Context, root, branch string) (string, error) {
	dir, err := base(c)
	if err != nil {
		return "", err
	}
	if dir, err = resolve(dir); err != nil {
		return "", errs.Wrap(control.Path, "exec", dir, cause(err))
	}
	if rel, ok := below(x.branchDir(branch), dir); ok {
		return filepath.Join(root, rel), nil
	}
	if _, ok := below(x.shelf(), dir); ok {
		return root, nil // another branch, or a checkpoint
	}
	for _, top := range []string{x.mountpoint, x.status.Workspace} {
		if rel, ok := below(top, dir); ok {
			return filepath.Join(root, rel), nil
		}
	}
	return root, nil
}

// below gives path relative to top, if it is top or below it. Both are taken as they are: what a mount hides can't be looked at.
func below(top, path string) (string, bool) {
	rel, err := filepath.Rel(top, path)
	return rel, top != "" && err == nil && filepath.IsLocal(rel)
}

// sandbox makes that of the flags. In it the workspace itself, its store, its preimages and its daemon are out of reach by any other path.
func (x execPlace) sandbox(c *cli.Context) (*session.Sandbox, error) {
	s := &session.Sandbox{Protect: []string{x.status.Workspace}}
	for _, path := range c.StringSlice("write") {
		abs, err := absolute(c, path)
		if err != nil {
			return nil, err
		}
		if path == "" {
			return nil, errs.New(control.Usage, "exec", "--write", "it is empty")
		}
		s.Write = append(s.Write, abs)
	}
	if x.mountpoint != "" {
		s.Protect = append(s.Protect, x.mountpoint)
	}
	if _, ok := below(x.status.Workspace, x.status.Store); !ok {
		s.Protect = append(s.Protect, x.status.Store)
	}
	s.Hide = x.hidden()
	return s, nil
}

// hidden lists the directories of daemons' sockets and of preimages in RAM, also those of other workspaces.
func (x execPlace) hidden() []string {
	dirs := []string{"/dev/shm/hyperfs"}
	for _, socket := range append(control.Sockets(x.status.Workspace), x.socket) {
		dirs = append(dirs, filepath.Dir(socket))
	}
	if dir := x.status.Daemon.TmpfsDir; dir != "" {
		dirs = append(dirs, dir)
	}
	for _, prefix := range []string{"/tmp/hyperfs-", "/dev/shm/hyperfs-"} { // of each user, by number
		found, _ := filepath.Glob(prefix + "*") // a bad pattern is its only error
		for _, dir := range found {
			if _, err := strconv.Atoi(strings.TrimPrefix(dir, prefix)); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// execute runs cmd, and passes on to it the signals that we get.
func execute(c *cli.Context, cmd session.Command) (session.Result, error) {
	signals := newForwarder()
	defer signals.stop()
	return executeUntil(context.WithoutCancel(c.Context), cmd, signals) // an interrupt is for the command
}

// executeUntil runs cmd until it ends or ctx does.
func executeUntil(ctx context.Context, cmd session.Command, signals *forwarder) (session.Result, error) {
	p, err := cmd.Start(ctx)
	var start *session.StartError
	if errors.As(err, &start) {
		code := 126
		if start.NotFound {
			code = 127
		}
		return session.Result{}, &failed{code, err}
	}
	if err != nil {
		return session.Result{}, err
	}
	signals.to(p)
	defer signals.to(nil)
	return p.Wait()
}

// executeDirectly runs cmd where package session can't, until it ends or ctx does.
func executeDirectly(ctx context.Context, op string, c session.Command, signals *forwarder) (session.Result, error) {
	program, err := lookUp(op, c.Dir, c.Args[0])
	if err != nil {
		return session.Result{}, err
	}
	cmd := exec.CommandContext(ctx, program, c.Args[1:]...)
	cmd.Args[0], cmd.Dir = c.Args[0], c.Dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(c.Unset, name)
	})
	cmd.Env = append(append(cmd.Env, "PWD="+c.Dir), c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	code, err := runDirectly(op, cmd, signals)
	return session.Result{ExitCode: code}, err
}
