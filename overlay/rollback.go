//go:build linux

package overlay

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// intent says that a rollback is under way. If the daemon dies, the next one finishes it.
type intent struct {
	Target string           `json:"target"`
	Undo   string           `json:"undo"`  // the undo checkpoint
	Epoch  checkpoint.Epoch `json:"epoch"` // of what the rollback itself changes
	Apply  bool             `json:"apply"` // all records are made; changes may have been
	Drop   bool             `json:"drop"`  // keep no undo checkpoint
}

// Rollback makes the workspace what it was at a checkpoint; with an empty ID, at the one that its state comes from.
// Everything is verified before anything is touched, and nothing is ever seen half done. What was there before can be had back with Undo.
// Errors: NOT_FOUND, ROLLBACK for a checkpoint that is not active, INTEGRITY for a preimage that is missing or corrupt.
func (w *Workspace) Rollback(ctx context.Context, id string, o RollbackOptions) (RollbackResult, error) {
	leave, finished, err := w.enterAlone("rollback")
	if err != nil {
		return RollbackResult{}, err
	}
	defer leave()
	if finished != nil && (id == "" || id == finished.Checkpoint) {
		if o.Commit != nil { // by itself: the state is the one that is wanted
			err = errs.Ensure("rollback", finished.Checkpoint, w.store.Update(o.Commit))
		}
		return *finished, err
	}
	c, err := w.target("rollback", id)
	if err != nil {
		return RollbackResult{}, err
	}
	return w.rollback(ctx, c, o, "rollback")
}

// Undo takes the last rollback back: the workspace is what it was before, but for what was changed since, which the
// next Undo brings back. ROLLBACK says that there is nothing to undo.
func (w *Workspace) Undo(ctx context.Context) (RollbackResult, error) {
	leave, err := w.enter("undo", false)
	if err != nil {
		return RollbackResult{}, err
	}
	defer leave()
	c, ok := w.undoPoint()
	if !ok {
		return RollbackResult{}, errs.New(errs.Rollback, "undo", "", "there is no rollback to undo")
	}
	return w.rollback(ctx, c, RollbackOptions{}, "undo")
}

// target gives the active checkpoint that an operation is for.
func (w *Workspace) target(op, id string) (checkpoint.Checkpoint, error) {
	if id == "" {
		c, ok := w.newest()
		if !ok {
			return c, errs.New(errs.NotFound, op, "", "there is no checkpoint").WithHint("make one with `hyperfs snapshot`")
		}
		return c, nil
	}
	if err := w.damage(op, id); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	c, ok := w.find(id)
	if !ok {
		return c, errs.New(errs.NotFound, op, id, "there is no such checkpoint").WithHint("`hyperfs list` shows them")
	}
	if c.Status != checkpoint.Active {
		return c, errs.New(errs.Rollback, op, id, "the checkpoint is %s", c.Status)
	}
	return c, nil
}

// rollback does the work. The caller holds w.admin alone.
func (w *Workspace) rollback(ctx context.Context, c checkpoint.Checkpoint, o RollbackOptions, why string) (RollbackResult, error) {
	start := time.Now()
	if err := ctx.Err(); err != nil {
		return RollbackResult{}, err
	}
	w.tree.flushMapped()
	w.tree.lockToLook()
	r, err := w.prepare(c, o)
	if err == nil {
		err = r.run()
	}
	w.tree.reclassify()
	w.tree.unlockLooked()
	if r != nil {
		r.notify()
		defer r.view.close()
	}
	if err != nil {
		return RollbackResult{}, errs.Ensure("rollback", c.ID, err)
	}
	res := r.result
	res.Checkpoint, res.Duration = c.ID, time.Since(start)
	if !o.Discard {
		res.Undo = r.intent.Undo
	}
	w.done.rollbacks.Add(1)
	w.events.send(Event{Type: why, Checkpoint: c.ID, Data: res})
	w.collectInBackground()
	return res, nil
}

// oneCommit is up to how many changes the records of a rollback are committed together with its intent. More may not fit into
// one transaction.
const oneCommit = 64

