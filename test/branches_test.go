package test

import (
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/testfs"
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
