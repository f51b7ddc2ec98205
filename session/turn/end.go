package turn

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/owner"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
)

// Update changes the state of a pending turn. What it is given becomes the engine's, and must not be changed after that. Errors: NOT_FOUND; DISPOSED for a turn that is not
// pending, or whose state is lost; USAGE, which names what is wrong.
func (e *Engine) Update(ctx context.Context, id string, u Update) (UpdateEvent, error) {
	if err := u.check(); err != nil {
		return UpdateEvent{}, err
	}
	t, err := e.take(ctx, id)
	if err != nil {
		return UpdateEvent{}, err
	}
	defer t.lock.release()
	if t.Status != checkpoint.TurnPending { // which changes under the lock alone
		return UpdateEvent{}, ended(t.Turn)
	}
	next, ev, err := e.changed(t, &u)
	if err != nil {
		return UpdateEvent{}, err
	}
	if err := e.note(t, &u, next); err != nil {
		return UpdateEvent{}, err
	}
	e.tell(t, ev)
	if u.size() >= earlyMin {
		e.inBackground(func(ctx context.Context) { e.keepEarly(ctx, t) })
	}
	if !u.WithPatch {
		ev.CustomPatch = nil
	}
	return ev, nil
}

// earlyMin is how many bytes an update has, at least, that are kept before the turn ends.
const earlyMin = 16 << 10

// size is how many bytes of messages and artifacts an update has.
func (u *Update) size() (n int) {
	for _, list := range [][]json.RawMessage{u.AddMessages, deref(u.SetMessages)} {
		for _, m := range list {
			n += len(m)
		}
	}
	for _, a := range u.AddArtifacts {
		n += len(a.Data)
	}
	return n
}

// keepEarly puts messages and artifacts of a pending turn into the store, so that its end need not wait for that. What it can't keep, the end tries again.
func (e *Engine) keepEarly(ctx context.Context, t *entry) {
	if t.lock.take(ctx) != nil {
		return
	}
	defer t.lock.release()
	if t.Status != checkpoint.TurnPending {
		return
	}
	if t.unuse == nil {
		t.unuse = e.turns.Using()
	}
	if kept, err := t.state.kept(e.turns, false); err == nil {
		e.mu.Lock()
		t.state = kept
		e.mu.Unlock()
	}
}

// unused says that the turn needs no blobs any more but those that its record names. The caller holds the turn's lock.
func (t *entry) unused() {
	if t.unuse != nil {
		t.unuse()
		t.unuse = nil
	}
}

func ended(r Turn) error {
	return errs.New(errs.Disposed, op, r.ID, "it is %s", r.Status)
}

// changed gives the state of a turn after an update, and what to say of that. The caller holds the turn's lock.
func (e *Engine) changed(t *entry, u *Update) (*state, UpdateEvent, error) {
	if t.state == nil {
		return nil, UpdateEvent{}, lost(t.Turn)
	}
	next, ev, err := t.state.change(e.turns, u)
	if err == nil {
		ev.CustomPatch, err = t.state.patch(e.turns, next, u, !t.based)
	}
	ev.Turn, ev.Conversation, ev.Seq = t.ID, t.Conversation, t.seq+1
	return next, ev, err
}