// prepare plans the rollback and makes the undo checkpoint together with the intent, and with the records if they are few. Until
// it returns nil, nothing is changed. The caller holds tree.mu alone.
func (w *Workspace) prepare(c checkpoint.Checkpoint, o RollbackOptions) (*restorer, error) {
	t := w.tree
	fold, err := w.store.Fold(c.Epoch, 0)
	if err != nil {
		return nil, err
	}
	r := &restorer{w: w, t: t, target: c, view: t.newFrozenView(fold), commit: o.Commit}
	r.view.hide(w.rulesSince(c.Epoch), c)
	if r.plan, err = t.makePlan(r.view); err == nil {
		_, err = w.planTracked(c)
	}
	if err != nil {
		r.view.close()
		return nil, err
	}
	undo := w.undoCheckpoint(c)
	r.intent = intent{Target: c.ID, Undo: undo.ID, Drop: o.Discard}
	err = w.beginEpoch(func(tx *checkpoint.Tx, e checkpoint.Epoch) error {
		undo.Epoch, r.intent.Epoch = e, e
		if r.intent.Apply = r.plan.fitsOneCommit(); r.intent.Apply {
			if err := r.recordAll(tx); err != nil {
				return err
			}
			if err := r.commitMore(tx); err != nil {
				return err
			}
		}
		w.list.Lock()
		defer w.list.Unlock()
		w.seq++
		undo.Seq = w.seq
		w.checkpoints[undo.ID] = undo
		if err := tx.PutCheckpoint(*undo); err != nil {
			return err
		}
		return putIntent(tx, r.intent)
	}, func() {
		w.list.Lock()
		defer w.list.Unlock()
		delete(w.checkpoints, undo.ID)
	})
	if err != nil {
		r.view.close()
		return nil, err
	}
	if r.intent.Apply {
		crash.Point("rollback-apply")
	} else {
		crash.Point("rollback-intent")
	}
	return r, nil
}

func (w *Workspace) undoCheckpoint(target checkpoint.Checkpoint) *checkpoint.Checkpoint {
	w.list.RLock()
	defer w.list.RUnlock()
	now := time.Now()
	message := "before the rollback to " + target.ID
	if target.CreatedBy == createdByEdit {
		message = target.Message
	}
	return &checkpoint.Checkpoint{
		ID: w.Reserve(), Parent: w.head, Branch: target.Branch, Subagent: target.Subagent, Agent: target.Agent,
		CreatedBy: "rollback", CreatedAt: now, UpdatedAt: now, Status: checkpoint.Active,
		Message: message, Tier: string(w.tiers.Kind()), Session: w.session, RollbackOf: target.ID,
	}
}

func putIntent(tx *checkpoint.Tx, in intent) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return tx.PutMeta(metaIntent, b)
}

// run makes the records, unless they are made, and then the changes.
func (r *restorer) run() error {
	if !r.intent.Apply {
		if err := r.recordMany(); err != nil {
			return r.fail(err)
		}
	}
	err := r.apply()
	if err == nil {
		crash.Point("rollback-applied")
		err = r.finish()
	}
	if err != nil {
		r.w.stopHalfway(err)
	}
	return err
}

// stopHalfway lets nothing change any more after a rollback that has failed when a part of it may be made. Its intent stays in the store: finishRollback, or
// the next start, makes the rest, and would take away what was changed meanwhile. The caller holds w.admin and tree.mu alone.
func (w *Workspace) stopHalfway(err error) {
	w.setHalfway(err)
	w.tree.halfway = true
	w.log.Error("a rollback is half made; nothing can be changed before it is finished", "err", err)
}

func (w *Workspace) setHalfway(err error) {
	w.list.Lock()
	defer w.list.Unlock()
	w.halfway = err
}

// stoppedHalfway says why a rollback is half made, or nil.
func (w *Workspace) stoppedHalfway() error {
	w.list.RLock()
	defer w.list.RUnlock()
	return w.halfway
}

// finishRollback makes the rest of a rollback that has stopped halfway. The result tells of that rest. The caller holds w.admin alone.
func (w *Workspace) finishRollback() (*RollbackResult, error) {
	start := time.Now()
	r, err := w.resume()
	if r != nil {
		defer r.view.close()
		r.notify()
	}
	w.setHalfway(err)
	if err != nil {
		return nil, err
	}
	w.log.Info("the rollback that had stopped halfway is finished")
	if r == nil { // all of it was made, and known to be
		return nil, nil
	}
	res := r.result
	res.Checkpoint, res.Duration = r.target.ID, time.Since(start)
	if !r.intent.Drop {
		res.Undo = r.intent.Undo
	}
	w.events.send(Event{Type: "rollback", Checkpoint: res.Checkpoint, Data: res})
	w.collectInBackground()
	return &res, nil
}

// recordMany makes records that don't fit into the commit of the intent.
func (r *restorer) recordMany() error {
	if err := r.remakeDirs(); err != nil {
		return err
	}
	if err := r.recordInBatch(); err != nil {
		return err
	}
	crash.Point("rollback-recorded")
	r.intent.Apply = true
	err := r.w.store.Update(func(tx *checkpoint.Tx) error {
		if err := r.commitMore(tx); err != nil {
			return err
		}
		return putIntent(tx, r.intent)
	})
	if err != nil {
		return err
	}
	crash.Point("rollback-apply")
	return nil
}

// commitMore writes what is to be committed with an intent that has Apply: from then on, the rollback will be finished.
func (r *restorer) commitMore(tx *checkpoint.Tx) error {
	if r.commit == nil {
		return nil
	}
	return r.commit(tx)
}

// fail takes the intent back after a failure that came before any change.
func (r *restorer) fail(err error) error {
	w := r.w
	w.list.Lock()
	defer w.list.Unlock()
	delete(w.checkpoints, r.intent.Undo)
	if e := w.store.Update(func(tx *checkpoint.Tx) error {
		if err := tx.DeleteCheckpoint(r.intent.Undo); err != nil {
			return err
		}
		return tx.DeleteMeta(metaIntent)
	}); e != nil {
		w.log.Error("a failed rollback left its intent", "err", e)
	}
	return err
}

