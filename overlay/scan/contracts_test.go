//go:build linux || windows

package scan

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

var _ overlay.Contracts = (*Workspace)(nil)

func TestContractsAreKeptAndEndWithTheirCheckpoint(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "there"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	open := func() *Workspace {
		w, err := Open(overlay.Config{Workspace: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		return w
	}
	w := open()
	c, err := w.Snapshot(ctx, overlay.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	outputs := []overlay.Output{{Path: "there"}, {Path: "out/x", Optional: true}}
	if _, err := w.DeclareOutputs(ctx, overlay.OutputContract{Tool: "vite", Checkpoint: c.ID, Outputs: outputs}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.DeclareOutputs(ctx, overlay.OutputContract{Tool: "vite", Checkpoint: "ckpt_none", Outputs: outputs}); errs.CodeOf(err) != errs.NotFound {
		t.Error(err)
	}
	if _, err := w.Track(ctx, []string{"b", "../a"}); errs.CodeOf(err) != errs.Path {
		t.Error(err)
	}
	if all, err := w.Track(ctx, []string{"b", "./a", "b"}); err != nil || !slices.Equal(all, []string{"a", "b"}) {
		t.Error(all, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = open()
	if !slices.Equal(w.Tracked(), []string{"a", "b"}) {
		t.Error(w.Tracked())
	}
	list, err := w.Outputs(ctx, c.ID)
	if err != nil || len(list) != 1 || list[0].Outputs[0].Missing || !list[0].Outputs[1].Missing {
		t.Errorf("%+v, %v", list, err)
	}
	if err := w.Drop(ctx, c.ID); err != nil {
		t.Fatal(err)
	}
	if list, err = w.Outputs(ctx, ""); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestTheScanStopsNoWrite(t *testing.T) {
	for _, patterns := range [][]string{nil, {"x"}} {
		cfg := overlay.Config{Workspace: t.TempDir(), Ignore: patterns, StrictIgnored: true}
		if _, err := Open(cfg); errs.CodeOf(err) != errs.Unsupported {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(cfg.Workspace, overlay.StoreName)); err == nil {
			t.Error("it has made a store")
		}
	}
}
