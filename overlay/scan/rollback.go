package scan

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// intent says that a rollback is under way. If the process dies, the next one finishes it.
type intent struct {
	Target string `json:"target"`
	Undo   string `json:"undo"` // the undo checkpoint
	Drop   bool   `json:"drop"` // keep no undo checkpoint
}

// Rollback makes the workspace what it was at a checkpoint; with an empty ID, at the one that its state comes from.
// Everything is verified before anything is touched. What was there before can be had back with Undo. Errors: NOT_FOUND,
// ROLLBACK for a checkpoint that is not active or where another program changes the tree meanwhile, INTEGRITY for a backup that
// is missing or corrupt.
func (w *Workspace) Rollback(ctx context.Context, id string, o overlay.RollbackOptions) (overlay.RollbackResult, error) {
	leave, finished, err := w.enterFinishing(ctx, "rollback")
	if err != nil {
		return overlay.RollbackResult{}, err
	}
	defer leave()
	if finished != nil && (id == "" || id == finished.Checkpoint) { // another one would take the first one's undo checkpoint away
		if o.Commit != nil { // by itself: the state is the one that is wanted
			err = errs.Ensure("rollback", finished.Checkpoint, w.store.Update(o.Commit))
		}
		return *finished, err
	}
	c, err := w.target("rollback", id)
	if err != nil {
		return overlay.RollbackResult{}, err
	}
	return w.rollback(ctx, c, o, "rollback")
}

// Undo takes the last rollback back: the workspace is what it was before, but for what was changed since, which the
// next Undo brings back. ROLLBACK says that there is nothing to undo.
func (w *Workspace) Undo(ctx context.Context) (overlay.RollbackResult, error) {
	leave, err := w.enter(ctx, "undo")
	if err != nil {
		return overlay.RollbackResult{}, err
	}
	defer leave()
	c, ok := w.history.undoPoint()
	if !ok {
		return overlay.RollbackResult{}, errs.New(errs.Rollback, "undo", "", "there is no rollback to undo")
	}
	return w.rollback(ctx, c, overlay.RollbackOptions{}, "undo")
}

// target gives the active checkpoint that is meant.
func (w *Workspace) target(op, id string) (checkpoint.Checkpoint, error) {
	if id == "" {
		c, ok := w.history.newest()
		if !ok {
			return c, errs.New(errs.NotFound, op, "", "there is no checkpoint").WithHint("make one with `hyperfs snapshot`")
		}
		return c, nil
	}
	if err := w.damage(op, id); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	c, ok := w.history.get(id)
	if !ok {
		return c, errs.New(errs.NotFound, op, id, "there is no such checkpoint").WithHint("`hyperfs list` shows them")
	}
	if !isActive(&c) {
		return c, errs.New(errs.Rollback, op, id, "the checkpoint is %s", c.Status)
	}
	return c, nil
}

// rollback does the work. The caller has entered.
func (w *Workspace) rollback(ctx context.Context, c checkpoint.Checkpoint, o overlay.RollbackOptions, why string) (overlay.RollbackResult, error) {
	start := time.Now()
	p, want, err := w.prepare(ctx, c, o)
	if err != nil {
		return overlay.RollbackResult{}, errs.Ensure(why, c.ID, err)
	}
	in := *w.pending
	if err := w.carryOut(p, want, in); err != nil {
		return overlay.RollbackResult{}, errs.Ensure(why, c.ID, err)
	}
	res := p.result(in, start)
	w.send(why, c.ID, res)
	return res, nil
}

// result tells what a rollback has done that began at start.
func (p *plan) result(in intent, start time.Time) overlay.RollbackResult {
	res := overlay.RollbackResult{
		Checkpoint: in.Target, Restored: p.counts.restored, Removed: p.counts.removed, Modified: p.counts.modified, Kept: p.kept(), Duration: time.Since(start),
	}
	if !in.Drop {
		res.Undo = in.Undo
	}
	return res
}

