package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/control"
)

// requestRow is what one workload has asked of the mount.
type requestRow struct {
	Name       string         `json:"name"`
	Operations map[string]int `json:"operations"`
	Requests   int            `json:"requests"`
	Waits      int            `json:"waits"` // a program waited for the answer
	Work       time.Duration  `json:"work_ns"`
	CPU        time.Duration  `json:"cpu_ns"` // of the daemon
	Allocs     uint64         `json:"allocations"`
}

// requests counts instead of measuring time, so it says the same on a busy machine: what each workload asks of the mount, and what the daemon takes for it.
func (b *bench) requests() error {
	return b.inTemp(lowers(b.o)[0], func(l lower) error {
		var rows []requestRow
		for _, g := range b.groups() {
			some, err := b.requestsOf(l, g)
			if err != nil {
				return fmt.Errorf("%s: %w", g.name, err)
			}
			rows = append(rows, some...)
		}
		printRequests(rows)
		memory, err := b.walkMemory(l)
		if err != nil {
			return err
		}
		return writeJSON(b.o.jsonTo, struct {
			Requests []requestRow `json:"requests"`
			Memory   *memoryRow   `json:"memory,omitempty"`
		}{rows, memory})
	})
}

// requestsOf runs the workloads of a group once each.
func (b *bench) requestsOf(l lower, g group) (rows []requestRow, err error) {
	g.workloads = b.wanted(g)
	if len(g.workloads) == 0 {
		return nil, nil
	}
	if !installed(g.needs...) {
		fmt.Fprintf(os.Stderr, "bench: %s is left out: needs %v\n", g.name, g.needs)
		return nil, nil
	}
	if g.shared != nil {
		if err := g.shared(b.ctx, l.dir); err != nil {
			return nil, err
		}
	}
	h := &hyperfs{program: b.o.hyperfs, dir: filepath.Join(l.dir, "requests", "of-"+g.name)}
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		return nil, err
	}
	defer cleanUp(h)
	if err := g.prepare(b.ctx, h.dir); err != nil {
		return nil, err
	}
	if err := h.mount(b.ctx); err != nil {
		return nil, err
	}
	for _, w := range g.workloads {
		progress("requests: %s/%s", g.name, w.name)
		var d control.StatsReply
		counted := w
		counted.run = func(ctx context.Context, dir string) (err error) {
			d, err = h.count(ctx, func() error { return w.run(ctx, dir) })
			return err
		}
		counted.warm = false // or it would be counted, too
		if w.warm {
			for range 2 { // the first time, listings and reads make the kernel doubt access times
				if err := w.run(b.ctx, h.dir); err != nil {
					return rows, err
				}
			}
		}
		if _, _, err := b.measure(h, counted, 0); err != nil {
			return rows, fmt.Errorf("%s: %w", w.name, err)
		}
		rows = append(rows, newRequestRow(g.name+"/"+w.name, d))
	}
	return rows, nil
}

// count gives what the daemon counts while work is done.
func (h *hyperfs) count(ctx context.Context, work func() error) (d control.StatsReply, err error) {
	time.Sleep(settleTime)
	before, err := h.client.Stats(ctx)
	if err != nil {
		return d, err
	}
	if err := work(); err != nil {
		return d, err
	}
	time.Sleep(settleTime)
	after, err := h.client.Stats(ctx)
	return after.Sub(before), err
}

// settleTime is how long what a program has left to do, such as the release of its files, may take.
const settleTime = 300 * time.Millisecond

func newRequestRow(name string, d control.StatsReply) requestRow {
	all, waits, work := d.Mount.Requests()
	r := requestRow{
		Name: name, Operations: map[string]int{}, Requests: int(all), Waits: int(waits), Work: work,
		CPU: d.Process.User + d.Process.System, Allocs: d.Process.Allocs,
	}
	for _, o := range d.Mount.Operations {
		r.Operations[o.Name] = int(o.Count)
	}
	return r
}

// printRequests prints a table as Markdown has them.
func printRequests(rows []requestRow) {
	if len(rows) == 0 {
		return
	}
	table := [][]string{{"workload", "by kind", "requests", "waited for", "daemon's CPU", "CPU each", "allocations each"}}
	for _, r := range rows {
		cpu, allocs := "–", "–" // of a few requests they would be what the daemon does anyway
		if r.Requests >= 100 {
			cpu = fmt.Sprintf("%.1f µs", r.CPU.Seconds()*1e6/float64(r.Requests))
			allocs = fmt.Sprintf("%.1f", float64(r.Allocs)/float64(r.Requests))
		}
		table = append(table, []string{r.Name, r.kinds(), fmt.Sprint(r.Requests), fmt.Sprint(r.Waits), duration(r.CPU.Seconds()), cpu, allocs})
	}
	printMarkdown(os.Stdout, table)
}

// kinds tells how many requests there were of each kind, the most frequent first.
func (r requestRow) kinds() string {
	kinds := slices.Collect(maps.Keys(r.Operations))
	slices.SortFunc(kinds, func(a, b string) int { return cmp.Or(r.Operations[b]-r.Operations[a], strings.Compare(a, b)) })
	for i, name := range kinds {
		kinds[i] = fmt.Sprintf("%s %d", name, r.Operations[name])
	}
	return strings.Join(kinds, ", ")
}

// memoryRow is what the daemon has in memory after every file of a tree was looked at.
type memoryRow struct {
	Files    int     `json:"files"`
	Inodes   int     `json:"inodes"` // that the kernel holds
	RSS      int64   `json:"rss_bytes"`
	PerInode float64 `json:"bytes_per_inode"` // of what is resident, what came with the walk
}

// walkMemory looks at every file of a large tree.
func (b *bench) walkMemory(l lower) (*memoryRow, error) {
	files := b.scale(200_000)
	name := fmt.Sprintf("memory/find over %d files", files)
	if !b.wants(name) {
		return nil, nil
	}
	h := &hyperfs{program: b.o.hyperfs, dir: filepath.Join(l.dir, "requests", "memory")}
	defer cleanUp(h)
	if err := makeTree(h.dir, files, 10); err != nil {
		return nil, err
	}
	if err := h.mount(b.ctx); err != nil {
		return nil, err
	}
	before, err := h.client.Stats(b.ctx)
	if err != nil {
		return nil, err
	}
	if err := command(b.ctx, h.dir, "find", ".", "-newermt", "2100-01-01"); err != nil {
		return nil, err
	}
	after, err := h.client.Stats(b.ctx)
	if err != nil {
		return nil, err
	}
	m := &memoryRow{Files: files, Inodes: after.Mount.KernelNodes, RSS: after.Process.RSS}
	m.PerInode = float64(after.Process.RSS-before.Process.RSS) / float64(m.Inodes)
	fmt.Printf("\n%s: %.1f MiB resident, %d inodes, %.0f bytes for each; %s of the daemon's CPU\n",
		name, float64(m.RSS)/(1<<20), m.Inodes, m.PerInode, duration((after.Process.User + after.Process.System - before.Process.User - before.Process.System).Seconds()))
	return m, nil
}