// finish begins the epoch after the rollback. The target's state is the live state now, so it moves here: what led away
// from it is of no use to it any more.
func (r *restorer) finish() error {
	w := r.w
	few := len(r.shared) <= oneCommit
	if !few {
		if err := r.forgetManyShared(); err != nil {
			return err
		}
	}
	changed := map[string]checkpoint.Checkpoint{}
	err := w.beginEpoch(func(tx *checkpoint.Tx, e checkpoint.Epoch) error {
		if few {
			if err := r.forgetShared(tx); err != nil {
				return err
			}
		}
		w.list.RLock()
		defer w.list.RUnlock()
		now := time.Now()
		for id, c := range w.checkpoints {
			next := *c
			switch {
			case id == r.intent.Target && transient(c):
				next.Status = checkpoint.Disposed // what was undone to has served, and what an edit was made by
			case id == r.intent.Target:
				next.Epoch = e
			case id == r.intent.Undo && r.intent.Drop:
				next.Status = checkpoint.Disposed
			case id != r.intent.Undo && c.CreatedBy == "rollback" && c.Status == checkpoint.Active:
				next.Status = checkpoint.Disposed // only the last rollback can be undone
			default:
				continue
			}
			next.UpdatedAt = now
			changed[id] = next
			if err := tx.PutCheckpoint(next); err != nil {
				return err
			}
		}
		if err := tx.PutMeta(metaHead, []byte(r.newHead())); err != nil {
			return err
		}
		return tx.DeleteMeta(metaIntent)
	}, func() {})
	if err != nil {
		return err
	}
	w.list.Lock()
	for id, c := range changed {
		*w.checkpoints[id] = c
	}
	w.head = r.newHead()
	w.list.Unlock()
	crash.Point("rollback-done")
	w.endContracts()
	if err := r.removeShared(); err != nil {
		w.log.Warn("a preimage that is not needed any more could not be removed; gc will", "err", err)
	}
	return w.setProtecting()
}

// newHead is the checkpoint that the live state comes from now. The caller holds w.list.
func (r *restorer) newHead() string {
	c := r.w.checkpoints[r.intent.Target]
	if c != nil && transient(c) {
		return c.Parent
	}
	return r.intent.Target
}

// resume finishes a rollback that was cut short, or takes it back if it had not changed anything. It gives what it has finished, nil where there was nothing to
// finish; the caller tells the kernel, and closes its view. The caller holds w.admin alone, or is the only one.
func (w *Workspace) resume() (*restorer, error) {
	w.tree.flushMapped()
	w.tree.lockToLook()
	defer w.tree.unlockLooked()
	r, err := w.resumeLocked()
	w.tree.halfway = err != nil
	return r, err
}

func (w *Workspace) resumeLocked() (*restorer, error) {
	var b []byte
	if err := w.store.View(func(tx *checkpoint.Tx) (err error) { b, err = tx.Meta(metaIntent); return err }); err != nil || b == nil {
		return nil, err
	}
	var in intent
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, errs.New(errs.Integrity, "resume rollback", "", "the intent is corrupt: %w", err)
	}
	r := &restorer{w: w, t: w.tree, intent: in, resumed: true}
	if !in.Apply {
		return nil, r.fail(nil)
	}
	target := w.checkpoints[in.Target]
	if target == nil {
		return nil, errs.New(errs.Integrity, "resume rollback", in.Target, "the checkpoint is missing")
	}
	r.target = *target
	w.log.Info("finishing a rollback that was cut short", "checkpoint", in.Target)
	w.tree.protecting = true
	err := r.resume()
	w.tree.reclassify()
	if r.view == nil {
		return nil, err
	}
	return r, err
}

// resume plans and makes what is left. The caller holds tree.mu alone, and closes r.view, if there is one.
func (r *restorer) resume() error {
	w, in := r.w, r.intent
	fold, err := w.store.Fold(r.target.Epoch, in.Epoch)
	if err != nil {
		return err
	}
	since, err := w.store.Fold(in.Epoch, in.Epoch+1)
	if err != nil {
		return err
	}
	r.view = w.tree.newFrozenView(fold)
	r.view.hide(w.rulesSince(r.target.Epoch), r.target)
	r.view.before = map[checkpoint.ID]checkpoint.Slot{}
	for s, o := range since.Slots {
		if !o.ID.IsZero() {
			r.view.before[o.ID] = s
		}
	}
	if r.view.replaced, err = w.store.Replaced(in.Epoch); err != nil {
		return err
	}
	if r.plan, err = w.tree.makePlan(r.view); err != nil {
		return err
	}
	if err := r.remakeDirs(); err != nil {
		return err
	}
	if err := r.recordInBatch(); err != nil {
		return err
	}
	if err := r.apply(); err != nil {
		return err
	}
	return r.finish()
}
