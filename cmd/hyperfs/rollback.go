package main

import (
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/turn"
)

func rollbackCommand() *cli.Command {
	return &cli.Command{
		Name:      "rollback",
		Usage:     "put the workspace back to a checkpoint",
		UsageText: "hyperfs rollback [--discard] [--branch B] [ID]",
		Description: example("Without an ID it is the newest checkpoint. What is left behind becomes a checkpoint itself, which undo goes back to.",
			"hyperfs rollback", "hyperfs rollback --discard ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "discard", Usage: "keep no way back"},
			branchFlag(),
			jsonFlag(),
		},
		Action:       arguments(0, 1, rollBack),
		BashComplete: completeCheckpoints,
	}
}

func undoCommand() *cli.Command {
	return &cli.Command{
		Name:        "undo",
		Usage:       "undo the last rollback",
		UsageText:   "hyperfs undo [--branch B]",
		Description: example("It puts back what the last rollback took away.", "hyperfs undo"),
		Flags:       []cli.Flag{branchFlag(), jsonFlag()},
		Action: arguments(0, 0, func(c *cli.Context) error {
			return withWorkspace(c, func(w *control.Client) error {
				done := progress(c, "undoing")
				r, err := w.Undo(c.Context, branchOf(c))
				done()
				return printRollback(c, r, err)
			})
		}),
	}
}

func rollBack(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		id, err := orNewestOf(c, w, c.Args().First())
		if err != nil {
			return err
		}
		done := progress(c, "rolling back")
		r, err := w.Rollback(c.Context, id, overlay.RollbackOptions{Discard: c.Bool("discard"), Branch: branchOf(c)})
		done()
		return printRollback(c, r, err)
	})
}

// orNewest gives id, or where it is empty the newest active checkpoint.
func orNewest(c *cli.Context, w *control.Client, id string) (string, error) {
	if id != "" {
		return id, nil
	}
	s, err := w.Status(c.Context)
	if err == nil && s.Newest == "" {
		err = errs.New(control.NotFound, c.Command.Name, "", "there is no checkpoint").WithHint("hyperfs snapshot makes one")
	}
	return s.Newest, err
}

func printRollback(c *cli.Context, r control.RollbackReply, err error) error {
	if err != nil {
		return err
	}
	return output(c, r, func(out io.Writer) error {
		lines := rollbackText(r.RollbackResult) + "\n"
		for _, l := range r.Leaves {
			lines += leavesText(l) + "\n"
		}
		_, err := io.WriteString(out, lines)
		return err
	})
}

// leavesText says which conversation a rollback of the files has left where it was, and how to go on with both.
func leavesText(l turn.Leaves) string {
	s := fmt.Sprintf("the conversation %s stays at turn %s, whose files these are not: hyperfs turns begin --from %s brings them back", quote(l.Conversation), l.Head, l.Head)
	if l.At != "" {
		s += fmt.Sprintf("; hyperfs turns begin --from %s goes back to the turn that has these files", l.At)
	}
	return s
}

// rollbackText says in one line what a rollback did.
func rollbackText(r overlay.RollbackResult) string {
	s := fmt.Sprintf("rolled back to %s: %d restored, %d removed, %d modified back, ", r.Checkpoint, r.Restored, r.Removed, r.Modified)
	if r.Kept > 0 {
		s += fmt.Sprintf("%d kept for what is ignored there, ", r.Kept)
	}
	s += fmt.Sprintf("in %s", r.Duration.Round(10*time.Microsecond))
	if r.Undo != "" {
		s += "; " + undoCommandOf(r.Branch) + " takes it back"
	}
	return s
}

// undoCommandOf gives the command that undoes what was done last to a branch; "" is main.
func undoCommandOf(branch string) string {
	if branch == "" || branch == overlay.MainBranch {
		return "hyperfs undo"
	}
	return "hyperfs undo --branch " + quote(branch)
}
