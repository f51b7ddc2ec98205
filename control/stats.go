package control

import (
	"context"
	"runtime/metrics"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
)

// ProcessStats is what the process that answers has used since its start, and has now. What the system does not tell is 0.
type ProcessStats struct {
	PID        int           `json:"pid"`
	User       time.Duration `json:"cpu_user_ns"`
	System     time.Duration `json:"cpu_system_ns"`
	RSS        int64         `json:"rss_bytes"` // resident memory
	MaxRSS     int64         `json:"max_rss_bytes"`
	Heap       uint64        `json:"heap_bytes"` // of it what objects take, also those that are dead and not collected yet
	Allocated  uint64        `json:"allocated_bytes"`
	Allocs     uint64        `json:"allocations"`
	GCs        uint64        `json:"gc_cycles"`
	Goroutines uint64        `json:"goroutines"`
	Requests   int64         `json:"requests"` // API calls
}

// loaded is when a process that is no daemon began to count.
var loaded = time.Now()

func stats(s *Server, _ context.Context, _ *call, _ *none) (StatsReply, error) {
	d := s.daemon()
	r := StatsReply{At: time.Now(), Since: d.StartedAt, Process: processStats()}
	if r.Since.IsZero() {
		r.Since = loaded
	}
	r.Process.PID, r.Process.Requests = d.PID, d.Requests
	if m, ok := s.host.(Meter); ok {
		mount := m.Stats()
		mount.Operations = nonNil(mount.Operations)
		r.Mount = &mount
	}
	if w, ok := s.workspace.(overlay.Metered); ok {
		tree := w.Stats()
		tree.Preimages = nonNil(tree.Preimages)
		r.Tree = &tree
	}
	return r, nil
}

// processStats tells what the runtime and the system know of this process.
func processStats() ProcessStats {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/allocs:objects"},
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(samples)
	var p ProcessStats
	for i, to := range []*uint64{&p.Heap, &p.Allocated, &p.Allocs, &p.GCs, &p.Goroutines} {
		if samples[i].Value.Kind() == metrics.KindUint64 {
			*to = samples[i].Value.Uint64()
		}
	}
	p.User, p.System, p.MaxRSS = usage()
	p.RSS = resident()
	return p
}

// Sub gives what has been counted since an earlier answer of the same process. What is no count, such as memory, is as it is now.
func (r StatsReply) Sub(earlier StatsReply) StatsReply {
	r.Since = earlier.At
	r.Process.sub(&earlier.Process)
	if r.Mount != nil && earlier.Mount != nil {
		m := r.Mount.sub(earlier.Mount)
		r.Mount = &m
	}
	if r.Tree != nil && earlier.Tree != nil {
		t := r.Tree.Sub(*earlier.Tree)
		r.Tree = &t
	}
	return r
}

func (p *ProcessStats) sub(earlier *ProcessStats) {
	p.User -= earlier.User
	p.System -= earlier.System
	p.Allocated -= earlier.Allocated
	p.Allocs -= earlier.Allocs
	p.GCs -= earlier.GCs
	p.Requests -= earlier.Requests
}

func (m *MountStats) sub(earlier *MountStats) MountStats {
	d := MountStats{
		Operations: []Operation{}, Events: map[string]uint64{}, KernelNodes: m.KernelNodes,
		ReadBytes: m.ReadBytes - earlier.ReadBytes, WrittenBytes: m.WrittenBytes - earlier.WrittenBytes,
	}
	before := map[string]Operation{}
	for _, o := range earlier.Operations {
		before[o.Name] = o
	}
	for _, o := range m.Operations {
		b := before[o.Name]
		if took := o.Snapshot.Sub(b.Snapshot); took.Count > 0 {
			d.Operations = append(d.Operations, NewOperation(o.Name, o.Waits, o.Errors-b.Errors, took))
		}
	}
	for name, n := range m.Events {
		if n -= earlier.Events[name]; n > 0 {
			d.Events[name] = n
		}
	}
	return d
}

// Requests gives how many requests there were, how many of these a program waited for, and how long the daemon took for all.
func (m *MountStats) Requests() (all, waited uint64, took time.Duration) {
	for _, o := range m.Operations {
		all += o.Count
		took += o.Total
		if o.Waits {
			waited += o.Count
		}
	}
	return all, waited, took
}
