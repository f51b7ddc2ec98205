package session

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

// run is one call of RunTurns. Its loop is a goroutine of its own, which a detached run is left to.
type run struct {
	r      *Runner
	caller context.Context
	ctx    context.Context // of the handlers: ends with the caller's until release is called, and with the session

	release  func() bool
	left     chan struct{} // closed by Detach
	done     chan struct{} // closed at the end of the loop; then result and err are there
	result   RunResult     // the loop's own until then
	err      error
	over     bool // guarded by r.mu: the loop has ended
	detached bool // guarded by r.mu
}

// start begins a run, and waits until it has ended or is detached.
func (r *Runner) start(ctx context.Context, next func(context.Context) (step, bool, error)) (RunResult, error) {
	const op = "run turns"
	u := &run{r: r, caller: ctx, left: make(chan struct{}), done: make(chan struct{})}
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	u.release = context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	own, leave, err := r.s.enter(own, op)
	if err != nil {
		cancel(err)
		return r.Last(), err
	}
	u.ctx = own
	r.mu.Lock()
	if other := r.run; other != nil && !other.over {
		r.mu.Unlock()
		u.release()
		cancel(nil)
		leave()
		return r.Last(), errs.New(errs.Busy, op, "", "this runner runs already").WithHint("Wait waits for it")
	}
	r.run = u
	r.last.Completed, r.last.LastFinishReason, r.last.LastError, r.last.Turn, r.last.Rollback = 0, "", nil, turn.Turn{}, nil
	u.result = r.last
	r.mu.Unlock()
	go func() {
		defer leave()
		defer cancel(nil)
		defer u.release()
		u.loop(next)
	}()
	select {
	case <-u.done:
		return u.result, u.err
	case <-u.left:
	}
	select {
	case <-u.done:
		return u.result, u.err
	default:
		return u.leave(context.WithoutCancel(ctx))
	}
}

// leave gives the result of a run that goes on, after it has said so in the turn's record.
func (u *run) leave(ctx context.Context) (RunResult, error) {
	t := u.r.Current()
	result := u.r.Last()
	result.LastFinishReason = turn.ReasonDetached
	if t == nil {
		return result, nil
	}
	result.Pending, result.Turn = t.ID(), t.record
	result.Turn.Detached = true
	_ = t.Update(ctx, detachedUpdate) // it may have ended meanwhile; nothing depends on it
	return result, nil
}

var detachedUpdate = turn.Update{Detached: new(true)}

// loop makes turns until the inputs end, or one does not complete.
func (u *run) loop(next func(context.Context) (step, bool, error)) {
	var err error
	for more := true; more && err == nil; {
		if err = u.callerEnded(); err != nil {
			break
		}
		var st step
		if st, more, err = next(u.ctx); more && err == nil {
			more, err = u.turn(st)
		}
	}
	if u.result.LastGood != "" && u.result.LastGoodState == nil {
		st, failed := u.r.s.client.TurnState(context.WithoutCancel(u.ctx), u.result.LastGood)
		switch {
		case failed == nil:
			u.result.LastGoodState = &st
		case err == nil && errs.CodeOf(failed) != errs.NotFound: // it was collected
			err = failed
		}
	}
	u.err = u.r.s.explain(u.ctx, "run turns", err)
	u.r.mu.Lock()
	u.over = true
	u.r.mu.Unlock()
	close(u.done)
}

// callerEnded gives the cause of the end of the caller's context, which the handlers' hears of a moment later. nil if it goes on, or does not count any more.
func (u *run) callerEnded() error {
	u.r.mu.Lock()
	defer u.r.mu.Unlock()
	if u.detached {
		return nil
	}
	return context.Cause(u.caller)
}

// turn makes one turn. It reports whether another one may follow.
func (u *run) turn(st step) (more bool, err error) {
	u.setWaiting(slices.DeleteFunc(slices.Clone(u.r.waiting), func(w step) bool { return w.taken == st.taken }))
	t, err := u.begin()
	if err != nil {
		u.setWaiting(append([]step{st}, u.r.waiting...))
		u.publish(nil)
		return false, err
	}
	watching, stop := context.WithCancel(t.ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		t.watch(watching)
	}()
	said, failure := t.handle(st)
	if failure == nil {
		failure = context.Cause(t.ctx) // it has ended before fn returned
	}
	t.finish()
	stop()
	<-watched
	err = u.end(t, said, failure)
	u.publish(nil)
	return err == nil && u.result.LastError == nil && !said.Stop, err
}

// setWaiting says of which inputs no turn could be begun.
func (u *run) setWaiting(list []step) {
	u.r.waiting, u.result.Waiting = list, nil
	for _, st := range list {
		u.result.Waiting = append(u.result.Waiting, st.input)
	}
}

// publish lets others see how things are, and which turn is under way.
func (u *run) publish(current *Turn) {
	u.r.mu.Lock()
	defer u.r.mu.Unlock()
	u.r.current = current
	u.r.last = u.result
	u.r.last.LastGoodState = nil
}

