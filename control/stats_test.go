package control

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/latency"
	"github.com/hyperfs/hyperfs/overlay"
)

// measured is a workspace that counts.
type measured struct{ fakeWorkspace }

func (m *measured) Stats() overlay.TreeStats {
	return overlay.TreeStats{Nodes: 3, Preimages: []overlay.PreimageStats{{Kind: "hot", Count: 2, Bytes: 10}}}
}

// operations makes a mount's counters of how long some requests took.
func operations(took map[string][]time.Duration) *MountStats {
	m := &MountStats{Events: map[string]uint64{"inval_inode": uint64(len(took))}, ReadBytes: uint64(100 * len(took))}
	for _, name := range []string{"lookup", "open", "release"} {
		var h latency.Histogram
		for _, d := range took[name] {
			h.Add(d)
		}
		if len(took[name]) > 0 {
			m.Operations = append(m.Operations, NewOperation(name, name != "release", uint64(len(took[name])/2), h.Snapshot()))
		}
	}
	return m
}

func TestStatsTellOfTheProcessAndTheTree(t *testing.T) {
	s := start(t, &measured{})
	r, err := s.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r.Process.PID != 42 || r.Process.Goroutines == 0 || r.Process.Allocs == 0 || r.Process.Heap == 0 || r.Process.Requests != 1 || r.At.Before(r.Since) {
		t.Errorf("%+v", r)
	}
	if r.Tree == nil || r.Tree.Nodes != 3 || len(r.Tree.Preimages) != 1 {
		t.Errorf("the tree: %+v", r.Tree)
	}
	if m := r.Mount; m == nil || len(m.Operations) != 1 || m.Operations[0].Count != 2 || m.Operations[0].Mean != 15*time.Microsecond {
		t.Errorf("the mount: %+v", m)
	}
	if r, err := start(t, &fakeWorkspace{}).Stats(ctx); err != nil || r.Tree != nil {
		t.Errorf("a tree that does not count: %+v, %v", r.Tree, err)
	}
}

func TestStatsSinceEarlierOnes(t *testing.T) {
	earlier := StatsReply{At: time.Unix(10, 0), Mount: operations(map[string][]time.Duration{"lookup": {time.Microsecond, time.Millisecond}})}
	later := StatsReply{At: time.Unix(12, 0), Mount: operations(map[string][]time.Duration{
		"lookup": {time.Microsecond, time.Millisecond}, "open": {2 * time.Microsecond, 3 * time.Microsecond}, "release": {time.Microsecond},
	})}
	later.Process.User, earlier.Process.User = 5*time.Second, 3*time.Second
	later.Process.RSS, earlier.Process.RSS = 7, 9
	later.Tree = &overlay.TreeStats{Snapshots: 3, Nodes: 4, Preimages: []overlay.PreimageStats{{Kind: "hot", Count: 5, Bytes: 9}, {Kind: "trash", Count: 1}}}
	earlier.Tree = &overlay.TreeStats{Snapshots: 1, Nodes: 9, Preimages: []overlay.PreimageStats{{Kind: "hot", Count: 4, Bytes: 2}, {Kind: "trash", Count: 1}}}
	d := later.Sub(earlier)
	if d.Since != earlier.At || d.Process.User != 2*time.Second || d.Process.RSS != 7 {
		t.Errorf("%+v", d)
	}
	if all, waited, took := d.Mount.Requests(); all != 3 || waited != 2 || took != 6*time.Microsecond {
		t.Errorf("%d requests, %d waited for, %v", all, waited, took)
	}
	if len(d.Mount.Operations) != 2 || d.Mount.Operations[0].Name != "open" || d.Mount.Operations[0].Errors != 1 || d.Mount.ReadBytes != 200 || d.Mount.Events["inval_inode"] != 2 {
		t.Errorf("%+v", d.Mount)
	}
	if tr := d.Tree; tr.Snapshots != 2 || tr.Nodes != 4 || !slices.Equal(tr.Preimages, []overlay.PreimageStats{{Kind: "hot", Count: 1, Bytes: 7}}) {
		t.Errorf("%+v", tr)
	}
	if n := len(later.Mount.Operations); n != 3 {
		t.Errorf("the later answer has %d operations now", n)
	}
}

func TestProfilesAreWhatGoToolPprofReads(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	for _, kind := range ProfileKinds() {
		var b bytes.Buffer
		if err := s.Profile(ctx, kind, 1, false, &b); err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if kind == "trace" {
			if !strings.HasPrefix(b.String(), "go 1.") {
				t.Errorf("a trace begins with %.16q", b.String())
			}
			continue
		}
		z, err := gzip.NewReader(&b)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if p, err := io.ReadAll(z); err != nil || !bytes.Contains(p, []byte("samples")) && !bytes.Contains(p, []byte(kind)) && !bytes.Contains(p, []byte("contentions")) && !bytes.Contains(p, []byte("objects")) {
			t.Errorf("%s: %d bytes, %v", kind, len(p), err)
		}
	}
	var text bytes.Buffer
	if err := s.Profile(ctx, "goroutine", 1, true, &text); err != nil || !strings.Contains(text.String(), "goroutine ") {
		t.Errorf("%.100q, %v", text.String(), err)
	}
}

func TestProfilesAreBounded(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	for _, seconds := range []string{"0", "-1", "301", "many", "1.5"} {
		if status, body, _ := s.do(t, http.MethodGet, "/v1/debug/pprof/profile?seconds="+seconds, nil); status != http.StatusBadRequest {
			t.Errorf("%s seconds: %d %s", seconds, status, body)
		}
	}
	for _, kind := range []string{"none", "cmdline", "..", ""} {
		wantCode(t, s.Profile(ctx, kind, 1, false, io.Discard), NotFound, "pprof")
	}
	profiling.Lock()
	wantCode(t, s.Profile(ctx, "profile", 1, false, io.Discard), Busy, "profile")
	profiling.Unlock()
	if err := s.Profile(ctx, "heap", 1, false, io.Discard); err != nil { // needs nothing that there is only one of
		t.Error(err)
	}
}

// TestAProfileEndsWithTheServer would take five minutes otherwise.
func TestAProfileEndsWithTheServer(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	ended := make(chan error, 1)
	go func() { ended <- s.Profile(context.Background(), "mutex", 300, false, io.Discard) }()
	for profiling.TryLock() {
		profiling.Unlock()
		time.Sleep(time.Millisecond)
	}
	if err := s.server.Close(nil); err != nil {
		t.Error(err)
	}
	<-ended
}
