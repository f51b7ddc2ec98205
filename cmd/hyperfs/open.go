package main

import (
	"context"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/scan"
)

const (
	lockPatience = 3 * time.Second       // how long a locked store is waited for
	lockRetry    = 20 * time.Millisecond // between two tries
)

// patiently opens a store. One that is locked is tried again for a while: a daemon whose mount is gone needs a moment to end,
// and a command that works without a daemon holds the lock only while it runs.
func patiently[T any](ctx context.Context, open func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		w, err := open()
		if control.CodeOf(err) != control.Busy {
			return w, err
		}
		select {
		case <-time.After(lockRetry):
		case <-ctx.Done():
			return w, err
		}
	}
}

// closable is a workspace in this process.
type closable interface {
	control.Workspace
	Close() error
}

// openLocally opens a workspace that nobody has mounted, with the backend that made its store.
func openLocally(ctx context.Context, backend string, cfg overlay.Config) (closable, error) {
	if backend == checkpoint.BackendScan {
		return patiently(ctx, func() (closable, error) {
			w, err := scan.Open(cfg)
			return w, err
		})
	}
	w, _, err := openMountable(ctx, cfg)
	return w, err
}
