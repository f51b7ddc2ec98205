package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

// envBranch names the branch that commands are about where --branch does not. What runs in a branch has it set.
const envBranch = "HYPERFS_BRANCH"

// branchFlag is on commands that are about main, or about one branch.
func branchFlag() cli.Flag {
	return &cli.StringFlag{Name: "branch", EnvVars: []string{envBranch}, Usage: "work on this branch instead of main"}
}

// branchOf gives the branch that a command is about; "" is main.
func branchOf(c *cli.Context) string { return c.String("branch") }

// between gives the two states that the arguments name.
func between(c *cli.Context) control.Between {
	return control.Between{Branch: branchOf(c), From: c.Args().Get(0), To: c.Args().Get(1)}
}

func forkCommand() *cli.Command {
	return &cli.Command{
		Name:      "fork",
		Usage:     "make a branch and print its name",
		UsageText: "hyperfs fork [--from ID | --branch B] [-m MSG] [--subagent S] [--agent A] NAME",
		Description: example("It begins as the newest checkpoint of main or of the branch B, which gets one if it has none, or as the one that --from names. It costs the same\n"+
			"however large that is. The branch is at .hyperfs/branches/NAME below the mount, and exec runs commands in it.",
			"hyperfs fork fix-1", "hyperfs fork --from ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A fix-2"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "from", Usage: "ID of the checkpoint that it begins as"},
			&cli.StringFlag{Name: "branch", EnvVars: []string{envBranch}, Usage: "fork this branch instead of main"},
			&cli.StringFlag{Name: "message", Aliases: []string{"m"}, Usage: "what it is for"},
			&cli.StringFlag{Name: "subagent", Usage: "subagent that it is for (default: the checkpoint's)"},
			&cli.StringFlag{Name: "agent", Usage: "agent that it is for (default: the checkpoint's)"},
			jsonFlag(),
		},
		Action: arguments(1, 1, fork),
	}
}

func fork(c *cli.Context) error {
	o := overlay.ForkOptions{Name: c.Args().First(), Message: c.String("message"), Branch: branchOf(c)}
	for name, field := range map[string]*string{"from": &o.From, "subagent": &o.Subagent, "agent": &o.Agent} {
		v, err := given(c, name)
		if err != nil {
			return err
		}
		*field = v
	}
	return withWorkspace(c, func(w *control.Client) error {
		b, err := w.Fork(c.Context, o)
		if err != nil {
			return err
		}
		return output(c, b, func(out io.Writer) error {
			_, err := fmt.Fprintln(out, b.Name)
			return err
		})
	})
}

func branchesCommand() *cli.Command {
	return &cli.Command{
		Name:        "branches",
		Usage:       "list branches, oldest first",
		UsageText:   "hyperfs branches [--all]",
		Description: example("Only active ones are shown, unless --all is given.", "hyperfs branches --json"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also merged and dropped ones"},
			jsonFlag(),
		},
		Action: arguments(0, 0, listBranches),
	}
}

func listBranches(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		list, err := w.Branches(c.Context, c.Bool("all"))
		if err != nil {
			return err
		}
		return output(c, control.BranchesReply{Branches: list}, func(out io.Writer) error {
			return table(out, func(row func(...any)) {
				for _, b := range list {
					row(quote(b.Name), clock(b.CreatedAt), b.Status, "from "+quote(b.Parent), b.ForkPoint, branchTags(b), line(b.Message))
				}
			})
		})
	})
}

// branchTags gives agent and subagent as of a checkpoint.
func branchTags(b checkpoint.Branch) string {
	return tags(checkpoint.Checkpoint{Agent: b.Agent, Subagent: b.Subagent})
}

func headsCommand() *cli.Command {
	return &cli.Command{
		Name:        "heads",
		Usage:       "show the newest checkpoint of each branch or subagent",
		UsageText:   "hyperfs heads [--by branch|subagent] [--all] [--branch B] [--subagent S] [--agent A]",
		Description: example("", "hyperfs heads --by subagent"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "by", Value: string(control.HeadsByBranch), Usage: "branch or subagent"},
		}, append(listFlags(), jsonFlag())...),
		Action: arguments(0, 0, func(c *cli.Context) error {
			o, err := filter(c)
			if err != nil {
				return err
			}
			return withWorkspace(c, func(w *control.Client) error {
				list, err := w.Heads(c.Context, control.HeadsBy(c.String("by")), o)
				return printCheckpoints(c, list, err)
			})
		}),
	}
}

