//go:build linux

package branch_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"golang.org/x/sys/unix"
)

// left is a workspace with a checkpoint of main and one of a branch, that was closed and opened again.
type left struct {
	*testing.T
	cfg            overlay.Config
	w              *branch.Workspace
	ofMain, ofFork string
}

func (l *left) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func newLeft(t *testing.T) *left {
	l := &left{T: t, cfg: overlay.Config{Workspace: t.TempDir(), NoTmpfs: true, Hot: overlay.HotConfig{Off: true}}}
	l.must(os.WriteFile(filepath.Join(l.cfg.Workspace, "a"), []byte("one"), 0o644))
	l.open()
	t.Cleanup(func() { _ = l.w.Close() })
	c, err := l.w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	l.must(err)
	l.ofMain = c.ID
	_, err = l.w.Fork(context.Background(), overlay.ForkOptions{Name: "fix", From: c.ID, Agent: "planner"})
	l.must(err)
	v, err := l.w.Manager().Volume("fix")
	l.must(err)
	_, f, _, err := v.Create(v.Root(), "new", unix.O_WRONLY, 0o644, false, nil)
	l.must(err)
	f.Release()
	v.Close()
	h, err := l.w.In("fix")
	l.must(err)
	c, err = h.Snapshot(context.Background(), overlay.SnapshotOptions{Message: "of the branch"})
	l.must(err)
	l.ofFork = c.ID
	l.change("two")
	l.reopen()
	return l
}

func (l *left) open() {
	l.Helper()
	w, err := branch.Open(l.cfg)
	l.must(err)
	l.w = w
}

func (l *left) reopen() {
	l.Helper()
	l.must(l.w.Close())
	l.open()
}

// change writes to the file of main in place.
func (l *left) change(content string) {
	l.Helper()
	tr := l.w.Tree()
	n, _, err := tr.Lookup(tr.Root(), "a")
	l.must(err)
	h, err := tr.Open(n, unix.O_WRONLY, false, nil)
	l.must(err)
	defer h.Release()
	_, err = h.WriteAt([]byte(content), 0)
	l.must(err)
}

func (l *left) recover() map[string]overlay.Recoverable {
	l.Helper()
	list, err := l.w.Recover(context.Background())
	l.must(err)
	all := map[string]overlay.Recoverable{}
	for _, r := range list {
		all[r.ID] = r
	}
	return all
}

// wantLost fails the test unless the branch's checkpoint can't be had back, for a reason that says what.
func (l *left) wantLost(say string) {
	l.Helper()
	r := l.recover()[l.ofFork]
	if r.CanRehydrate || !strings.Contains(r.Reason, say) {
		l.Errorf("it is recovered as %+v, want a reason with %q", r, say)
	}
	if _, err := l.w.Rehydrate(context.Background(), l.ofFork); errs.CodeOf(err) != errs.Integrity {
		l.Errorf("the error is %v", err)
	}
	if c, err := l.w.Get(l.ofFork); err != nil || c.Session == l.w.Session() {
		l.Errorf("it is %+v, %v", c, err)
	}
}

func TestCheckpointsOfBranchesAreRecoveredAndRehydrated(t *testing.T) {
	l := newLeft(t)
	all := l.recover()
	for _, id := range []string{l.ofMain, l.ofFork} {
		if r := all[id]; !r.CanRehydrate || r.Session == l.w.Session() || r.Session == "" {
			t.Errorf("it is recovered as %+v", r)
		}
	}
	if r := all[l.ofFork]; r.Branch != "fix" || r.Agent != "planner" || r.Message != "of the branch" {
		t.Errorf("it is recovered as %+v", r)
	}
	for _, id := range []string{l.ofMain, l.ofFork} {
		c, err := l.w.Rehydrate(context.Background(), id)
		if err != nil || c.Session != l.w.Session() {
			t.Errorf("it was rehydrated as %+v, %v", c, err)
		}
	}
	if all := l.recover(); len(all) != 0 {
		t.Errorf("there are still %v", all)
	}
	l.reopen()
	if r := l.recover()[l.ofFork]; !r.CanRehydrate || r.Session == l.w.Session() {
		t.Errorf("after another start it is recovered as %+v", r)
	}
	_, err := l.w.Rollback(context.Background(), l.ofFork, overlay.RollbackOptions{})
	l.must(err)
}

func TestACheckpointOfABranchIsRefusedWithoutItsFilesInThePool(t *testing.T) {
	l := newLeft(t)
	pool, err := filepath.Glob(filepath.Join(l.cfg.Workspace, ".hyperfs", "branches", "*"))
	l.must(err)
	for _, name := range pool {
		l.must(os.RemoveAll(name))
	}
	l.wantLost("pool")
}

func TestACheckpointOfABranchIsRefusedWithoutMainsPreimages(t *testing.T) {
	l := newLeft(t)
	kept, err := filepath.Glob(filepath.Join(l.cfg.Workspace, ".hyperfs", "backup", "*"))
	l.must(err)
	trash, err := filepath.Glob(filepath.Join(l.cfg.Workspace, ".hyperfs", "trash", "*"))
	l.must(err)
	if kept = append(kept, trash...); len(kept) == 0 {
		t.Fatal("nothing was saved")
	}
	for _, name := range kept {
		l.must(os.RemoveAll(name))
	}
	l.wantLost("a:")
}

func TestADroppedBranchesCheckpointIsNotRehydrated(t *testing.T) {
	l := newLeft(t)
	l.must(l.w.DropBranch(context.Background(), "fix"))
	r := l.recover()[l.ofFork]
	_, err := l.w.Rehydrate(context.Background(), l.ofFork)
	if r.Status != checkpoint.Disposed || r.CanRehydrate || errs.CodeOf(err) != errs.Rollback {
		t.Errorf("it is recovered as %+v, %v", r, err)
	}
}

func TestBranchesOutliveADaemonWithoutDurableJournals(t *testing.T) {
	l := newLeft(t)
	l.must(l.w.Close())
	l.cfg.NoJournals = true
	l.open()
	c, err := l.w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	l.must(err)
	_, err = l.w.Fork(context.Background(), overlay.ForkOptions{Name: "more", From: c.ID})
	l.must(err)
	l.change("six")
	l.reopen()
	l.change("ten")
	if c, err := l.w.Get(c.ID); err != nil || c.Status != checkpoint.Disposed {
		t.Errorf("the checkpoint is %+v, %v", c, err)
	}
	for name, want := range map[string]string{"fix": "one", "more": "two"} {
		v, err := l.w.Manager().Volume(name)
		l.must(err)
		n, _, err := v.Lookup(v.Root(), "a")
		l.must(err)
		f, err := v.Open(n, unix.O_RDONLY, false, nil)
		l.must(err)
		var b [3]byte
		if _, err := f.ReadAt(b[:], 0); err != nil || string(b[:]) != want {
			t.Errorf("%s has %q, %v, want %q", name, b, err, want)
		}
		f.Release()
		v.Close()
	}
}
