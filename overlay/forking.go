//go:build linux

package overlay

import (
	"context"
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// What branches need of main.

// Store gives the store. Who uses it must be done before the workspace is closed.
func (w *Workspace) Store() *checkpoint.Store { return w.store }

// StoreDir opens a directory of the store, and makes it if there is none.
func (w *Workspace) StoreDir(name string) (*os.File, error) {
	fd, err := subdir(w.storeFd, name)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Find is Get without what has to be found out.
func (w *Workspace) Find(id string) (checkpoint.Checkpoint, error) {
	if c, ok := w.find(id); ok {
		return c, nil
	}
	return checkpoint.Checkpoint{}, noCheckpoint(id)
}

func noCheckpoint(id string) error {
	return errs.New(errs.NotFound, "find checkpoint", id, "there is no such checkpoint").WithHint("`hyperfs list` shows them")
}

// Announce tells all subscribers of a change of state. It never blocks.
func (w *Workspace) Announce(ev Event) { w.events.send(ev) }

// DiffEpochs tells what changed from the beginning of one epoch to that of a later one, with what is below created directories. Checkpoints or pins
// must need both: else NOT_FOUND.
func (w *Workspace) DiffEpochs(ctx context.Context, from, to checkpoint.Epoch) ([]Change, error) {
	const op = "diff"
	leave, err := w.enter(op, true)
	if err != nil {
		return nil, err
	}
	defer leave()
	for _, e := range []checkpoint.Epoch{from, to} {
		if w.needers(e) == 0 {
			return nil, errs.New(errs.NotFound, op, "", "nobody has kept the state at the beginning of epoch %d", e)
		}
	}
	w.tree.flushMapped()
	w.tree.lockToLook() // what is not in the log is read from the tree: a change between the two would be told wrongly
	defer w.tree.unlockLooked()
	d, err := w.differOf(ctx, from, to)
	if err != nil {
		return nil, errs.Ensure(op, "", err)
	}
	defer d.close()
	found, err := d.run()
	changes := make([]Change, len(found))
	for i, c := range found {
		changes[i] = c.Change
	}
	return changes, errs.Ensure(op, "", err)
}

func (w *Workspace) differOf(ctx context.Context, from, to checkpoint.Epoch) (*differ, error) {
	a, err := w.store.Fold(from, 0)
	if err != nil {
		return nil, err
	}
	b, err := w.store.Fold(to, 0)
	if err != nil {
		return nil, err
	}
	return w.tree.newDiffer(ctx, a, b, true), nil
}
