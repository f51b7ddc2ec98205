package control

import (
	"context"
	"net/http"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/turn"
)

func status(s *Server, _ context.Context, _ *call, _ *none) (StatusReply, error) {
	r := StatusReply{Status: s.workspace.Status(), Daemon: s.daemon(), Attempts: s.attempts.Active(), Turns: []turn.Turn{}}
	if s.turns != nil {
		r.Turns = s.turns.UnderWay()
	}
	return r, nil
}

func diagnostics(s *Server, _ context.Context, _ *call, _ *none) (DiagnosticsReply, error) {
	d := DiagnosticsReply{Diagnostics: s.workspace.Diagnostics(), Daemon: s.daemon(), Attempts: s.attempts.Active(), Counters: s.host.Counters()}
	if s.turns != nil {
		stats := s.turns.Stats()
		d.Turns = &stats
	}
	d.Probes, d.Active, d.Degraded = nonNil(d.Probes), nonNil(d.Active), nonNil(d.Degraded)
	return d, nil
}

func version(s *Server, _ context.Context, _ *call, _ *none) (Version, error) {
	return s.daemon().Version, nil
}

func snapshot(s *Server, ctx context.Context, _ *call, o *overlay.SnapshotOptions) (checkpoint.Checkpoint, error) {
	return s.workspace.Snapshot(ctx, *o)
}

func list(s *Server, _ context.Context, c *call, _ *none) (CheckpointsReply, error) {
	l, err := s.workspace.List(listOptions(c))
	return CheckpointsReply{nonNil(l)}, err
}

func listOptions(c *call) overlay.ListOptions {
	return overlay.ListOptions{
		Branch:          c.query["branch"],
		Subagent:        c.query["subagent"],
		Agent:           c.query["agent"],
		IncludeInactive: c.query.flag("all"),
	}
}

func reserve(s *Server, _ context.Context, _ *call, _ *none) (ReserveReply, error) {
	return ReserveReply{s.workspace.Reserve()}, nil
}

func show(s *Server, _ context.Context, c *call, _ *none) (r CheckpointReply, err error) {
	if r.Checkpoint, err = s.workspace.Get(c.id); err != nil {
		return r, err
	}
	if r.Lineage, err = s.workspace.Lineage(c.id); err != nil {
		return r, err
	}
	r.Children, err = s.workspace.Children(c.id, true)
	r.Lineage, r.Children = nonNil(r.Lineage), nonNil(r.Children)
	return r, err
}

// unneeded reports whether no turn under way goes back to a checkpoint. BUSY says which does.
func (s *Server) unneeded(op, id string) error {
	if s.turns == nil {
		return nil
	}
	if t := s.turns.Needs(id); t != "" {
		return errs.New(Busy, op, id, "the files of turn %s go back to it if that fails", t).
			WithHint("it must end first; hyperfs turns abort --force " + t + " ends it, and puts the files back")
	}
	return nil
}

func drop(s *Server, ctx context.Context, c *call, _ *none) (DropReply, error) {
	if err := s.unneeded("drop", c.id); err != nil {
		return DropReply{}, err
	}
	damaged := false
	if s.turns != nil {
		var err error
		if damaged, err = s.turns.ForgetDamaged(c.id); err != nil {
			return DropReply{}, err
		}
	}
	err := s.workspace.Drop(ctx, c.id)
	if damaged && errs.CodeOf(err) == NotFound { // it had no checkpoint
		err = nil
	}
	return DropReply{c.id}, err
}

func rollback(s *Server, ctx context.Context, c *call, o *overlay.RollbackOptions) (RollbackReply, error) {
	return s.leaving(s.workspace.Rollback(ctx, c.id, *o))
}

// journals gives what offers that.
func (s *Server) journals(op string) (overlay.Journals, error) {
	if j, ok := s.workspace.(overlay.Journals); ok {
		return j, nil
	}
	return nil, errs.New(Unsupported, op, "", "this workspace keeps no journals")
}

func recoverable(s *Server, ctx context.Context, _ *call, _ *none) (r RecoverReply, err error) {
	j, err := s.journals("recover")
	if err != nil {
		return r, err
	}
	l, err := j.Recover(ctx)
	return RecoverReply{Checkpoints: nonNil(l)}, err
}

func rehydrate(s *Server, ctx context.Context, c *call, _ *none) (r checkpoint.Checkpoint, err error) {
	j, err := s.journals("rehydrate")
	if err != nil {
		return r, err
	}
	return j.Rehydrate(ctx, c.id)
}

func undo(s *Server, ctx context.Context, c *call, _ *none) (r RollbackReply, err error) {
	h, err := s.in(c)
	if err != nil {
		return r, err
	}
	return s.leaving(h.Undo(ctx))
}

func diff(s *Server, ctx context.Context, c *call, _ *none) (r DiffReply, err error) {
	h, err := s.in(c)
	if err != nil {
		return r, err
	}
	d, err := h.Diff(ctx, c.query["from"], c.query["to"], c.query.flag("expand"))
	return NewDiffReply(d), err
}

func reconcile(s *Server, ctx context.Context, c *call, _ *none) (r ReconcileReply, err error) {
	h, err := s.in(c)
	if err != nil {
		return r, err
	}
	changed, err := h.Reconcile(ctx, c.query["checkpoint"])
	return NewReconcileReply(changed), err
}

// gc collects turns first: their checkpoints hold preimages.
func gc(s *Server, ctx context.Context, _ *call, _ *none) (r GCReply, err error) {
	var kept error // why turns were not collected, which keeps nothing else from being freed
	if s.turns != nil {
		var f turn.Freed
		f, kept = s.turns.Collect(ctx)
		r.Turns = &f
	}
	if r.GCResult, err = s.workspace.GC(ctx); err == nil {
		err = kept
	}
	return r, err
}

func fsck(s *Server, ctx context.Context, c *call, _ *none) (FsckReply, error) {
	p, err := s.workspace.Fsck(ctx, c.query.flag("deep"))
	return FsckReply{nonNil(p)}, err
}

// lazyPatience is how long a lazy unmount waits for the daemon to end before it answers that it has not.
const lazyPatience = time.Second

// unmount answers only when the workspace has been released, so that another daemon can start at once: see Server.Close. A
// lazy one does not wait for files to be closed.
func unmount(s *Server, ctx context.Context, _ *call, o *UnmountOptions) (UnmountReply, error) {
	r := UnmountReply{Workspace: s.workspace.Root(), PID: s.daemon().PID}
	if err := s.host.Unmount(ctx, *o); err != nil {
		return r, err
	}
	var patience <-chan time.Time // nil: for ever
	if o.Lazy && !o.Force {
		patience = time.After(lazyPatience)
	}
	select {
	case <-s.released:
		r.Ended = true
		return r, s.releaseErr
	case <-patience:
		return r, nil
	}
}

func openapi(s *Server, w http.ResponseWriter, _ *call) error {
	return writeJSON(w, http.StatusOK, s.document())
}
