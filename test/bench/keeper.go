package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

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

// preparer is a keeper that has something to do once the tree is there.
type preparer interface {
	prepare(ctx context.Context) error
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

// keepers gives the ways that are measured with a tree of that size. Those that copy or scan it are spared the largest.
func (b *bench) keepers(l lower, files int) []keeper {
	all := []keeper{b.snapshots()}
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
	if installed("node", "npm") && (files <= 1_000 || !b.o.quick) {
		all = append(all, &hyperion{cache: filepath.Join(l.dir, npmCache)})
	}
	return all
}

// withTree makes a tree for a keeper and lets fn work on it.
func (b *bench) withTree(l lower, k keeper, files int, fn func(root string) error) error {
	progress("%s: preparing %d files for %s", l.name, files, k.name())
	dir := filepath.Join(l.dir, "keeper")
	defer removeTree(dir)
	root, err := k.start(b.ctx, dir)
	if err == nil {
		err = makeTree(root, files, 300)
	}
	if p, ok := k.(preparer); ok && err == nil {
		err = p.prepare(b.ctx)
	}
	defer func() {
		if err := k.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}()
	if err != nil {
		return err
	}
	return fn(root)
}

// unlessFailed puts down in a line that a keeper has failed, if it has. Its own error is that the run is to end.
func (b *bench) unlessFailed(l lower, line string, k keeper, err error) error {
	if err != nil && b.ctx.Err() == nil {
		b.report.add(l, line, k.name(), 0, err)
	}
	return b.ctx.Err()
}

// snapshots gives hyperfs as a keeper, mounted with flags.
func (b *bench) snapshots(flags ...string) *snapshots {
	return &snapshots{hyperfs: hyperfs{program: b.o.hyperfs, flags: flags}}
}

// snapshots is hyperfs, through its Go client on an open connection.
type snapshots struct {
	hyperfs
	branch string // that they are of; "" means main
	id     string // of the last one
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
	c, err := s.client.Snapshot(ctx, hyper.SnapshotOptions{Branch: s.branch})
	s.id = c.ID
	return err
}

func (s *snapshots) restore(ctx context.Context) error {
	_, err := s.client.Rollback(ctx, s.id, hyper.RollbackOptions{Branch: s.branch})
	return err
}

// forget drops all checkpoints, also the one that the rollback left.
func (s *snapshots) forget(ctx context.Context) error {
	all, err := s.client.List(ctx, hyper.ListOptions{Branch: s.branch})
	for _, c := range all {
		if err == nil {
			err = s.client.Drop(ctx, c.ID)
		}
	}
	return err
}

func (s *snapshots) stop() error { return s.unmount() }
