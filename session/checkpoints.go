package session

import (
	"cmp"
	"context"
	"io"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

// Snapshot makes a checkpoint.
func (s *Session) Snapshot(ctx context.Context, o overlay.SnapshotOptions) (checkpoint.Checkpoint, error) {
	if o.Parent == "" {
		o.Branch = cmp.Or(o.Branch, s.shown)
	}
	return call(ctx, s, "snapshot", func(ctx context.Context) (checkpoint.Checkpoint, error) { return s.client.Snapshot(ctx, o) })
}

// Reserve gives an ID for a later Snapshot or attempt.
func (s *Session) Reserve(ctx context.Context) (string, error) {
	return call(ctx, s, "reserve", s.client.Reserve)
}

// List gives the checkpoints that o lets through, oldest first.
func (s *Session) List(ctx context.Context, o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	return call(ctx, s, "list", func(ctx context.Context) ([]checkpoint.Checkpoint, error) { return s.client.List(ctx, o) })
}

// Get gives one checkpoint.
func (s *Session) Get(ctx context.Context, id string) (checkpoint.Checkpoint, error) {
	r, err := s.show(ctx, id)
	return r.Checkpoint, err
}

// Lineage gives a checkpoint and its ancestors, oldest first.
func (s *Session) Lineage(ctx context.Context, id string) ([]checkpoint.Checkpoint, error) {
	r, err := s.show(ctx, id)
	return r.Lineage, err
}

// Children gives the active checkpoints whose parent it is, with all also those that were promoted or disposed.
func (s *Session) Children(ctx context.Context, id string, all bool) ([]checkpoint.Checkpoint, error) {
	r, err := s.show(ctx, id)
	list := []checkpoint.Checkpoint{}
	for _, c := range r.Children {
		if all || c.Status == checkpoint.Active {
			list = append(list, c)
		}
	}
	return list, err
}

func (s *Session) show(ctx context.Context, id string) (control.CheckpointReply, error) {
	return call(ctx, s, "show", func(ctx context.Context) (control.CheckpointReply, error) { return s.client.Show(ctx, id) })
}

// BranchHeads gives the newest checkpoint of each branch, of those that o lets through.
func (s *Session) BranchHeads(ctx context.Context, o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	return s.heads(ctx, control.HeadsByBranch, o)
}

// SubagentHeads gives the newest checkpoint of each subagent, of those that o lets through.
func (s *Session) SubagentHeads(ctx context.Context, o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	return s.heads(ctx, control.HeadsBySubagent, o)
}

func (s *Session) heads(ctx context.Context, by control.HeadsBy, o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	return call(ctx, s, "heads", func(ctx context.Context) ([]checkpoint.Checkpoint, error) { return s.client.Heads(ctx, by, o) })
}

// Reconcile gives what changed since a checkpoint, "" being the newest, and remembers it.
func (s *Session) Reconcile(ctx context.Context, id string) (overlay.ReconcileResult, error) {
	return call(ctx, s, "reconcile", func(ctx context.Context) (overlay.ReconcileResult, error) {
		branch := ""
		if id == "" {
			branch = s.shown
		}
		r, err := s.client.Reconcile(ctx, branch, id)
		if err == nil {
			s.note(&r, nil)
		}
		return r, err
	})
}

// Rollback puts the workspace, or the branch that the checkpoint is of, back to a checkpoint, and remembers how long that took. Undo takes it back. The
// result names conversations that go on from other files.
func (s *Session) Rollback(ctx context.Context, id string, o overlay.RollbackOptions) (control.RollbackReply, error) {
	return call(ctx, s, "rollback", func(ctx context.Context) (control.RollbackReply, error) {
		return s.rolledBack(s.client.Rollback(ctx, id, o))
	})
}

// Undo takes the last rollback or merge of a branch back; "" is the one of the session.
func (s *Session) Undo(ctx context.Context, branch string) (control.RollbackReply, error) {
	return call(ctx, s, "undo", func(ctx context.Context) (control.RollbackReply, error) {
		return s.rolledBack(s.client.Undo(ctx, cmp.Or(branch, s.shown)))
	})
}

func (s *Session) rolledBack(r control.RollbackReply, err error) (control.RollbackReply, error) {
	if err == nil {
		s.note(nil, &r.RollbackResult)
	}
	return r, err
}

// Promote accepts what is there now. With a patch asked for, a failure to make it leaves the checkpoint active.
func (s *Session) Promote(ctx context.Context, id string, o control.PromoteOptions) (control.PromoteReply, error) {
	return call(ctx, s, "promote", func(ctx context.Context) (control.PromoteReply, error) { return s.client.Promote(ctx, id, o) })
}

// Drop forgets a checkpoint. The workspace stays as it is.
func (s *Session) Drop(ctx context.Context, id string) error {
	return do(ctx, s, "drop", func(ctx context.Context) error { return s.client.Drop(ctx, id) })
}

// ExportPatch writes what changed since a checkpoint as a patch that git apply takes. If it gives nil, all of it was written.
func (s *Session) ExportPatch(ctx context.Context, id string, w io.Writer) error {
	return do(ctx, s, "patch", func(ctx context.Context) error {
		b := control.Between{From: id}
		if id == "" {
			b.Branch = s.shown
		}
		return s.client.Patch(ctx, b, w)
	})
}
