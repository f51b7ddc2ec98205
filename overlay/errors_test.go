//go:build linux

package overlay_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

func wantCode(t *testing.T, err error, code errs.Code) {
	t.Helper()
	if errs.CodeOf(err) != code {
		t.Fatalf("got %v (%s), want %s", err, errs.CodeOf(err), code)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has more than one line: %q", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	cases := map[string]struct {
		code    errs.Code
		prepare func(t *testing.T, dir string) overlay.Config
	}{
		"a workspace that is not there": {errs.Path, func(t *testing.T, dir string) overlay.Config {
			return overlay.Config{Workspace: dir + "/none"}
		}},
		"a workspace that is a file": {errs.Path, func(t *testing.T, dir string) overlay.Config {
			_ = os.WriteFile(dir+"/f", nil, 0o644)
			return overlay.Config{Workspace: dir + "/f"}
		}},
		"a second process": {errs.Busy, func(t *testing.T, dir string) overlay.Config {
			w, err := overlay.Open(overlay.Config{Workspace: dir})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = w.Close() })
			return overlay.Config{Workspace: dir}
		}},
		"a store on another filesystem": {errs.Unsupported, func(t *testing.T, dir string) overlay.Config {
			other, err := os.MkdirTemp("/dev/shm", "hyperfs-test-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(other) })
			return overlay.Config{Workspace: dir, Store: other}
		}},
		"a store in the middle of the workspace": {errs.Path, func(t *testing.T, dir string) overlay.Config {
			return overlay.Config{Workspace: dir, Store: dir + "/sub/store"}
		}},
		"a store of a newer format": {errs.Unsupported, func(t *testing.T, dir string) overlay.Config {
			_ = os.Mkdir(dir+"/.hyperfs", 0o700)
			_ = os.WriteFile(dir+"/.hyperfs/format", []byte("99\n"), 0o600)
			return overlay.Config{Workspace: dir}
		}},
		"a format that is no number": {errs.Integrity, func(t *testing.T, dir string) overlay.Config {
			_ = os.Mkdir(dir+"/.hyperfs", 0o700)
			_ = os.WriteFile(dir+"/.hyperfs/format", []byte("one\n"), 0o600)
			return overlay.Config{Workspace: dir}
		}},
		"a copied workspace": {errs.Integrity, func(t *testing.T, dir string) overlay.Config {
			_ = os.Mkdir(dir+"/a", 0o755)
			w, err := overlay.Open(overlay.Config{Workspace: dir + "/a"})
			if err != nil {
				t.Fatal(err)
			}
			_ = w.Close()
			if out, err := exec.Command("cp", "-a", dir+"/a", dir+"/b").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return overlay.Config{Workspace: dir + "/b"}
		}},
		"a tier that does not exist": {errs.Unsupported, func(t *testing.T, dir string) overlay.Config {
			return overlay.Config{Workspace: dir, Tier: "magic"}
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w, err := overlay.Open(c.prepare(t, t.TempDir()))
			if err == nil {
				_ = w.Close()
			}
			wantCode(t, err, c.code)
		})
	}
}

