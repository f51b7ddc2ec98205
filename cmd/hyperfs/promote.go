package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
)

func promoteCommand() *cli.Command {
	return &cli.Command{
		Name:      "promote",
		Usage:     "accept what is there now; the checkpoint is kept as a record only",
		UsageText: "hyperfs promote [--patch] ID",
		Description: example("Its preimages are freed: it cannot be rolled back to any more. It never runs git.",
			"hyperfs promote --patch ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A > work.patch"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "patch", Usage: "print the patch since the checkpoint; if it cannot be made, nothing is promoted"},
			jsonFlag(),
		},
		Action:       arguments(1, 1, promote),
		BashComplete: completeCheckpoints,
	}
}

func dropCommand() *cli.Command {
	return &cli.Command{
		Name:         "drop",
		Usage:        "forget a checkpoint; the workspace stays as it is",
		UsageText:    "hyperfs drop ID",
		Description:  example("Earlier checkpoints can still be rolled back to.", "hyperfs drop ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A"),
		Flags:        []cli.Flag{jsonFlag()},
		Action:       arguments(1, 1, drop),
		BashComplete: completeCheckpoints,
	}
}

func promote(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		done := progress(c, "promoting")
		r, err := w.Promote(c.Context, c.Args().First(), control.PromoteOptions{Patch: c.Bool("patch")})
		done()
		if err != nil {
			return err
		}
		if flagAnywhere(c, "json") {
			return printJSON(c.App.Writer, control.NewPromoteReply(r.Checkpoint, r.Patch))
		}
		fmt.Fprintf(c.App.ErrWriter, "promoted %s\n", r.Checkpoint.ID)
		_, err = io.WriteString(c.App.Writer, r.Patch)
		return err
	})
}

func drop(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		id := c.Args().First()
		if err := w.Drop(c.Context, id); err != nil {
			return err
		}
		if flagAnywhere(c, "json") {
			return printJSON(c.App.Writer, control.DropReply{Dropped: id})
		}
		fmt.Fprintf(c.App.ErrWriter, "dropped %s\n", id)
		return nil
	})
}
