//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// pastForBench opens the state of a tree in which many files have changed since, and the tree.
func pastForBench(b *testing.B, changed int) (*overlay.Tree, overlay.State) {
	b.Helper()
	dir := b.TempDir()
	fillMany(b, dir, 10_000)
	w, err := overlay.Open(overlay.Config{Workspace: dir})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = w.Close() })
	c, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	if err != nil {
		b.Fatal(err)
	}
	t := w.Tree()
	for i := range changed {
		d, _, err := t.Lookup(t.Root(), fmt.Sprint(i/100))
		if err != nil {
			b.Fatal(err)
		}
		if err := t.Rename(d, fmt.Sprint(i), d, fmt.Sprint("x", i), 0); err != nil {
			b.Fatal(err)
		}
	}
	s, err := w.OpenCheckpoint(c.ID)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	return t, s
}

func BenchmarkLookup(b *testing.B) {
	const last = "9999"
	for _, changed := range []int{0, 5000} {
		t, s := pastForBench(b, changed)
		b.Run(fmt.Sprintf("tree, %d changed", changed), func(b *testing.B) {
			d, _, err := t.Lookup(t.Root(), "99")
			for b.Loop() && err == nil {
				_, _, err = t.Lookup(d, last)
			}
			if err != nil {
				b.Fatal(err)
			}
		})
		b.Run(fmt.Sprintf("state, %d changed", changed), func(b *testing.B) {
			d, err := s.Lookup(s.Root(), "99")
			var e overlay.StateEntry
			for b.Loop() && err == nil {
				if e, err = s.Lookup(d.ID, last); err == nil {
					_, err = s.Attr(e.ID)
				}
			}
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkReadAt(b *testing.B) {
	t, s := pastForBench(b, 5000)
	buf := make([]byte, 4096)
	b.Run("tree", func(b *testing.B) {
		d, _, _ := t.Lookup(t.Root(), "99")
		n, _, err := t.Lookup(d, "9999")
		if err != nil {
			b.Fatal(err)
		}
		h, err := t.Open(n, unix.O_RDONLY, false, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer h.Release()
		for b.Loop() {
			if _, err := h.ReadAt(buf, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, path := range map[string][2]string{"state, unchanged": {"99", "9999"}, "state, moved": {"0", "7"}} {
		b.Run(name, func(b *testing.B) {
			d, _ := s.Lookup(s.Root(), path[0])
			e, err := s.Lookup(d.ID, path[1])
			if err != nil {
				b.Fatal(err)
			}
			f, err := s.Open(e.ID)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			for b.Loop() {
				if _, err := f.ReadAt(buf, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPin(b *testing.B) {
	w, err := overlay.Open(overlay.Config{Workspace: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	c, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		err := w.Pin(c.ID, fmt.Sprint(i), func(*checkpoint.Tx, checkpoint.Checkpoint) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
	}
}
