package session

import (
	"cmp"
	"context"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
)

// Fork makes a branch.
func (s *Session) Fork(ctx context.Context, o overlay.ForkOptions) (checkpoint.Branch, error) {
	if o.From == "" {
		o.Branch = cmp.Or(o.Branch, s.shown)
	}
	return call(ctx, s, "fork", func(ctx context.Context) (checkpoint.Branch, error) { return s.client.Fork(ctx, o) })
}

// PromoteBranch makes a branch's changes in its parent, all or none. With BRANCH_CONFLICT nothing was changed, and the result lists what stands in the way.
func (s *Session) PromoteBranch(ctx context.Context, name string, o overlay.MergeOptions) (overlay.MergeResult, error) {
	return call(ctx, s, "merge", func(ctx context.Context) (overlay.MergeResult, error) { return s.client.Merge(ctx, name, o) })
}

// DropBranch discards a branch with all that it has. No other is touched.
func (s *Session) DropBranch(ctx context.Context, name string) error {
	return do(ctx, s, "drop branch", func(ctx context.Context) error { return s.client.DropBranch(ctx, name) })
}

// BranchRun is what a callback of RunInBranch works with.
type BranchRun struct{ *job }

// BranchResult is what has become of a callback in a branch.
type BranchResult[T any] struct {
	Checkpoint string // ID of the one that was made of the branch before
	Value      T
	Dirty      overlay.ReconcileResult // what the callback has changed in the branch
}

// RunInBranch makes a checkpoint of a branch, runs fn, and gives what has changed in the branch since, also where fn fails. Nothing is rolled
// back: a branch can be dropped, or Rollback goes to the checkpoint. A branch can be used by several at once; what others change is in the dirty set too.
//
// In a Turn it ends with that.
func RunInBranch[T any](ctx context.Context, in Place, name string, fn func(context.Context, *BranchRun) (T, error)) (r BranchResult[T], err error) {
	const op = "run in branch"
	ctx, leave, err := in.enter(ctx, op)
	if err != nil {
		return r, err
	}
	defer leave()
	s := in.session()
	run, err := s.enterBranch(ctx, op, name)
	if err != nil {
		return r, s.explain(ctx, op, err)
	}
	r.Checkpoint = run.checkpoint
	defer run.finish() // also where fn panics
	r.Value, err = fn(run.ctx, run)
	run.finish()
	dirty, failed := s.client.Reconcile(context.WithoutCancel(ctx), "", r.Checkpoint)
	if failed == nil {
		r.Dirty = dirty
		s.note(&dirty, nil)
	}
	if err == nil {
		err = failed
	}
	return r, err
}

// enterBranch makes the checkpoint of a branch that a run begins with.
func (s *Session) enterBranch(ctx context.Context, op, name string) (*BranchRun, error) {
	if _, err := s.client.Branch(ctx, name); err != nil {
		return nil, err
	}
	dir, err := s.branchDir(op, name)
	if err != nil {
		return nil, err
	}
	k, err := s.client.Snapshot(ctx, overlay.SnapshotOptions{Branch: name, CreatedBy: "run-in-branch"})
	if err != nil {
		return nil, err
	}
	return &BranchRun{newJob(ctx, s, k.ID, name, dir)}, nil
}
