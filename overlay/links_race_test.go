//go:build linux

package overlay_test

import (
	"context"
	"sync/atomic"
	"testing"
)

// A name in the trash is not counted, also at the moment in which the collector takes it away.
func TestLinkCountsAreRightWhileTrashIsCollected(t *testing.T) {
	s := newSpace(t, nil)
	s.write("a", "linked")
	a := s.at("a")
	for range 300 {
		s.link("a", "b")
		k := s.snapshot()
		s.unlink("b")
		var done atomic.Bool
		wrong := make(chan uint32, 1)
		go func() {
			defer close(wrong)
			for !done.Load() {
				if attr, err := s.tr.GetAttr(a, nil); err != nil || attr.Nlink != 1 {
					wrong <- attr.Nlink
					return
				}
			}
		}()
		s.ok(s.w.Drop(context.Background(), k))
		_, err := s.w.GC(context.Background())
		done.Store(true)
		s.ok(err)
		if n, ok := <-wrong; ok {
			t.Fatalf("it has %d links, want 1", n)
		}
	}
}
