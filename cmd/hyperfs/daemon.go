package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// view is how programs see the workspace that a daemon has open.
type view interface {
	// Unmount takes it away, or fails with BUSY while somebody uses it; if it is to be gone they are left behind.
	Unmount(gone bool) error

	// Wait returns when it has been taken away, by whomever.
	Wait()

	// Counters counts what was asked of it, by name.
	Counters() map[string]uint64

	// InUse tells what the system and our rights allowed.
	InUse() []control.Feature
}

// mounter makes the view of an open workspace.
type mounter func(o mountOptions, log *slog.Logger) (view, error)

// daemon has one workspace open, mounted or as it is, and answers for it on its socket.
//
// The limit of open files is as high as it may be: Go's runtime raises the soft limit to the hard one when it starts.
type daemon struct {
	opts      mountOptions
	log       *slog.Logger
	started   time.Time
	workspace closable
	store     *os.File // the store's directory, which an in-place mount hides from path names
	logs      *os.Root // the same, for the log
	view      view
	listener  net.Listener
	server    *control.Server
	signals   chan os.Signal

	forceOnce sync.Once
	forced    chan struct{} // closed when the daemon must end though the mount is in use
	detached  atomic.Bool   // nobody sees the mount any more, but files of it are open
}

// newDaemon opens and mounts the workspace; nothing answers yet. On an error nothing stays behind. logs gets its file
// as soon as the store can be trusted.
func newDaemon(o mountOptions, logs *logFile, log *slog.Logger) (d *daemon, err error) {
	d = &daemon{opts: o, log: log, started: time.Now(), signals: make(chan os.Signal, 1), forced: make(chan struct{})}
	// From here on: a signal that ended us after the mount was made would leave a dead one.
	signal.Notify(d.signals, os.Interrupt, syscall.SIGTERM)
	signal.Ignore(syscall.SIGHUP)
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; err != nil && i >= 0; i-- {
			err = errors.Join(err, undo[i]())
		}
	}()
	if err = o.feasible(); err != nil {
		return d, err
	}
	if err = checkStoreOwner(o.storeDir()); err != nil {
		return d, err
	}
	cfg := o.config()
	cfg.Logger = log
	var mount mounter
	if d.workspace, mount, err = o.open(context.Background(), cfg); err != nil {
		return d, err
	}
	undo = append(undo, d.workspace.Close)
	if d.store, err = os.Open(d.workspace.Status().Store); err != nil {
		return d, err
	}
	undo = append(undo, d.store.Close)
	if d.logs, err = os.OpenRoot(d.store.Name()); err != nil {
		return d, err
	}
	undo = append(undo, d.logs.Close)
	if err = logs.open(d.logs); err != nil {
		return d, err
	}
	if d.listener, err = control.Listen(o.Workspace, o.Mountpoint, log); err != nil {
		return d, err
	}
	undo = append(undo, d.listener.Close)
	if d.view, err = mount(o, log); err != nil {
		return d, err
	}
	d.server = control.NewServer(control.Options{
		Workspace: d.workspace,
		Host:      d.host(),
		Logger:    log,
		KeepTurns: keptTurns(o.KeepTurns),
		SpoolDir:  spoolDir(d.store),
	})
	return d, nil
}

// run answers until the mount is gone, by whomever, or a signal says so.
func (d *daemon) run() error {
	defer signal.Stop(d.signals)
	served := make(chan error, 1)
	go func() { served <- d.server.Serve(d.listener) }()
	unmounted := make(chan struct{})
	go func() {
		d.view.Wait()
		close(unmounted)
	}()
	d.log.Info(d.opts.pick("mounted", "serving"), "workspace", d.opts.Workspace, "mountpoint", d.opts.Mountpoint, "version", buildVersion().Version)
	for {
		select {
		case s := <-d.signals:
			d.log.Info("ending", "signal", s.String())
			d.endNow()
		case <-unmounted:
			return d.release(served)
		case <-d.forced:
			return d.release(served)
		}
	}
}

