package control

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// branches gives what can be forked, or UNSUPPORTED.
func (s *Server) branches(op string) (Branches, error) {
	if b, ok := s.workspace.(Branches); ok {
		return b, nil
	}
	return nil, errs.New(Unsupported, op, "", "the backend %s has no branches", s.workspace.Status().Backend).
		WithHint("they need FUSE: hyperfs mount")
}

// in gives the history that a request is about.
func (s *Server) in(c *call) (History, error) {
	name := c.query["branch"]
	if name == "" || name == overlay.MainBranch {
		return s.workspace, nil
	}
	b, err := s.branches("find branch")
	if err != nil {
		return nil, err
	}
	return b.In(name)
}

func fork(s *Server, ctx context.Context, _ *call, o *overlay.ForkOptions) (r checkpoint.Branch, err error) {
	b, err := s.branches("fork")
	if err != nil {
		return r, err
	}
	return described(b.Fork(ctx, *o))
}

// described has no null where a list is empty.
func described(b checkpoint.Branch, err error) (checkpoint.Branch, error) {
	b.Children = nonNil(b.Children)
	return b, err
}

func branches(s *Server, _ context.Context, c *call, _ *none) (r BranchesReply, err error) {
	r.Branches = []checkpoint.Branch{}
	b, ok := s.workspace.(Branches)
	if !ok {
		return r, nil
	}
	list, err := b.Branches(c.query.flag("all"))
	for _, have := range list {
		have.Children = nonNil(have.Children)
		r.Branches = append(r.Branches, have)
	}
	return r, err
}

func branch(s *Server, _ context.Context, c *call, _ *none) (r BranchReply, err error) {
	b, err := s.branches("show branch")
	if err != nil {
		return r, err
	}
	if r.Branch, err = described(b.Branch(c.id)); err != nil {
		return r, err
	}
	r.Checkpoints, err = s.workspace.List(overlay.ListOptions{Branch: r.Name})
	r.Checkpoints = nonNil(r.Checkpoints)
	return r, err
}

func dropBranch(s *Server, ctx context.Context, c *call, _ *none) (r DropReply, err error) {
	b, err := s.branches("drop branch")
	if err != nil {
		return r, err
	}
	return DropReply{c.id}, b.DropBranch(ctx, c.id)
}

func mountBranch(s *Server, ctx context.Context, c *call, o *MountBranchOptions) (r BranchMount, err error) {
	h, ok := s.host.(BranchMounter)
	if !ok {
		return r, errs.New(errs.Unsupported, "mount branch", o.At, "this workspace is not mounted")
	}
	return h.MountBranch(ctx, c.id, o.At)
}

func merge(s *Server, ctx context.Context, c *call, o *overlay.MergeOptions) (r MergeReply, err error) {
	b, err := s.branches("merge")
	if err != nil {
		return r, err
	}
	switch o.OnConflict {
	case "", overlay.ConflictReject, overlay.ConflictOurs, overlay.ConflictTheirs, overlay.ConflictMerge:
	default:
		return r, errs.New(Usage, "merge", "on_conflict", "%q is no policy", o.OnConflict).WithHint("reject, ours, theirs or merge")
	}
	if !o.DryRun {
		release, err := s.hold(ctx, c.id)
		if err != nil {
			return r, err
		}
		defer release()
	}
	res, err := b.Merge(ctx, c.id, *o)
	var e *Error
	if errors.As(err, &e) && e.Code == BranchConflict {
		err = e.WithDetails(NewMergeReply(res))
	}
	return NewMergeReply(res), err
}

// hold has neither an attempt nor a turn begin in a branch until release. None may be under way either: half of what it does would be merged, also where it fails.
func (s *Server) hold(ctx context.Context, branch string) (release func(), err error) {
	attempts, err := s.attempts.Hold(branch)
	if err != nil || s.turns == nil {
		return attempts, err
	}
	turns, err := s.turns.Hold(ctx, branch)
	if err != nil {
		attempts()
		return nil, err
	}
	return func() { turns(); attempts() }, nil
}

// NewMergeReply gives m's wire form.
func NewMergeReply(m overlay.MergeResult) MergeReply {
	r := MergeReply{MergeResult: m}
	r.Steps, r.Conflicts = nonNil(r.Steps), nonNil(r.Conflicts)
	eachMergePath(&r.MergeResult, func(at string, s *string) { r.NotUTF8.add(at, *s) })
	return r
}