// begin begins a turn. It is not cut off: nobody would know whether the turn has begun.
func (u *run) begin() (*Turn, error) {
	r, s := u.r, u.r.s
	o := r.next
	o.ID = overlay.NewID()
	begun, err := s.client.BeginTurn(context.WithoutCancel(u.ctx), o)
	if err != nil {
		return nil, err
	}
	for _, settled := range begun.Settled {
		r.tell(TurnEvent{Type: turn.EventEnded, Turn: settled})
	}
	s.note(nil, begun.Rollback)
	r.next.Conversation, r.next.Branch, r.next.Fork = begun.Conversation, begun.WorksIn, "" // the branch is there, also if this turn fails
	if begun.Conversation != r.from {
		r.next.From = "" // a conversation of its own has begun, whose turns begin with the state of From until one completes
	}
	u.result.Conversation, u.result.Turn = begun.Conversation, begun.Turn
	dir, err := s.branchDir("begin turn", begun.WorksIn)
	if err != nil {
		_, failed := s.client.EndTurn(context.WithoutCancel(u.ctx), begun.ID, turn.EndOptions{Outcome: turn.Failed, Error: turnErrorOf(err)})
		return nil, errors.Join(err, failed)
	}
	t := &Turn{job: newJob(u.ctx, s, begun.Base, begun.WorksIn, dir), r: r, record: begun.Turn}
	r.tell(TurnEvent{Type: turn.EventBegun, Turn: t.record})
	u.publish(t)
	r.mu.Lock()
	detached := u.detached
	r.mu.Unlock()
	if detached {
		_ = t.Update(u.ctx, detachedUpdate)
	}
	return t, nil
}

// handle adds the input's messages and calls the handler, on a goroutine that it may end.
func (t *Turn) handle(st step) (result TurnResult, err error) {
	done := make(chan struct{})
	go func() {
		returned := false
		defer close(done)
		defer func() {
			if returned {
				return
			}
			result, err = TurnResult{}, errNotReturned
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
		}()
		if st.messages != nil {
			err = t.AddMessages(t.ctx, st.messages()...)
		}
		if err == nil {
			result, err = st.handle(t.ctx, t)
		}
		returned = true
	}()
	<-done
	return result, err
}

// How a turn is watched.
const (
	watchAfter = 20 * time.Millisecond // what ends before finds out by its end
	watchAgain = time.Second           // where the daemon does not answer
)

// watch ends the turn's context when the turn is not pending any more, until ctx ends.
func (t *Turn) watch(ctx context.Context) {
	for wait := watchAfter; ; wait = watchAgain {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if record, err := t.s.client.WaitTurn(ctx, t.ID()); err == nil {
			t.settled(record)
			return
		}
	}
}

// settled ends the turn's context, as the turn is not pending any more.
func (t *Turn) settled(record turn.Turn) {
	switch record.Status {
	case checkpoint.TurnPending:
	case checkpoint.TurnAborted:
		t.cancel(abortOf(record))
	default:
		t.cancel(fmt.Errorf("%w: it is %s", errTurnEnded, record.Status))
	}
}

// abortOf gives the error of a turn that was aborted.
func abortOf(record turn.Turn) error {
	if record.Error == nil || record.Error.Message == "" {
		return ErrTurnAborted
	}
	return fmt.Errorf("%w: %s", ErrTurnAborted, record.Error.Message)
}

// end ends a turn: completed where failure is nil. What can't be committed has failed. It is not cut off.
func (u *run) end(t *Turn, said TurnResult, failure error) error {
	ctx := context.WithoutCancel(u.ctx)
	var r turn.Result
	var err error
	if failure == nil {
		r, err = t.s.client.EndTurn(ctx, t.ID(), turn.EndOptions{Outcome: turn.Completed, FinishReason: said.FinishReason})
		failure = err
	}
	if failure != nil {
		r, err = t.s.client.EndTurn(ctx, t.ID(), turn.EndOptions{Outcome: turn.Failed, Error: turnErrorOf(failure), NoRollback: u.r.o.NoRollback, WithState: true})
	}
	if err != nil {
		record, e := t.s.client.Turn(ctx, t.ID())
		if e != nil || !record.Settled {
			return u.notEnded(t, failure, err)
		}
		r = turn.Result{Turn: record, LastGood: record.Parent} // somebody else has ended it
		if record.Status == checkpoint.TurnCompleted {
			r.LastGood = record.ID
		}
	}
	u.ended(r, failure)
	return nil
}

// ended takes down what has become of a turn.
func (u *run) ended(r turn.Result, failure error) {
	u.result.Turn, u.result.LastFinishReason, u.result.LastGood, u.result.LastGoodState = r.Turn, r.Turn.FinishReason, r.LastGood, r.State
	u.result.LastError, u.result.Rollback = failure, r.Rollback
	u.r.s.note(nil, r.Rollback)
	switch r.Turn.Status {
	case checkpoint.TurnCompleted:
		u.result.Completed++
		u.r.next.From = "" // it goes on from here
	case checkpoint.TurnAborted:
		u.result.LastError = abortOf(r.Turn)
		u.r.tell(TurnEvent{Type: turn.EventAborted, Turn: r.Turn})
	}
	u.r.tell(TurnEvent{Type: turn.EventEnded, Turn: r.Turn})
}

// notEnded gives the error of a turn that has failed and can't be ended.
func (u *run) notEnded(t *Turn, failure, err error) error {
	u.result.LastError, u.result.LastFinishReason, u.result.LastGoodState = failure, turn.ReasonFailed, nil
	var told *attempt.RollbackError
	if errors.As(err, &told) {
		err = told.Rollback
	}
	return errs.New(errs.AttemptRollback, "end turn", t.ID(), "%w", &attempt.RollbackError{Checkpoint: t.Base(), Attempt: failure, Rollback: err}).
		WithHint("it is under way still: hyperfs turns end --failed " + t.ID() + " tries it again")
}
