//go:build linux

package overlay_test

import (
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// BenchmarkDiffOf50000Changes tells how long it takes, and for how long a writer is held up at most.
func BenchmarkDiffOf50000Changes(b *testing.B) {
	const files = 25_000
	ok := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	dir := b.TempDir()
	fillMany(b, dir, 50_000)
	w, err := overlay.Open(overlay.Config{Workspace: dir})
	ok(err)
	defer w.Close()
	pin := func() (e checkpoint.Epoch) {
		c, err := w.Snapshot(b.Context(), overlay.SnapshotOptions{})
		ok(err)
		ok(w.Pin(c.ID, "test", func(_ *checkpoint.Tx, c checkpoint.Checkpoint) error { e = c.Epoch; return nil }))
		return e
	}
	from := pin()
	dirty(b, w.Tree(), files) // and as many are created
	to := pin()
	_, h, _, err := w.Tree().Create(w.Tree().Root(), "written", unix.O_RDWR, 0o644, false, nil)
	ok(err)
	defer h.Release()
	var longest time.Duration
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
			start := time.Now()
			if _, err := h.WriteAt([]byte("y"), 0); err != nil {
				b.Error(err)
			}
			longest = max(longest, time.Since(start))
		}
	})
	for b.Loop() {
		changes, err := w.DiffEpochs(b.Context(), from, to)
		ok(err)
		if len(changes) < 2*files {
			b.Fatalf("there are %d changes", len(changes))
		}
	}
	close(stop)
	wg.Wait()
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest-write")
}
