package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
	"golang.org/x/sys/unix"
)

// parts captures a line.
func (l *line) capture(t *testing.T) treestate.State {
	t.Helper()
	s, err := l.tree.Capture()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// branchCase is a workspace with branches for a test of a few steps.
type branchCase struct {
	*testing.T
	w *branchWorld
}

func newBranchCase(t *testing.T) *branchCase {
	t.Helper()
	dir := memory(t)
	ws := filepath.Join(dir, "workspace")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := newBranchWorld(dir, true, func(ws string) (branchHost, error) { return openDirect(ws, 0) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	return &branchCase{t, w}
}

// do executes operations, each of which must do what it does to plain directories.
func (c *branchCase) do(list ...ops.Op) {
	c.Helper()
	for _, o := range list {
		if err := c.w.do(o); err != nil {
			c.Fatalf("%v\n%v", o, err)
		}
	}
}

// on makes operations be about a branch.
func on(branch string, list ...ops.Op) []ops.Op {
	for i := range list {
		list[i].Branch = branch
	}
	return list
}

func write(path string, seed uint64) ops.Op {
	return ops.Op{Kind: ops.Rewrite, Path: ops.Bytes(path), Mode: 0o644, Len: 1000, Seed: seed}
}

var snapshotOp, defaultOp = ops.Op{Kind: ops.Snapshot}, ops.Op{Kind: ops.Rollback, N: ops.ToDefault}

func TestStartFreesWhatADroppedBranchHasLeft(t *testing.T) {
	c := newBranchCase(t)
	c.do(write("f", 1), snapshotOp, ops.Op{Kind: ops.Fork, Name: "b", N: 1})
	h := c.w.host.(*directHost)
	b, err := h.ws.Branch("b")
	if err != nil {
		t.Fatal(err)
	}
	c.do(write("f", 2))
	c.do(on("b", ops.Op{Kind: ops.DropBranch}, ops.Op{Kind: ops.GC})...)
	if err := h.ws.Store().Update(func(tx *checkpoint.Tx) error { // as if it had died before it freed anything
		return errors.Join(tx.PutLayer(checkpoint.Layer{Num: b.Layer, Epoch: b.Epoch}), tx.PutPin(checkpoint.Pin{Epoch: b.Epoch, Owner: "branches"}))
	}); err != nil {
		t.Fatal(err)
	}
	c.do(ops.Op{Kind: ops.Restart})
	if pins := h.ws.Pins(); len(pins) > 0 {
		t.Errorf("the pins %v are left", pins)
	}
}

func TestRollbackGoesToWhatTheStateComesFrom(t *testing.T) {
	for _, name := range []string{"", "b"} {
		for what, between := range map[string][]ops.Op{
			"nothing":             nil,
			"a dropped one":       {write("f", 9), snapshotOp, {Kind: ops.Drop, N: 4}},
			"a dry run":           {{Kind: ops.Merge, Branch: "c", Flags: ops.MergeDry, Name: overlay.ConflictReject}},
			"the other's dry run": {{Kind: ops.Merge, Branch: "b", Flags: ops.MergeDry, Name: overlay.ConflictReject}},
		} {
			t.Run(name+" after "+what, func(t *testing.T) {
				c := newBranchCase(t)
				c.do(write("f", 1), snapshotOp, ops.Op{Kind: ops.Fork, Name: "b", N: 1}, ops.Op{Kind: ops.Fork, Name: "c", N: 1})
				c.do(on("c", write("g", 1))...)
				c.do(on(name, write("f", 2), snapshotOp, write("f", 3), snapshotOp, ops.Op{Kind: ops.Rollback, N: 2})...)
				for _, o := range between {
					if o.Kind != ops.Merge {
						o.Branch = name
					}
					c.do(o)
				}
				c.do(on(name, write("f", 4), defaultOp)...)
				want, ok := c.w.checkpoints[2].capture["f"]
				got, err := treestate.Capture(c.w.lines[name].dir, treestate.Options{})
				if err != nil || !ok || got["f"].Sum != want.Sum {
					t.Errorf("it went elsewhere than to the checkpoint that the state came from: %v", err)
				}
			})
		}
	}
}

func TestRollbackOfABranchStaysAtTheForkPoint(t *testing.T) {
	c := newBranchCase(t)
	c.do(write("f", 1), snapshotOp, ops.Op{Kind: ops.Fork, Name: "b", N: 1})
	c.do(on("b", write("f", 2), snapshotOp, ops.Op{Kind: ops.Rollback, N: ops.ToForkPoint}, write("f", 3), defaultOp)...)
}

func TestMergeOfDirectoriesThatTookEachOthersPlace(t *testing.T) {
	mkdir := func(path string) ops.Op { return ops.Op{Kind: ops.Mkdir, Path: ops.Bytes(path), Mode: 0o755} }
	move := func(from, to string, flags uint32) ops.Op {
		return ops.Op{Kind: ops.Rename, Path: ops.Bytes(from), To: ops.Bytes(to), Flags: flags}
	}
	for what, moves := range map[string][]ops.Op{
		"over an empty one": {move("d", "empty", 0)},
		"and a new one":     {move("d", "x", 0), mkdir("d"), write("d/g", 5)},
		"exchanged":         {move("d", "e", unix.RENAME_EXCHANGE)},
		"with a new one":    {move("d", "e", unix.RENAME_EXCHANGE), mkdir("d/new"), write("d/new/g", 5)},
		"in a ring":         {move("d", "x", 0), move("e", "d", 0), move("x", "e", 0)},
	} {
		for _, parent := range []string{"", "b"} {
			t.Run(fmt.Sprintf("%s, parent %q", what, parent), func(t *testing.T) {
				c := newBranchCase(t)
				c.do(mkdir("d"), mkdir("e"), mkdir("empty"), write("d/f", 1), write("e/f", 2), snapshotOp)
				c.do(ops.Op{Kind: ops.Fork, Name: "b", N: 1})
				c.do(on("b", write("h", 3), snapshotOp)...)
				n := 1
				if parent != "" {
					n = 2
				}
				c.do(ops.Op{Kind: ops.Fork, Name: "c", N: n})
				c.do(on("c", moves...)...)
				c.do(ops.Op{Kind: ops.Merge, Branch: "c", Name: overlay.ConflictReject})
				if c.w.merges != 1 {
					t.Error("it was not merged")
				}
			})
		}
	}
}

func TestMergeOfALinkThatTookTheNameOfAnother(t *testing.T) {
	c := newBranchCase(t)
	c.do(write("a", 1), write("b", 2), write("c", 3), snapshotOp, ops.Op{Kind: ops.Fork, Name: "b", N: 1})
	c.do(on("b", ops.Op{Kind: ops.Link, Path: "b", To: "g"}, ops.Op{Kind: ops.Rename, Path: "a", To: "g", Flags: unix.RENAME_EXCHANGE})...)
	c.do(ops.Op{Kind: ops.Unlink, Path: "c"}, ops.Op{Kind: ops.Merge, Branch: "b", Name: overlay.ConflictReject})
	now, old := c.w.lines[""].capture(c.T), c.w.checkpoints[1].capture
	if now["b"].Sum != old["b"].Sum || now["a"].First != now["b"].First || now["g"].Sum != old["a"].Sum {
		t.Errorf("the names hold something else: %v", now)
	}
}

func TestMergeOfTheRootsAttributes(t *testing.T) {
	c := newBranchCase(t)
	c.do(write("f", 1), snapshotOp, ops.Op{Kind: ops.Fork, Name: "b", N: 1})
	c.do(on("b", ops.Op{Kind: ops.Chmod, Path: ".", Mode: 0o750}, ops.Op{Kind: ops.SetXattr, Path: ".", Name: "user.a", Value: "x"},
		ops.Op{Kind: ops.Merge, Name: overlay.ConflictReject})...)
	c.do(ops.Op{Kind: ops.Undo}, ops.Op{Kind: ops.Restart})
}
