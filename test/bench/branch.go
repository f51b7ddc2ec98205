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
		if !b.wants(fork, drop, b.branchLines(files)[0]) {
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
			b.branchCheckpoints(l, s, files)
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

// branchLines name what branchCheckpoints measures.
func (b *bench) branchLines(files int) [3]string {
	return [3]string{
		fmt.Sprintf("branch/checkpoint of a branch, %d files, one changed since the last", files),
		fmt.Sprintf("branch/go back in a branch, %d files, 1 modified and 1 created", files),
		fmt.Sprintf("branch/go back in a branch, %d files, 100 modified and 100 created", files),
	}
}

// branchCheckpoints measures checkpoints and rollbacks of one branch.
func (b *bench) branchCheckpoints(l lower, s *snapshots, files int) {
	names := b.branchLines(files)
	fail := func(err error) { b.report.add(l, names[0], s.name(), 0, err) }
	if err := s.fork(b.ctx, "work"); err != nil {
		fail(err)
		return
	}
	dir := s.branchDir("work")
	for n := range b.scale(200) {
		err := os.WriteFile(filepath.Join(dir, treePath(n)), []byte("changed since the last one"), 0o644)
		start := time.Now()
		if err == nil {
			_, err = s.client.Snapshot(b.ctx, hyper.SnapshotOptions{Branch: "work"})
		}
		b.report.add(l, names[0], s.name(), time.Since(start), err)
		if err != nil {
			return
		}
	}
	for i, dirty := range []int{1, 100} {
		if dirty*2 > files {
			return
		}
		for n := range b.rounds(s, dirty) {
			c, err := s.client.Snapshot(b.ctx, hyper.SnapshotOptions{Branch: "work"})
			if err == nil {
				err = changeFiles(dir, files, dirty, n)
			}
			start := time.Now()
			if err == nil {
				_, err = s.client.Rollback(b.ctx, c.ID, hyper.RollbackOptions{Branch: "work"})
			}
			b.report.add(l, names[1+i], s.name(), time.Since(start), err)
			if err != nil {
				return
			}
		}
	}
	if err := s.dropFork(b.ctx, "work"); err != nil {
		fail(err)
	}
}

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
