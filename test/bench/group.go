package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// group is a tree, and what is measured on it, in this order.
type group struct {
	name      string
	needs     []string                                      // commands, without which it's left out
	prepare   func(ctx context.Context, dir string) error   // makes the tree in an empty directory
	shared    func(ctx context.Context, lower string) error // makes what all targets use, next to them; may be nil
	daemonIO  bool                                          // hyperfs is measured without passthrough, too
	slow      bool                                          // a quick run leaves peers out
	workloads []workload
}

// workload is one thing that is timed.
type workload struct {
	name   string
	each   int                                                // how many operations it consists of, if the time of one is of interest
	cold   bool                                               // mount anew before it, and drop the kernel's caches
	before func(ctx context.Context, dir string, n int) error // not timed; may be nil; n counts the repetitions
	warm   bool                                               // run once before it, not timed
	fresh  bool                                               // before comes after the checkpoint: what it makes is new to it
	run    func(ctx context.Context, dir string) error
}

func (b *bench) groups() []group {
	return []group{
		b.statGroup(), b.gitGroup(), b.grepGroup(), b.smallFileGroup(), b.largeFileGroup(),
		b.modulesGroup(), b.projectGroup(), b.jestGroup(), b.goGroup(),
	}
}

// runGroup measures the workloads of a group on every target, one repetition of all before the next.
func (b *bench) runGroup(l lower, g group) error {
	g.workloads = b.wanted(g)
	if len(g.workloads) == 0 {
		return nil
	}
	if !installed(g.needs...) {
		b.report.leftOut(l, g.name, fmt.Sprintf("needs %v", g.needs))
		return nil
	}
	defer done(l, g.name, time.Now())
	if g.shared != nil {
		if err := g.shared(b.ctx, l.dir); err != nil {
			b.report.leftOut(l, g.name, err.Error())
			return b.ctx.Err()
		}
	}
	ready := b.makeReady(l, g)
	defer func() {
		for _, t := range ready {
			cleanUp(t)
		}
	}()
	for n := range b.o.repeat {
		for _, w := range g.workloads {
			for i := range ready {
				t := ready[(i+n)%len(ready)] // nobody is always the first
				progress("%s: %s/%s on %s, %d of %d", l.name, g.name, w.name, t.name(), n+1, b.o.repeat)
				var took time.Duration
				err := as(t, func() (err error) {
					took, err = b.calmest(t, w, n)
					return err
				})
				if b.ctx.Err() != nil { // what it has made of this sample says nothing
					return b.ctx.Err()
				}
				b.report.add(l, g.name+"/"+w.name, t.name(), took, err)
				b.report.line(l, g.name+"/"+w.name).Each = w.each
			}
		}
	}
	return nil
}

func (b *bench) wanted(g group) []workload {
	var some []workload
	for _, w := range g.workloads {
		if b.wants(g.name + "/" + w.name) {
			some = append(some, w)
		}
	}
	return some
}

// makeReady prepares the tree for every target, and mounts those that can be.
func (b *bench) makeReady(l lower, g group) []target {
	var ready []target
	for _, t := range b.targets(l, g) {
		progress("%s: preparing %s for %s", l.name, g.name, t.name())
		err := makeBase(t)
		if err == nil {
			err = as(t, func() error { return g.prepare(b.ctx, t.base()) })
		}
		if err == nil {
			err = as(t, func() error { return t.mount(b.ctx) })
		}
		if err != nil {
			b.report.add(l, g.name+"/mount", t.name(), 0, err)
			cleanUp(t)
			continue
		}
		ready = append(ready, t)
	}
	return ready
}

func makeBase(t target) error {
	if err := os.MkdirAll(t.base(), 0o755); err != nil {
		return err
	}
	if u, ok := t.(*user); ok {
		return os.Chown(t.base(), u.uid, u.gid)
	}
	return nil
}

// calmest is measure, again and again if so told while a hypervisor gave the CPUs to others in much of the time: the time counts in which it did least.
func (b *bench) calmest(t target, w workload, n int) (time.Duration, error) {
	var best time.Duration
	least := 2.0
	for again := range b.o.calm + 1 {
		if again > 0 {
			time.Sleep(calmPause)
		}
		took, stolen, err := b.measure(t, w, n+again*b.o.repeat)
		if err != nil || b.ctx.Err() != nil {
			return 0, err
		}
		if stolen < least {
			best, least = took, stolen
		}
		if stolen <= calmShare {
			break
		}
	}
	return best, nil
}

const (
	calmShare = 0.03            // of the CPU time that was used or wanted
	calmPause = time.Second / 2 // before the next attempt
)

// measure does one repetition of one workload. It tells also what share of the CPU time that was wanted meanwhile a hypervisor has given to others.
func (b *bench) measure(t target, w workload, n int) (took time.Duration, stolen float64, err error) {
	steps := []func() error{
		func() error { return b.before(t, w, n, false) },
		func() error { return b.remountIfCold(t, w) },
		func() error { return t.checkpoint(b.ctx) },
		func() error { return b.before(t, w, n, true) },
		func() error { return b.warmUp(t, w) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return 0, 0, err
		}
	}
	if w.cold {
		dropCaches()
	}
	before, start := readCPUTime(), time.Now()
	err = w.run(b.ctx, t.root())
	return time.Since(start), readCPUTime().since(before).stolenShare(), err
}

// before runs what comes before a workload if its place is this one.
func (b *bench) before(t target, w workload, n int, afterCheckpoint bool) error {
	if w.before == nil || w.fresh != afterCheckpoint {
		return nil
	}
	return w.before(b.ctx, t.root(), n)
}

// warmUp does for the caches what the others, which drop them, may have undone.
func (b *bench) warmUp(t target, w workload) error {
	if !w.warm {
		return nil
	}
	return w.run(b.ctx, t.root())
}

func (b *bench) remountIfCold(t target, w workload) error {
	if !w.cold {
		return nil
	}
	if err := t.unmount(); err != nil {
		return err
	}
	return t.mount(b.ctx)
}

// exe is a workload's run, or a step before it, that is a program.
func exe(name string, args ...string) func(context.Context, string) error {
	return func(ctx context.Context, dir string) error { return command(ctx, dir, name, args...) }
}
