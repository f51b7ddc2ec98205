package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	hyper "github.com/hyperfs/hyperfs/overlay"
)

// The views of one tree that are compared. Where there is a view of main, the others are compared with that.
const (
	viewLower  = "lower"
	viewMain   = "main"
	viewBranch = "branch"
	viewNest   = "nest of 30"
)

// views is a workspace that is mounted, with a branch and a nest of branches, and beside it the same tree without hyperfs.
type views struct {
	hyperfs
	lower string // the same tree, without hyperfs
	main  string // the checkpoint of main that is forked
	leaf  string // the one at the bottom of the nest
	names []string
	dirs  map[string]string
}

// newViews makes the tree twice.
func (b *bench) newViews(l lower, name string, prepare func(dir string) error) (*views, error) {
	v := &views{hyperfs: hyperfs{program: b.o.hyperfs, dir: filepath.Join(l.dir, name)}, lower: filepath.Join(l.dir, name+"-lower")}
	for _, dir := range []string{v.lower, v.dir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return v, err
		}
		if err := prepare(dir); err != nil {
			return v, err
		}
	}
	if err := v.mount(b.ctx); err != nil {
		return v, err
	}
	c, err := v.client.Snapshot(b.ctx, hyper.SnapshotOptions{})
	if err != nil {
		return v, err
	}
	v.main = c.ID
	v.leaf, err = v.nest(b.ctx)
	return v, err
}

// renew forks the branch, and the one at the bottom of the nest, anew.
func (v *views) renew(ctx context.Context) error {
	v.names = []string{viewMain, viewLower, viewBranch, viewNest}
	v.dirs = map[string]string{viewMain: v.dir, viewLower: v.lower}
	for view, from := range map[string]string{viewBranch: v.main, viewNest: v.leaf} {
		name := fmt.Sprintf("%s-%d", view, time.Now().UnixNano())
		if _, err := v.client.Fork(ctx, hyper.ForkOptions{Name: name, From: from}); err != nil {
			return err
		}
		v.dirs[view] = v.branchDir(name)
	}
	return nil
}

func (v *views) remove() {
	cleanUp(v)
	removeTree(v.lower)
}

// branchReads measures reads of unchanged files in main, in a branch, and at the bottom of a nest.
func (b *bench) branchReads(l lower) error {
	all := b.readWorkloads()
	var some []workload
	for _, w := range all {
		if b.wants("branch/" + w.name) {
			some = append(some, w)
		}
	}
	if len(some) == 0 {
		return nil
	}
	defer done(l, "reads in branches", time.Now())
	progress("%s: preparing reads in branches", l.name)
	v, err := b.newViews(l, "branch-reads", func(dir string) error {
		if err := makeTree(dir, b.scale(10_000), 2000); err != nil {
			return err
		}
		if err := gitCommitAll(b.ctx, dir); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, ".git/info/exclude"), []byte("large\n"), 0o644); err != nil {
			return err
		}
		return writeFile(filepath.Join(dir, "large"), b.o.sizeMiB<<20)
	})
	defer v.remove()
	if err != nil {
		b.report.add(l, "branch/reads", viewBranch, 0, err)
		return b.ctx.Err()
	}
	for n := range b.o.repeat {
		for _, w := range some {
			if err := b.readViews(l, v, w, n); err != nil {
				b.report.add(l, "branch/"+w.name, viewBranch, 0, err)
				return b.ctx.Err()
			}
		}
	}
	return nil
}

func (b *bench) readWorkloads() []workload {
	files := b.scale(10_000)
	status := exe("git", "status", "--porcelain")
	find := exe("find", ".", "-type", "f", "-newermt", "2100-01-01")
	grep := func(ctx context.Context, dir string) error {
		err := command(ctx, dir, "grep", "-r", "export no such thing", "--include=*.ts", "--exclude-dir=.hyperfs", ".")
		return unlessExit(err, 1)
	}
	stat := func(_ context.Context, dir string) error { return statAll(dir, files) }
	large := func(_ context.Context, dir string) error { return readFile(filepath.Join(dir, "large")) }
	return []workload{
		{name: "git status, first", cold: true, run: status},
		{name: "git status, warm", warm: true, run: status},
		{name: fmt.Sprintf("find over %d files, first", files), cold: true, run: find},
		{name: fmt.Sprintf("find over %d files, warm", files), warm: true, run: find},
		{name: fmt.Sprintf("grep -r over %d files, first", files), cold: true, run: grep},
		{name: fmt.Sprintf("grep -r over %d files, warm", files), warm: true, run: grep},
		{name: fmt.Sprintf("stat of %d files, warm", files), warm: true, run: stat},
		{name: fmt.Sprintf("read a file of %d MiB, first", b.o.sizeMiB), cold: true, run: large},
		{name: fmt.Sprintf("read a file of %d MiB, warm", b.o.sizeMiB), warm: true, run: large},
	}
}

// warmRuns is how often a warm workload is timed in each repetition, as it is short.
const warmRuns = 5