// closePatience is how long closing the store may take. The database tries for ever to write what it has in memory, also
// when somebody has removed the store; ending without it loses nothing that a kill would not.
const closePatience = 30 * time.Second

// release closes everything, in the order that lets the next daemon start as soon as anybody hears of it.
func (d *daemon) release(served <-chan error) error {
	d.log.Info(d.opts.pick("unmounted", "ending"))
	watchdog := time.AfterFunc(closePatience, func() {
		d.log.Error("the store cannot be closed: giving up")
		os.Exit(1)
	})
	defer watchdog.Stop()
	err := d.server.Close(d.workspace.Close)
	err = errors.Join(err, <-served, d.logs.Close(), d.store.Close())
	if err != nil {
		d.log.Error("ended", "error", err)
	}
	return err
}

// endNow unmounts on a signal: cleanly if nobody uses the mount, else by detaching it and leaving its users an error.
func (d *daemon) endNow() {
	if err := d.view.Unmount(false); err == nil {
		return
	}
	if err := d.Unmount(context.Background(), control.UnmountOptions{Force: true}); err != nil {
		d.log.Error("unmount", "error", err)
		d.force()
	}
}

func (d *daemon) force() { d.forceOnce.Do(func() { close(d.forced) }) }

// Info says who answers.
func (d *daemon) Info() control.Daemon {
	v := buildVersion()
	v.Features = d.view.InUse()
	return control.Daemon{
		Version:    v,
		PID:        os.Getpid(),
		StartedAt:  d.started,
		Mountpoint: d.opts.Mountpoint,
		InPlace:    d.opts.inPlace(),
		Detached:   d.detached.Load(),
		TmpfsDir:   d.opts.TmpfsDir,
		Branches:   d.branchMounts(),
	}
}

// branchView is a view that can show a branch at a path of its own too.
type branchView interface {
	MountBranch(name, at string) (mountpoint string, err error)
	BranchMounts() []control.BranchMount
}

func (d *daemon) branchMounts() []control.BranchMount {
	if v, ok := d.view.(branchView); ok {
		return v.BranchMounts()
	}
	return nil
}

// MountBranch implements control.BranchMounter. Root's daemon would mount for others where they may not.
func (d *daemon) MountBranch(_ context.Context, name, at string) (control.BranchMount, error) {
	v, ok := d.view.(branchView)
	switch {
	case !ok:
		return control.BranchMount{}, errs.New(control.Unsupported, "mount", at, "the workspace is not mounted")
	case os.Geteuid() == 0:
		return control.BranchMount{}, errs.New(control.Unsupported, "mount", at, "the workspace is mounted by root, who alone can show a branch of it elsewhere").
			WithHint("hyperfs exec --branch " + name)
	case !filepath.IsAbs(at):
		return control.BranchMount{}, errs.New(control.Usage, "mount", at, "the path must be absolute")
	}
	at, err := v.MountBranch(name, at)
	return control.BranchMount{Branch: name, Mountpoint: at}, err
}

// Counters counts what programs and the kernel asked for.
func (d *daemon) Counters() map[string]uint64 { return d.view.Counters() }

// meteredDaemon is a daemon whose view times what the kernel asks for.
type meteredDaemon struct {
	*daemon
	control.Meter
}

// host is the daemon with all that its view can do.
func (d *daemon) host() control.Host {
	if m, ok := d.view.(control.Meter); ok {
		return meteredDaemon{d, m}
	}
	return d
}

// Unmount takes the mount away; run ends then. A lazy one ends when the last open file is closed, a forced one at once.
func (d *daemon) Unmount(_ context.Context, o control.UnmountOptions) error {
	gone := o.Lazy || o.Force
	if d.detached.Load() {
		if !gone {
			return errs.New(control.Busy, "unmount", d.opts.Workspace, "it is detached, but a program still uses it").
				WithHint("end the program, or use --force")
		}
	} else if err := d.view.Unmount(gone); err != nil {
		return err
	}
	d.detached.Store(gone)
	if o.Force {
		d.force()
	}
	return nil
}
