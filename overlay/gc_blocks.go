//go:build linux

package overlay

import (
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/strategy"
)

// mergeBlocks makes one block preimage of those that the folded epochs from ≤ e < to have of a file. What the earliest lacks is added to it, which it may
// have at any time: it was not changed before the next one was made. Then the record names it alone, and then the others go.
func (w *Workspace) mergeBlocks(from, to checkpoint.Epoch, res *GCResult) error {
	list, err := w.store.Joined(from, to)
	if err != nil {
		return err
	}
	var useless []strategy.Ref
	for _, r := range list {
		if err := w.tiers.blocks.Merge(r.Parts); err != nil { // a rollback can still try
			w.log.Warn("block preimages can't be merged", "name", r.Parts[0].Name, "err", err)
			continue
		}
		crash.Point("gc-merged")
		merged := checkpoint.Content{Ref: r.Ref, Parts: slices.Clone(r.Parts[:1])}
		err := w.store.Update(func(tx *checkpoint.Tx) error { return tx.PutContent(r.Epoch, r.ID, merged) })
		if err != nil {
			return err
		}
		useless = append(useless, r.Parts[1:]...)
	}
	if len(useless) == 0 {
		return nil
	}
	w.tree.barrier()
	res.add(w.free(checkpoint.Freed{Contents: useless}))
	return nil
}

// barrier waits until nobody is left who has read the undo log before.
func (t *Tree) barrier() {
	leave := t.mu.Unlock
	t.mu.Lock()
	leave()
}
