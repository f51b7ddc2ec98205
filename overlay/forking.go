//go:build linux

package overlay

import (
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// What branches need of main.

// Store gives the store. Who uses it must be done before the workspace is closed.
func (w *Workspace) Store() *checkpoint.Store { return w.store }

// Turns gives the turns that the store has.
func (w *Workspace) Turns() *checkpoint.Turns { return w.store.Turns() }

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
