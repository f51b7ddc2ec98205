package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// latencies measures how long checkpoints and going back take, depending on the size of the tree and on what changed.
func (b *bench) latencies(l lower) error {
	for _, files := range []int{1_000, 50_000, 200_000} {
		for _, k := range b.keepers(l, files) {
			if err := b.latency(l, k, b.scale(files)); err != nil {
				return err
			}
		}
	}
	return nil
}

// latency measures one way with a tree of one size.
func (b *bench) latency(l lower, k keeper, files int) error {
	size := fmt.Sprintf("%d files", files)
	saved := "checkpoint, " + size
	if !b.wants(saved, "go back, "+size) {
		return nil
	}
	defer done(l, size+" with "+k.name(), time.Now())
	return b.unlessFailed(l, saved, k, b.withTree(l, k, files, func(root string) error {
		for _, dirty := range []int{1, 100, 1_000, 10_000} {
			if dirty*2 > files {
				break
			}
			if slow := b.roundTrips(l, k, root, saved, "go back, "+size, files, dirty); slow {
				b.report.leftOut(l, "go back, "+size+", more changes, with "+k.name(), "it takes too long")
				break
			}
		}
		if s, ok := k.(*snapshots); ok {
			b.snapshotLines(l, s, root, size)
		}
		return nil
	}))
}

// tooLong is how long going back may take for it to be measured again, and with more changes.
func (b *bench) tooLong() time.Duration {
	if b.o.quick {
		return 2 * time.Second
	}
	return 15 * time.Second
}

// roundTrips saves, changes as many old files as it creates new ones, and goes back. It reports whether that takes too
// long.
func (b *bench) roundTrips(l lower, k keeper, root, saved, restored string, files, dirty int) (slow bool) {
	rounds := b.rounds(k, dirty)
	restored = fmt.Sprintf("%s, %d modified and %d created", restored, dirty, dirty)
	for n := range rounds {
		progress("%s: %s with %s, %d of %d", l.name, restored, k.name(), n+1, rounds)
		start := time.Now()
		err := k.save(b.ctx)
		b.report.add(l, saved, k.name(), time.Since(start), err)
		if err == nil {
			err = change(k, root, files, dirty, n)
		}
		if err == nil {
			start = time.Now()
			err = k.restore(b.ctx)
			slow = time.Since(start) > b.tooLong()
			b.report.add(l, restored, k.name(), time.Since(start), err)
		}
		if err == nil {
			err = isRestored(root)
		}
		if err == nil {
			err = k.forget(b.ctx)
		}
		if err != nil {
			b.report.add(l, restored, k.name(), 0, err)
			return slow
		}
		if slow {
			break
		}
	}
	return slow
}

// rounds is how often a round trip is made: what takes microseconds often, what takes seconds seldom.
func (b *bench) rounds(k keeper, dirty int) int {
	if _, ok := k.(*snapshots); !ok {
		return b.o.repeat
	}
	return max(b.o.repeat, b.scale(max(20, 300/dirty)))
}

// changeFiles rewrites dirty files, spread over the tree, and creates as many.
func changeFiles(root string, files, dirty, n int) error {
	text := fmt.Appendf(nil, "export const round = %d;\n", n)
	for i := range dirty {
		old := filepath.Join(root, treePath(i*(files/dirty)))
		if err := os.WriteFile(old, text, 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(old+".new", text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// isRestored takes a look at the first file, so that what does nothing doesn't win.
func isRestored(root string) error {
	first := filepath.Join(root, treePath(0))
	st, err := os.Stat(first)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(first + ".new"); err == nil || st.Size() < 100 {
		return fmt.Errorf("the tree wasn't restored")
	}
	return nil
}

// snapshotLines measures the snapshot alone: with a change since the last one, and while files are being created.
func (b *bench) snapshotLines(l lower, s *snapshots, root, size string) {
	b.snapshotsOf(l, s, "checkpoint, "+size+", one file changed since the last", changeOne(root))
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; !stop.Load(); n++ {
			os.WriteFile(filepath.Join(root, fmt.Sprintf("busy-%d", n%1000)), []byte("x"), 0o644)
		}
	}()
	b.snapshotsOf(l, s, "checkpoint, "+size+", while files are being written", func(int) error { return nil })
	stop.Store(true)
	<-done
}

// changeOne gives what changes another file each time.
func changeOne(root string) func(n int) error {
	return func(n int) error {
		return os.WriteFile(filepath.Join(root, treePath(n)), []byte("changed since the last one"), 0o644)
	}
}

// snapshotsOf measures a number of snapshots, and drops them.
func (b *bench) snapshotsOf(l lower, s *snapshots, name string, before func(n int) error) {
	for n := range b.scale(200) {
		err := before(n)
		start := time.Now()
		if err == nil {
			err = s.save(b.ctx)
		}
		b.report.add(l, name, s.name(), time.Since(start), err)
		if err != nil {
			return
		}
	}
	if err := s.forget(b.ctx); err != nil {
		b.report.add(l, name, s.name(), 0, err)
	}
}
