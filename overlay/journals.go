//go:build linux

package overlay

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
)

var _ Journals = (*Workspace)(nil)

// Session gives the name of this run.
func (w *Workspace) Session() string { return w.session }

// Recover lists the checkpoints that earlier daemons left, oldest first, those whose record is damaged last. Of each active one it is proved that it could
// be rolled back to. Nothing is changed. Without durable journals there are none.
func (w *Workspace) Recover(ctx context.Context) ([]Recoverable, error) {
	leave, err := w.enter("recover", false)
	if err != nil {
		return nil, err
	}
	defer leave()
	list := []Recoverable{}
	if w.cfg.NoJournals {
		return list, nil
	}
	left := w.all(func(c *checkpoint.Checkpoint) bool { return c.Session != w.session })
	if err := w.describe(left); err != nil {
		return nil, errs.Ensure("recover", "", err)
	}
	p := w.newProver()
	for _, c := range left {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		why := RehydrateStatus(c)
		if why == nil {
			why = p.state(c)
		}
		list = append(list, NewRecoverable(c, why))
	}
	return append(list, w.damagedOnes()...), nil
}

// damagedOnes gives the checkpoints whose record can't be read.
func (w *Workspace) damagedOnes() (list []Recoverable) {
	w.list.RLock()
	defer w.list.RUnlock()
	for id, err := range w.damaged {
		list = append(list, NewRecoverable(checkpoint.Checkpoint{ID: id, CreatedBy: "unknown"}, DamagedRecord("recover", id, err)))
	}
	slices.SortFunc(list, func(a, b Recoverable) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// Rehydrate makes a checkpoint that an earlier daemon left this one's own, after it was proved that it could be rolled back to: every preimage that it has was read and compared
// with its checksum. How it came to be stays what it was. Errors: NOT_FOUND; ROLLBACK where it was disposed or promoted; INTEGRITY where something is
// missing or damaged, which the error names; UNSUPPORTED without durable journals, as it would end with this daemon. Then nothing is changed.
func (w *Workspace) Rehydrate(ctx context.Context, id string) (checkpoint.Checkpoint, error) {
	leave, err := w.enter("rehydrate", false)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer leave()
	c, err := w.rehydratable(id)
	if err != nil {
		return c, err
	}
	if err := ctx.Err(); err != nil {
		return c, err
	}
	if err := w.newProver().state(c); err != nil {
		return c, errs.New(errs.CodeOf(errs.Ensure("rehydrate", id, err)), "rehydrate", id, "%w", err)
	}
	c.Session, c.UpdatedAt = w.session, time.Now()
	if err := w.store.Update(func(tx *checkpoint.Tx) error { return tx.PutCheckpoint(c) }); err != nil {
		return c, errs.Ensure("rehydrate", id, err)
	}
	w.list.Lock()
	*w.checkpoints[id] = c
	w.list.Unlock()
	w.events.send(Event{Type: "rehydrate", Checkpoint: id, Data: c})
	list := []checkpoint.Checkpoint{c}
	err = w.describe(list)
	return list[0], errs.Ensure("rehydrate", id, err)
}

// rehydratable gives a checkpoint that could be rehydrated as far as its record tells.
func (w *Workspace) rehydratable(id string) (checkpoint.Checkpoint, error) {
	if w.cfg.NoJournals {
		return checkpoint.Checkpoint{}, errs.New(errs.Unsupported, "rehydrate", id, "durable journals are off: it would end with this daemon").
			WithHint("mount without --no-durable-journals")
	}
	if err := w.damage("rehydrate", id); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	c, ok := w.find(id)
	if !ok {
		return c, errs.New(errs.NotFound, "rehydrate", id, "there is no such checkpoint").WithHint("`hyperfs recover` lists what earlier daemons left")
	}
	return c, RehydrateStatus(c)
}

// damage is the error of whoever wants a checkpoint whose record can't be read; nil where it can.
func (w *Workspace) damage(op, id string) error {
	w.list.RLock()
	defer w.list.RUnlock()
	if err := w.damaged[id]; err != nil {
		return DamagedRecord(op, id, err)
	}
	return nil
}

// forgetDamaged removes the record of a checkpoint that can't be read; ok is false where it can. The caller holds w.admin alone.
func (w *Workspace) forgetDamaged(id string) (ok bool, err error) {
	if w.damage("drop", id) == nil {
		return false, nil
	}
	if err := w.store.Update(func(tx *checkpoint.Tx) error { return tx.DeleteCheckpoint(id) }); err != nil {
		return true, errs.Ensure("drop", id, err)
	}
	w.list.Lock()
	defer w.list.Unlock()
	delete(w.damaged, id)
	return true, nil
}

// ProveStates proves of each of these epochs, which are pinned, that the live tree could be made again what it was at its beginning, and gives the reason where it could not.
func (w *Workspace) ProveStates(ctx context.Context, epochs []checkpoint.Epoch) (map[checkpoint.Epoch]error, error) {
	leave, err := w.enter("recover", false)
	if err != nil {
		return nil, err
	}
	defer leave()
	p := w.newProver()
	states := map[checkpoint.Epoch]error{}
	for _, e := range epochs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if states[e] = p.state(checkpoint.Checkpoint{Epoch: e}); states[e] != nil {
			continue
		}
		if of := w.graftedOn(e); of != e {
			states[e] = p.state(checkpoint.Checkpoint{Epoch: of})
		}
	}
	return states, nil
}

// prover proves that rollbacks would work, by planning them. It reads no preimage twice. Whoever uses it holds w.admin alone: so nothing that the log names is
// dropped, and a preimage that was whole stays what it was.
type prover struct {
	w      *Workspace
	states map[checkpoint.Epoch]error // what was proved; nil is good

	mu   sync.Mutex             // guards what follows
	seen map[strategy.Ref]error // of whole preimages
}

func (w *Workspace) newProver() *prover {
	return &prover{w: w, states: map[checkpoint.Epoch]error{}, seen: map[strategy.Ref]error{}}
}

// state proves that the state of a checkpoint, or of one that stands for an epoch, could be brought back.
func (p *prover) state(c checkpoint.Checkpoint) error {
	err, done := p.states[c.Epoch]
	if !done {
		err = p.prove(c)
		p.states[c.Epoch] = err
	}
	return err
}

func (p *prover) prove(c checkpoint.Checkpoint) error {
	t, e := p.w.tree, c.Epoch
	t.mu.RLock()
	current := t.epoch
	t.mu.RUnlock()
	if e == 0 || e > current {
		return errs.New(errs.Integrity, "recover", "", "its epoch is %d, and the current one is %d", e, current).WithHint("`hyperfs drop` gives the checkpoint up")
	}
	fold, err := p.w.store.Fold(e, 0)
	if err != nil {
		return err
	}
	_ = inParallel(refsOf(fold), func(ref strategy.Ref) error { // before anybody has to wait for it
		if !ref.Blocks {
			_ = p.verify(ref)
		}
		return nil
	})
	t.lockToLook()
	defer t.unlockLooked()
	if fold, err = p.w.store.Fold(e, 0); err != nil { // somebody may have changed something since
		return err
	}
	v := t.newFrozenView(fold)
	defer v.close()
	v.hide(p.w.hiddenIn(c), c)
	plan, err := t.makePlanWith(v, p.verify)
	if err != nil {
		return err
	}
	if _, err := p.w.planTracked(c); err != nil {
		return err
	}
	return p.allContents(plan)
}

// allContents also proves what a rollback would not need now: nothing is saved again for this epoch when its file changes later.
func (p *prover) allContents(plan *plan) error {
	for id, c := range plan.view.fold.Contents {
		for _, ref := range c.Refs() {
			if err := p.verify(ref); err != nil {
				return integrity(plan.pathOf(id), "its preimage can't be used: %w", err)
			}
		}
	}
	return nil
}

// verify is tiers.verify, but for what was verified already. Block preimages grow, and are verified each time.
func (p *prover) verify(ref strategy.Ref) error {
	p.mu.Lock()
	err, done := p.seen[ref]
	p.mu.Unlock()
	if done {
		return err
	}
	err = p.w.tiers.verify(ref)
	if !ref.Blocks {
		p.mu.Lock()
		p.seen[ref] = err
		p.mu.Unlock()
	}
	return err
}

func refsOf(fold *checkpoint.Fold) (refs []strategy.Ref) {
	for _, c := range fold.Contents {
		refs = append(refs, c.Refs()...)
	}
	return refs
}
