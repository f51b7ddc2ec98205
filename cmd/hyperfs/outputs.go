package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

func outputsCommand() *cli.Command {
	return &cli.Command{
		Name:      "outputs",
		Usage:     "declare which ignored paths a tool writes, or list them",
		UsageText: "hyperfs outputs declare --tool T [--checkpoint ID] [--optional] PATH…\nhyperfs outputs list [--checkpoint ID]",
		Description: example("Declared paths are exact. They are protected although they are ignored, and --strict-ignored lets them through. What is there now\n"+
			"counts for the newest checkpoint. A contract for a checkpoint ends when that is dropped or promoted.",
			"hyperfs outputs declare --tool vite node_modules/.vite/deps/_metadata.json", "hyperfs outputs list"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "tool", Usage: "the tool that writes them"},
			&cli.StringFlag{Name: "checkpoint", Usage: "ID of the checkpoint that it is about"},
			&cli.BoolFlag{Name: "optional", Usage: "the tool need not write them"},
			jsonFlag(),
		},
		Action: arguments(1, 1<<16, outputs),
	}
}

func outputs(c *cli.Context) error {
	id, err := given(c, "checkpoint")
	if err != nil {
		return err
	}
	paths := c.Args().Tail()
	switch {
	case c.Args().First() == "declare" && len(paths) > 0:
		return declareOutputs(c, id, paths)
	case c.Args().First() == "list" && len(paths) == 0 && !c.IsSet("tool") && !c.IsSet("optional"):
		return listOutputs(c, id)
	}
	return wrongArguments(c)
}

func declareOutputs(c *cli.Context, id string, paths []string) error {
	if c.String("tool") == "" {
		return errs.New(control.Usage, "outputs", "--tool", "it is missing").WithHint("hyperfs help outputs")
	}
	o := control.DeclareOptions{Tool: c.String("tool"), Checkpoint: id}
	for _, p := range paths {
		o.Outputs = append(o.Outputs, control.OutputsPath{Path: p, Optional: c.Bool("optional")})
	}
	return withWorkspace(c, func(w *control.Client) error {
		r, err := w.DeclareOutputs(c.Context, o)
		if err != nil {
			return err
		}
		return output(c, r, func(out io.Writer) error { return printContract(out, r) })
	})
}

func listOutputs(c *cli.Context, id string) error {
	return withWorkspace(c, func(w *control.Client) error {
		list, err := w.Outputs(c.Context, id)
		if err != nil {
			return err
		}
		return output(c, control.OutputsReply{Contracts: list}, func(out io.Writer) error {
			for _, k := range list {
				if err := printContract(out, k); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// printContract prints a line for each output.
func printContract(out io.Writer, k overlay.OutputContract) error {
	return table(out, func(row func(...any)) {
		for _, o := range k.Outputs {
			about := ""
			switch {
			case o.Missing && o.Optional:
				about = "not there, optional"
			case o.Missing:
				about = "missing"
			case o.Optional:
				about = "optional"
			}
			row(quote(k.Tool), quote(o.Path), k.Checkpoint, about)
		}
	})
}

func trackCommand() *cli.Command {
	return &cli.Command{
		Name:        "track",
		Usage:       "protect exact paths although they are ignored; without arguments, list them",
		UsageText:   "hyperfs track [PATH…]",
		Description: example("They need not exist. What is there now counts for the newest checkpoint.", "hyperfs track node_modules/.package-lock.json .git/HEAD"),
		Flags:       []cli.Flag{jsonFlag()},
		Action:      arguments(0, 1<<16, track),
	}
}

func track(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		var all []string
		var err error
		if c.Args().Len() > 0 {
			all, err = w.Track(c.Context, c.Args().Slice())
		} else {
			all, err = w.Tracked(c.Context)
		}
		if err != nil {
			return err
		}
		return output(c, control.TrackReply{Paths: all}, func(out io.Writer) error {
			for _, p := range all {
				if _, err := fmt.Fprintln(out, quote(p)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
