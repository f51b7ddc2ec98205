package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

func serveCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.BoolFlag{Name: "foreground", Aliases: []string{"f"}, Usage: "stay in the foreground and log to stderr too"},
		&cli.Uint64Flag{Name: readyFlag, Hidden: true, Usage: "report to this descriptor when it answers"},
		jsonFlag(),
	}
	return &cli.Command{
		Name:      "serve",
		Usage:     "start a daemon for a directory that is not mounted",
		UsageText: "hyperfs serve [flags] [DIR]",
		Description: example("Programs can use the API of a workspace of the backend scan then, and commands need not open its store each time.\n"+
			"It returns when the daemon answers; hyperfs unmount ends that.",
			"hyperfs serve", "hyperfs serve --foreground ~/project"),
		Flags:  append(storeFlags(), flags...),
		Action: arguments(0, 1, serve),
	}
}

func serve(c *cli.Context) error {
	dir, err := named(c)
	if err != nil {
		return err
	}
	o, err := mountOptionsOf(c, dir)
	if err != nil {
		return err
	}
	o.Mountpoint, o.Served = "", true
	switch backend, err := checkpoint.BackendOf(o.storeDir()); {
	case err != nil:
		return err
	case backend == checkpoint.BackendFuse:
		return errs.New(control.Unsupported, "serve", o.Workspace, "its checkpoints were made by the backend fuse").WithHint("hyperfs mount")
	}
	return start(c, o, "starting")
}

// feasible fails where the daemon that is asked for can't be had, before anything is made for it.
func (o mountOptions) feasible() error {
	if o.Served {
		return nil
	}
	return checkFuse(o.Mountpoint)
}

// open opens the workspace, and gives what makes the view of it.
func (o mountOptions) open(ctx context.Context, cfg overlay.Config) (closable, mounter, error) {
	if !o.Served {
		return openMountable(ctx, cfg)
	}
	w, err := openLocally(ctx, checkpoint.BackendScan, cfg)
	if err != nil {
		return nil, nil, err
	}
	return w, func(mountOptions, *slog.Logger) (view, error) { return &plainView{gone: make(chan struct{})}, nil }, nil
}

// plainView is the workspace as it is.
type plainView struct {
	once sync.Once
	gone chan struct{} // closed when the daemon is to end
}

func (v *plainView) Unmount(bool) error {
	v.once.Do(func() { close(v.gone) })
	return nil
}

func (v *plainView) Wait() { <-v.gone }

func (v *plainView) Counters() map[string]uint64 { return nil }

func (v *plainView) InUse() []control.Feature { return nil }

// pick gives what is said of a mount, or of a workspace as it is.
func (o mountOptions) pick(mounted, served string) string {
	if o.Served {
		return served
	}
	return mounted
}
