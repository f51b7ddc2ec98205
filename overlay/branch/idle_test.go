//go:build linux

package branch

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// openIdle opens a branch of a workspace that has one file, and gives what makes time pass in it.
func openIdle(t *testing.T) (v *Volume, pass func()) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old"), []byte("main's"), 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := Open(overlay.Config{Workspace: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.Fork(context.Background(), overlay.ForkOptions{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	v, err = w.branches.Volume("b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v, func() {
		v.used.Store(0)
		w.branches.unloadIdle()
	}
}

func (v *Volume) isLoaded() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.st != nil
}

func mustOpen(t *testing.T, v *Volume, n overlay.Inode, flags int) overlay.File {
	t.Helper()
	f, err := v.Open(n, flags, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func textOf(t *testing.T, f overlay.File) string {
	t.Helper()
	buf := make([]byte, 100)
	n, err := f.ReadAt(buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// The kernel may remember inodes of a branch for as long as it has memory. That alone must not keep the branch in memory here.
func TestAnIdleBranchIsLetGoOfThoughTheKernelRemembersIt(t *testing.T) {
	v, pass := openIdle(t)
	old, before, err := v.Lookup(v.Root(), "old")
	if err != nil {
		t.Fatal(err)
	}
	made, f, _, err := v.Create(v.Root(), "made", unix.O_RDWR, 0o644, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("the branch's"), 0); err != nil {
		t.Fatal(err)
	}
	if pass(); !v.isLoaded() {
		t.Fatal("it was let go of while a file was open")
	}
	f.Release()
	if pass(); v.isLoaded() {
		t.Fatal("it is still in memory")
	}
	if a, err := v.GetAttr(old, nil); err != nil || a != before {
		t.Errorf("%+v, %v", a, err)
	}
	for n, want := range map[overlay.Inode]string{old: "main's", made: "the branch's"} {
		f := mustOpen(t, v, n, unix.O_RDONLY)
		if got := textOf(t, f); got != want {
			t.Errorf("it holds %q, want %q", got, want)
		}
		f.Release()
	}
	f = mustOpen(t, v, old, unix.O_RDWR)
	if _, err := f.WriteAt([]byte("new"), 0); err != nil {
		t.Fatal(err)
	}
	f.Release()
	pass()
	f = mustOpen(t, v, old, unix.O_RDONLY)
	if got := textOf(t, f); got != "newn's" {
		t.Errorf("it holds %q", got)
	}
	f.Release()
	v.Forget(old, 1)
	v.Forget(made, 1)
}

// What an inode without a name is like is nowhere but in memory.
func TestABranchWithAnInodeWithoutANameStaysInMemory(t *testing.T) {
	v, pass := openIdle(t)
	old, _, err := v.Lookup(v.Root(), "old")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Unlink(v.Root(), "old"); err != nil {
		t.Fatal(err)
	}
	if pass(); !v.isLoaded() {
		t.Error("it was let go of")
	}
	if a, err := v.GetAttr(old, nil); err != nil || a.Nlink != 0 || a.Size != int64(len("main's")) {
		t.Errorf("%+v, %v", a, err)
	}
	v.Forget(old, 1)
	if pass(); v.isLoaded() {
		t.Error("it is still in memory")
	}
}
