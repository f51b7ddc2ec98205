package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// statGroup looks at many files without opening them.
func (b *bench) statGroup() group {
	files := b.scale(50_000)
	storm := func(_ context.Context, dir string) error { return statAll(dir, files) }
	find := exe("find", ".", "-type", "f", "-newermt", "2100-01-01")
	return group{
		name:    "meta",
		prepare: func(_ context.Context, dir string) error { return makeTree(dir, files, 300) },
		workloads: []workload{
			{name: fmt.Sprintf("stat of %d files, cold", files), cold: true, run: storm},
			{name: fmt.Sprintf("stat of %d files, warm", files), warm: true, run: storm},
			{name: fmt.Sprintf("find over %d files, cold", files), cold: true, run: find},
			{name: fmt.Sprintf("find over %d files, warm", files), warm: true, run: find},
		},
	}
}

func statAll(dir string, files int) error {
	var st unix.Stat_t
	for i := range files {
		if err := unix.Lstat(filepath.Join(dir, treePath(i)), &st); err != nil {
			return err
		}
	}
	return nil
}

// gitGroup is git in a repository of 10,000 files.
func (b *bench) gitGroup() group {
	files := b.scale(10_000)
	status := exe("git", "status", "--porcelain")
	return group{
		name:  "git",
		needs: []string{"git"},
		prepare: func(ctx context.Context, dir string) error {
			if err := makeTree(dir, files, 2000); err != nil {
				return err
			}
			return gitCommitAll(ctx, dir)
		},
		workloads: []workload{
			{name: "git status, cold", cold: true, run: status},
			{name: "git status, warm", warm: true, run: status},
		},
	}
}

// gitCommitAll makes a repository of dir. Git reads files anew whose times are those of its index, so that is made later than them.
func gitCommitAll(ctx context.Context, dir string) error {
	time.Sleep(1100 * time.Millisecond)
	for _, args := range [][]string{
		{"init", "-q"},
		{"config", "user.name", "bench"}, {"config", "user.email", "bench@example.org"}, {"config", "gc.auto", "0"},
		{"config", "core.excludesFile", filepath.Join(dir, ".git", "excluded")},
		{"add", "-A"}, {"commit", "-q", "-m", "start"},
	} {
		if err := command(ctx, dir, "git", args...); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, ".git", "excluded"), []byte(".hyperfs/\n"), 0o644)
}

// grepGroup reads many small files.
func (b *bench) grepGroup() group {
	files := b.scale(10_000)
	grep := func(ctx context.Context, dir string) error {
		err := command(ctx, dir, "grep", "-r", "export no such thing", "--exclude-dir=.hyperfs", ".")
		return unlessExit(err, 1)
	}
	return group{
		name:    "grep",
		prepare: func(_ context.Context, dir string) error { return makeTree(dir, files, 2000) },
		workloads: []workload{
			{name: fmt.Sprintf("grep -r over %d files, cold", files), cold: true, run: grep},
			{name: fmt.Sprintf("grep -r over %d files, warm", files), warm: true, run: grep},
		},
	}
}
