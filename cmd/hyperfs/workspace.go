package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// envWorkspace names the workspace where -C does not.
const envWorkspace = "HYPERFS_WORKSPACE"

// envStore names a store that is not in the workspace.
const envStore = "HYPERFS_STORE"

// place is a workspace that was found: a daemon answers for it, or only its store is there.
type place struct {
	dir    string // absolute, symlinks resolved
	socket string // "" if no daemon answers
	store  string // "" if a daemon answers

	backend string         // of the store
	config  overlay.Config // what else there is to say of the store
	ignores bool           // config says what is ignored; else it is what the last one did who said that
}

// base gives the directory that relative paths start from.
func base(c *cli.Context) (string, error) {
	dir := "."
	for _, l := range c.Lineage() {
		if l.IsSet("C") {
			if dir = l.String("C"); dir == "" {
				return "", errs.New(control.Usage, "", "-C", "it is empty")
			}
			break
		}
	}
	abs, err := filepath.Abs(dir)
	if errors.Is(err, syscall.ENOTCONN) { // the mount around it is dead; the kernel knows its path all the same
		if abs, err = syscall.Getwd(); err == nil {
			abs = filepath.Join(abs, dir)
		}
	}
	return abs, errs.Wrap(control.Path, "find the current directory", "", err)
}

// absolute gives path, relative to -C, as an absolute one.
func absolute(c *cli.Context, path string) (string, error) {
	dir, err := base(c)
	if err != nil || filepath.IsAbs(path) {
		return filepath.Clean(path), err
	}
	return filepath.Join(dir, path), nil
}

// startDir gives the directory that -C or the environment names, in this order, else the current one.
func startDir(c *cli.Context) (string, error) {
	if env := os.Getenv(envWorkspace); env != "" && !c.IsSet("C") {
		return filepath.Abs(env)
	}
	return base(c)
}

// named gives the directory that the first argument names, else startDir: for the commands that take a workspace as it is
// and do not search upwards.
func named(c *cli.Context) (string, error) {
	if a := c.Args().First(); a != "" {
		return absolute(c, a)
	}
	return startDir(c)
}

// resolve gives dir with its symlinks resolved. The last element may be a mount that is dead, or closed to this user: such
// a one can only be looked at from outside.
func resolve(dir string) (string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err == nil || !isMounted(dir) {
		return real, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	return filepath.Join(parent, filepath.Base(dir)), err
}

// mountAround gives dir, or where dir cannot be looked at the mount of ours that it is in: what is in a dead mount is gone.
func mountAround(dir string) string {
	_, err := os.Stat(dir)
	if !errs.IsDeadMount(err) && !errors.Is(err, syscall.EACCES) {
		return dir
	}
	for up := dir; up != filepath.Dir(up); up = filepath.Dir(up) {
		if isMounted(up) {
			return up
		}
	}
	return dir
}

// find searches for a workspace from the start upwards, but takes $HYPERFS_WORKSPACE as it is.
func find(ctx context.Context, c *cli.Context) (place, error) {
	start, err := startDir(c)
	if err != nil {
		return place{}, err
	}
	dir, err := resolve(mountAround(start))
	if err != nil {
		return place{}, errs.Wrap(control.Path, "find the workspace", start, cause(err))
	}
	upwards := os.Getenv(envWorkspace) == "" || c.IsSet("C")
	for {
		if p, ok, err := look(ctx, dir); ok || err != nil {
			return p, err
		}
		if parent := filepath.Dir(dir); upwards && parent != dir {
			dir = parent
			continue
		}
		return place{}, errs.New(control.NotFound, "find the workspace", start, "it is not in one").WithHint(howToMakeOne)
	}
}

// look reports whether dir is a workspace.
func look(ctx context.Context, dir string) (place, bool, error) {
	if socket, err := control.FindSocket(ctx, dir); err == nil {
		return place{dir: dir, socket: socket}, true, nil
	}
	store := filepath.Join(dir, overlay.StoreName)
	if env := os.Getenv(envStore); env != "" {
		store = env
	}
	if backend, err := checkpoint.BackendOf(store); err == nil && backend != "" {
		return place{dir: dir, store: store, backend: backend}, true, nil
	}
	switch {
	case isDeadMount(dir):
		return place{}, false, errs.New(control.Busy, "find the workspace", dir, "its daemon died and left its mount").
			WithHint("hyperfs mount " + dir + " brings it back, hyperfs unmount " + dir + " takes it away")
	case isMounted(dir):
		if name, mountpoint := boundBranch(dir); mountpoint != "" {
			return place{}, false, errs.New(control.NotFound, "find the workspace", dir, "this is its branch %s", quote(name)).
				WithHint("hyperfs -C " + mountpoint + " works on it, with --branch " + quote(name) + " where a command is to be about this branch")
		}
		return place{}, false, foreignMount(dir)
	}
	return place{}, false, nil
}

// foreignMount is the error where dir is mounted, but no daemon answers us.
func foreignMount(dir string) error {
	return errs.New(control.Busy, "find the daemon", dir, "it is mounted, but its daemon does not answer this user").
		WithHint("ask as its owner or as root; if its socket was removed, fusermount3 -u it and mount it again")
}

// open gives a client of the place: of its daemon, or else of a server in this process that has opened the store. The
// function ends both.
func (p place) open(ctx context.Context) (*control.Client, func() error, error) {
	if p.socket != "" {
		client := control.NewClient(p.socket)
		return client, client.Close, nil
	}
	if err := checkStoreOwner(p.store); err != nil {
		return nil, nil, err
	}
	cfg := p.config
	cfg.Workspace, cfg.Store = p.dir, p.store
	cfg.SameIgnored = !p.ignores
	w, err := openLocally(ctx, p.backend, cfg)
	if err != nil {
		return nil, nil, err
	}
	server := control.NewServer(control.Options{Workspace: w, Host: offline{}, KeepTurns: keptTurnsHere(), SpoolDir: p.store})
	client := control.Local(server)
	return client, func() error {
		client.Close()
		return server.Close(w.Close)
	}, nil
}

// offline is the host of a workspace that is not mounted.
type offline struct{}

func (offline) Info() control.Daemon {
	return control.Daemon{Version: buildVersion(), PID: os.Getpid()}
}

func (offline) Counters() map[string]uint64 { return nil }

func (offline) Unmount(context.Context, control.UnmountOptions) error {
	return errs.New(control.NotFound, "unmount", "", "nothing is mounted")
}

// withWorkspace runs fn with a client of the workspace.
func withWorkspace(c *cli.Context, fn func(w *control.Client) error) error {
	p, err := find(c.Context, c)
	if err != nil {
		return err
	}
	return p.use(c.Context, fn)
}

// use runs fn with a client of the place.
func (p place) use(ctx context.Context, fn func(w *control.Client) error) (err error) {
	w, end, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if e := end(); err == nil {
			err = e
		}
	}()
	return fn(w)
}

// cause gives the errno below an error of package os, whose text repeats the path.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
