package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
)

// AttemptOptions say how to make an attempt. The zero value rolls back a failure, and finds out what a success has changed.
type AttemptOptions struct {
	Parent   string // an active checkpoint, whose tags the new one has, unless they are given here
	Branch   string // where to work, if there is such a branch; else a tag of the checkpoint
	Subagent string
	Agent    string
	Message  string

	NoRollback  bool // a failure leaves the files as they are, and the checkpoint active
	NoReconcile bool // do not find out what a success has changed
}

// Place is where an attempt or a run in a branch is made: a *Session, or what a callback of one works with, a *Turn, *Attempt or *BranchRun.
type Place interface {
	enter(ctx context.Context, op string) (_ context.Context, leave func(), err error)
	session() *Session
	line() string // the branch that is meant where none is named, "" for main
}

func (s *Session) session() *Session { return s }

func (s *Session) line() string { return s.shown }

func (j *job) session() *Session { return j.s }

func (j *job) line() string { return j.branch }

// Attempt is what a callback of RunAttempt works with.
type Attempt struct{ *job }

// AttemptResult is what has become of an attempt.
type AttemptResult[T any] struct {
	CheckpointID string // active, unless it was rolled back to
	Value        T
	Reconcile    *overlay.ReconcileResult // of a success
	RolledBack   bool
	Rollback     *overlay.RollbackResult // with its duration
	Duration     time.Duration           // from the checkpoint to the end of fn
}