// note makes an update hold: its owner at once, and its state in memory, of which the record says that it is there alone.
func (e *Engine) note(t *entry, u *Update, next *state) error {
	r := t.Turn
	if u.Owner != nil {
		own, err := owner.Find(op, u.Owner.PID, u.Owner.PIDStart)
		if err != nil {
			return err
		}
		r.PID, r.PIDStart = u.Owner.PID, own.Start
	}
	if u.Detached != nil {
		r.Detached = *u.Detached
	}
	r.Unsaved = r.Unsaved || u.hasState()
	if r.Unsaved != t.Unsaved || u.Owner != nil || u.Detached != nil {
		if err := e.turns.Put(r); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r.UpdatedAt = e.now()
	t.Turn, t.state = r, next
	return nil
}

func (u *Update) hasState() bool {
	return u.SetMessages != nil || len(u.AddMessages)+len(u.AddArtifacts) > 0 || u.Custom != nil || u.CustomPatch != nil || u.Bindings != nil
}

// tell announces an update. The caller holds the turn's lock.
func (e *Engine) tell(t *entry, ev UpdateEvent) {
	t.seq = ev.Seq
	t.based = t.based || ev.CustomPatch != nil
	e.announce(EventUpdated, t.ID, ev)
}

// End ends a turn: a completed one becomes a checkpoint with a state, any other has its files put back, also if ctx ends meanwhile. Errors: NOT_FOUND; DISPOSED for a turn that
// has completed or failed already, or that can't complete as its state is lost; USAGE; those of Snapshot; ATTEMPT_ROLLBACK, with an attempt.RollbackError below,
// where the files can't be put back. With any of these the turn is as it was, and can be ended again.
func (e *Engine) End(ctx context.Context, id string, o EndOptions) (Result, error) {
	if o.Outcome != Completed && o.Outcome != Failed {
		return Result{}, errs.New(errs.Usage, op, "outcome", "%q is neither completed nor failed", o.Outcome)
	}
	if o.Error != nil && o.Error.Details != nil {
		if err := (&Update{Custom: o.Error.Details}).check(); err != nil {
			return Result{}, errs.New(errs.Usage, op, "error.details", "it is no JSON")
		}
	}
	if o.Update != nil {
		if err := o.Update.check(); err != nil {
			return Result{}, err
		}
	}
	t, err := e.take(ctx, id)
	if err != nil {
		return Result{}, err
	}
	defer t.lock.release()
	r, err := e.endTaken(ctx, t, o)
	if err == nil && o.WithState {
		r.State, err = e.goodState(r)
	}
	return r, err
}

// endTaken ends a turn whose lock the caller holds.
func (e *Engine) endTaken(ctx context.Context, t *entry, o EndOptions) (Result, error) {
	switch {
	case t.Status == checkpoint.TurnAborted && t.Settled:
		return e.result(t, nil), nil
	case t.Status == checkpoint.TurnAborted:
		return e.settle(context.WithoutCancel(ctx), t, t.Turn, o.NoRollback)
	case t.Status != checkpoint.TurnPending:
		return Result{}, ended(t.Turn)
	case o.Outcome == Completed:
		return e.complete(ctx, t, o)
	}
	return e.fail(context.WithoutCancel(ctx), t, ReasonFailed, o.Error, o.NoRollback)
}

func (e *Engine) result(t *entry, rolledBack *overlay.RollbackResult) Result {
	r := Result{Turn: t.Turn, LastGood: t.Parent, Rollback: rolledBack}
	if t.Status == checkpoint.TurnCompleted {
		r.LastGood = t.ID
	}
	e.look(&r.Turn)
	return r
}

// goodState gives the state of the last good turn. What can't be read doesn't undo the end.
func (e *Engine) goodState(r Result) (*State, error) {
	if r.LastGood == "" {
		return &State{Conversation: r.Turn.Conversation, Messages: nil, Artifacts: nil}, nil
	}
	st, err := e.State(r.LastGood)
	if errs.CodeOf(err) == errs.NotFound { // it was collected
		return nil, nil
	}
	if st != nil {
		st.Conversation = r.Turn.Conversation
	}
	return st, err
}

// complete commits the checkpoint and the state.
func (e *Engine) complete(ctx context.Context, t *entry, o EndOptions) (Result, error) {
	next, ev, err := e.changed(t, cmp.Or(o.Update, &Update{}))
	if err != nil {
		return Result{}, err
	}
	h, err := e.line(t.WorksIn)
	if err != nil {
		return Result{}, err
	}
	defer e.turns.Using()()
	r := t.Turn
	if r.State, err = next.save(e.turns); err != nil {
		return Result{}, err
	}
	crash.Point("turn-kept")
	r.Status, r.Settled, r.FinishReason, r.Unsaved = checkpoint.TurnCompleted, true, o.FinishReason, false
	r.PID, r.PIDStart = 0, 0
	if o.Update != nil && o.Update.Detached != nil {
		r.Detached = *o.Update.Detached
	}
	r.UpdatedAt = e.stamp()
	_, err = h.Snapshot(ctx, overlay.SnapshotOptions{
		ID: r.ID, Subagent: r.Subagent, Agent: r.Agent, CreatedBy: CreatedBy, Message: r.Message,
		Commit: func(tx *checkpoint.Tx) error { return tx.PutTurn(r) },
	})
	if err != nil {
		return Result{}, err
	}
	crash.Point("turn-completed")
	if o.Update != nil {
		e.tell(t, ev)
	}
	e.finish(t, r)
	return e.result(t, nil), nil
}

// fail ends a pending turn as failed.
func (e *Engine) fail(ctx context.Context, t *entry, reason string, why *checkpoint.TurnError, keepFiles bool) (Result, error) {
	r := t.Turn
	r.Status, r.FinishReason, r.Error = checkpoint.TurnFailed, reason, why
	return e.settle(ctx, t, r, keepFiles)
}

// settle puts the files of a turn back that has failed or was aborted, and commits its record, r, with that.
func (e *Engine) settle(ctx context.Context, t *entry, r Turn, keepFiles bool) (Result, error) {
	r.Settled, r.Unsaved, r.State = true, false, checkpoint.TurnState{}
	r.PID, r.PIDStart = 0, 0
	r.UpdatedAt = e.stamp()
	done, err := e.putBack(ctx, r, keepFiles)
	if err != nil {
		why := errors.New("no reason was given")
		switch {
		case r.Error != nil && r.Error.Message != "":
			why = errors.New(r.Error.Message)
		case r.Status == checkpoint.TurnAborted:
			why = errors.New("it was aborted")
		}
		return Result{}, errs.New(errs.AttemptRollback, op, r.ID, "%w", &attempt.RollbackError{Checkpoint: r.Base, Attempt: why, Rollback: err}).
			WithHint("it is under way still: end it again, or with --no-rollback to leave the files as they are")
	}
	crash.Point("turn-settled")
	e.finish(t, r)
	return e.result(t, done), nil
}

// putBack puts the files back to a turn's base, and commits its record in the same transaction.
func (e *Engine) putBack(ctx context.Context, r Turn, keepFiles bool) (*overlay.RollbackResult, error) {
	h, err := e.line(r.WorksIn)
	switch code := errs.CodeOf(err); {
	case code == errs.Disposed || code == errs.NotFound: // the files are gone with their branch
		keepFiles = true
	case err != nil:
		return nil, err
	}
	if keepFiles || h.Unchanged(r.Base) {
		return nil, e.turns.Put(r)
	}
	done, err := e.w.Rollback(ctx, r.Base, e.rollbackOf(r))
	if err != nil {
		return nil, err
	}
	return &done, nil
}

func (e *Engine) stamp() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now()
}