// prepare makes the undo checkpoint and the plan, and commits the intent. Until it returns without an error, nothing is touched. It gives the whole manifest, too.
func (w *Workspace) prepare(ctx context.Context, c checkpoint.Checkpoint, o overlay.RollbackOptions) (p *plan, want *manifest, err error) {
	want, err = w.manifest(c.ID)
	if err != nil {
		return nil, nil, err
	}
	s, err := w.shoot(ctx, w.undoCheckpoint(c), want.scope.tracked)
	if err != nil {
		return nil, nil, err
	}
	p = newPlan(want, s.m, true)
	if err := w.verify(ctx, p); err != nil {
		w.abandon(s)
		return nil, nil, err
	}
	in := intent{Target: c.ID, Undo: s.c.ID, Drop: o.Discard}
	b, err := json.Marshal(in)
	if err != nil {
		w.abandon(s)
		return nil, nil, err
	}
	err = w.commit(s, func(tx *checkpoint.Tx) error {
		if o.Commit != nil {
			if err := o.Commit(tx); err != nil {
				return err
			}
		}
		return tx.PutMeta(metaIntent, b)
	})
	if err != nil {
		return nil, nil, err
	}
	w.history.put(w.history.current(), s.c)
	w.pending = &in
	return p, want, nil
}

func (w *Workspace) undoCheckpoint(target checkpoint.Checkpoint) checkpoint.Checkpoint {
	now := time.Now()
	seq := w.history.nextSeq()
	return checkpoint.Checkpoint{
		ID: newID(), Parent: w.history.current(), Branch: target.Branch, Subagent: target.Subagent, Agent: target.Agent,
		CreatedBy: createdByRollback, CreatedAt: now, UpdatedAt: now, Status: checkpoint.Active, Session: w.session,
		Message: "before the rollback to " + target.ID, RollbackOf: target.ID, Seq: seq, Epoch: checkpoint.Epoch(seq),
	}
}

// carryOut makes the tree what the plan wants, proves it, and clears the intent. After an error that comes from the tree the
// intent stays. The plan may be about a part of the target's manifest alone, which is whole.
func (w *Workspace) carryOut(p *plan, whole *manifest, in intent) error {
	if err := w.apply(p); err != nil {
		return err
	}
	crash.Point("scan-applied")
	m, _, err := w.scan(context.Background(), scanFor{base: p.now, also: p.want, scope: p.now.asked()})
	if err != nil {
		return err
	}
	is := newPlan(p.want, m, false)
	differs := is.differs()
	if differs == "" {
		// What has been seen to be the same is known by its new inodes from now on.
		whole.renew(p, is)
		if err := w.writeManifest(in.Target, whole); err != nil {
			return err
		}
		crash.Point("scan-renewed")
	}
	if w.cfg.Sync {
		if err := w.top.sync(); err != nil {
			return err
		}
	}
	if err := w.finish(in); err != nil {
		return err
	}
	if differs != "" {
		return errs.New(errs.Rollback, "rollback", differs, "another program changed it while it was put back").
			WithHint("end what works in the workspace and roll back again; hyperfs undo takes the rollback back")
	}
	return nil
}

// differs gives the first path at which the tree is not what it should be, "" where there is none.
func (p *plan) differs() string {
	if p.empty() {
		return ""
	}
	m, is := p.want, p.now
	for i := range m.entries {
		e := &m.entries[i]
		switch k := p.at[i]; {
		case k < 0, e.isDir() != is.entries[k].isDir():
			return m.path(int32(i))
		case e.isDir() && !sameAttrs(e, &is.entries[k]) && len(p.extra[int32(i)]) == 0:
			return m.path(int32(i))
		case !e.isDir() && (!p.inPlace(int32(i)) || p.mustDress(int32(i))):
			return m.path(int32(i))
		}
		for _, x := range p.extra[int32(i)] {
			return is.path(x)
		}
	}
	return "."
}

// renew gives the whole manifest, of which p has put a part back, what is known of its inodes by is, the comparison that proves it.
func (m *manifest) renew(p, is *plan) {
	for i := range m.entries {
		if e := &m.entries[i]; m.racy(e) { // of what was left out the new time says nothing
			e.flags |= flagUnstable
		}
	}
	for i := range is.want.entries {
		at := int32(i)
		if is.origin != nil {
			at = is.origin[i]
		}
		if p.origin != nil {
			at = p.origin[at]
		}
		if is.want.entries[i].flags&flagWay != 0 {
			continue // its attributes were left as they are
		}
		e, now := &m.entries[at], &is.now.entries[is.at[i]]
		e.stat, e.flags = now.stat, now.flags
	}
	m.stamp = is.now.stamp
}

