//go:build linux

package overlay

import (
	"context"
	"maps"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// inactiveMax is how many records of promoted and disposed checkpoints are kept for lineage.
const inactiveMax = 1024

// GC frees everything that no active checkpoint needs: records, old inodes in the trash, preimages, records of long
// disposed checkpoints. Most of it is freed as soon as a checkpoint is dropped; this also finds what a crash left.
func (w *Workspace) GC(ctx context.Context) (GCResult, error) {
	leave, err := w.enter("gc", false)
	if err != nil {
		return GCResult{}, err
	}
	defer leave()
	res, err := w.collect(ctx)
	if err != nil {
		return res, errs.Ensure("gc", "", err)
	}
	w.tree.mu.Lock()
	more, err := w.sweep(ctx)
	w.tree.mu.Unlock()
	res.add(more)
	if err != nil {
		return res, errs.Ensure("gc", "", err)
	}
	w.events.send(Event{Type: "gc", Data: res})
	return res, nil
}

func (r *GCResult) add(o GCResult) {
	r.Trash += o.Trash
	r.Backups += o.Backups
	r.Records += o.Records
	r.Checkpoints += o.Checkpoints
	r.Bytes += o.Bytes
}

// collectInBackground frees what the last change of the checkpoints has made useless.
func (w *Workspace) collectInBackground() {
	w.gcing.Add(1)
	go func() {
		defer w.gcing.Done()
		w.admin.RLock() // shared with snapshots; only what the list says now is used
		defer w.admin.RUnlock()
		w.collecting.Lock()
		defer w.collecting.Unlock()
		if _, err := w.collect(context.Background()); err != nil {
			w.log.Error("garbage collection failed", "err", err)
		}
	}()
}

// collect drops the records before the oldest active checkpoint, folds those between two active ones, and frees what
// they had named. The current epoch is left alone.
func (w *Workspace) collect(ctx context.Context) (GCResult, error) {
	var res GCResult
	w.tree.mu.RLock()
	current := w.tree.epoch
	retained := w.retained()
	w.tree.mu.RUnlock()
	retained = slices.DeleteFunc(retained, func(e checkpoint.Epoch) bool { return e >= current })
	first := current
	if len(retained) > 0 {
		first = retained[0]
	}
	freed, err := w.store.DropEpochs(w.dropped, first)
	if err != nil {
		return res, err
	}
	w.dropped = first
	crash.Point("gc-dropped")
	res.add(w.free(freed))
	for i, from := range retained {
		if err := ctx.Err(); err != nil {
			return res, err
		}
		to := current
		if i+1 < len(retained) {
			to = retained[i+1]
		}
		if to <= from+1 || w.folded[from] == to {
			continue
		}
		freed, err := w.store.FoldEpochs(from, to)
		if err != nil {
			return res, err
		}
		crash.Point("gc-folded")
		res.add(w.free(freed))
		if err := w.mergeBlocks(from, to, &res); err != nil {
			return res, err
		}
		w.folded[from] = to
	}
	for from := range w.folded {
		if !slices.Contains(retained, from) {
			delete(w.folded, from)
		}
	}
	n, err := w.forgetInactive()
	res.Checkpoints += n
	if err != nil {
		return res, err
	}
	return res, w.sweepTracked()
}

// free deletes what dropped records had named, unless others name it too.
func (w *Workspace) free(f checkpoint.Freed) GCResult {
	res := GCResult{Records: f.Records}
	for _, ref := range f.Contents {
		bytes := w.tiers.bytes(ref)
		if err := w.tiers.remove(ref); err != nil {
			w.log.Warn("a preimage can't be removed", "name", ref.Name, "err", err)
			continue
		}
		res.Backups++
		res.Bytes += bytes
	}
	for _, id := range f.Occupants {
		freed, bytes, err := w.tree.freeTrash(id)
		if err != nil {
			w.log.Warn("an old inode can't be removed", "id", id.String(), "err", err)
		}
		if freed {
			res.Trash++
			res.Bytes += bytes
		}
	}
	return res
}

// forgetInactive deletes the records of the longest disposed checkpoints.
func (w *Workspace) forgetInactive() (int, error) {
	if w.inactive() <= inactiveMax+inactiveMax/8 { // so that it is not done for each one
		return 0, nil
	}
	old := w.all(isInactive)
	old = old[:len(old)-inactiveMax]
	for _, c := range old {
		if err := w.store.Update(func(tx *checkpoint.Tx) error { return tx.DeleteCheckpoint(c.ID) }); err != nil {
			return 0, err
		}
		w.list.Lock()
		delete(w.checkpoints, c.ID)
		w.list.Unlock()
	}
	return len(old), nil
}

func isInactive(c *checkpoint.Checkpoint) bool {
	return c.Status == checkpoint.Disposed || c.Status == checkpoint.Promoted
}

// inactive counts the checkpoints that nothing can be rolled back to.
func (w *Workspace) inactive() int {
	w.list.RLock()
	defer w.list.RUnlock()
	n := 0
	for _, c := range w.checkpoints {
		if isInactive(c) {
			n++
		}
	}
	return n
}

// cleanUp removes what an earlier process left unfinished.
func (w *Workspace) cleanUp() error {
	if _, err := w.collect(context.Background()); err != nil {
		return err
	}
	_, err := w.sweep(context.Background())
	return err
}

// sweep looks through the whole store for what nothing refers to. The caller holds tree.mu alone, so that no
// preimage is just being made.
func (w *Workspace) sweep(ctx context.Context) (GCResult, error) {
	var res GCResult
	if w.tree.tempMu.TryLock() { // else something there is in use
		_ = eachName(w.tree.tmpFd, func(name string) error { return w.tree.removeTemp(name) })
		w.tree.tempMu.Unlock()
	}
	fold, err := w.store.All()
	if err != nil {
		return res, err
	}
	if err := ctx.Err(); err != nil {
		return res, err
	}
	if err := w.sweepTrash(fold, &res); err != nil {
		return res, err
	}
	w.tiers.hot.Adopt(maps.Values(fold.Contents))
	if err := w.sweepBackups(fold, &res); err != nil {
		return res, err
	}
	keep := w.locsNeeded(fold)
	n, err := w.store.SweepLocs(func(id checkpoint.ID) bool { return keep[id] })
	w.tree.locGen++
	res.Records += n
	if err != nil {
		return res, err
	}
	n, err = w.store.SweepReverse(w.tree.epoch)
	res.Records += n
	return res, err
}

func (t *Tree) removeTemp(name string) error {
	var st unix.Statx_t
	if err := statAt(t.tmpFd, name, &st); err != nil {
		return err
	}
	r := reaper{t: t, named: func(checkpoint.ID) (bool, error) { return false, nil }}
	_, err := r.remove(t.tmpFd, name, &st)
	return err
}

func (w *Workspace) sweepTrash(all *checkpoint.Named, res *GCResult) error {
	named := map[string]bool{}
	for id := range all.Occupants {
		named[id.String()] = true
	}
	reap := reaper{t: w.tree, named: func(id checkpoint.ID) (bool, error) { return all.Occupants[id], nil }}
	return eachName(w.tree.trashFd, func(name string) error {
		if named[name] {
			return nil
		}
		var st unix.Statx_t
		if err := statAt(w.tree.trashFd, name, &st); err != nil {
			return err
		}
		w.tree.stir()
		bytes, err := reap.remove(w.tree.trashFd, name, &st)
		if err != nil {
			w.log.Warn("an old inode can't be removed", "id", name, "err", err)
			return nil
		}
		res.Trash++
		res.Bytes += bytes
		return nil
	})
}

func (w *Workspace) sweepBackups(all *checkpoint.Named, res *GCResult) error {
	return w.tiers.list(func(ref strategy.Ref, size int64) error {
		if _, ok := all.Contents[ref.Name]; ok {
			return nil
		}
		if err := w.tiers.removeAt(ref); err != nil {
			w.log.Warn("a preimage can't be removed", "name", ref.Name, "err", err)
			return nil
		}
		res.Backups++
		res.Bytes += size
		return nil
	})
}

// locsNeeded gives the inodes whose location may be asked for: all that records name, and the directories above them.
func (w *Workspace) locsNeeded(all *checkpoint.Named) map[checkpoint.ID]bool {
	keep := map[checkpoint.ID]bool{}
	var add func(checkpoint.ID)
	add = func(id checkpoint.ID) {
		if keep[id] {
			return
		}
		keep[id] = true
		for _, s := range all.Locs[id].Slots {
			add(s.Dir)
		}
	}
	for id := range all.Occupants {
		add(id)
	}
	for id := range all.Inodes {
		add(id)
	}
	return keep
}
