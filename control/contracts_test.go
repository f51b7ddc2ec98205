package control

import (
	"context"
	"slices"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// contractable is a fakeWorkspace that takes contracts.
type contractable struct {
	*fakeWorkspace
	contracts []overlay.OutputContract
	tracked   []string
}

func (f *contractable) DeclareOutputs(_ context.Context, c overlay.OutputContract) (overlay.OutputContract, error) {
	if c.Outputs[0].Path == "" {
		return c, errs.New(Path, "declare outputs", "", "the path is empty")
	}
	f.contracts = append(f.contracts, c)
	return c, nil
}

func (f *contractable) Outputs(_ context.Context, id string) ([]overlay.OutputContract, error) {
	return slices.DeleteFunc(slices.Clone(f.contracts), func(c overlay.OutputContract) bool { return id != "" && c.Checkpoint != id }), nil
}

func (f *contractable) Track(_ context.Context, paths []string) ([]string, error) {
	f.tracked = append(f.tracked, paths...)
	return f.tracked, nil
}

func (f *contractable) Tracked() []string { return f.tracked }

func TestContractsCrossTheSocket(t *testing.T) {
	s := start(t, &contractable{fakeWorkspace: &fakeWorkspace{}})
	if list, err := s.Outputs(ctx, ""); err != nil || list == nil || len(list) != 0 {
		t.Error(list, err)
	}
	if list, err := s.Tracked(ctx); err != nil || list == nil || len(list) != 0 {
		t.Error(list, err)
	}
	o := DeclareOptions{Tool: "vite", Checkpoint: "ckpt_one", Outputs: []OutputsPath{{Path: "é/x"}, {Path: "y", Optional: true}}}
	c, err := s.DeclareOutputs(ctx, o)
	if err != nil || c.Tool != "vite" || c.Checkpoint != "ckpt_one" || len(c.Outputs) != 2 || c.Outputs[0].Path != "é/x" || !c.Outputs[1].Optional {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := s.DeclareOutputs(ctx, DeclareOptions{Tool: "x", Outputs: []OutputsPath{{}}}); CodeOf(err) != Path {
		t.Error(err)
	}
	if list, err := s.Outputs(ctx, "ckpt_one"); err != nil || len(list) != 1 {
		t.Error(list, err)
	}
	if list, err := s.Outputs(ctx, "ckpt_two"); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	if all, err := s.Track(ctx, []string{"a", "b"}); err != nil || !slices.Equal(all, []string{"a", "b"}) {
		t.Error(all, err)
	}
	if all, err := s.Tracked(ctx); err != nil || len(all) != 2 {
		t.Error(all, err)
	}
}

func TestAWorkspaceWithoutContractsSaysSo(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	if _, err := s.Track(ctx, []string{"a"}); CodeOf(err) != Unsupported {
		t.Error(err)
	}
}
