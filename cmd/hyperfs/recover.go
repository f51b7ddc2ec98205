package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

func recoverCommand() *cli.Command {
	return &cli.Command{
		Name:      "recover",
		Usage:     "list what earlier daemons left, and what of it can be had back",
		UsageText: "hyperfs recover",
		Description: example("Every checkpoint that was made before this daemon started, or, without one, all of them. Each is proved by planning a rollback\n"+
			"and reading all its preimages; where one can't be had back it says why. Checkpoints that can are used as they are: rollback works.\n"+
			"A store that can't be opened is read without changing it; then it ends with the exit code of the reason.",
			"hyperfs recover", "hyperfs recover --json"),
		Flags:  []cli.Flag{jsonFlag()},
		Action: arguments(0, 0, recoverLeft),
	}
}

func rehydrateCommand() *cli.Command {
	return &cli.Command{
		Name:      "rehydrate",
		Usage:     "prove a checkpoint of an earlier daemon and take it over",
		UsageText: "hyperfs rehydrate ID",
		Description: example("It prints the ID once it is proved that a rollback to it would work. Where something is missing or damaged it says what, and changes nothing.",
			"hyperfs rehydrate ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A"),
		Flags:        []cli.Flag{jsonFlag()},
		Action:       arguments(1, 1, rehydrate),
		BashComplete: completeCheckpoints,
	}
}

func rehydrate(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		done := progress(c, "proving")
		r, err := w.Rehydrate(c.Context, c.Args().First())
		done()
		if err != nil {
			return err
		}
		return output(c, r, func(out io.Writer) error {
			_, err := fmt.Fprintln(out, r.ID)
			return err
		})
	})
}

func recoverLeft(c *cli.Context) error {
	p, err := find(c.Context, c)
	if err != nil {
		return err
	}
	done := progress(c, "proving")
	list, problem, err := p.left(c.Context)
	done()
	if err != nil {
		return err
	}
	r := control.RecoverReply{Checkpoints: list}
	if problem != nil {
		r.Problem = problem.Error()
	}
	if err := output(c, r, func(out io.Writer) error { return printRecoverable(out, list) }); err != nil || problem == nil {
		return err
	}
	fmt.Fprintf(c.App.ErrWriter, "hyperfs: recover: %s\n", oneLine(r.Problem))
	return exited(exitCode(problem))
}

func printRecoverable(out io.Writer, list []overlay.Recoverable) error {
	return table(out, func(row func(...any)) {
		for _, r := range list {
			created, can := "-", "can be had back"
			if !r.CreatedAt.IsZero() {
				created = clock(r.CreatedAt)
			}
			if !r.CanRehydrate {
				can = oneLine(r.Reason)
			}
			row(r.ID, created, orDash(string(r.Status)), orDash(quote(r.Branch)), tags(r.Checkpoint), can)
		}
	})
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// left lists what earlier daemons left: as the daemon says that has the store open, or from the store. problem is why nobody can open it; then the
// list is what could be read of it, and nothing of it was changed.
func (p place) left(ctx context.Context) (list []overlay.Recoverable, problem, err error) {
	if p.socket != "" {
		err := p.use(ctx, func(w *control.Client) (err error) { list, err = w.Recover(ctx); return err })
		return list, nil, err
	}
	if problem := checkStoreOwner(p.store); problem != nil {
		return []overlay.Recoverable{}, problem, nil
	}
	waitWhileInUse(p.store)
	i, err := checkpoint.Inspect(p.store, overlay.MetaOwner)
	if err != nil {
		return nil, nil, err
	}
	problem = i.Err
	if problem == nil && p.backend == checkpoint.BackendFuse {
		problem = overlay.CheckOwner(p.dir, p.store, i.Owner)
	}
	if problem == nil {
		problem = p.use(ctx, func(w *control.Client) (err error) { list, err = w.Recover(ctx); return err })
	}
	if problem == nil || ctx.Err() != nil {
		return list, nil, problem
	}
	return recoverableOf(i, problem), problem, nil
}

// waitWhileInUse gives a command that has a store open for a moment time to end.
func waitWhileInUse(store string) {
	for deadline := time.Now().Add(lockPatience); checkpoint.InUse(store) != nil && time.Now().Before(deadline); {
		time.Sleep(lockRetry)
	}
}

// recoverableOf says of what was read of a store that nobody can open why it can't be had back.
func recoverableOf(i checkpoint.Inspection, problem error) []overlay.Recoverable {
	list := []overlay.Recoverable{}
	for _, k := range i.Checkpoints {
		why := overlay.RehydrateStatus(k)
		if why == nil {
			why = problem
		}
		list = append(list, overlay.NewRecoverable(k, why))
	}
	for _, d := range i.Damaged {
		list = append(list, overlay.NewRecoverable(checkpoint.Checkpoint{ID: d.ID, CreatedBy: "unknown"}, overlay.DamagedRecord("recover", d.ID, d.Err)))
	}
	return list
}
