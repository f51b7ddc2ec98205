package scan

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
)

// benchFiles is how many files the tree of the benchmark has, in directories of 50.
const benchFiles = 20_000

func BenchmarkSnapshotOfAnUnchangedTree(b *testing.B) {
	dir := b.TempDir()
	for i := range benchFiles {
		sub := fmt.Sprintf("%s/d%d/e%d", dir, i/1000, i/50)
		if i%50 == 0 {
			if err := os.MkdirAll(sub, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(fmt.Sprintf("%s/f%d", sub, i), []byte(fmt.Sprint("content ", i)), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	time.Sleep(100 * time.Millisecond) // no ctime is racy
	w, err := Open(overlay.Config{Workspace: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	for range 2 {
		if _, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		c, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := w.Drop(context.Background(), c.ID); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
