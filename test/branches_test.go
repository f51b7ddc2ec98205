package test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
)

func TestDifferentialBranchIsLikeAPlainDirectory(t *testing.T) {
	for _, l := range []lower{
		{name: "temp", share: 20, mount: func(t *testing.T) string { return t.TempDir() }, fill: seedTree},
		{name: "xfs", share: 5, mount: func(t *testing.T) string { return testfs.XFS(t, 512<<20) }, fill: seedTree},
	} {
		t.Run(l.name, func(t *testing.T) {
			property{lower: l, gen: inBranch, open: openBranch}.run(t)
		})
	}
}

func inBranch() *ops.Generator {
	g := everything()
	g.NoStaleWrites = true
	return g
}

// openBranch makes a branch of a workspace that stays as it is.
func openBranch(ws string, variant uint32) (subject, error) {
	f, err := newForest(ws, filepath.Join(filepath.Dir(ws), "store"))
	if err != nil {
		return nil, err
	}
	s, err := f.fork("b", "", treefs.Options{KeepNames: variant&1 != 0})
	if err != nil {
		return nil, err
	}
	s.last = true
	return s, nil
}

// What a branch had that has ended may still be there when the daemon ends: then the next one gives it up while it opens the store.
func TestAWorkspaceWhoseBranchesWereMergedOpensAgain(t *testing.T) {
	t.Parallel()
	ctx, cfg := context.Background(), overlay.Config{Workspace: newWorkspace(t)}
	for _, merge := range []bool{true, false} {
		w, err := branch.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if merge {
			if _, err = w.Fork(ctx, overlay.ForkOptions{Name: "b"}); err == nil {
				_, err = w.Merge(ctx, "b", overlay.MergeOptions{})
			}
		} else if pins := w.Pins(); len(pins) > 0 {
			t.Errorf("main keeps %v for branches that are gone", pins)
		}
		if err = errors.Join(err, w.Close()); err != nil {
			t.Error(err)
		}
	}
}
