package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

func gcCommand() *cli.Command {
	return &cli.Command{
		Name:        "gc",
		Usage:       "free what nothing refers to",
		UsageText:   "hyperfs gc",
		Description: example("The daemon does it by itself too.", "hyperfs gc"),
		Flags:       []cli.Flag{jsonFlag()},
		Action: arguments(0, 0, func(c *cli.Context) error {
			return withWorkspace(c, func(w *control.Client) error {
				done := progress(c, "collecting garbage")
				r, err := w.GC(c.Context)
				done()
				if err != nil {
					return err
				}
				return output(c, r, func(out io.Writer) error { return printGC(out, r) })
			})
		}),
	}
}

func printGC(out io.Writer, r control.GCReply) error {
	_, err := fmt.Fprintf(out, "freed %s: %s of the trash, %s, %s of the log, %s\n", bytesText(r.Bytes),
		plural(r.Trash, "file"), plural(r.Backups, "preimage"), plural(r.Records, "record"), plural(r.Checkpoints, "checkpoint"))
	if f := r.Turns; err == nil && f != nil && (f.Turns > 0 || f.Blobs > 0) {
		_, err = fmt.Fprintf(out, "of turns: %s and %s, %s\n", plural(f.Turns, "turn"), plural(f.Blobs, "part")+" of states", bytesText(f.Bytes))
	}
	return err
}

func fsckCommand() *cli.Command {
	return &cli.Command{
		Name:        "fsck",
		Usage:       "prove the invariants of the store",
		UsageText:   "hyperfs fsck [--deep]",
		Description: example("It prints each problem on a line, and then ends with exit code 4. It changes nothing.", "hyperfs fsck --deep"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "deep", Usage: "read every preimage and compare its checksum"},
			jsonFlag(),
		},
		Action: arguments(0, 0, checkStore),
	}
}

func checkStore(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		done := progress(c, "checking")
		problems, err := w.Fsck(c.Context, c.Bool("deep"))
		done()
		if err != nil {
			return err
		}
		err = output(c, control.FsckReply{Problems: problems}, func(out io.Writer) error {
			for _, p := range problems {
				if _, err := fmt.Fprintf(out, "%s: %s\n", quote(p.Where), oneLine(p.What)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || len(problems) == 0 {
			return err
		}
		fmt.Fprintf(c.App.ErrWriter, "hyperfs: fsck: %s found\n", plural(len(problems), "problem"))
		return exited(exitCode(errs.New(control.Integrity, "fsck", "", "problems found")))
	})
}