// finish makes the tables say that a turn has ended, and tells. The caller holds the turn's lock.
func (e *Engine) finish(t *entry, r Turn) {
	e.mu.Lock()
	wasPending := t.Status == checkpoint.TurnPending
	t.Turn, t.state = r, nil
	if e.busy[r.WorksIn] == t {
		delete(e.busy, r.WorksIn)
	}
	if wasPending {
		close(t.left)
	}
	e.mu.Unlock()
	t.unused()
	e.announce(EventEnded, r.ID, r)
	e.tidy(r)
}

// Abort aborts a pending turn; one that has ended stays what it is. The files go back when the turn's owner ends it, at once with o.Force, or where the owner is
// gone. An ID that is not known can't begin after that: who has sent a begin and not waited for the answer aborts it, and the two may overtake each other.
// Errors: NOT_FOUND; ATTEMPT_ROLLBACK where the files can't be put back, though the turn is aborted.
func (e *Engine) Abort(ctx context.Context, id string, o AbortOptions) (Turn, error) {
	t, err := e.take(ctx, id)
	if errs.CodeOf(err) == errs.NotFound && e.refuse(id) {
		t, err = e.take(ctx, id)
	}
	if err != nil {
		return Turn{}, err
	}
	defer t.lock.release()
	if t.Status == checkpoint.TurnPending {
		if err := e.abort(t, o.Reason); err != nil {
			return Turn{}, err
		}
	}
	e.mu.Lock()
	now := t.Status == checkpoint.TurnAborted && !t.Settled && (o.Force || t.gone())
	e.mu.Unlock()
	if now {
		if _, err := e.settle(context.WithoutCancel(ctx), t, t.Turn, false); err != nil {
			return Turn{}, err
		}
	}
	r := t.Turn
	e.look(&r)
	return r, nil
}

// refuse lets no turn begin with an ID. It reports whether one has begun just before.
func (e *Engine) refuse(id string) (begun bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byID[id] != nil {
		return true
	}
	e.refused = append(e.refused, id)
	if len(e.refused) > maxRefused {
		e.refused = slices.Delete(e.refused, 0, 1)
	}
	return false
}

// abort commits that a pending turn is aborted.
func (e *Engine) abort(t *entry, reason string) error {
	r := t.Turn
	r.Status, r.FinishReason, r.Unsaved, r.State = checkpoint.TurnAborted, ReasonAborted, false, checkpoint.TurnState{}
	if reason != "" {
		r.Error = &checkpoint.TurnError{Message: reason}
	}
	r.UpdatedAt = e.stamp()
	if err := e.turns.Put(r); err != nil {
		return err
	}
	crash.Point("turn-aborted")
	e.mu.Lock()
	t.Turn, t.state = r, nil
	close(t.left)
	e.mu.Unlock()
	t.unused()
	e.announce(EventAborted, r.ID, r)
	return nil
}

// interrupt settles a turn whose owner is gone. It gives nil if somebody else has settled it meanwhile.
func (e *Engine) interrupt(ctx context.Context, t *entry) (*Turn, error) {
	if err := t.lock.take(ctx); err != nil {
		return nil, err
	}
	defer t.lock.release()
	e.mu.Lock()
	stale := t.Settled || e.byID[t.ID] != t || !t.gone()
	e.mu.Unlock()
	if stale {
		return nil, nil
	}
	var err error
	if t.Status == checkpoint.TurnAborted {
		_, err = e.settle(ctx, t, t.Turn, false)
	} else {
		_, err = e.fail(ctx, t, ReasonInterrupted, &checkpoint.TurnError{Message: "the process that had it is gone"}, false)
	}
	if err != nil {
		return nil, err
	}
	r := t.Turn
	return &r, nil
}
