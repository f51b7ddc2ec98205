package main

import (
	"context"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

func snapshotCommand() *cli.Command {
	return &cli.Command{
		Name:      "snapshot",
		Usage:     "make a checkpoint and print its ID",
		UsageText: "hyperfs snapshot [-m MSG] [--id ID] [--parent ID] [--branch B | --tag B] [--subagent S] [--agent A] [--backend B] [--preset NAME] [--ignore PATTERN]…",
		Description: example("Of a mounted workspace it costs the same however large that is. Where there is no FUSE, or with --backend scan, it makes\n"+
			"the current directory a workspace without a mount, and every checkpoint walks the tree, but for what --ignore and --preset name:\n"+
			"that is remembered, for rollbacks too, until somebody says something else.",
			`hyperfs snapshot -m "before the migration"`, "hyperfs snapshot --backend scan --preset deps"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "message", Aliases: []string{"m"}, Usage: "what it is for"},
			&cli.StringFlag{Name: "id", Usage: "an ID that was reserved"},
			&cli.StringFlag{Name: "parent", Usage: "ID of the checkpoint that it follows"},
			&cli.StringFlag{Name: "branch", EnvVars: []string{envBranch}, Usage: "make it of this branch"},
			&cli.StringFlag{Name: "tag", Usage: "make it of main, whatever --branch says, and give it this as the name of its branch in lists"},
			&cli.StringFlag{Name: "subagent", Usage: "subagent that it is for"},
			&cli.StringFlag{Name: "agent", Usage: "agent that it is for"},
			backendFlag(),
			jsonFlag(),
		}, patternFlags()...),
		Action: arguments(0, 0, takeSnapshot),
	}
}

func takeSnapshot(c *cli.Context) error {
	o := overlay.SnapshotOptions{Message: c.String("message")}
	for name, field := range map[string]*string{
		"id": &o.ID, "parent": &o.Parent, "branch": &o.Branch, "subagent": &o.Subagent, "agent": &o.Agent,
	} {
		v, err := given(c, name)
		if err != nil {
			return err
		}
		*field = v
	}
	tag, err := given(c, "tag")
	if err != nil {
		return err
	}
	if tag != "" {
		o.Branch = tag
	}
	p, err := findOrMake(c)
	if err != nil {
		return err
	}
	return p.use(c.Context, func(w *control.Client) error {
		if err := checkBranch(c.Context, w, o.Branch, tag != ""); err != nil {
			return err
		}
		made, err := w.Snapshot(c.Context, o)
		if err != nil {
			return err
		}
		return output(c, made, func(out io.Writer) error {
			_, err := fmt.Fprintln(out, made.ID)
			return err
		})
	})
}

// checkBranch refuses a name that is no branch, which would make a checkpoint of main with that name as a tag, and a tag that is the name of a branch, which
// would make a checkpoint of that.
func checkBranch(ctx context.Context, w *control.Client, name string, tag bool) error {
	if name == "" || name == overlay.MainBranch {
		return nil
	}
	b, err := w.Branch(ctx, name)
	code := control.CodeOf(err)
	switch {
	case err != nil && code != control.NotFound && code != control.Unsupported:
		return err
	case tag && err == nil && b.Status == checkpoint.BranchActive:
		return errs.New(control.Usage, "snapshot", name, "there is a branch of that name")
	case !tag && (err != nil || b.Status != checkpoint.BranchActive):
		return errs.New(control.NotFound, "snapshot", name, "there is no such branch").
			WithHint("`hyperfs fork` makes one; --tag gives a checkpoint of main that name")
	}
	return nil
}