// PanicError stands for a panic of a callback in the error that says that the rollback failed too, and for one of a turn's handler.
type PanicError struct {
	Value any
	Stack []byte // of a turn's handler, whose panic goes no further; else nil
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap gives the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// errNotReturned stands for a panic whose value is not known, or the end of the goroutine.
var errNotReturned = errors.New("the callback has not returned: it panicked, or called runtime.Goexit")

// RunAttempt makes a checkpoint, runs fn, and keeps what was done if fn gives nil. If fn gives an error, everything is rolled back, and RunAttempt gives that
// error and a result that says so. So it is where ctx or the session ends before fn has returned, whatever fn gives: nil then becomes the cause of that end.
// The rollback itself is not ended by ctx. It is undone by Session.Undo.
//
// Where fn panics, or ends its goroutine, all is rolled back too, and the panic goes on with its value.
//
// In a Turn, a BranchRun or another Attempt it works where that does, unless o names another branch, and ends with it: a turn may have any number of attempts, one after
// the other.
//
// The context of fn ends when fn returns. Calls of the Attempt and commands that are still under way are ended before the attempt is: nothing that they have started
// changes the workspace afterwards.
//
// Errors before fn is called: ATTEMPT_IN_PROGRESS, at once, with the ID of another attempt in the same branch, of whichever program; and those of a snapshot. Where the
// rollback fails the error is ATTEMPT_ROLLBACK, which errors.Is and errors.As find both errors below; after a panic it is the value of
// another panic. Where it can't be found out what has changed, or ctx ends meanwhile, the result has the value, there is an error, and
// the files and the checkpoint stay.
func RunAttempt[T any](ctx context.Context, in Place, fn func(context.Context, *Attempt) (T, error), o AttemptOptions) (r AttemptResult[T], err error) {
	ctx, leave, err := in.enter(ctx, "attempt")
	if err != nil {
		return r, err
	}
	defer leave()
	s := in.session()
	a, err := s.begin(ctx, in.line(), o)
	if err != nil {
		return r, s.explain(ctx, "attempt", err)
	}
	e := ending{job: a.job, o: o}
	defer e.unlessReturned()
	r.CheckpointID = a.checkpoint
	r.Value, err = fn(a.ctx, a)
	e.returned = true
	a.finish()
	if err == nil {
		err = context.Cause(ctx)
	}
	done, err := e.end(ctx, err)
	r.Reconcile, r.RolledBack, r.Rollback, r.Duration = done.Reconcile, done.RolledBack, done.Rollback, done.Duration
	return r, err
}

// ourStart is when this process was started.
var ourStart = sync.OnceValue(func() int64 { return attempt.StartOf(os.Getpid()) })

// begin begins an attempt, in line where o names neither branch nor parent.
func (s *Session) begin(ctx context.Context, line string, o AttemptOptions) (*Attempt, error) {
	options := attempt.Options{
		ID:     overlay.NewID(), // known before, so that an attempt can be given up whose begin nobody has heard of
		Parent: o.Parent, Branch: o.Branch, Subagent: o.Subagent, Agent: o.Agent, Message: o.Message,
	}
	if start := ourStart(); start != 0 {
		options.PID, options.PIDStart = os.Getpid(), start
	}
	if o.Parent == "" {
		options.Branch = cmp.Or(o.Branch, line)
	}
	id := options.ID
	begun, err := s.client.BeginAttempt(ctx, options)
	if err != nil {
		if ctx.Err() != nil || errs.CodeOf(err) == errs.Internal { // no answer has come
			s.abandon(ctx, id)
		}
		return nil, err
	}
	dir, err := s.branchDir("attempt", begun.WorksIn)
	if err != nil {
		s.abandon(ctx, id)
		return nil, err
	}
	return &Attempt{newJob(ctx, s, id, begun.WorksIn, dir)}, nil
}

// abandon gives up an attempt that nothing was done in, also where ctx has ended. It may not have begun at all.
func (s *Session) abandon(ctx context.Context, id string) {
	ctx = context.WithoutCancel(ctx)
	if _, err := s.client.AbandonAttempt(ctx, id); err == nil {
		_ = s.client.Drop(ctx, id) // it holds what there is
	}
}

// ending is how an attempt ends.
type ending struct {
	*job
	o        AttemptOptions
	returned bool // fn has
}

// unlessReturned rolls back where fn has not returned: a panic is under way, which it lets go on, or the end of the goroutine. It must be deferred.
func (e *ending) unlessReturned() {
	if e.returned {
		return
	}
	e.finish()
	_, err := e.fail(errNotReturned)
	var both *attempt.RollbackError
	if !errors.As(err, &both) {
		return
	}
	if v := recover(); v != nil {
		both.Attempt = &PanicError{Value: v}
	}
	panic(err)
}

// end ends the attempt as failure says.
func (e *ending) end(ctx context.Context, failure error) (attempt.Result, error) {
	if failure != nil {
		return e.fail(failure)
	}
	r, err := e.s.client.EndAttempt(ctx, e.checkpoint, attempt.EndOptions{Outcome: attempt.Success, NoReconcile: e.o.NoReconcile})
	if err != nil {
		_, _ = e.s.client.AbandonAttempt(context.WithoutCancel(ctx), e.checkpoint) // it may have ended
		return r, e.s.explain(ctx, "attempt", err)
	}
	e.s.note(r.Reconcile, nil)
	return r, nil
}

// fail rolls back, if that is wanted. It gives failure, or where the rollback fails too the error that has both.
func (e *ending) fail(failure error) (attempt.Result, error) {
	r, err := e.s.client.EndAttempt(context.WithoutCancel(e.ctx), e.checkpoint, attempt.EndOptions{
		Outcome: attempt.Failure, Message: fmt.Sprint(failure), NoRollback: e.o.NoRollback, // fmt bears with an Error method that panics
	})
	if err == nil {
		e.s.note(nil, r.Rollback)
		return r, failure
	}
	both := &attempt.RollbackError{Checkpoint: e.checkpoint, Attempt: failure, Rollback: err}
	var told *attempt.RollbackError
	if errors.As(err, &told) {
		both.Rollback = told.Rollback
	}
	if e.o.NoRollback {
		return r, errors.Join(failure, err)
	}
	return r, attempt.DoubleFault(both)
}
