//go:build linux

package branch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/merge"
)

// createdByMerge is Checkpoint.CreatedBy of the checkpoints that a merge is based on.
const createdByMerge = "merge"

// mergeTries is how often a merge is planned anew because the parent was changed meanwhile.
const mergeTries = 5

// Merge makes what was changed in a branch since it was forked in its parent, all or nothing, and ends the branch. All three trees are looked at as
// they were at checkpoints, so whoever works in them disturbs nothing; if the parent is changed where the merge would change it too, it is planned anew.
//
// Errors: NOT_FOUND; USAGE for an unknown policy; BUSY where branches were forked from it, or, with Exclusive, from one that would be dropped,
// or where the parent changes too fast; BRANCH_CONFLICT, and then the result has the conflicts. With any error nothing was changed.
func (f *Workspace) Merge(ctx context.Context, name string, o overlay.MergeOptions) (overlay.MergeResult, error) {
	f.merging.Lock()
	defer f.merging.Unlock()
	start := time.Now()
	j, err := f.newJoin(ctx, name, o)
	if err != nil {
		return overlay.MergeResult{}, err
	}
	defer j.close()
	err = j.run(ctx)
	j.result.Duration = time.Since(start)
	return j.result, err
}

// join is one merge.
type join struct {
	f      *Workspace
	o      overlay.MergeOptions
	b      checkpoint.Branch
	others []string // to be dropped, if the merge is exclusive
	result overlay.MergeResult

	sealed       checkpoint.Checkpoint // of the branch: what is merged
	base, theirs *Volume
	changes      []overlay.Change // of the branch
	undo         []func()         // gives everything back
}

func (f *Workspace) newJoin(ctx context.Context, name string, o overlay.MergeOptions) (*join, error) {
	b, err := f.branches.Get(name)
	switch {
	case err != nil:
		return nil, err
	case b.Status != checkpoint.BranchActive:
		return nil, errs.New(errs.Disposed, "merge", name, "it was %s", b.Status)
	case len(b.Children) > 0:
		return nil, hasChildren("merge", name, b.Children)
	}
	j := &join{f: f, o: o, b: b, result: overlay.MergeResult{Branch: name, Into: b.Parent}}
	if err := j.findOthers(); err != nil {
		return nil, err
	}
	if err := j.freeze(ctx); err != nil {
		j.close()
		return nil, errs.Ensure("merge", name, err)
	}
	return j, nil
}

// findOthers finds the branches that an exclusive merge drops.
func (j *join) findOthers() error {
	if !j.o.Exclusive {
		return nil
	}
	for _, b := range j.f.branches.Branches(Filter{}) {
		if b.ParentNum != j.b.ParentNum || b.Num == j.b.Num {
			continue
		}
		if len(b.Children) > 0 {
			return hasChildren("merge", b.Name, b.Children)
		}
		j.others = append(j.others, b.Name)
	}
	return nil
}

// hasChildren is the error where a branch can't end yet.
func hasChildren(op, name string, children []string) error {
	return errs.New(errs.Busy, op, name, "branches were forked from it: %s", strings.Join(children, ", ")).
		WithHint("drop or merge these first")
}

// freeze makes a checkpoint of the branch, and opens that and the fork point.
func (j *join) freeze(ctx context.Context) (err error) {
	m := j.f.branches
	if j.sealed, err = m.Snapshot(ctx, j.b.Name, overlay.SnapshotOptions{CreatedBy: createdByMerge, Message: "what is merged"}); err != nil {
		return err
	}
	j.undo = append(j.undo, func() {
		if !j.result.Merged { // else it ends with the branch
			_ = m.DropCheckpoint(context.Background(), j.sealed.ID)
		}
	})
	if j.theirs, err = m.At(j.sealed.ID); err != nil {
		return err
	}
	j.undo = append(j.undo, j.theirs.Close)
	if j.base, err = m.ForkPoint(j.b.Name); err != nil {
		return err
	}
	j.undo = append(j.undo, j.base.Close)
	d, err := m.Diff(ctx, j.b.Name, j.b.ForkPoint, j.sealed.ID, true)
	j.changes = d.Changes
	return err
}

func (j *join) close() {
	for i := len(j.undo) - 1; i >= 0; i-- {
		j.undo[i]()
	}
}

// run merges, and plans anew where the parent was changed meanwhile.
func (j *join) run(ctx context.Context) (err error) {
	crash.Point("merge-sealed")
	for range mergeTries {
		if err = j.into(ctx); errs.CodeOf(err) != errs.Busy {
			break
		}
	}
	if err != nil || j.o.DryRun {
		return err
	}
	crash.Point("merge-made")
	if err := j.f.branches.Merged(ctx, j.b.Name); err != nil {
		return err // its changes are in the parent, and merging it once more changes nothing
	}
	j.result.Merged = true
	crash.Point("merge-ended")
	j.f.ended("merge", j.b.Name)
	for _, name := range j.others {
		if err := j.f.DropBranch(ctx, name); err != nil {
			return err
		}
		j.result.Dropped = append(j.result.Dropped, name)
	}
	return nil
}

