//go:build linux

package overlay

import (
	"context"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
)

// Without durable journals a daemon's checkpoints end with it. The store has the name of the session while it runs: so if it is killed, the next one ends
// them. Branches stay, and what they rest on: what is in them is nowhere else.

// disposeChunk is how many checkpoints are disposed in one transaction, at most.
const disposeChunk = 256

// endVolatile disposes the checkpoints of a session that had no durable journals, if the store names one, and notes this one if it has none either. Nobody else may be at work.
func (w *Workspace) endVolatile() error {
	return w.store.TakeOver(w.session, w.cfg.NoJournals, w.disposeOf)
}

// closeVolatile disposes the checkpoints of this session, where they are to end with it, and frees what they needed. The caller holds w.admin alone.
func (w *Workspace) closeVolatile() error {
	if !w.cfg.NoJournals {
		return nil
	}
	defer w.store.Urgent()()
	if err := w.disposeOf(w.session); err != nil {
		return err
	}
	w.collecting.Lock()
	_, err := w.collect(context.Background())
	w.collecting.Unlock()
	if err != nil {
		return err
	}
	return w.store.HandOver()
}

// disposeOf disposes the active checkpoints of a session. Cut short, it can be called again.
func (w *Workspace) disposeOf(session string) error {
	list := w.all(func(c *checkpoint.Checkpoint) bool { return c.Status == checkpoint.Active && c.Session == session })
	if len(list) == 0 {
		return nil
	}
	now := time.Now()
	for some := range slices.Chunk(list, disposeChunk) {
		err := w.store.Update(func(tx *checkpoint.Tx) error {
			for i := range some {
				some[i].Status, some[i].UpdatedAt = checkpoint.Disposed, now
				if err := tx.PutCheckpoint(some[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		w.list.Lock()
		for _, c := range some {
			*w.checkpoints[c.ID] = c
		}
		w.list.Unlock()
	}
	w.endContracts()
	w.tree.mu.Lock()
	defer w.tree.mu.Unlock()
	// As in retire: no record of the current epoch has to be told apart from those that nobody needs any more.
	if err := w.beginEpoch(func(*checkpoint.Tx, checkpoint.Epoch) error { return nil }, func() {}); err != nil {
		return err
	}
	return w.setProtecting()
}