// readViews does one repetition of a workload in all views.
func (b *bench) readViews(l lower, v *views, w workload, n int) error {
	if w.cold {
		if err := v.unmount(); err != nil {
			return err
		}
		if err := v.mount(b.ctx); err != nil {
			return err
		}
	}
	if err := v.renew(b.ctx); err != nil {
		return err
	}
	runs := 1
	if w.warm {
		runs = warmRuns
	}
	for run := range runs {
		for i := range v.names {
			name := v.names[(i+n+run)%len(v.names)]
			progress("%s: branch/%s in %s, %d of %d", l.name, w.name, name, n+1, b.o.repeat)
			if w.warm && run == 0 {
				if err := w.run(b.ctx, v.dirs[name]); err != nil {
					return err
				}
			}
			start := time.Now()
			err := w.run(b.ctx, v.dirs[name])
			b.report.add(l, "branch/"+w.name, name, time.Since(start), err)
			if b.ctx.Err() != nil {
				return b.ctx.Err()
			}
		}
	}
	return nil
}

// branchWrites measures first writes to files that were there at the fork, and new files.
func (b *bench) branchWrites(l lower) error {
	for _, size := range []int{4 << 10, 1 << 20} {
		if err := b.branchFirstWrites(l, size); err != nil {
			return err
		}
	}
	return b.branchCreates(l)
}

// branchFirstWrites lets main and a branch take turns of first writes, each after a new checkpoint of main, or in a new branch.
func (b *bench) branchFirstWrites(l lower, size int) error {
	line := fmt.Sprintf("branch/first write of 4 KiB into a file of %d KiB", size>>10)
	if !b.wants(line) {
		return nil
	}
	defer done(l, line, time.Now())
	v, err := b.newViews(l, "branch-writes", func(dir string) error {
		if err := makeTree(dir, nestDepth, 100); err != nil {
			return err
		}
		return makeFiles(dir, firstWriteTurn, size)
	})
	defer v.remove()
	for range b.scale(firstWriteRounds) / 2 {
		if err == nil {
			err = v.checkpoint(b.ctx)
		}
		if err == nil {
			v.main = "" // the one just made
			err = v.renew(b.ctx)
		}
		if err != nil {
			b.report.add(l, line, viewMain, 0, err)
			return b.ctx.Err()
		}
		time.Sleep(collectTime)
		for _, name := range []string{viewMain, viewBranch, viewNest} {
			b.writeTurn(l, line, name, v.dirs[name])
		}
	}
	return b.ctx.Err()
}

// checkpoint leaves the others alone, of which some are the nest's.
func (v *views) checkpoint(ctx context.Context) error {
	_, err := v.client.Snapshot(ctx, hyper.SnapshotOptions{})
	return err
}

func (b *bench) writeTurn(l lower, line, view, dir string) {
	block := bytes.Repeat([]byte{2}, 4<<10)
	if err := statFiles(dir, firstWriteTurn); err != nil { // a look-up is no part of a write
		b.report.add(l, line, view, 0, err)
		return
	}
	start := time.Now()
	for i := range firstWriteTurn {
		if err := writeBlock(filepath.Join(dir, fmt.Sprint(i)), block); err != nil {
			b.report.add(l, line, view, 0, err)
			return
		}
	}
	b.report.add(l, line, view, time.Since(start)/firstWriteTurn, nil)
}

func statFiles(dir string, files int) error {
	for i := range files {
		if _, err := os.Lstat(filepath.Join(dir, fmt.Sprint(i))); err != nil {
			return err
		}
	}
	return nil
}

// branchCreates measures new files.
func (b *bench) branchCreates(l lower) error {
	files := b.scale(5_000)
	var new [][]byte
	some := []workload{
		{name: fmt.Sprintf("create, write, close %d files", files), run: func(_ context.Context, dir string) error {
			return writeTree(filepath.Join(dir, "new"), new)
		}},
		{name: fmt.Sprintf("write a new file of %d MiB", b.o.sizeMiB), run: func(_ context.Context, dir string) error {
			return writeFile(filepath.Join(dir, "large"), b.o.sizeMiB<<20)
		}},
	}
	if !b.wants("branch/"+some[0].name, "branch/"+some[1].name) {
		return nil
	}
	defer done(l, "new files in branches", time.Now())
	new = texts(files, 1000)
	v, err := b.newViews(l, "branch-creates", func(dir string) error { return makeTree(dir, nestDepth, 100) })
	defer v.remove()
	for n := range b.o.repeat {
		for _, w := range some {
			if err == nil {
				err = v.checkpoint(b.ctx)
			}
			if err == nil {
				err = b.readViews(l, v, w, n)
			}
			for _, dir := range v.dirs {
				os.RemoveAll(filepath.Join(dir, "new"))
				os.RemoveAll(filepath.Join(dir, "large"))
			}
			if err != nil {
				b.report.add(l, "branch/"+w.name, viewBranch, 0, err)
				return b.ctx.Err()
			}
		}
	}
	return nil
}
