package main

import (
	"context"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

const (
	lockPatience = 3 * time.Second       // how long a locked store is waited for
	lockRetry    = 20 * time.Millisecond // between two tries
)

// openWorkspace opens a workspace. A store that is locked is tried again for a while: a daemon whose mount is gone needs a
// moment to end, and a command that works without a daemon holds the lock only while it runs.
func openWorkspace(ctx context.Context, cfg overlay.Config) (*overlay.Workspace, error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		w, err := overlay.Open(cfg)
		if control.CodeOf(err) != control.Busy {
			return w, err
		}
		select {
		case <-time.After(lockRetry):
		case <-ctx.Done():
			return nil, err
		}
	}
}