// plan makes the plan for a parent as it is in ours, and says whether there is anything to do.
func (j *join) plan(ctx context.Context, ours merge.Side) (p *merge.Plan, todo bool, err error) {
	p, err = merge.Make(ctx, merge.Input{
		Base: j.base, Ours: ours, Theirs: merge.Side{Volume: j.theirs, Changes: j.changes, Agent: j.b.Agent},
		Policy: merge.Policy(j.o.OnConflict), SpoolDir: j.f.spoolDir(),
	})
	if err != nil {
		return nil, false, err
	}
	j.tell(p)
	if !p.Clean() && !j.o.DryRun {
		err = errs.New(errs.BranchConflict, "merge", j.b.Name, "%s", countOf(len(p.Conflicts))).
			WithHint("see --on-conflict; hyperfs merge --dry-run lists them")
	}
	return p, err == nil && !j.o.DryRun && len(p.Ops) > 0, err
}

// tell puts the plan into the result.
func (j *join) tell(p *merge.Plan) {
	j.result.Steps, j.result.Conflicts = []overlay.MergeStep{}, []overlay.MergeConflict{}
	for _, op := range p.Ops {
		s := overlay.MergeStep{Op: string(op.Do), Path: op.Path, Type: op.Type, Source: string(op.Source)}
		if op.Do == merge.Rename || op.Do == merge.Link {
			s.From = op.From
		}
		j.result.Steps = append(j.result.Steps, s)
	}
	for _, c := range p.Conflicts {
		j.result.Conflicts = append(j.result.Conflicts, overlay.MergeConflict{
			Path: c.Path, Ours: kinds(c.Ours), Theirs: kinds(c.Theirs), OursBy: c.OursAgent, TheirsBy: c.TheirAgent,
			Detail: c.Why, Resolved: string(c.Resolved),
		})
	}
}

// kinds says in words what a side did.
func kinds(list []merge.Kind) string {
	words := make([]string, len(list))
	for i, k := range list {
		words[i] = string(k)
	}
	return strings.Join(words, ", ")
}

func countOf(conflicts int) string {
	if conflicts == 1 {
		return "there is a conflict, and nothing was changed"
	}
	return fmt.Sprintf("there are %d conflicts, and nothing was changed", conflicts)
}

// before is the message of the checkpoint that is made of the parent, and of the undo checkpoint.
func (j *join) before() string { return "before the merge of " + j.b.Name }

// into merges into the parent, as that is at a checkpoint which it gets for this.
func (j *join) into(ctx context.Context) (err error) {
	parent, err := j.f.In(j.b.Parent)
	if err != nil {
		return err
	}
	c, err := parent.Snapshot(ctx, overlay.SnapshotOptions{CreatedBy: createdByMerge, Message: j.before()})
	if err != nil {
		return err
	}
	j.result.Checkpoint = c.ID
	done := false
	defer func() {
		if !done {
			j.result.Checkpoint = ""
			_ = parent.Drop(context.Background(), c.ID)
		}
	}()
	ours, err := j.f.branches.At(c.ID)
	if err != nil {
		return err
	}
	defer ours.Close()
	changes, err := j.changesOf(ctx, c)
	if err != nil {
		return err
	}
	p, todo, err := j.plan(ctx, merge.Side{Volume: ours, Changes: changes, Agent: c.Agent})
	if p != nil {
		defer p.Close()
	}
	if !todo {
		return err
	}
	j.result.Undo, err = j.carryOut(ctx, c, p)
	done = err == nil
	return err
}

// changesOf tells what the parent has changed from the fork to a checkpoint.
func (j *join) changesOf(ctx context.Context, c checkpoint.Checkpoint) ([]overlay.Change, error) {
	if j.b.Parent == Main {
		return j.f.Workspace.DiffEpochs(ctx, j.b.Epoch, c.Epoch)
	}
	return j.f.branches.diffSince(ctx, j.b.Parent, j.b, c.ID)
}

// carryOut changes the parent as the plan says, and gives its undo checkpoint.
func (j *join) carryOut(ctx context.Context, c checkpoint.Checkpoint, p *merge.Plan) (undo string, err error) {
	if j.b.Parent == Main {
		w := j.f.Workspace
		before := w.Status().Undo
		r, err := w.Edit(ctx, overlay.EditOptions{Since: c.ID, Message: j.before(), Event: "merge"}, func(e *overlay.Editor) error {
			return merge.Edit(ctx, p, e, j.theirs)
		})
		j.f.tell(KindCheckpoints, r.Undo, before)
		return r.Undo, err
	}
	r, err := j.f.branches.Edit(ctx, j.b.Parent, c.ID, j.before(), func(v overlay.Volume) error { return merge.Apply(ctx, p, v, j.theirs) })
	if err != nil {
		return "", err
	}
	j.f.tell(KindCheckpoints, r.Undo)
	j.f.Announce(overlay.Event{Type: "merge", Checkpoint: c.ID, Data: r})
	return r.Undo, nil
}
