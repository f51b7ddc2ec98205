package attempt

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// End ends an attempt. After a success the files stay, and the result says what has changed. After a failure all is rolled back, also if ctx ends
// meanwhile, and the checkpoint is forgotten, as what it holds is what there is: undo goes back to what the attempt left.
//
// Errors: NOT_FOUND for an attempt that is not under way; BUSY for one that somebody is ending; USAGE for an outcome that is none; ATTEMPT_ROLLBACK, with a
// RollbackError below, where the rollback failed: then the attempt has ended, and its checkpoint stays active. Where it can't be
// found out what has changed, or ctx ends before, the attempt is under way still.
func (e *Engine) End(ctx context.Context, id string, o EndOptions) (Result, error) {
	if o.Outcome != Success && o.Outcome != Failure {
		return Result{}, errs.New(errs.Usage, op, "outcome", "%q is neither success nor failure", o.Outcome)
	}
	a, err := e.take(ctx, id)
	if err != nil {
		return Result{}, err
	}
	r := a.result(o.Shortened())
	switch {
	case o.Outcome == Success && !o.NoReconcile:
		err = e.reconcile(ctx, &r)
	case o.Outcome == Failure && !o.NoRollback:
		err = e.rollBack(context.WithoutCancel(ctx), &r)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil && errs.CodeOf(err) != errs.AttemptRollback {
		a.ending = false
		return Result{}, err
	}
	delete(e.under, a.WorksIn)
	e.announce(r)
	return r, err
}

// Abandon lets an attempt be under way no more. The files stay as they are, and its checkpoint stays active. Errors: NOT_FOUND and BUSY as of End. An ID that is
// not under way can't begin after that: who has sent a begin and not waited for the answer abandons it, and the two may overtake each other.
func (e *Engine) Abandon(ctx context.Context, id string) (Result, error) {
	a, err := e.take(ctx, id)
	if errs.CodeOf(err) == errs.NotFound && e.refuse(id) {
		a, err = e.take(ctx, id)
	}
	if err != nil {
		return Result{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drop(a, Abandoned)
	return a.result(EndOptions{Outcome: Abandoned}), nil
}

// refuse lets no attempt begin with an ID. It reports whether one has begun just before.
func (e *Engine) refuse(id string) (begun bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.named(id) != nil {
		return true
	}
	e.refused = append(e.refused, id)
	if len(e.refused) > maxRefused {
		e.refused = slices.Delete(e.refused, 0, 1)
	}
	return false
}

// take makes the caller the one who ends an attempt. One that is about to begin is waited for.
func (e *Engine) take(ctx context.Context, id string) (*entry, error) {
	e.mu.Lock()
	a := e.named(id)
	e.mu.Unlock()
	if a == nil {
		return nil, e.notUnderWay(id)
	}
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case a.failed || e.under[a.WorksIn] != a:
		return nil, e.notUnderWay(id)
	case a.ending:
		return nil, errs.New(errs.Busy, op, id, "it is being ended")
	}
	a.ending = true
	return a, nil
}

// wait waits until the checkpoint was made, or not. It does not ask for ctx where that is so already: a failure is rolled back also for who has gone.
func (a *entry) wait(ctx context.Context) error {
	if a.isBegun() {
		return nil
	}
	select {
	case <-a.begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *entry) isBegun() bool {
	select {
	case <-a.begun:
		return true
	default:
		return false
	}
}

// named gives the attempt with an ID, nil if there is none. The caller holds e.mu.
func (e *Engine) named(id string) *entry {
	for _, a := range e.under {
		if a.ID == id {
			return a
		}
	}
	return nil
}

func (e *Engine) notUnderWay(id string) error {
	return errs.New(errs.NotFound, op, id, "no such attempt is under way").WithHint("if it has a checkpoint still, hyperfs rollback goes back to that")
}

func (e *Engine) reconcile(ctx context.Context, r *Result) error {
	changed, err := e.w.Reconcile(ctx, r.ID)
	if err == nil {
		r.Reconcile = &changed
	}
	return err
}

// rollBack rolls back what an attempt has done. Its checkpoint is of no more use then: many attempts that fail must not use up the number of those that
// may be active. One that can't be dropped does no harm.
func (e *Engine) rollBack(ctx context.Context, r *Result) error {
	done, err := e.w.Rollback(ctx, r.ID, overlay.RollbackOptions{})
	if err != nil {
		why := errors.New(cmp.Or(r.Message, "no reason was given"))
		return DoubleFault(&RollbackError{Checkpoint: r.ID, Attempt: why, Rollback: err})
	}
	r.RolledBack, r.Rollback = true, &done
	_ = e.w.Drop(ctx, r.ID)
	return nil
}

// DoubleFault gives the ATTEMPT_ROLLBACK error.
func DoubleFault(e *RollbackError) error {
	return errs.New(errs.AttemptRollback, op, e.Checkpoint, "%w", e).
		WithHint("its checkpoint stays active: hyperfs rollback " + e.Checkpoint + " tries it again")
}