// finish clears the intent: the target's state is the live state now.
func (w *Workspace) finish(in intent) error {
	now := time.Now()
	var changed []checkpoint.Checkpoint
	for _, c := range w.history.list(isActive) {
		undone := c.ID == in.Target && c.CreatedBy == createdByRollback // what was undone to has served
		unwanted := c.ID == in.Undo && in.Drop                          //
		older := c.ID != in.Undo && c.CreatedBy == createdByRollback    // only the last rollback can be undone
		if undone || unwanted || older {
			c.Status, c.UpdatedAt = checkpoint.Disposed, now
			changed = append(changed, c)
		}
	}
	head := in.Target
	if c, ok := w.history.get(in.Target); ok && c.CreatedBy == createdByRollback {
		head = c.Parent
	}
	err := w.store.Update(func(tx *checkpoint.Tx) error {
		for _, c := range changed {
			if err := tx.PutCheckpoint(c); err != nil {
				return err
			}
		}
		if err := tx.PutMeta(metaHead, []byte(head)); err != nil {
			return err
		}
		return tx.DeleteMeta(metaIntent)
	})
	if err != nil {
		return err
	}
	w.pending = nil
	w.history.put(head, changed...)
	crash.Point("scan-done")
	w.free(changed)
	return nil
}

// settle finishes a rollback that was cut short, and gives the result of that rest; nil where there is none. What somebody has changed since is not lost: it
// becomes a checkpoint of its own first.
func (w *Workspace) settle(ctx context.Context) (*overlay.RollbackResult, error) {
	if w.pending == nil {
		return nil, nil
	}
	in := *w.pending
	w.log.Info("finishing a rollback that was cut short", "checkpoint", in.Target)
	want, err := w.manifest(in.Target)
	if err != nil {
		return nil, err
	}
	before, err := w.manifest(in.Undo)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	now, saved, err := w.scan(ctx, scanFor{base: before, also: want, save: true, scope: before.scope, temps: true})
	if err != nil {
		return nil, errs.Ensure("finish rollback", in.Target, err)
	}
	if path := alien(now, before, want); path != "" {
		s := &shot{c: w.foundCheckpoint(in), m: now, saved: saved, cost: now.cost(start)}
		if err := w.commit(s, func(*checkpoint.Tx) error { return nil }); err != nil {
			return nil, errs.Ensure("finish rollback", in.Target, err)
		}
		w.history.put(w.history.current(), s.c)
		w.log.Warn("something was changed before the rollback could be finished", "path", path, "kept in", s.c.ID)
	} else {
		defer w.discard(saved)
	}
	p := newPlan(want, now, false)
	if err := w.verify(ctx, p); err != nil {
		return nil, err
	}
	if err := w.carryOut(p, want, in); err != nil {
		return nil, errs.Ensure("finish rollback", in.Target, err)
	}
	res := p.result(in, start)
	w.send("rollback", in.Target, res)
	return &res, nil
}

// foundCheckpoint is for what was changed between a rollback that was cut short and its end.
func (w *Workspace) foundCheckpoint(in intent) checkpoint.Checkpoint {
	now := time.Now()
	seq := w.history.nextSeq()
	return checkpoint.Checkpoint{
		ID: newID(), Parent: in.Undo, Branch: "main", CreatedBy: "unknown", CreatedAt: now, UpdatedAt: now, Status: checkpoint.Active, Session: w.session,
		Message: "what was there when the rollback to " + in.Target + " was finished", Tier: string(w.backups.Kind()),
		Seq: seq, Epoch: checkpoint.Epoch(seq),
	}
}

// alien gives a path at which there is something that neither of two manifests has there, "" where there is none.
func alien(now, before, want *manifest) string {
	a, b := pairs(now, before), pairs(now, want)
	for i := range now.entries {
		e := &now.entries[i]
		if isTemp(e.name) {
			continue
		}
		if k := a[i]; k >= 0 && sameData(e, &before.entries[k], false) {
			continue
		}
		if k := b[i]; k >= 0 && sameData(e, &want.entries[k], false) {
			continue
		}
		return now.path(int32(i))
	}
	return ""
}