// HeadsBy says what heads are the newest of.
type HeadsBy string

// The kinds of heads.
const (
	HeadsByBranch   HeadsBy = "branch"
	HeadsBySubagent HeadsBy = "subagent"
)

func heads(s *Server, _ context.Context, c *call, _ *none) (r CheckpointsReply, err error) {
	by := HeadsBy(c.query["by"])
	if by == "" {
		by = HeadsByBranch
	}
	if by != HeadsByBranch && by != HeadsBySubagent {
		return r, errs.New(Usage, "heads", "by", "%q is neither branch nor subagent", by)
	}
	list, err := s.workspace.List(listOptions(c))
	r.Checkpoints = headsOf(list, by)
	return r, err
}

// headsOf gives the newest checkpoint of each branch or subagent, in the order in which they were made. What has no subagent is nobody's
// head, and an undo checkpoint is none.
func headsOf(list []checkpoint.Checkpoint, by HeadsBy) []checkpoint.Checkpoint {
	heads := []checkpoint.Checkpoint{}
	seen := map[string]bool{}
	for _, k := range slices.Backward(list) {
		key := k.Branch
		if by == HeadsBySubagent {
			key = k.Subagent
		}
		if key != "" && !seen[key] && k.RollbackOf == "" {
			seen[key] = true
			heads = append(heads, k)
		}
	}
	slices.Reverse(heads)
	return heads
}

// Fork makes a branch.
func (c *Client) Fork(ctx context.Context, o overlay.ForkOptions) (r checkpoint.Branch, err error) {
	return r, c.call(ctx, "fork", http.MethodPost, "/v1/branches", nil, &o, &r)
}

// Branches gives the active branches, with all also those that were merged or dropped, oldest first.
func (c *Client) Branches(ctx context.Context, all bool) ([]checkpoint.Branch, error) {
	q := url.Values{}
	setFlag(q, "all", all)
	var r BranchesReply
	err := c.call(ctx, "branches", http.MethodGet, "/v1/branches", q, nil, &r)
	return r.Branches, err
}

// Branch gives one branch with its checkpoints.
func (c *Client) Branch(ctx context.Context, name string) (r BranchReply, err error) {
	return r, c.byName(ctx, "show branch", http.MethodGet, name, "", nil, &r)
}

// DropBranch discards a branch.
func (c *Client) DropBranch(ctx context.Context, name string) error {
	return c.byName(ctx, "drop branch", http.MethodDelete, name, "", nil, new(DropReply))
}

// MountBranch shows a branch at a path of its own too, which the daemon's user may write to. Root's daemon does not: root makes a bind mount.
func (c *Client) MountBranch(ctx context.Context, name, at string) (r BranchMount, err error) {
	return r, c.byName(ctx, "mount branch", http.MethodPost, name, "/mount", &MountBranchOptions{At: at}, &r)
}

// Merge makes a branch's changes in its parent. With BRANCH_CONFLICT nothing was changed, and the result lists what stands in the way.
func (c *Client) Merge(ctx context.Context, name string, o overlay.MergeOptions) (overlay.MergeResult, error) {
	var r MergeReply
	err := c.byName(ctx, "merge", http.MethodPost, name, "/merge", &o, &r)
	var e *Error
	if errors.As(err, &e) && e.Code == BranchConflict {
		if details, ok := e.Details.(json.RawMessage); ok {
			_ = json.Unmarshal(details, &r) // what can't be read is not listed; the error stands
		}
	}
	eachMergePath(&r.MergeResult, r.NotUTF8.restore)
	return r.MergeResult, err
}

// Heads gives the newest checkpoint of each branch or subagent, of those that o lets through.
func (c *Client) Heads(ctx context.Context, by HeadsBy, o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	q := listValues(o)
	q.Set("by", string(by))
	var r CheckpointsReply
	err := c.call(ctx, "heads", http.MethodGet, "/v1/heads", q, nil, &r)
	return r.Checkpoints, err
}

// byName calls what is below one branch.
func (c *Client) byName(ctx context.Context, op, method, name, sub string, body, reply any) error {
	if name == "" || name == "." || name == ".." {
		return errs.New(Usage, op, name, "%q is no name of a branch", name)
	}
	return c.call(ctx, op, method, "/v1/branches/"+url.PathEscape(name)+sub, nil, body, reply)
}
