package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/scan"
)

// startPatience is what a daemon gets to give up that is to start when ctx has ended.
const startPatience = 10 * time.Second

// connect gives a client of the workspace, and what frees all that was taken for it.
func (c *Config) connect(ctx context.Context) (*control.Client, func(context.Context) error, error) {
	client, err := control.Dial(ctx, c.Workspace)
	switch {
	case err == nil:
		return client, nothing, nil
	case errs.CodeOf(err) != errs.NotFound || c.Start == StartNothing:
		return nil, nil, err
	case c.Start == StartInProcess:
		return c.openHere()
	}
	if err := c.startDaemon(ctx); err != nil {
		// Another one may have been quicker.
		if client, e := control.Dial(ctx, c.Workspace); e == nil {
			return client, nothing, nil
		}
		return nil, nil, err
	}
	if client, err = control.Dial(ctx, c.Workspace); err != nil {
		return nil, nil, err
	}
	if c.KeepDaemon {
		return client, nothing, nil
	}
	return client, c.endDaemon, nil
}

func nothing(context.Context) error { return nil }

// openHere opens the workspace in this process. The client is that of a server which no socket leads to: so there is one way for every call, and it
// means the same.
func (c *Config) openHere() (*control.Client, func(context.Context) error, error) {
	w, err := scan.Open(c.overlay())
	if err != nil {
		return nil, nil, err
	}
	server := control.NewServer(control.Options{Workspace: w, Host: thisProcess{time.Now()}, SpoolDir: w.StorePath()})
	return control.Local(server), func(context.Context) error { return server.Close(w.Close) }, nil
}

// thisProcess is the host of a workspace that is open in it.
type thisProcess struct{ started time.Time }

func (p thisProcess) Info() control.Daemon {
	return control.Daemon{
		PID: os.Getpid(), StartedAt: p.started,
		Version: control.Version{Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH},
	}
}

func (thisProcess) Counters() map[string]uint64 { return nil }

func (thisProcess) Unmount(context.Context, control.UnmountOptions) error {
	return errs.New(errs.NotFound, "unmount", "", "nothing is mounted").WithHint("the session ends by Close")
}

// startDaemon starts one, and returns when it answers.
func (c *Config) startDaemon(ctx context.Context) error {
	program, err := exec.LookPath(cmp.Or(c.Program, "hyperfs"))
	if err == nil {
		program, err = filepath.Abs(program)
	}
	if err != nil {
		return errs.New(errs.NotFound, opOpen, cmp.Or(c.Program, "hyperfs"), "the program can't be found: %w", withoutPath(errors.Unwrap(err))).
			WithHint("set Config.Program, or Config.Start to StartInProcess")
	}
	if c.Backend != BackendScan {
		err = c.run(ctx, program, "mount", c.mountFlags())
		if errs.CodeOf(err) != errs.Unsupported || c.Backend == BackendFuse || c.Mountpoint != "" {
			return err
		}
	}
	return c.run(ctx, program, "serve", nil)
}

// run runs a command of hyperfs that starts a daemon.
func (c *Config) run(ctx context.Context, program, name string, flags []string) error {
	args := append([]string{name, "--json", "--tier", cmp.Or(c.Tier, "auto"), "--sync=" + strconv.FormatBool(c.Sync)}, flags...)
	for _, pattern := range c.Ignore {
		args = append(args, "--ignore="+pattern)
	}
	if c.StrictIgnored {
		args = append(args, "--strict-ignored")
	}
	if c.Store != "" {
		args = append(args, "--store", c.Store)
	}
	if c.MaxCheckpoints > 0 {
		args = append(args, "--max-checkpoints", strconv.Itoa(c.MaxCheckpoints))
	}
	cmd := exec.CommandContext(ctx, program, append(args, "--", c.Workspace)...)
	cmd.Dir = os.TempDir() // not one that is about to be mounted
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = startPatience
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return errs.Wrap(errs.Internal, opOpen, c.Workspace, context.Cause(ctx))
	}
	var reply control.ErrorReply
	if json.Unmarshal(out.Bytes(), &reply) == nil && reply.Error.Code != "" {
		return reply.Err()
	}
	return errs.New(errs.Internal, opOpen, c.Workspace, "%s %s: %w: %s", program, name, err, strings.TrimSpace(errOut.String()))
}

// mountFlags are the flags that mount has and serve doesn't.
func (c *Config) mountFlags() []string {
	flags := []string{
		"--backend", c.Backend, "--no-tmpfs=" + strconv.FormatBool(c.NoTmpfs), "--allow-other=" + strconv.FormatBool(c.AllowOther),
		"--no-hot=" + strconv.FormatBool(c.Hot.Off),
	}
	for name, value := range map[string]string{"--at": c.Mountpoint, "--tmpfs-dir": c.TmpfsDir} {
		if value != "" {
			flags = append(flags, name, value)
		}
	}
	for name, n := range map[string]int64{"--hot-file-bytes": c.Hot.FileBytes, "--hot-total-bytes": c.Hot.TotalBytes, "--hot-files": int64(c.Hot.Files)} {
		if n > 0 {
			flags = append(flags, name, strconv.FormatInt(n, 10))
		}
	}
	return flags
}

// endDaemon ends the one that startDaemon has started. Somebody else may have done it.
func (c *Config) endDaemon(ctx context.Context) error {
	client, err := control.Dial(ctx, c.Workspace)
	if errs.CodeOf(err) == errs.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Unmount(ctx, control.UnmountOptions{})
	return err
}

// branchDir gives the directory of a branch, or says why it can't be seen.
func (s *Session) branchDir(op, name string) (string, error) {
	if s.shown == name || s.shown == "" && name == overlay.MainBranch {
		return s.dir, nil
	}
	if s.shown != "" {
		return "", errs.New(errs.Unsupported, op, name, "from here only the branch %s can be seen", s.shown)
	}
	dir := filepath.Join(s.dir, overlay.StoreName, "branches", name)
	if _, err := os.Stat(dir); err != nil {
		return "", errs.New(errs.Unsupported, op, name, "it can't be seen: %w", withoutPath(err)).WithHint("branches need a mount")
	}
	return dir, nil
}
