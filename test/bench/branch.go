package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	hyper "github.com/hyperfs/hyperfs/overlay"
)

// branches measures what branches cost. All lines begin with "branch/".
func (b *bench) branches(l lower) error {
	for _, part := range []func(lower) error{b.forks, b.branchReads, b.branchWrites, b.merges, b.manyBranches} {
		if err := part(l); err != nil {
			return err
		}
	}
	return nil
}

// forker is a way to make a second working tree of a tree, and to get rid of it.
type forker interface {
	keeper
	fork(ctx context.Context, name string) error
	dropFork(ctx context.Context, name string) error
}

// forks measures making a branch and dropping it, depending on the size of the tree, and the checkpoints of one.
func (b *bench) forks(l lower) error {
	for _, files := range []int{1_000, 50_000} {
		files = b.scale(files)
		fork, drop := fmt.Sprintf("branch/fork, %d files", files), fmt.Sprintf("branch/drop, %d files", files)
		if !b.wants(fork, drop, branchLine+fmt.Sprintf("%d files", files)) {
			continue
		}
		for _, k := range b.forkers() {
			if err := b.forksOf(l, k, files, fork, drop); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) forkers() []forker {
	all := []forker{b.snapshots()}
	if !b.o.peers {
		return all
	}
	all = append(all, &copies{})
	if installed("git") {
		all = append(all, &worktrees{})
	}
	if os.Geteuid() == 0 && installed("mkfs.btrfs", "btrfs", "losetup") {
		all = append(all, &subvolumes{})
	}
	return all
}

func (b *bench) forksOf(l lower, k forker, files int, fork, drop string) error {
	defer done(l, fork+" with "+k.name(), time.Now())
	return b.unlessFailed(l, fork, k, b.withTree(l, k, files, func(string) error {
		rounds := b.o.repeat
		s, ours := k.(*snapshots)
		if ours {
			rounds = max(rounds, b.scale(500))
			if err := s.save(b.ctx); err != nil { // what is forked; git has its commit, and the others need none
				return err
			}
		}
		name := func(n int) string { return fmt.Sprintf("branch-%d", n) }
		ok := b.timed(l, fork, k, rounds, func(n int) error { return k.fork(b.ctx, name(n)) }) &&
			b.timed(l, drop, k, rounds, func(n int) error { return k.dropFork(b.ctx, name(n)) })
		if ours && ok {
			return b.branchCheckpoints(l, s, files)
		}
		return nil
	}))
}

// timed does something a number of times, and reports whether it could.
func (b *bench) timed(l lower, line string, k keeper, rounds int, fn func(n int) error) bool {
	for n := range rounds {
		start := time.Now()
		err := fn(n)
		b.report.add(l, line, k.name(), time.Since(start), err)
		if err != nil || b.ctx.Err() != nil {
			return false
		}
	}
	return true
}

// branchCheckpoints measures checkpoints and rollbacks of one branch.
func (b *bench) branchCheckpoints(l lower, s *snapshots, files int) error {
	if err := s.fork(b.ctx, "work"); err != nil {
		return err
	}
	work, root := *s, s.branchDir("work")
	work.branch = "work"
	size := fmt.Sprintf("%d files", files)
	for _, dirty := range []int{1, 100} {
		if dirty*2 <= files {
			b.roundTrips(l, &work, root, branchLine+size, "branch/go back in a branch, "+size, files, dirty)
		}
	}
	b.snapshotsOf(l, &work, branchLine+size+", one changed since the last", changeOne(root))
	return s.dropFork(b.ctx, "work")
}

// branchLine is how the lines of branchCheckpoints begin.
const branchLine = "branch/checkpoint of a branch, "

// branchDir is where the mount shows a branch.
func (h *hyperfs) branchDir(name string) string {
	return filepath.Join(h.dir, hyper.StoreName, "branches", name)
}

func (h *hyperfs) fork(ctx context.Context, name string) error {
	_, err := h.client.Fork(ctx, hyper.ForkOptions{Name: name})
	return err
}

func (h *hyperfs) dropFork(ctx context.Context, name string) error {
	return h.client.DropBranch(ctx, name)
}

func (k *copies) fork(ctx context.Context, name string) error {
	return command(ctx, k.dir, "cp", "-a", "--reflink=auto", "tree", name)
}
func (k *copies) dropFork(ctx context.Context, name string) error {
	return command(ctx, k.dir, "rm", "-rf", name)
}

// worktrees makes a working tree of a commit.
type worktrees struct{ commits }

func (k *worktrees) name() string { return "git worktree" }
func (k *worktrees) fork(ctx context.Context, name string) error {
	return command(ctx, k.dir, "git", "worktree", "add", "-q", "--detach", k.worktree(name))
}
func (k *worktrees) dropFork(ctx context.Context, name string) error {
	return command(ctx, k.dir, "git", "worktree", "remove", "--force", k.worktree(name))
}

// worktree is in the directory of all: a file of the tree that git does not know, but that is removed with it.
func (k *worktrees) worktree(name string) string { return filepath.Join(k.dir, ".git", name) }

func (k *subvolumes) fork(ctx context.Context, name string) error {
	return inOrder(ctx, k.mnt, "btrfs -q subvolume snapshot tree "+name)
}
func (k *subvolumes) dropFork(ctx context.Context, name string) error {
	return inOrder(ctx, k.mnt, "btrfs -q subvolume delete "+name)
}

// nestDepth is how many branches lie over one another in a nest.
const nestDepth = 30

// nest forks branches from one another, each of which has changed a file, and gives the checkpoint of the last.
func (h *hyperfs) nest(ctx context.Context) (from string, err error) {
	for i := range nestDepth - 1 {
		name := fmt.Sprintf("nest-%d", i)
		if _, err := h.client.Fork(ctx, hyper.ForkOptions{Name: name, From: from}); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(h.branchDir(name), treePath(i)), []byte(strings.Repeat("changed\n", 100)), 0o644); err != nil {
			return "", err
		}
		c, err := h.client.Snapshot(ctx, hyper.SnapshotOptions{Branch: name})
		if err != nil {
			return "", err
		}
		from = c.ID
	}
	return from, nil
}
