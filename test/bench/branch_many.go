package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	hyper "github.com/hyperfs/hyperfs/overlay"
)

// merges measures merging branches into main.
func (b *bench) merges(l lower) error {
	files := b.scale(10_000)
	line := func(n int) string { return fmt.Sprintf("branch/merge of %d changed files into main, of %d", n, files) }
	sizes := []int{1, 100, 1_000}
	if !b.wants(line(1), line(100), line(1_000)) {
		return nil
	}
	defer done(l, "merges", time.Now())
	h := &hyperfs{program: b.o.hyperfs, dir: filepath.Join(l.dir, "merges")}
	defer cleanUp(h)
	err := os.MkdirAll(h.dir, 0o755)
	if err == nil {
		err = makeTree(h.dir, files, 2000)
	}
	if err == nil {
		err = h.mount(b.ctx)
	}
	for n := range max(b.o.repeat, 5) {
		for _, changed := range sizes {
			var took time.Duration
			if err == nil {
				progress("%s: %s, %d", l.name, line(changed), n+1)
				took, err = b.mergeOne(h, files, min(changed, files/2), n)
			}
			if changed <= files/2 || err != nil {
				b.report.add(l, line(changed), h.name(), took, err)
			}
			if err != nil {
				return b.ctx.Err()
			}
		}
	}
	return nil
}

func (b *bench) mergeOne(h *hyperfs, files, changed, n int) (time.Duration, error) {
	if err := h.checkpoint(b.ctx); err != nil {
		return 0, err
	}
	if err := h.fork(b.ctx, "merged"); err != nil {
		return 0, err
	}
	for i := range changed {
		path := filepath.Join(h.branchDir("merged"), treePath(i*(files/changed)))
		if err := os.WriteFile(path, fmt.Appendf(nil, "merged in round %d of %d\n", n, changed), 0o644); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	r, err := h.client.Merge(b.ctx, "merged", hyper.MergeOptions{})
	took := time.Since(start)
	if err == nil && len(r.Steps) < changed {
		err = fmt.Errorf("%d of %d changes were merged", len(r.Steps), changed)
	}
	return took, err
}

const (
	manyBranches = 1_000
	manyChanges  = 10               // files in each of them
	idleTime     = 50 * time.Second // after which the daemon has let go of what nobody uses
)

// manyBranches measures what many branches of one workspace cost together.
func (b *bench) manyBranches(l lower) error {
	count := b.scale(manyBranches)
	part := fmt.Sprintf("branch/%d branches with %d changed files each, ", count, manyChanges)
	if !b.wants(part + "make, list, drop: memory") {
		return nil
	}
	defer done(l, fmt.Sprintf("%d branches", count), time.Now())
	h := &hyperfs{program: b.o.hyperfs, dir: filepath.Join(l.dir, "many")}
	defer cleanUp(h)
	err := os.MkdirAll(h.dir, 0o755)
	if err == nil {
		err = makeTree(h.dir, 1_000, 300)
	}
	if err == nil {
		err = h.mount(b.ctx)
	}
	if err == nil {
		err = h.checkpoint(b.ctx)
	}
	if err == nil {
		err = b.measureMany(l, h, count, part)
	}
	if err != nil {
		b.report.add(l, part+"make", h.name(), 0, err)
	}
	return b.ctx.Err()
}

func (b *bench) measureMany(l lower, h *hyperfs, count int, part string) error {
	name := func(i int) string { return fmt.Sprintf("branch-%d", i) }
	change := func(from, to int) error {
		for i := from; i < to; i++ {
			if err := h.forkAndChange(b.ctx, name(i)); err != nil {
				return err
			}
		}
		return nil
	}
	timed := func(what string, fn func() error) error {
		progress("%s: %s%s", l.name, part, what)
		start := time.Now()
		err := fn()
		b.report.add(l, part+what, h.name(), time.Since(start), err)
		return err
	}
	first := count / 10 // with which the daemon gets what it needs once for all
	if err := change(0, first); err != nil {
		return err
	}
	before, err := h.memory(b.ctx)
	if err != nil {
		return err
	}
	if err := timed("make and change", func() error { return change(first, first+count) }); err != nil {
		return err
	}
	count += first
	weigh := func(when string) error {
		now, err := h.memory(b.ctx)
		if err == nil {
			b.report.addBytes(l, part+"memory for each, "+when, h.name(), max(0, float64(now-before)/float64(count-first)))
		}
		return err
	}
	if err := weigh("just used"); err != nil {
		return err
	}
	idle := idleTime
	if b.o.quick {
		idle = time.Second
	}
	time.Sleep(idle)
	if err := weigh("idle"); err != nil {
		return err
	}
	err = timed("list", func() error {
		list, err := h.client.Branches(b.ctx, false)
		if err == nil && len(list) != count {
			err = fmt.Errorf("%d are listed", len(list))
		}
		return err
	})
	if err != nil {
		return err
	}
	return timed("drop", func() error {
		for i := range count {
			if err := h.dropFork(b.ctx, name(i)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (h *hyperfs) forkAndChange(ctx context.Context, name string) error {
	if err := h.fork(ctx, name); err != nil {
		return err
	}
	for k := range manyChanges {
		if err := os.WriteFile(filepath.Join(h.branchDir(name), treePath(k)), []byte(name), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// memory gives what the daemon has for itself in memory, in bytes: without the pages of files that it maps.
func (h *hyperfs) memory(ctx context.Context) (int64, error) {
	st, err := h.client.Status(ctx)
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", st.Daemon.PID))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\nRssAnon:")
	kib, _, _ := strings.Cut(rest, "kB")
	n, err := strconv.ParseInt(strings.TrimSpace(kib), 10, 64)
	return n << 10, err
}
