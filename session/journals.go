package session

import (
	"context"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

// DeclareOutputs says which paths a tool is going to write, also below an ignored root: they are protected like any other.
func (s *Session) DeclareOutputs(ctx context.Context, c overlay.OutputContract) (overlay.OutputContract, error) {
	o := control.DeclareOptions{Tool: c.Tool, Checkpoint: c.Checkpoint}
	for _, p := range c.Outputs {
		o.Outputs = append(o.Outputs, control.OutputsPath{Path: p.Path, Optional: p.Optional})
	}
	return call(ctx, s, "declare outputs", func(ctx context.Context) (overlay.OutputContract, error) { return s.client.DeclareOutputs(ctx, o) })
}

// Outputs gives the contracts for a checkpoint, those for all checkpoints among them, oldest first; "" gives every one that there is.
func (s *Session) Outputs(ctx context.Context, checkpoint string) ([]overlay.OutputContract, error) {
	return call(ctx, s, "outputs", func(ctx context.Context) ([]overlay.OutputContract, error) { return s.client.Outputs(ctx, checkpoint) })
}

// Track protects exact paths inside ignored roots. It gives all that are tracked, sorted.
func (s *Session) Track(ctx context.Context, paths ...string) ([]string, error) {
	return call(ctx, s, "track", func(ctx context.Context) ([]string, error) { return s.client.Track(ctx, paths) })
}

// Tracked gives the paths that are tracked, sorted.
func (s *Session) Tracked(ctx context.Context) ([]string, error) {
	return call(ctx, s, "track", s.client.Tracked)
}

// Recover lists the checkpoints that earlier daemons left, oldest first. It changes nothing.
func (s *Session) Recover(ctx context.Context) ([]overlay.Recoverable, error) {
	return call(ctx, s, "recover", s.client.Recover)
}

// Rehydrate makes a checkpoint of an earlier daemon one of this one, so that it can be rolled back to.
func (s *Session) Rehydrate(ctx context.Context, id string) (checkpoint.Checkpoint, error) {
	return call(ctx, s, "rehydrate", func(ctx context.Context) (checkpoint.Checkpoint, error) { return s.client.Rehydrate(ctx, id) })
}
