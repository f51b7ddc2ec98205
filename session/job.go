package session

import (
	"context"
	"sync"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// envBranch names the branch that hyperfs commands are about.
const envBranch = "HYPERFS_BRANCH"

// job is work that begins with a checkpoint: what a callback is given. Its methods may be called by any goroutine, until the callback returns.
type job struct {
	s          *Session
	checkpoint string
	branch     string
	dir        string

	ctx    context.Context // ends with the job
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards ended
	ended bool
	calls sync.WaitGroup // those under way; added to only with mu held, and not ended
}

// errEnded is what ends contexts of a job.
var errEnded = errs.New(errs.Disposed, "use the attempt", "", "it has ended")

func newJob(ctx context.Context, s *Session, checkpoint, branch, dir string) *job {
	j := &job{s: s, checkpoint: checkpoint, branch: branch, dir: dir}
	j.ctx, j.cancel = context.WithCancelCause(ctx)
	return j
}

// CheckpointID gives the ID of the checkpoint that the work began with.
func (j *job) CheckpointID() string { return j.checkpoint }

// Session gives the session.
func (j *job) Session() *Session { return j.s }

// Branch gives where the work is done: main, or a branch.
func (j *job) Branch() string { return j.branch }

// Dir gives the directory that has the files to work on. Commands that Exec runs in a branch find them at the workspace's own path.
func (j *job) Dir() string { return j.dir }

// finish ends what the callback has started and not waited for: calls and commands, with all their descendants. What other goroutines of the program
// do by themselves it can't end.
func (j *job) finish() {
	j.mu.Lock()
	j.ended = true
	j.mu.Unlock()
	j.cancel(errEnded)
	j.calls.Wait()
}

// enter begins a call, whose context ends with the job; leave ends it.
func (j *job) enter(ctx context.Context, op string) (_ context.Context, leave func(), err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended {
		return nil, nil, errs.New(errs.Disposed, op, j.checkpoint, "what it was for has ended")
	}
	j.calls.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(j.ctx, func() { cancel(context.Cause(j.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
		j.calls.Done()
	}, nil
}

// Reconcile gives what has changed since the checkpoint.
func (j *job) Reconcile(ctx context.Context) (overlay.ReconcileResult, error) {
	ctx, leave, err := j.enter(ctx, "reconcile")
	if err != nil {
		return overlay.ReconcileResult{}, err
	}
	defer leave()
	return j.s.Reconcile(ctx, j.checkpoint)
}

// Exec runs a command as Session.Exec does, in the branch if the work is done in one, and then finds out what has changed since the checkpoint, for
// Session.LastReconcile. The command's error goes before one of that.
func (j *job) Exec(ctx context.Context, c Command) (Result, error) {
	ctx, leave, err := j.enter(ctx, op)
	if err != nil {
		return Result{}, err
	}
	defer leave()
	r, err := j.s.Exec(ctx, j.s.placeIn(j.branch, j.dir, c))
	if ctx.Err() != nil {
		return r, err
	}
	if _, e := j.s.Reconcile(ctx, j.checkpoint); err == nil {
		err = e
	}
	return r, err
}
