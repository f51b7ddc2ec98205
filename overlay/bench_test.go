//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
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
	for _, tier := range []strategy.Kind{strategy.Tmpfs, strategy.PosixLink, strategy.PureManifest} {
		for _, files := range []int{1, 100, 1000} {
			b.Run(fmt.Sprintf("%s, %d modified, %d created", tier, files, files), func(b *testing.B) { rollbacks(b, tier, files) })
		}
	}
}

func rollbacks(b *testing.B, tier strategy.Kind, files int) {
	dir := b.TempDir()
	fillMany(b, dir, 5000)
	w, err := overlay.Open(overlay.Config{Workspace: dir, Tier: string(tier)})
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

// BenchmarkFirstWrite opens old files, writes a few bytes into each and closes it, with each tier, and without a checkpoint.
func BenchmarkFirstWrite(b *testing.B) {
	for _, size := range []int{4 << 10, 256 << 10} {
		for _, tier := range []string{"no checkpoint", string(strategy.Tmpfs), string(strategy.PosixLink), string(strategy.PureManifest)} {
			b.Run(fmt.Sprintf("%d KiB, %s", size>>10, tier), func(b *testing.B) { firstWrites(b, tier, size) })
		}
	}
}

func firstWrites(b *testing.B, tier string, size int) {
	const files = 200
	dir := b.TempDir()
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), bytes.Repeat([]byte{1}, size), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	cfg := overlay.Config{Workspace: dir, NoTmpfs: true, MaxCheckpoints: 1 << 30}
	if tier != "no checkpoint" {
		cfg.Tier = tier
	}
	w, err := overlay.Open(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	nodes := make([]*overlay.Node, files)
	for i := range files {
		if nodes[i], _, err = w.Tree().Lookup(w.Tree().Root(), fmt.Sprint(i)); err != nil {
			b.Fatal(err)
		}
	}
	last, i := "", files
	for b.Loop() {
		if i == files && cfg.Tier != "" {
			b.StopTimer()
			c, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{})
			if err == nil && last != "" {
				err = w.Drop(context.Background(), last)
			}
			if err != nil {
				b.Fatal(err)
			}
			last = c.ID
			b.StartTimer()
		}
		i %= files
		h, err := w.Tree().Open(nodes[i], unix.O_WRONLY, false, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := h.WriteAt([]byte("changed"), 100); err != nil {
			b.Fatal(err)
		}
		h.Release()
		i++
	}
}

// BenchmarkIgnoredCreate makes and removes a file in an ignored directory, of which nothing is recorded, with a checkpoint and without one.
func BenchmarkIgnoredCreate(b *testing.B) {
	for _, checkpoints := range []int{0, 1} {
		b.Run(fmt.Sprintf("%d checkpoints", checkpoints), func(b *testing.B) {
			dir := b.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "node_modules/p"), 0o755); err != nil {
				b.Fatal(err)
			}
			w, err := overlay.Open(overlay.Config{Workspace: dir, Ignore: []string{"node_modules/"}})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			for range checkpoints {
				if _, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			t := w.Tree()
			up, _, err := t.Lookup(t.Root(), "node_modules")
			if err != nil {
				b.Fatal(err)
			}
			in, _, err := t.Lookup(up, "p")
			if err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				name := fmt.Sprint(i)
				n, h, _, err := t.Create(in, name, unix.O_RDWR, 0o644, false, nil)
				if err != nil {
					b.Fatal(err)
				}
				h.Release()
				if err := t.Unlink(in, name); err != nil {
					b.Fatal(err)
				}
				t.Forget(n, 1)
			}
		})
	}
}
