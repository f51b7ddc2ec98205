//go:build linux

package overlay

import (
	"cmp"
	"context"
	"io"
	"math"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
)

// dirtyMax is how far changes are counted for a checkpoint's Dirty field.
const dirtyMax = 1 << 20

// List gives the checkpoints that the options let through, oldest first.
func (w *Workspace) List(o ListOptions) ([]checkpoint.Checkpoint, error) {
	if err := w.check("list"); err != nil {
		return nil, err
	}
	all := w.all(func(c *checkpoint.Checkpoint) bool {
		return (o.IncludeInactive || c.Status == checkpoint.Active || c.Status == checkpoint.RollingBack) &&
			(o.Branch == "" || c.Branch == o.Branch) &&
			(o.Subagent == "" || c.Subagent == o.Subagent) &&
			(o.Agent == "" || c.Agent == o.Agent)
	})
	return all, w.describe(all)
}

// all gives copies of the checkpoints that keep asks for, oldest first.
func (w *Workspace) all(keep func(*checkpoint.Checkpoint) bool) []checkpoint.Checkpoint {
	w.list.RLock()
	defer w.list.RUnlock()
	list := []checkpoint.Checkpoint{}
	for _, c := range w.checkpoints {
		if keep(c) {
			list = append(list, *c)
		}
	}
	slices.SortFunc(list, func(a, b checkpoint.Checkpoint) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

// describe fills in what is found out when a checkpoint is asked for.
func (w *Workspace) describe(list []checkpoint.Checkpoint) error {
	if err := w.countDirty(list); err != nil {
		return err
	}
	return w.judgeRecoverable(list)
}

// judgeRecoverable fills in what a reboot would do to the checkpoints.
func (w *Workspace) judgeRecoverable(list []checkpoint.Checkpoint) error {
	first := checkpoint.Epoch(math.MaxUint64)
	for _, c := range list {
		if c.Status == checkpoint.Active {
			first = min(first, c.Epoch)
		}
	}
	if first == math.MaxUint64 {
		return nil
	}
	last, err := w.lastEndangered(first)
	if err != nil {
		return err
	}
	for i := range list {
		c := &list[i]
		switch {
		case c.Status != checkpoint.Active:
		case c.Epoch <= last.lost:
			c.Recoverable = checkpoint.RecoverableNot
		case c.Epoch <= last.volatile:
			c.Recoverable = checkpoint.RecoverableUntilReboot
		case c.Epoch <= last.unmirrored:
			c.Recoverable = checkpoint.RecoverableMirroring
		default:
			c.Recoverable = checkpoint.RecoverableAlways
		}
	}
	return nil
}

// endangered are the latest epochs that have a preimage in RAM, one that was there and is gone, one in the hot buffer that is not
// mirrored; 0 is none.
type endangered struct{ volatile, lost, unmirrored checkpoint.Epoch }

// lastEndangered looks from the epoch first on.
func (w *Workspace) lastEndangered(first checkpoint.Epoch) (last endangered, err error) {
	var inRAM, onDisk map[string]bool // listed when the first volatile reference is met
	err = w.store.EachContent(first, func(e checkpoint.Epoch, c checkpoint.Content) error {
		switch {
		case c.Ref.Tier == strategy.Hot && !w.tiers.hot.Mirrored(c.Ref):
			last.unmirrored = e
			return nil
		case !c.Ref.Tier.Volatile():
			return nil
		}
		if inRAM == nil {
			if inRAM, onDisk, err = w.listed(); err != nil {
				return err
			}
		}
		if inRAM[c.Ref.Name] {
			last.volatile = e
		} else if !onDisk[c.Ref.Name] {
			last.lost = e
		}
		return nil
	})
	return last, err
}

// listed gives the names of the preimages that are in RAM, and of those in the tiers on disk.
func (w *Workspace) listed() (inRAM, onDisk map[string]bool, err error) {
	inRAM, onDisk = map[string]bool{}, map[string]bool{}
	err = w.tiers.list(func(ref strategy.Ref, _ int64) error {
		if ref.Tier.Volatile() {
			inRAM[ref.Name] = true
		} else {
			onDisk[ref.Name] = true
		}
		return nil
	})
	return inRAM, onDisk, err
}

// countDirty fills in how much changed between each checkpoint and the next epoch that one of them needs.
func (w *Workspace) countDirty(list []checkpoint.Checkpoint) error {
	w.list.RLock()
	epochs := w.checkpointEpochs() // pins alone are no checkpoints to count up to
	w.list.RUnlock()
	slices.Sort(epochs)
	epochs = slices.Compact(epochs)
	for i := range list {
		if list[i].Status != checkpoint.Active {
			continue
		}
		var end checkpoint.Epoch
		if k, ok := slices.BinarySearch(epochs, list[i].Epoch); ok && k+1 < len(epochs) {
			end = epochs[k+1]
		}
		n, err := w.store.CountRange(list[i].Epoch, end, dirtyMax)
		if err != nil {
			return err
		}
		list[i].Dirty = n
	}
	return nil
}

// Get gives one checkpoint, whatever its status. NOT_FOUND says that there is none.
func (w *Workspace) Get(id string) (checkpoint.Checkpoint, error) {
	if err := w.check("show"); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	if err := w.damage("show", id); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	c, ok := w.find(id)
	if !ok {
		return c, noCheckpoint(id)
	}
	list := []checkpoint.Checkpoint{c}
	err := w.describe(list)
	return list[0], err
}

// find is Get without what has to be found out.
func (w *Workspace) find(id string) (c checkpoint.Checkpoint, ok bool) {
	w.list.RLock()
	defer w.list.RUnlock()
	if have := w.checkpoints[id]; have != nil {
		return *have, true
	}
	return c, false
}

// Lineage gives the checkpoint and its ancestors, oldest first, as far back as there are records.
func (w *Workspace) Lineage(id string) ([]checkpoint.Checkpoint, error) {
	if _, err := w.Get(id); err != nil {
		return nil, err
	}
	w.list.RLock()
	defer w.list.RUnlock()
	var line []checkpoint.Checkpoint
	for c := w.checkpoints[id]; c != nil && len(line) <= len(w.checkpoints); c = w.checkpoints[c.Parent] {
		line = append(line, *c)
	}
	slices.Reverse(line)
	return line, nil
}

// Children gives the checkpoints whose parent it is, oldest first.
func (w *Workspace) Children(id string, includeInactive bool) ([]checkpoint.Checkpoint, error) {
	if _, err := w.Get(id); err != nil {
		return nil, err
	}
	return w.all(func(c *checkpoint.Checkpoint) bool {
		return c.Parent == id && (includeInactive || c.Status == checkpoint.Active)
	}), nil
}

// newest gives the checkpoint that the live state comes from, and where that is not active any more the nearest before it that is. Where there is
// none, it is the newest one of all.
func (w *Workspace) newest() (checkpoint.Checkpoint, bool) {
	w.list.RLock()
	defer w.list.RUnlock()
	c := w.checkpoints[w.head]
	for n := 0; c != nil && n <= len(w.checkpoints); n++ {
		if c.Status == checkpoint.Active && c.CreatedBy != "rollback" {
			return *c, true
		}
		c = w.checkpoints[c.Parent]
	}
	var best *checkpoint.Checkpoint
	for _, c := range w.checkpoints {
		if c.Status == checkpoint.Active && c.CreatedBy != "rollback" && (best == nil || c.Seq > best.Seq) {
			best = c
		}
	}
	if best == nil {
		return checkpoint.Checkpoint{}, false
	}
	return *best, true
}

// undoPoint gives the checkpoint of the state before the last rollback.
func (w *Workspace) undoPoint() (checkpoint.Checkpoint, bool) {
	w.list.RLock()
	defer w.list.RUnlock()
	var best *checkpoint.Checkpoint
	for _, c := range w.checkpoints {
		if c.Status == checkpoint.Active && c.CreatedBy == "rollback" && (best == nil || c.Seq > best.Seq) {
			best = c
		}
	}
	if best == nil {
		return checkpoint.Checkpoint{}, false
	}
	return *best, true
}

// Drop forgets an active checkpoint: nothing can be rolled back to it any more. Others keep what they need.
func (w *Workspace) Drop(ctx context.Context, id string) error {
	leave, err := w.enter("drop", false)
	if err != nil {
		return err
	}
	defer leave()
	if ok, err := w.forgetDamaged(id); ok {
		return err
	}
	_, err = w.retire(ctx, id, "drop", checkpoint.Disposed)
	return err
}

// Promote accepts the live state: the checkpoint's preimages are freed, its record stays. With a writer, what changed
// since the checkpoint is written to it as a patch first; if that fails, the checkpoint stays active.
func (w *Workspace) Promote(ctx context.Context, id string, patch io.Writer) (checkpoint.Checkpoint, error) {
	leave, err := w.enter("promote", false)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer leave()
	if patch != nil {
		if err := w.patch(ctx, id, "", patch, func() {}); err != nil {
			return checkpoint.Checkpoint{}, err
		}
	}
	return w.retire(ctx, id, "promote", checkpoint.Promoted)
}

// retire ends the life of an active checkpoint. The caller holds w.admin alone.
func (w *Workspace) retire(ctx context.Context, id, op string, status checkpoint.Status) (checkpoint.Checkpoint, error) {
	if err := ctx.Err(); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	c, ok := w.find(id)
	if !ok {
		return c, errs.New(errs.NotFound, op, id, "there is no such checkpoint").WithHint("`hyperfs list` shows them")
	}
	if c.Status != checkpoint.Active {
		return c, errs.New(errs.Rollback, op, id, "the checkpoint is %s", c.Status)
	}
	c.Status, c.UpdatedAt = status, time.Now()
	// A new epoch begins, so that no record of the current one has to be told apart from those that are folded.
	w.tree.mu.Lock()
	err := w.beginEpoch(func(tx *checkpoint.Tx, _ checkpoint.Epoch) error { return tx.PutCheckpoint(c) }, func() {})
	if err == nil {
		w.list.Lock()
		*w.checkpoints[id] = c
		w.list.Unlock()
	}
	if err == nil {
		err = w.setProtecting()
	}
	w.tree.mu.Unlock()
	if err != nil {
		return c, errs.Ensure(op, id, err)
	}
	w.endContracts()
	w.events.send(Event{Type: op, Checkpoint: id, Data: c})
	w.collectInBackground()
	return c, nil
}

// setProtecting finds out whether there is anything to protect. While there is not, nothing is noted of what moves, so
// what was noted before is forgotten. The caller holds tree.mu alone.
func (w *Workspace) setProtecting() error {
	w.tree.protecting = w.retained() != nil
	if w.tree.protecting {
		return nil
	}
	w.tree.locGen++
	_, err := w.store.SweepLocs(func(checkpoint.ID) bool { return false })
	return err
}
