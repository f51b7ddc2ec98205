package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// backendAuto takes the backend that made the store, and for a new one the mount where that can be had.
const backendAuto = "auto"

// backends are the values of --backend.
var backends = []string{backendAuto, checkpoint.BackendFuse, checkpoint.BackendScan}

func backendFlag() cli.Flag {
	return &cli.StringFlag{Name: "backend", EnvVars: []string{"HYPERFS_BACKEND"}, Value: backendAuto,
		Usage: "how a new workspace is watched: " + strings.Join(backends, ", ") + "; scan needs no FUSE, but walks the tree for every checkpoint"}
}

// chooseBackend gives the backend for the workspace dir with its store, which may not be there yet. It says so where auto has
// to take the slower one.
func chooseBackend(c *cli.Context, dir, store string) (string, error) {
	want := c.String("backend")
	if !slices.Contains(backends, want) {
		return "", errs.New(control.Usage, c.Command.Name, "--backend", "%q is none", want).WithHint(strings.Join(backends, ", "))
	}
	is, err := checkpoint.BackendOf(store)
	switch {
	case err != nil:
		return "", err
	case is != "" && want != backendAuto && is != want:
		return "", errs.New(control.Unsupported, c.Command.Name, dir, "its checkpoints were made by the backend %s", is).
			WithHint("leave --backend out, or remove " + store + " to give up its checkpoints")
	case is != "":
		return is, hasBackend(is, dir)
	case want != backendAuto:
		return want, hasBackend(want, dir)
	}
	if err = hasFuse(dir); err == nil {
		return checkpoint.BackendFuse, nil
	}
	if control.CodeOf(err) != control.Unsupported {
		return "", err
	}
	fmt.Fprintf(c.App.ErrWriter, "hyperfs: no FUSE here: the backend scan walks the whole tree for every checkpoint instead (%s)\n", withoutHint(err))
	return checkpoint.BackendScan, nil
}

// withoutHint gives the text of an error without what to do about it.
func withoutHint(err error) string {
	if e, ok := err.(*errs.Error); ok {
		return oneLine(e.Err.Error())
	}
	return oneLine(err.Error())
}

// findOrMake finds the workspace. Where there is none, and no mount is wanted or can be had, the current directory becomes one.
func findOrMake(c *cli.Context) (place, error) {
	p, missing := find(c.Context, c)
	if missing != nil && control.CodeOf(missing) != control.NotFound {
		return p, missing
	}
	if missing == nil && p.socket != "" {
		return p, refusePatterns(c)
	}
	if missing != nil {
		dir, err := startDir(c)
		if err != nil {
			return p, err
		}
		if p.dir, err = resolve(dir); err != nil {
			return p, errs.Wrap(control.Path, "snapshot", dir, cause(err))
		}
		if p.store = filepath.Join(p.dir, overlay.StoreName); os.Getenv(envStore) != "" {
			p.store = os.Getenv(envStore)
		}
	}
	backend, err := chooseBackend(c, p.dir, p.store)
	if err != nil {
		return p, err
	}
	if missing != nil && backend != checkpoint.BackendScan {
		return p, missing
	}
	p.backend = backend
	if backend != checkpoint.BackendScan {
		return p, refusePatterns(c)
	}
	if p.ignores = saysIgnored(c); p.ignores {
		p.config.Ignore, err = ignoreOf(c)
	}
	return p, err
}

// nothingToMount is the error of mount where the workspace is not one of mounts.
func nothingToMount(c *cli.Context, o mountOptions) error {
	backend, err := checkpoint.BackendOf(o.storeDir())
	switch want := c.String("backend"); {
	case err != nil:
		return err
	case !slices.Contains(backends, want):
		return errs.New(control.Usage, "mount", "--backend", "%q is none", want).WithHint(strings.Join(backends, ", "))
	case backend == checkpoint.BackendScan:
		return errs.New(control.Unsupported, "mount", o.Workspace, "there is nothing to mount: its checkpoints are made by the backend scan").
			WithHint("snapshot, diff, rollback and run work as it is, and hyperfs serve starts a daemon; remove " + o.storeDir() + " to give up its checkpoints and mount it")
	case want == checkpoint.BackendScan:
		return errs.New(control.Usage, "mount", "--backend", "there is nothing to mount with the backend scan").
			WithHint("hyperfs snapshot --backend scan, or hyperfs serve for a daemon")
	}
	return nil
}