func mergeCommand() *cli.Command {
	return &cli.Command{
		Name:      "merge",
		Usage:     "make a branch's changes in its parent, all or none",
		UsageText: "hyperfs merge [--on-conflict reject|ours|theirs|merge] [--dry-run] [--exclusive] NAME",
		Description: example("A path that both sides have changed since the fork is a conflict, unless they did the same. reject changes nothing and lists them;\n"+
			"ours keeps the parent's, theirs takes the branch's; merge merges text line by line, and rejects what still collides. The branch ends with a\n"+
			"merge. hyperfs undo takes the changes back.",
			"hyperfs merge --dry-run fix-1", "hyperfs merge --on-conflict merge fix-1", "hyperfs merge --exclusive fix-1"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "on-conflict", Value: overlay.ConflictReject, Usage: "what becomes of a path that both have changed: reject, ours, theirs, merge"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "show what would be done, and do nothing"},
			&cli.BoolFlag{Name: "exclusive", Usage: "drop the other branches of the same parent too"},
			jsonFlag(),
		},
		Action:       arguments(1, 1, merge),
		BashComplete: completeBranches,
	}
}

func merge(c *cli.Context) error {
	o := overlay.MergeOptions{OnConflict: c.String("on-conflict"), DryRun: c.Bool("dry-run"), Exclusive: c.Bool("exclusive")}
	return withWorkspace(c, func(w *control.Client) error {
		done := progress(c, "merging")
		r, err := w.Merge(c.Context, c.Args().First(), o)
		done()
		if control.CodeOf(err) == control.BranchConflict && !flagAnywhere(c, "json") {
			err = errors.Join(printConflicts(c.App.ErrWriter, r.Conflicts), err)
		}
		if err != nil {
			return err
		}
		return output(c, control.NewMergeReply(r), func(out io.Writer) error { return printMerge(out, r) })
	})
}

func printMerge(out io.Writer, r overlay.MergeResult) error {
	if err := printConflicts(out, r.Conflicts); err != nil {
		return err
	}
	if !r.Merged {
		for _, s := range r.Steps {
			text := s.Op + "\t" + quote(s.Path)
			if s.From != "" {
				text = s.Op + "\t" + quote(s.From) + "\t" + quote(s.Path)
			}
			if _, err := fmt.Fprintln(out, text); err != nil {
				return err
			}
		}
		return nil
	}
	text := fmt.Sprintf("merged %s into %s: %s, in %s", quote(r.Branch), quote(r.Into), plural(len(r.Steps), "change"), r.Duration.Round(10*time.Microsecond))
	if r.Undo != "" {
		text += "; " + undoCommandOf(r.Into) + " takes it back"
	}
	if len(r.Dropped) > 0 {
		text += "; dropped " + strings.Join(r.Dropped, ", ")
	}
	_, err := fmt.Fprintln(out, text)
	return err
}

func printConflicts(out io.Writer, list []overlay.MergeConflict) error {
	for _, k := range list {
		text := fmt.Sprintf("conflict\t%s\tours: %s\ttheirs: %s", quote(k.Path), line(k.Ours), line(k.Theirs))
		if k.Detail != "" {
			text += "\t" + line(k.Detail)
		}
		if k.Resolved != "" {
			text += "\ttook " + k.Resolved
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return err
		}
	}
	return nil
}

func dropBranchCommand() *cli.Command {
	return &cli.Command{
		Name:         "drop-branch",
		Usage:        "discard a branch with all that it has",
		UsageText:    "hyperfs drop-branch NAME",
		Description:  example("No other branch is touched. One that others were forked from stays until they are gone.", "hyperfs drop-branch fix-2"),
		Flags:        []cli.Flag{jsonFlag()},
		Action:       arguments(1, 1, dropBranch),
		BashComplete: completeBranches,
	}
}

func dropBranch(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		name := c.Args().First()
		if err := w.DropBranch(c.Context, name); err != nil {
			return err
		}
		if flagAnywhere(c, "json") {
			return printJSON(c.App.Writer, control.DropReply{Dropped: name})
		}
		fmt.Fprintf(c.App.ErrWriter, "dropped %s\n", quote(name))
		return nil
	})
}

// completeBranches prints the names of active branches, as completeCheckpoints does IDs.
func completeBranches(c *cli.Context) {
	complete(c, func(w *control.Client) error {
		list, err := w.Branches(c.Context, false)
		for _, b := range list {
			fmt.Fprintln(c.App.Writer, b.Name)
		}
		return err
	})
}

// orNewestOf gives id, or where it is empty the checkpoint that the state of the branch comes from that the command is about.
func orNewestOf(c *cli.Context, w *control.Client, id string) (string, error) {
	name := branchOf(c)
	if id != "" || name == "" || name == overlay.MainBranch {
		return orNewest(c, w, id)
	}
	b, err := w.Branch(c.Context, name)
	return cmp.Or(b.Head, b.ForkPoint), err
}
