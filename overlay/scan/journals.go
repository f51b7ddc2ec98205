package scan

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

var _ overlay.Journals = (*Workspace)(nil)

// Session gives the name of this run.
func (w *Workspace) Session() string { return w.session }

// Recover lists the checkpoints that earlier sessions left, oldest first, those whose record is damaged last. A command that works without a daemon is a session of its
// own. Of each active one it is proved that it could be rolled back to, for which the tree is walked once. Nothing is changed.
func (w *Workspace) Recover(ctx context.Context) ([]overlay.Recoverable, error) {
	leave, err := w.enter(ctx, "recover")
	if err != nil {
		return nil, err
	}
	defer leave()
	list := []overlay.Recoverable{}
	if w.cfg.NoJournals {
		return list, nil
	}
	p := &prover{w: w}
	earlier := w.history.list(func(c *checkpoint.Checkpoint) bool { return c.Session != w.session })
	p.alsoTracked(earlier...)
	for _, c := range earlier {
		why := overlay.RehydrateStatus(c)
		if why == nil {
			if why = p.checkpoint(ctx, c.ID); ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
		list = append(list, overlay.NewRecoverable(c, why))
	}
	return append(list, w.damagedOnes()...), nil
}

// damagedOnes gives the checkpoints whose record can't be read.
func (w *Workspace) damagedOnes() (list []overlay.Recoverable) {
	for id, err := range w.damaged {
		list = append(list, overlay.NewRecoverable(checkpoint.Checkpoint{ID: id, CreatedBy: "unknown"}, overlay.DamagedRecord("recover", id, err)))
	}
	slices.SortFunc(list, func(a, b overlay.Recoverable) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// damage is the error of whoever wants a checkpoint whose record can't be read; nil where it can. The caller has entered.
func (w *Workspace) damage(op, id string) error {
	if err := w.damaged[id]; err != nil {
		return overlay.DamagedRecord(op, id, err)
	}
	return nil
}

// Rehydrate is what overlay.Workspace's is: every backup that the checkpoint has is read and compared with its checksum.
func (w *Workspace) Rehydrate(ctx context.Context, id string) (checkpoint.Checkpoint, error) {
	leave, err := w.enter(ctx, "rehydrate")
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer leave()
	c, ok := w.history.get(id)
	switch {
	case w.cfg.NoJournals:
		return c, errs.New(errs.Unsupported, "rehydrate", id, "durable journals are off: it would end with this daemon").WithHint("start it without --no-durable-journals")
	case w.damage("rehydrate", id) != nil:
		return c, w.damage("rehydrate", id)
	case !ok:
		return c, errs.New(errs.NotFound, "rehydrate", id, "there is no such checkpoint").WithHint("`hyperfs recover` lists what earlier daemons left")
	}
	if err := overlay.RehydrateStatus(c); err != nil {
		return c, err
	}
	p := &prover{w: w}
	p.alsoTracked(c)
	if err := p.checkpoint(ctx, id); err != nil {
		return c, errs.New(errs.CodeOf(errs.Ensure("rehydrate", id, err)), "rehydrate", id, "%w", err)
	}
	c.Session, c.UpdatedAt = w.session, time.Now()
	if err := w.store.Update(func(tx *checkpoint.Tx) error { return tx.PutCheckpoint(c) }); err != nil {
		return c, errs.Ensure("rehydrate", id, err)
	}
	w.history.put(w.history.current(), c)
	w.send("rehydrate", id, c)
	return c, nil
}

// prover proves that rollbacks would work. It looks at the tree once, and at each backup.
type prover struct {
	w       *Workspace
	now     *manifest        // nil until it is wanted
	tracked []string         // what the checkpoints have beside what is tracked now
	backups map[string]error // what was proved of them
}

func (p *prover) checkpoint(ctx context.Context, id string) error {
	want, err := p.w.manifest(id)
	if err != nil {
		return err
	}
	if p.now == nil {
		if p.now, _, err = p.w.scan(ctx, scanFor{base: want, scope: p.w.scope.with(p.tracked)}); err != nil {
			return err
		}
	}
	if err := p.allBackups(ctx, want); err != nil {
		return err
	}
	return p.w.verify(ctx, newPlan(want, p.now, true))
}

// alsoTracked has it look at all that active ones of some checkpoints have tracked.
func (p *prover) alsoTracked(list ...checkpoint.Checkpoint) {
	if p.w.scope.whole() { // so that it looks at everything
		return
	}
	for _, c := range list {
		if m, err := p.w.manifest(c.ID); isActive(&c) && err == nil {
			p.tracked = append(p.tracked, m.scope.tracked...)
		}
	}
}

// allBackups also proves what a rollback would not need now, as the file is there.
func (p *prover) allBackups(ctx context.Context, m *manifest) error {
	if p.backups == nil {
		p.backups = map[string]error{}
	}
	for i := range m.entries {
		e := &m.entries[i]
		if !e.isRegular() || e.first != int32(i) || e.ref.Name == "" {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		err, done := p.backups[e.ref.Name]
		if !done {
			err = p.w.backups.Verify(e.ref)
			p.backups[e.ref.Name] = err
		}
		if err != nil {
			return errs.New(errs.Integrity, "rollback", m.path(int32(i)), "its content can't be had back: %w", err).
				WithHint("nothing was changed; hyperfs drop gives the checkpoint up")
		}
	}
	return nil
}

// endVolatile disposes the checkpoints of a session that had no durable journals, if the store names one, and notes this one if it has none either.
func (w *Workspace) endVolatile() error {
	return w.store.TakeOver(w.session, w.cfg.NoJournals, w.disposeOf)
}

// closeVolatile disposes the checkpoints of this session, where they are to end with it. The caller holds w.admin.
func (w *Workspace) closeVolatile() error {
	if !w.cfg.NoJournals {
		return nil
	}
	defer w.store.Urgent()()
	if err := w.disposeOf(w.session); err != nil {
		return err
	}
	return w.store.HandOver()
}

// disposeOf disposes the active checkpoints of a session, and frees their backups.
func (w *Workspace) disposeOf(session string) error {
	list := w.history.list(func(c *checkpoint.Checkpoint) bool { return isActive(c) && c.Session == session })
	now := time.Now()
	for i := range list {
		list[i].Status, list[i].UpdatedAt = checkpoint.Disposed, now
		if err := w.store.Update(func(tx *checkpoint.Tx) error { return tx.PutCheckpoint(list[i]) }); err != nil {
			return err
		}
	}
	w.history.put(w.history.current(), list...)
	w.free(list)
	return nil
}
