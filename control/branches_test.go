package control

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// forkable is a fakeWorkspace that can be forked.
type forkable struct {
	*fakeWorkspace
	branches []checkpoint.Branch
	options  overlay.MergeOptions // of the last merge
}

func (f *forkable) Fork(_ context.Context, o overlay.ForkOptions) (checkpoint.Branch, error) {
	b := checkpoint.Branch{ID: "branch_" + o.Name, Num: uint64(len(f.branches) + 1), Name: o.Name, Parent: "main", ForkPoint: o.From, Agent: o.Agent,
		Subagent: o.Subagent, Message: o.Message, CreatedAt: time.Now(), UpdatedAt: time.Now(), Status: checkpoint.BranchActive}
	f.branches = append(f.branches, b)
	return b, nil
}

func (f *forkable) Branches(bool) ([]checkpoint.Branch, error) { return f.branches, nil }

func (f *forkable) Branch(name string) (checkpoint.Branch, error) {
	for _, b := range f.branches {
		if b.Name == name {
			return b, nil
		}
	}
	return checkpoint.Branch{}, errs.New(NotFound, "find branch", name, "there is no such branch")
}

func (f *forkable) DropBranch(_ context.Context, name string) error {
	_, err := f.Branch(name)
	f.branches = slices.DeleteFunc(f.branches, func(b checkpoint.Branch) bool { return b.Name == name })
	return err
}

func (f *forkable) Merge(_ context.Context, name string, o overlay.MergeOptions) (overlay.MergeResult, error) {
	f.options = o
	b, err := f.Branch(name)
	r := overlay.MergeResult{Branch: b.Name, Into: b.Parent, Merged: !o.DryRun, Checkpoint: "ckpt_before", Undo: "ckpt_undo",
		Steps: []overlay.MergeStep{{Op: "rename", Path: "b\xff", From: "a\xfe"}, {Op: "put", Path: "c"}}, Duration: time.Millisecond}
	if err == nil && o.OnConflict == overlay.ConflictReject {
		r = overlay.MergeResult{Branch: b.Name, Into: b.Parent, Conflicts: []overlay.MergeConflict{{Path: "x\xff", Ours: "modified", Theirs: "deleted", Detail: "lines 3 to 4"}}}
		err = errs.New(BranchConflict, "merge", name, "1 path was changed on both sides")
	}
	return r, err
}

func (f *forkable) In(name string) (History, error) {
	if _, err := f.Branch(name); err != nil {
		return nil, err
	}
	return &fakeWorkspace{diff: overlay.Diff{Changes: []overlay.Change{{Kind: overlay.Created, Path: "in " + name, Type: "file"}}}}, nil
}

func newForkable() *forkable { return &forkable{fakeWorkspace: &fakeWorkspace{}} }

func TestBranchesCrossTheSocket(t *testing.T) {
	s := start(t, newForkable())
	b, err := s.Fork(ctx, overlay.ForkOptions{Name: "fix é", From: "ckpt_one", Agent: "a", Subagent: "s", Message: "m"})
	if err != nil || b.Name != "fix é" || b.ForkPoint != "ckpt_one" || b.Agent != "a" || b.Subagent != "s" || b.Message != "m" || b.Children == nil {
		t.Errorf("Fork = %+v, %v", b, err)
	}
	list, err := s.Branches(ctx, false)
	if err != nil || len(list) != 1 || list[0].Name != b.Name {
		t.Errorf("Branches = %+v, %v", list, err)
	}
	r, err := s.Branch(ctx, b.Name)
	if err != nil || r.Name != b.Name || r.Checkpoints == nil {
		t.Errorf("Branch = %+v, %v", r, err)
	}
	d, err := s.Diff(ctx, Between{Branch: b.Name}, false)
	if err != nil || len(d.Changes) != 1 || d.Changes[0].Path != "in "+b.Name {
		t.Errorf("Diff = %+v, %v, want that of the branch", d, err)
	}
	if d, err = s.Diff(ctx, Between{Branch: "main"}, false); err != nil || len(d.Changes) != 0 {
		t.Errorf("Diff = %+v, %v, want that of main", d, err)
	}
	_, err = s.Diff(ctx, Between{Branch: "none"}, false)
	wantCode(t, err, NotFound, "there is no such branch")
	if err := s.DropBranch(ctx, b.Name); err != nil {
		t.Error(err)
	}
	wantCode(t, s.DropBranch(ctx, b.Name), NotFound, "there is no such branch")
}

func TestMergesCrossTheSocket(t *testing.T) {
	f := newForkable()
	s := start(t, f)
	_, err := s.Fork(ctx, overlay.ForkOptions{Name: "fix"})
	if err != nil {
		t.Fatal(err)
	}
	o := overlay.MergeOptions{OnConflict: overlay.ConflictTheirs, DryRun: true, Exclusive: true}
	r, err := s.Merge(ctx, "fix", o)
	if err != nil || f.options != o || r.Merged || !reflect.DeepEqual(r.Steps, []overlay.MergeStep{{Op: "rename", Path: "b\xff", From: "a\xfe"}, {Op: "put", Path: "c"}}) {
		t.Errorf("Merge = %+v, %v, with %+v", r, err, f.options)
	}
	r, err = s.Merge(ctx, "fix", overlay.MergeOptions{OnConflict: overlay.ConflictReject})
	wantCode(t, err, BranchConflict, "changed on both sides")
	if want := []overlay.MergeConflict{{Path: "x\xff", Ours: "modified", Theirs: "deleted", Detail: "lines 3 to 4"}}; !reflect.DeepEqual(r.Conflicts, want) {
		t.Errorf("Conflicts = %+v, want %+v", r.Conflicts, want)
	}
	_, err = s.Merge(ctx, "fix", overlay.MergeOptions{OnConflict: "mine"})
	wantCode(t, err, Usage, "no policy")
}

func TestABackendWithoutBranchesSaysSo(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	_, err := s.Fork(ctx, overlay.ForkOptions{Name: "fix"})
	wantCode(t, err, Unsupported, "has no branches")
	_, err = s.Merge(ctx, "fix", overlay.MergeOptions{})
	wantCode(t, err, Unsupported, "has no branches")
	if list, err := s.Branches(ctx, true); err != nil || len(list) != 0 {
		t.Errorf("Branches = %v, %v, want none", list, err)
	}
}

func TestHeadsAreTheNewestOfEach(t *testing.T) {
	var list []checkpoint.Checkpoint
	for _, k := range strings.Fields("main/ main/s1 fix/s1 main/s2 fix/ main/undo") {
		branch, sub, _ := strings.Cut(k, "/")
		c := checkpoint.Checkpoint{ID: k, Branch: branch, Subagent: sub}
		if sub == "undo" {
			c.RollbackOf = "main/"
		}
		list = append(list, c)
	}
	for by, want := range map[HeadsBy]string{HeadsByBranch: "main/s2 fix/", HeadsBySubagent: "fix/s1 main/s2"} {
		var got []string
		for _, k := range headsOf(list, by) {
			got = append(got, k.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("by %s: %v, want %s", by, got, want)
		}
	}
}
