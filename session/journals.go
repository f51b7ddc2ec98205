package session

import (
	"context"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// contracts are the calls of overlay.Contracts, as a client has them.
type contracts interface {
	DeclareOutputs(ctx context.Context, c overlay.OutputContract) (overlay.OutputContract, error)
	Outputs(ctx context.Context, checkpoint string) ([]overlay.OutputContract, error)
	Track(ctx context.Context, paths []string) ([]string, error)
	Tracked(ctx context.Context) ([]string, error)
}

// journals are the calls of overlay.Journals.
type journals interface {
	Recover(ctx context.Context) ([]overlay.Recoverable, error)
	Rehydrate(ctx context.Context, id string) (checkpoint.Checkpoint, error)
}

// DeclareOutputs says which paths a tool is going to write, also below an ignored root: they are protected like any other.
func (s *Session) DeclareOutputs(ctx context.Context, c overlay.OutputContract) (overlay.OutputContract, error) {
	return through(ctx, s, "declare outputs", func(ctx context.Context, w contracts) (overlay.OutputContract, error) {
		return w.DeclareOutputs(ctx, c)
	})
}

// Outputs gives the contracts for a checkpoint, those for all checkpoints among them, oldest first; "" gives every one that there is.
func (s *Session) Outputs(ctx context.Context, checkpoint string) ([]overlay.OutputContract, error) {
	return through(ctx, s, "outputs", func(ctx context.Context, w contracts) ([]overlay.OutputContract, error) {
		return w.Outputs(ctx, checkpoint)
	})
}

// Track protects exact paths inside ignored roots. It gives all that are tracked, sorted.
func (s *Session) Track(ctx context.Context, paths ...string) ([]string, error) {
	return through(ctx, s, "track", func(ctx context.Context, w contracts) ([]string, error) { return w.Track(ctx, paths) })
}

// Tracked gives the paths that are tracked, sorted.
func (s *Session) Tracked(ctx context.Context) ([]string, error) {
	return through(ctx, s, "track", func(ctx context.Context, w contracts) ([]string, error) { return w.Tracked(ctx) })
}

// Recover lists the checkpoints that earlier daemons left, oldest first. It changes nothing.
func (s *Session) Recover(ctx context.Context) ([]overlay.Recoverable, error) {
	return through(ctx, s, "recover", func(ctx context.Context, w journals) ([]overlay.Recoverable, error) { return w.Recover(ctx) })
}

// Rehydrate makes a checkpoint of an earlier daemon one of this one, so that it can be rolled back to.
func (s *Session) Rehydrate(ctx context.Context, id string) (checkpoint.Checkpoint, error) {
	return through(ctx, s, "rehydrate", func(ctx context.Context, w journals) (checkpoint.Checkpoint, error) { return w.Rehydrate(ctx, id) })
}

// through makes a call that not every client has.
func through[W, R any](ctx context.Context, s *Session, op string, fn func(context.Context, W) (R, error)) (R, error) {
	return call(ctx, s, op, func(ctx context.Context) (R, error) {
		w, ok := any(s.client).(W)
		if !ok {
			var none R
			return none, errs.New(errs.Unsupported, op, "", "this build of hyperfs does not have it")
		}
		return fn(ctx, w)
	})
}
