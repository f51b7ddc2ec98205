package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

func diffCommand() *cli.Command {
	return &cli.Command{
		Name:      "diff",
		Usage:     "show what changed between a checkpoint and now, or between two",
		UsageText: "hyperfs diff [--name-status | --stat | --patch] [--expand] [--branch B] [A [B]]",
		Description: example("A is the newest checkpoint if it is left out, B is now.\n"+
			"Letters: A added, M modified, D deleted, R renamed, T type changed. A new directory stands for all that is in it.",
			"hyperfs diff", "hyperfs diff --stat ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "name-status", Usage: "a letter and a name for each (the default)"},
			&cli.BoolFlag{Name: "stat", Usage: "how many lines of each"},
			&cli.BoolFlag{Name: "patch", Aliases: []string{"p"}, Usage: "the lines themselves"},
			&cli.BoolFlag{Name: "expand", Usage: "list what is in a new directory too"},
			branchFlag(),
			jsonFlag(),
		},
		Action:       arguments(0, 2, showDiff),
		BashComplete: completeCheckpoints,
	}
}

func patchCommand() *cli.Command {
	return &cli.Command{
		Name:      "patch",
		Usage:     "print a patch that git apply takes",
		UsageText: "hyperfs patch [--branch B] [A [B]]",
		Description: example("From checkpoint A, or the newest, to checkpoint B, or now. It changes nothing.",
			"hyperfs patch ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A | git -C ../clone apply"),
		Flags: []cli.Flag{branchFlag()},
		Action: arguments(0, 2, func(c *cli.Context) error {
			return withWorkspace(c, func(w *control.Client) error {
				return w.Patch(c.Context, between(c), c.App.Writer)
			})
		}),
		BashComplete: completeCheckpoints,
	}
}

func reconcileCommand() *cli.Command {
	return &cli.Command{
		Name:         "reconcile",
		Usage:        "list what was created, modified, deleted and renamed since a checkpoint",
		UsageText:    "hyperfs reconcile [--branch B] [ID]",
		Description:  example("It answers from the log, without looking at the tree.", "hyperfs reconcile --json"),
		Flags:        []cli.Flag{branchFlag(), jsonFlag()},
		Action:       arguments(0, 1, reconcile),
		BashComplete: completeCheckpoints,
	}
}

func showDiff(c *cli.Context) error {
	forms := 0
	for _, f := range []string{"name-status", "stat", "patch"} {
		if c.Bool(f) {
			forms++
		}
	}
	asJSON := flagAnywhere(c, "json")
	if forms > 1 || asJSON && (c.Bool("stat") || c.Bool("patch")) {
		return errs.New(control.Usage, "diff", "", "only one of --name-status, --stat, --patch; --json is a form of the first")
	}
	return withWorkspace(c, func(w *control.Client) error {
		switch {
		case c.Bool("patch"):
			return colourPatch(c.App.Writer, func(out io.Writer) error { return w.Patch(c.Context, between(c), out) })
		case c.Bool("stat"):
			return printStat(c.App.Writer, func(out io.Writer) error { return w.Patch(c.Context, between(c), out) })
		}
		d, err := w.Diff(c.Context, between(c), c.Bool("expand"))
		if err != nil {
			return err
		}
		return output(c, control.NewDiffReply(d), func(out io.Writer) error { return printChanges(out, d.Changes) })
	})
}

// printChanges prints a letter and a name for each change.
func printChanges(out io.Writer, list []overlay.Change) error {
	colour := colours(out)
	w := bufio.NewWriter(out)
	for _, ch := range list {
		letter, hue := letterOf(ch)
		fmt.Fprint(w, paint(colour, hue, letter), "\t")
		if ch.OldPath != "" {
			fmt.Fprint(w, quote(ch.OldPath), "\t")
		}
		fmt.Fprintln(w, quote(pathOf(ch)))
	}
	return w.Flush()
}

// pathOf gives the path of a change; a directory has a slash at its end.
func pathOf(ch overlay.Change) string {
	if ch.Type == "dir" {
		return ch.Path + "/"
	}
	return ch.Path
}

// letterOf gives git's letter for a change, and its colour.
func letterOf(ch overlay.Change) (letter, hue string) {
	switch ch.Kind {
	case overlay.Created:
		return "A", green
	case overlay.Deleted:
		return "D", red
	case overlay.Renamed:
		return "R", cyan
	}
	if slices.Contains(ch.What, "type") {
		return "T", yellow
	}
	return "M", yellow
}

func reconcile(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		r, err := w.Reconcile(c.Context, branchOf(c), c.Args().First())
		if err != nil {
			return err
		}
		return output(c, control.NewReconcileReply(r), func(out io.Writer) error { return printReconcile(out, r) })
	})
}

func printReconcile(out io.Writer, r overlay.ReconcileResult) error {
	w := bufio.NewWriter(out)
	each := func(word string, list []string) {
		for _, p := range list {
			fmt.Fprintf(w, "%s\t%s\n", word, quote(p))
		}
	}
	each("created", r.Created)
	each("modified", r.Modified)
	each("deleted", r.Deleted)
	for _, m := range r.Renamed {
		fmt.Fprintf(w, "renamed\t%s\t%s\n", quote(m.From), quote(m.To))
	}
	return w.Flush()
}
