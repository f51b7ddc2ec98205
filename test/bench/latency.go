package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	hyper "github.com/hyperfs/hyperfs/overlay"
)

// keeper is a way to make checkpoints of a tree and to go back to them.
type keeper interface {
	name() string
	// start gets ready for the tree in dir, which tree made; root is where it's then worked on.
	start(ctx context.Context, dir string) (root string, err error)
	save(ctx context.Context) error
	restore(ctx context.Context) error
	// forget frees the checkpoint; it isn't timed.
	forget(ctx context.Context) error
	stop() error
}

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

// keepers gives the ways that are measured with a tree of that size. Those that copy or scan it are spared the largest.
func (b *bench) keepers(l lower, files int) []keeper {
	all := []keeper{&snapshots{hyperfs: hyperfs{program: b.o.hyperfs}}}
	if !b.o.peers || files > 50_000 {
		return all
	}
	all = append(all, &copies{})
	if installed("git") {
		all = append(all, &commits{})
	}
	if os.Geteuid() == 0 && installed("mkfs.btrfs", "btrfs", "losetup") {
		all = append(all, &subvolumes{})
	}
	if installed("node", "npm") {
		all = append(all, &hyperion{cache: filepath.Join(l.dir, "npm-cache")})
	}
	return all
}

// latency measures one way with a tree of one size.
func (b *bench) latency(l lower, k keeper, files int) error {
	dir := filepath.Join(l.dir, "latency")
	size := fmt.Sprintf("%d files", files)
	if !b.wantsLatency(size) {
		return nil
	}
	progress("%s: preparing %s for %s", l.name, size, k.name())
	defer done(l, size+" with "+k.name(), time.Now())
	defer removeTree(dir)
	root, err := k.start(b.ctx, dir)
	if err == nil {
		err = makeTree(root, files, 300)
	}
	if err == nil {
		err = ready(b.ctx, k)
	}
	defer func() {
		if err := k.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}()
	if err != nil {
		b.report.add(l, "checkpoint, "+size, k.name(), 0, err)
		return b.ctx.Err()
	}
	for _, dirty := range []int{1, 100, 1_000, 10_000} {
		if dirty*2 > files {
			break
		}
		if slow := b.roundTrips(l, k, root, size, files, dirty); slow {
			b.report.leftOut(l, "go back, "+size+", more changes, with "+k.name(), "it takes too long")
			break
		}
	}
	if s, ok := k.(*snapshots); ok {
		b.snapshotLines(l, s, root, size)
	}
	return b.ctx.Err()
}

func (b *bench) wantsLatency(size string) bool {
	return b.o.only.MatchString("checkpoint, "+size) || b.o.only.MatchString("go back, "+size)
}

// preparer is a keeper that has something to do once the tree is there.
type preparer interface {
	prepare(ctx context.Context) error
}

func ready(ctx context.Context, k keeper) error {
	if p, ok := k.(preparer); ok {
		return p.prepare(ctx)
	}
	return nil
}

// tooLong is how long going back may take for it to be measured again, and with more changes.
const tooLong = 15 * time.Second

// roundTrips saves, changes as many old files as it creates new ones, and goes back. It reports whether that takes too
// long.
func (b *bench) roundTrips(l lower, k keeper, root, size string, files, dirty int) (slow bool) {
	rounds := b.rounds(k, dirty)
	saved := "checkpoint, " + size
	restored := fmt.Sprintf("go back, %s, %d modified and %d created", size, dirty, dirty)
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
			slow = time.Since(start) > tooLong
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

// changer is a keeper that has to make the changes itself.
type changer interface {
	change(files, dirty int) error
}

func change(k keeper, root string, files, dirty, n int) error {
	if c, ok := k.(changer); ok {
		return c.change(files, dirty)
	}
	return changeFiles(root, files, dirty, n)
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
	change := func(n int) error {
		return os.WriteFile(filepath.Join(root, treePath(n)), []byte("changed since the last one"), 0o644)
	}
	b.snapshots(l, s, "checkpoint, "+size+", one file changed since the last", change)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; !stop.Load(); n++ {
			os.WriteFile(filepath.Join(root, fmt.Sprintf("busy-%d", n%1000)), []byte("x"), 0o644)
		}
	}()
	b.snapshots(l, s, "checkpoint, "+size+", while files are being written", func(int) error { return nil })
	stop.Store(true)
	<-done
}

// snapshots measures a number of snapshots, and drops them.
func (b *bench) snapshots(l lower, s *snapshots, name string, before func(n int) error) {
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

// snapshots is hyperfs, through its Go client on an open connection.
type snapshots struct {
	hyperfs
	id string
}

func (s *snapshots) start(ctx context.Context, dir string) (string, error) {
	s.dir = dir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, nil
}

// prepare mounts only now: the tree was made without hyperfs.
func (s *snapshots) prepare(ctx context.Context) error { return s.mount(ctx) }

func (s *snapshots) save(ctx context.Context) error {
	c, err := s.client.Snapshot(ctx, hyper.SnapshotOptions{})
	s.id = c.ID
	return err
}

func (s *snapshots) restore(ctx context.Context) error {
	_, err := s.client.Rollback(ctx, s.id, hyper.RollbackOptions{})
	return err
}

// forget drops all checkpoints, also the one that the rollback left.
func (s *snapshots) forget(ctx context.Context) error {
	all, err := s.client.List(ctx, hyper.ListOptions{})
	for _, c := range all {
		if err == nil {
			err = s.client.Drop(ctx, c.ID)
		}
	}
	return err
}

func (s *snapshots) stop() error { return s.unmount() }