func TestOpeningLeavesNoTraceInTheWorkspace(t *testing.T) {
	dir := t.TempDir()
	fillSmall(dir)
	before, err := treestate.Capture(dir, treestate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := overlay.Open(overlay.Config{Workspace: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	after, err := treestate.Capture(dir, treestate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range treestate.Diff(before, after) {
		t.Error(d)
	}
}

func TestCheckpointsThatCannotBeUsed(t *testing.T) {
	s := newSpace(t, fillSmall)
	ctx := context.Background()
	_, err := s.w.Rollback(ctx, "", overlay.RollbackOptions{})
	wantCode(t, err, errs.NotFound)
	_, err = s.w.Undo(ctx)
	wantCode(t, err, errs.Rollback)
	_, err = s.w.Rollback(ctx, "ckpt_nonsense", overlay.RollbackOptions{})
	wantCode(t, err, errs.NotFound)
	_, err = s.w.Snapshot(ctx, overlay.SnapshotOptions{ID: "mine"})
	wantCode(t, err, errs.Usage)
	_, err = s.w.Snapshot(ctx, overlay.SnapshotOptions{Parent: "ckpt_none"})
	wantCode(t, err, errs.NotFound)
	id := s.snapshot()
	_, err = s.w.Snapshot(ctx, overlay.SnapshotOptions{ID: id})
	wantCode(t, err, errs.Usage)
	if err := s.w.Drop(ctx, id); err != nil {
		t.Fatal(err)
	}
	_, err = s.w.Rollback(ctx, id, overlay.RollbackOptions{})
	wantCode(t, err, errs.Rollback)
	_, err = s.w.Snapshot(ctx, overlay.SnapshotOptions{Parent: id})
	wantCode(t, err, errs.Disposed)
	wantCode(t, s.w.Drop(ctx, id), errs.Rollback)
	_, err = s.w.Promote(ctx, id, nil)
	wantCode(t, err, errs.Rollback)
	if err := s.w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = s.w.Snapshot(ctx, overlay.SnapshotOptions{})
	wantCode(t, err, errs.Disposed)
	if err := s.w.Close(); err != nil {
		t.Error("closing twice:", err)
	}
}

func TestSnapshotRefusesMoreThanTheLimit(t *testing.T) {
	dir := t.TempDir()
	w, err := overlay.Open(overlay.Config{Workspace: dir, MaxCheckpoints: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx := context.Background()
	for range 2 {
		if _, err := w.Snapshot(ctx, overlay.SnapshotOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = w.Snapshot(ctx, overlay.SnapshotOptions{})
	wantCode(t, err, errs.Capacity)
}

// storeFiles gives the names in a directory of the store.
func (s *space) storeFiles(sub string) []string {
	s.Helper()
	return s.glob(filepath.Join(s.dir, overlay.StoreName, sub, "*"))
}

// preimages gives the files of all preimages, in the store and in RAM. Those in the hot buffer share theirs.
func (s *space) preimages() []string {
	s.Helper()
	return append(append(s.storeFiles("backup"), s.storeFiles("hot")...), s.glob(filepath.Join(s.cfg.TmpfsDir, "*", "*"))...)
}

func (s *space) glob(pattern string) []string {
	s.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		s.Fatal(err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(filepath.Base(name), ".") })
}

func TestDamageStopsARollbackBeforeItTouchesAnything(t *testing.T) {
	damages := map[string]func(s *space){
		"a flipped bit in a preimage": func(s *space) { flip(s.T, s.preimages()[0]) },
		"a missing preimage":          func(s *space) { s.ok(os.Remove(s.preimages()[0])) },
		"a short preimage":            func(s *space) { s.ok(os.Truncate(s.preimages()[0], 1)) },
		"a flipped bit in the trash":  func(s *space) { flip(s.T, s.storeFiles("trash")[0]) },
		"a file gone from the trash":  func(s *space) { s.ok(os.Remove(s.storeFiles("trash")[0])) },
	}
	for where, cfg := range map[string]overlay.Config{
		"tmpfs":         {Tier: string(strategy.Tmpfs), Hot: withoutHot},
		"pure-manifest": {Tier: string(strategy.PureManifest), Hot: withoutHot},
		"hot buffer":    {},
	} {
		for name, damage := range damages {
			t.Run(where+", "+name, func(t *testing.T) { damageStopsARollback(t, cfg, damage) })
		}
	}
}

func damageStopsARollback(t *testing.T, cfg overlay.Config, damage func(s *space)) {
	cfg.Workspace = filled(t, t.TempDir())()
	s := spaceWith(t, cfg)
	id := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	s.unlink("dir/sub/d.txt")
	s.write("new", "new")
	damage(s)
	changed := s.state()
	_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	wantCode(t, err, errs.Integrity)
	var e *errs.Error
	if !errors.As(err, &e) || e.On != "b.txt" && e.On != "dir/sub/d.txt" {
		t.Errorf("the error does not name the file: %v", err)
	}
	for _, d := range treestate.Diff(changed, s.state()) {
		t.Error(d)
	}
	if c, err := s.w.Get(id); err != nil || c.Status != "active" {
		t.Errorf("the checkpoint is %s, %v", c.Status, err)
	}
	problems, err := s.w.Fsck(context.Background(), true)
	if err != nil || len(problems) == 0 {
		t.Errorf("fsck found nothing, %v", err)
	}
}

func flip(t *testing.T, name string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFsckFindsWhatNoRecordNames(t *testing.T) {
	s := newSpace(t, fillSmall)
	s.snapshot()
	for _, sub := range []string{"trash", "backup"} {
		s.ok(os.WriteFile(filepath.Join(s.dir, overlay.StoreName, sub, "stray"), []byte("x"), 0o600))
	}
	problems, err := s.w.Fsck(context.Background(), false)
	if err != nil || len(problems) != 2 {
		t.Fatalf("got %v, %v", problems, err)
	}
	if _, err := s.w.GC(context.Background()); err != nil {
		t.Fatal(err)
	}
	if problems, err = s.w.Fsck(context.Background(), false); err != nil || len(problems) != 0 {
		t.Fatalf("after gc: %v, %v", problems, err)
	}
}

func TestAFullDiskRefusesWritesAndLosesNothing(t *testing.T) {
	s := spaceAt(t, filled(t, testfs.Tmpfs(t, 64<<20))())
	before := s.state()
	id := s.snapshot()
	s.write("b.txt", "changed")
	big, h, _, err := s.tr.Create(s.tr.Root(), "big", unix.O_WRONLY, 0o644, false, nil)
	s.ok(err)
	for off, block := int64(0), make([]byte, 1<<20); err == nil; off += 1 << 20 {
		_, err = h.WriteAt(block, off)
	}
	h.Release()
	s.tr.Forget(big, 1)
	if err != unix.ENOSPC {
		t.Fatalf("filling the disk ended with %v", err)
	}
	if err := s.tr.Unlink(s.at("dir"), "c.txt"); err != unix.ENOSPC {
		t.Errorf("unlink of an old file gave %v, want ENOSPC", err)
	}
	if _, err := s.tr.Open(s.at("dir/sub/d.txt"), unix.O_WRONLY|unix.O_TRUNC, false, nil); err != unix.ENOSPC {
		t.Errorf("truncation of an old file gave %v, want ENOSPC", err)
	}
	if _, err := s.w.Snapshot(context.Background(), overlay.SnapshotOptions{}); errs.CodeOf(err) != errs.Capacity {
		t.Errorf("snapshot gave %v, want CAPACITY", err)
	}
	s.rollback(id)
	s.same(before)
}
