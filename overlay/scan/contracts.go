package scan

import (
	"context"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// DeclareOutputs is overlay.Contracts.DeclareOutputs. What is at the paths now counts for the checkpoint that the live state comes from.
func (w *Workspace) DeclareOutputs(ctx context.Context, c overlay.OutputContract) (overlay.OutputContract, error) {
	leave, err := w.enter(ctx, "declare outputs")
	if err != nil {
		return c, err
	}
	defer leave()
	if c.Checkpoint != "" {
		k, ok := w.history.get(c.Checkpoint)
		if !ok {
			return c, noCheckpoint("declare outputs", c.Checkpoint)
		}
		if !isActive(&k) {
			return c, errs.New(errs.Rollback, "declare outputs", c.Checkpoint, "the checkpoint is %s", k.Status)
		}
	}
	c, err = w.book.Declare(c, func(paths []string) error { return w.protect(ctx, paths) })
	return c, errs.Ensure("declare outputs", c.Tool, err)
}

func noCheckpoint(op, id string) error {
	return errs.New(errs.NotFound, op, id, "there is no such checkpoint").WithHint("`hyperfs list` shows them")
}

// Outputs is overlay.Contracts.Outputs.
func (w *Workspace) Outputs(ctx context.Context, id string) ([]overlay.OutputContract, error) {
	leave, err := w.enter(ctx, "outputs")
	if err != nil {
		return nil, err
	}
	defer leave()
	if id != "" {
		if _, ok := w.history.get(id); !ok {
			return nil, noCheckpoint("outputs", id)
		}
	}
	return w.book.Outputs(id, w.isMissing), nil
}

// isMissing reports whether nothing is at a workspace-relative path. It follows no symlink.
func (w *Workspace) isMissing(path string) bool {
	d, err := w.openDir(parentOf(path))
	if err != nil {
		return true
	}
	defer d.close()
	_, err = d.stat(baseOf(path))
	return err != nil
}

// Track is overlay.Contracts.Track. What is at the paths now counts for the checkpoint that the live state comes from.
func (w *Workspace) Track(ctx context.Context, paths []string) ([]string, error) {
	leave, err := w.enter(ctx, "track")
	if err != nil {
		return nil, err
	}
	defer leave()
	all, err := w.book.Track(paths, func(paths []string) error { return w.protect(ctx, paths) })
	return all, errs.Ensure("track", "", err)
}

// Tracked is overlay.Contracts.Tracked.
func (w *Workspace) Tracked() []string { return w.book.Tracked() }

// endContracts forgets those of checkpoints that are not active any more.
func (w *Workspace) endContracts() {
	active := func(id string) bool {
		c, ok := w.history.get(id)
		return ok && isActive(&c)
	}
	if err := w.book.End(active, func(paths []string) error { w.track(paths); return nil }); err != nil {
		w.log.Error("the contracts of a checkpoint that has ended can't be forgotten", "err", err)
	}
}
