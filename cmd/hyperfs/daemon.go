package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// daemon has one workspace open and mounted, and answers for it on its socket.
//
// The limit of open files is as high as it may be: Go's runtime raises the soft limit to the hard one when it starts.
type daemon struct {
	opts      mountOptions
	log       *slog.Logger
	started   time.Time
	workspace *overlay.Workspace
	store     *os.File // the store's directory, which an in-place mount hides from path names
	mount     *fs.Server
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
	if err = checkFuse(o.Mountpoint); err != nil {
		return d, err
	}
	if err = checkStoreOwner(o.storeDir()); err != nil {
		return d, err
	}
	cfg := o.config()
	cfg.Logger = log
	if d.workspace, err = openWorkspace(context.Background(), cfg); err != nil {
		return d, err
	}
	undo = append(undo, d.workspace.Close)
	if d.store, err = os.Open(d.workspace.Status().Store); err != nil {
		return d, err
	}
	undo = append(undo, d.store.Close)
	if err = logs.open(d.store); err != nil {
		return d, err
	}
	if d.listener, err = control.Listen(o.Workspace, o.Mountpoint, log); err != nil {
		return d, err
	}
	undo = append(undo, d.listener.Close)
	if d.mount, err = mountTree(d.workspace, o, log); err != nil {
		return d, err
	}
	d.server = control.NewServer(control.Options{
		Workspace: d.workspace,
		Host:      d,
		Logger:    log,
		SpoolDir:  "/proc/self/fd/" + strconv.Itoa(int(d.store.Fd())),
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
		d.mount.Wait()
		close(unmounted)
	}()
	d.log.Info("mounted", "workspace", d.opts.Workspace, "mountpoint", d.opts.Mountpoint, "version", buildVersion().Version)
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
	d.log.Info("unmounted")
	watchdog := time.AfterFunc(closePatience, func() {
		d.log.Error("the store cannot be closed: giving up")
		os.Exit(1)
	})
	defer watchdog.Stop()
	err := d.server.Close(d.workspace.Close)
	err = errors.Join(err, <-served, d.store.Close())
	if err != nil {
		d.log.Error("ended", "error", err)
	}
	return err
}

// endNow unmounts on a signal: cleanly if nobody uses the mount, else by detaching it and leaving its users an error.
func (d *daemon) endNow() {
	if err := d.mount.Unmount(false); err == nil {
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
	v.Features = featuresInUse(d.mount)
	return control.Daemon{
		Version:    v,
		PID:        os.Getpid(),
		StartedAt:  d.started,
		Mountpoint: d.opts.Mountpoint,
		InPlace:    d.opts.inPlace(),
		Detached:   d.detached.Load(),
	}
}

// Counters tells how many requests of the kernel there were, and how many inodes it holds.
func (d *daemon) Counters() map[string]uint64 {
	counts := d.mount.Counts()
	counts["nodes"] = uint64(d.mount.Nodes())
	return counts
}

// Unmount takes the mount away; run ends then. A lazy one ends when the last open file is closed, a forced one at once.
func (d *daemon) Unmount(_ context.Context, o control.UnmountOptions) error {
	gone := o.Lazy || o.Force
	if d.detached.Load() {
		if !gone {
			return errs.New(control.Busy, "unmount", d.opts.Workspace, "it is detached, but a program still uses it").
				WithHint("end the program, or use --force")
		}
	} else if err := d.mount.Unmount(gone); err != nil {
		return err
	}
	d.detached.Store(gone)
	if o.Force {
		d.force()
	}
	return nil
}
