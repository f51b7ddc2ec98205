package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

func listCommand() *cli.Command {
	return &cli.Command{
		Name:        "list",
		Usage:       "list checkpoints, oldest first",
		UsageText:   "hyperfs list [--all] [--branch B] [--subagent S] [--agent A]",
		Description: example("Only active ones are shown, which can be rolled back to, unless --all is given.", "hyperfs list --agent planner --json"),
		Flags:       append(listFlags(), jsonFlag()),
		Action:      arguments(0, 0, listCheckpoints),
	}
}

func showCommand() *cli.Command {
	return &cli.Command{
		Name:         "show",
		Usage:        "show one checkpoint with its lineage and children",
		UsageText:    "hyperfs show ID",
		Description:  example("", "hyperfs show ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A"),
		Flags:        []cli.Flag{jsonFlag()},
		Action:       arguments(1, 1, showCheckpoint),
		BashComplete: completeCheckpoints,
	}
}

// listFlags are the filters of list and tree.
func listFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also promoted and disposed ones"},
		&cli.StringFlag{Name: "branch", Usage: "only of this branch"},
		&cli.StringFlag{Name: "subagent", Usage: "only of this subagent"},
		&cli.StringFlag{Name: "agent", Usage: "only of this agent"},
	}
}

// listed gets the checkpoints that the flags let through.
func listed(c *cli.Context, w *control.Client) ([]checkpoint.Checkpoint, error) {
	o, err := filter(c)
	if err != nil {
		return nil, err
	}
	return w.List(c.Context, o)
}

// filter says what the flags let through.
func filter(c *cli.Context) (overlay.ListOptions, error) {
	o := overlay.ListOptions{IncludeInactive: c.Bool("all")}
	for name, field := range map[string]*string{"branch": &o.Branch, "subagent": &o.Subagent, "agent": &o.Agent} {
		v, err := given(c, name)
		if err != nil {
			return o, err
		}
		*field = v
	}
	return o, nil
}

func listCheckpoints(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		l, err := listed(c, w)
		return printCheckpoints(c, l, err)
	})
}

// printCheckpoints prints a line for each, unless there is an error.
func printCheckpoints(c *cli.Context, list []checkpoint.Checkpoint, err error) error {
	if err != nil {
		return err
	}
	return output(c, control.CheckpointsReply{Checkpoints: list}, func(out io.Writer) error {
		return table(out, func(row func(...any)) {
			for _, k := range list {
				row(k.ID, clock(k.CreatedAt), k.Status, "by "+k.CreatedBy, quote(k.Branch), tags(k), about(k))
			}
		})
	})
}

// about says in one line what a checkpoint is for.
func about(k checkpoint.Checkpoint) string {
	switch {
	case k.Message != "":
		return line(k.Message)
	case k.RollbackOf != "":
		return "before the rollback to " + k.RollbackOf
	}
	return ""
}

// tags gives agent and subagent, "-" if it has neither.
func tags(k checkpoint.Checkpoint) string {
	switch {
	case k.Agent == "" && k.Subagent == "":
		return "-"
	case k.Subagent == "":
		return quote(k.Agent)
	}
	return quote(k.Agent) + "/" + quote(k.Subagent)
}

func showCheckpoint(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		r, err := w.Show(c.Context, c.Args().First())
		if err != nil {
			return err
		}
		return output(c, r, func(out io.Writer) error { return printCheckpoint(out, r) })
	})
}

func printCheckpoint(out io.Writer, r control.CheckpointReply) error {
	return table(out, func(row func(...any)) {
		row("checkpoint", r.ID)
		row("status", r.Status)
		row("created", fmt.Sprintf("%s (%s), by %s", clock(r.CreatedAt), ago(r.CreatedAt), r.CreatedBy))
		if !r.UpdatedAt.Equal(r.CreatedAt) {
			row("updated", fmt.Sprintf("%s (%s)", clock(r.UpdatedAt), ago(r.UpdatedAt)))
		}
		row("branch", quote(r.Branch))
		optional := func(name, value string) {
			if value != "" {
				row(name, value)
			}
		}
		optional("agent", quote(r.Agent))
		optional("subagent", quote(r.Subagent))
		optional("message", oneLine(r.Message))
		optional("parent", r.Parent)
		optional("rollback of", r.RollbackOf)
		optional("git HEAD", r.GitHead)
		row("tier", r.Tier)
		row("dirty", r.Dirty)
		optional("session", r.Session)
		optional("recoverable", r.Recoverable)
		for _, k := range r.Lineage {
			row("lineage", k.ID, k.Status, about(k))
		}
		for _, k := range r.Children {
			row("child", k.ID, k.Status, about(k))
		}
	})
}
