//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// fillMany makes files in directories of a hundred.
func fillMany(b *testing.B, dir string, files int) {
	for i := range files {
		p := filepath.Join(dir, fmt.Sprint(i/100), fmt.Sprint(i))
		if i%100 == 0 {
			_ = os.MkdirAll(filepath.Dir(p), 0o755)
		}
		if err := os.WriteFile(p, []byte("some bytes of content"), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	w, err := overlay.Open(overlay.Config{Workspace: b.TempDir(), MaxCheckpoints: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	for b.Loop() {
		if _, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRollback(b *testing.B) {
	for _, files := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("%d modified, %d created", files, files), func(b *testing.B) {
			dir := b.TempDir()
			fillMany(b, dir, 5000)
			w, err := overlay.Open(overlay.Config{Workspace: dir})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			if _, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{}); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				dirty(b, w.Tree(), files)
				b.StartTimer()
				if _, err := w.Rollback(context.Background(), "", overlay.RollbackOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// dirty modifies files and makes as many new ones.
func dirty(b *testing.B, t *overlay.Tree, files int) {
	for i := range files {
		dir, _, err := t.Lookup(t.Root(), fmt.Sprint(i/100))
		if err != nil {
			b.Fatal(err)
		}
		n, _, err := t.Lookup(dir, fmt.Sprint(i))
		if err != nil {
			b.Fatal(err)
		}
		h, err := t.Open(n, unix.O_WRONLY, false, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := h.WriteAt([]byte("changed"), 0); err != nil {
			b.Fatal(err)
		}
		h.Release()
		made, h, _, err := t.Create(dir, fmt.Sprintf("new-%d", i), unix.O_WRONLY, 0o644, false, nil)
		if err != nil {
			b.Fatal(err)
		}
		h.Release()
		t.Forget(made, 1)
		t.Forget(n, 1)
		t.Forget(dir, 1)
	}
}

func BenchmarkCreate(b *testing.B) {
	for _, in := range []string{"an old directory", "a new directory"} {
		b.Run("in "+in, func(b *testing.B) {
			dir := b.TempDir()
			_ = os.Mkdir(dir+"/old", 0o755)
			w, err := overlay.Open(overlay.Config{Workspace: dir})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			if _, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{}); err != nil {
				b.Fatal(err)
			}
			t := w.Tree()
			at, _, err := t.Lookup(t.Root(), "old")
			if in == "a new directory" {
				at, _, err = t.Mkdir(t.Root(), "new", 0o755, nil)
			}
			if err != nil {
				b.Fatal(err)
			}
			i := 0
			for b.Loop() {
				i++
				n, h, _, err := t.Create(at, fmt.Sprint(i), unix.O_WRONLY, 0o644, false, nil)
				if err != nil {
					b.Fatal(err)
				}
				h.Release()
				t.Forget(n, 1)
			}
		})
	}
}
