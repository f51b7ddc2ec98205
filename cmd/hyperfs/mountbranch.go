package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// mountReply is what --json says of a branch that was mounted.
type mountReply struct {
	Branch     string `json:"branch"`
	Workspace  string `json:"workspace"`
	Mountpoint string `json:"mountpoint"`
}

// mountBranch shows a branch of a workspace that is mounted already at another path too.
func mountBranch(c *cli.Context) error {
	at, err := given(c, "at")
	if err != nil {
		return err
	}
	if at == "" {
		return errs.New(control.Usage, "mount", "--branch", "it needs --at, as the branch cannot stand over the workspace for everybody").
			WithHint("hyperfs exec --branch lets one command see it there")
	}
	p, err := mountedPlace(c)
	if err != nil {
		return err
	}
	x, err := askExec(c, p)
	if err != nil {
		return err
	}
	dir, err := x.branch(c.String("branch"))
	if err != nil {
		return err
	}
	if at, err = absolute(c, at); err != nil {
		return err
	}
	if at, err = directory(c.Context, at); err != nil {
		return err
	}
	if _, ok := below(x.mountpoint, at); ok {
		return errs.New(control.Path, "mount", at, "it is in the mount of the workspace")
	}
	if os.Geteuid() == 0 {
		err = bind(dir, at)
	} else {
		err = x.mountBranch(c.Context, c.String("branch"), at)
	}
	if err != nil {
		return err
	}
	if flagAnywhere(c, "json") {
		return printJSON(c.App.Writer, mountReply{c.String("branch"), x.status.Workspace, at})
	}
	fmt.Fprintf(c.App.ErrWriter, "mounted branch %s at %s\n", quote(c.String("branch")), quote(at))
	return nil
}

// mountBranch has the daemon mount a branch, where the kernel lets only root bind it.
func (x execPlace) mountBranch(ctx context.Context, name, at string) error {
	client := control.NewClient(x.socket)
	defer client.Close()
	_, err := client.MountBranch(ctx, name, at)
	return err
}

// unmountBranch takes away a branch that was mounted at another path. The branch stays, and so does the mount of its workspace.
func unmountBranch(c *cli.Context, dir, name string) error {
	if err := os.Chdir(neutralDir()); err != nil {
		return errs.Wrap(control.Internal, "unmount", dir, cause(err))
	}
	lazy := c.Bool("lazy") || c.Bool("force")
	if err := unbind(dir, lazy); err != nil {
		return err
	}
	if flagAnywhere(c, "json") {
		return printJSON(c.App.Writer, control.UnmountReply{Workspace: dir, Ended: !lazy})
	}
	fmt.Fprintf(c.App.ErrWriter, "unmounted branch %s from %s\n", quote(name), quote(dir))
	return nil
}
