package control

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/latency"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
)

// fakeWorkspace keeps checkpoints in memory and answers the rest from its fields.
type fakeWorkspace struct {
	mu      sync.Mutex
	list    []checkpoint.Checkpoint
	subs    map[chan overlay.Event]bool
	diff    overlay.Diff
	changed overlay.ReconcileResult
	patch   string
	fail    error         // what Patch gives after it has written patch
	block   chan struct{} // GC waits for it to be closed, or for its context
}

func (f *fakeWorkspace) Root() string    { return "/workspace" }
func (f *fakeWorkspace) Reserve() string { return "ckpt_reserved" }

func (f *fakeWorkspace) Status() overlay.Status {
	return overlay.Status{Workspace: f.Root(), Store: f.Root() + "/.hyperfs", Tier: "reflink", Checkpoints: len(f.list)}
}

func (f *fakeWorkspace) Diagnostics() overlay.Diagnostics {
	return overlay.Diagnostics{Status: f.Status(), Probes: []strategy.Probe{{Kind: strategy.Reflink, OK: true, Reason: "FICLONE worked"}}}
}

func (f *fakeWorkspace) Snapshot(_ context.Context, o overlay.SnapshotOptions) (checkpoint.Checkpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := checkpoint.Checkpoint{ID: o.ID, Parent: o.Parent, Branch: "main", Subagent: o.Subagent, Agent: o.Agent, Message: o.Message,
		CreatedBy: "snapshot", CreatedAt: time.Now(), UpdatedAt: time.Now(), Status: checkpoint.Active, Tier: "reflink"}
	if c.ID == "" {
		c.ID = fmt.Sprintf("ckpt_%04d", len(f.list))
	}
	if len(f.list) < 1000 { // a benchmark makes more
		f.list = append(f.list, c)
	}
	f.emit(overlay.Event{Type: "snapshot", Time: c.CreatedAt, Checkpoint: c.ID})
	return c, nil
}

func (f *fakeWorkspace) Announce(ev overlay.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.emit(ev)
}

// emit is called with mu held.
func (f *fakeWorkspace) emit(ev overlay.Event) {
	for ch := range f.subs {
		ch <- ev
	}
}

func (f *fakeWorkspace) Get(id string) (checkpoint.Checkpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.list {
		if c.ID == id {
			return c, nil
		}
	}
	return checkpoint.Checkpoint{}, errs.New(NotFound, "find checkpoint", id, "there is none").WithHint("hyperfs list shows them")
}

func (f *fakeWorkspace) Rollback(_ context.Context, id string, o overlay.RollbackOptions) (overlay.RollbackResult, error) {
	r := overlay.RollbackResult{Checkpoint: id, Restored: 1, Removed: 2, Modified: 3, Duration: time.Millisecond}
	if !o.Discard {
		r.Undo = "ckpt_undo"
	}
	_, err := f.Get(id)
	return r, err
}

func (f *fakeWorkspace) Recover(context.Context) ([]overlay.Recoverable, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []overlay.Recoverable
	for _, c := range f.list {
		list = append(list, overlay.NewRecoverable(c, overlay.RehydrateStatus(c)))
	}
	return list, nil
}

func (f *fakeWorkspace) Rehydrate(_ context.Context, id string) (checkpoint.Checkpoint, error) {
	c, err := f.Get(id)
	c.Session = "session_fake"
	return c, err
}

func (f *fakeWorkspace) Undo(context.Context) (overlay.RollbackResult, error) {
	return overlay.RollbackResult{}, errs.New(Rollback, "undo", "", "no rollback to undo")
}

func (f *fakeWorkspace) List(o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []checkpoint.Checkpoint
	for _, c := range f.list {
		if o.Agent == "" || c.Agent == o.Agent {
			list = append(list, c)
		}
	}
	return list, nil
}

func (f *fakeWorkspace) Lineage(id string) ([]checkpoint.Checkpoint, error) {
	c, err := f.Get(id)
	return []checkpoint.Checkpoint{c}, err
}

func (f *fakeWorkspace) Children(string, bool) ([]checkpoint.Checkpoint, error) { return nil, nil }

func (f *fakeWorkspace) Diff(_ context.Context, from, to string, _ bool) (overlay.Diff, error) {
	d := f.diff
	d.From, d.To = from, to
	return d, nil
}

func (f *fakeWorkspace) Patch(_ context.Context, _, _ string, out io.Writer) error {
	if _, err := io.WriteString(out, f.patch); err != nil {
		return err
	}
	return f.fail
}

func (f *fakeWorkspace) Reconcile(_ context.Context, id string) (overlay.ReconcileResult, error) {
	r := f.changed
	r.Checkpoint = id
	return r, nil
}

func (f *fakeWorkspace) Promote(ctx context.Context, id string, patch io.Writer) (checkpoint.Checkpoint, error) {
	if patch != nil {
		if err := f.Patch(ctx, id, "", patch); err != nil {
			return checkpoint.Checkpoint{}, err
		}
	}
	c, err := f.Get(id)
	c.Status = checkpoint.Promoted
	return c, err
}

func (f *fakeWorkspace) Unchanged(string) bool { return false }

func (f *fakeWorkspace) Drop(_ context.Context, id string) error {
	_, err := f.Get(id)
	return err
}

func (f *fakeWorkspace) GC(ctx context.Context) (overlay.GCResult, error) {
	if f.block != nil {
		select {
		case <-f.block:
		case <-ctx.Done():
			return overlay.GCResult{}, ctx.Err()
		}
	}
	return overlay.GCResult{Trash: 1, Bytes: 4096}, nil
}

func (f *fakeWorkspace) Fsck(_ context.Context, deep bool) ([]overlay.Problem, error) {
	if deep {
		return []overlay.Problem{{Where: "backup/x", What: "checksum differs"}}, nil
	}
	return nil, nil
}

func (f *fakeWorkspace) Subscribe() (<-chan overlay.Event, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan overlay.Event)
	if f.subs == nil {
		f.subs = map[chan overlay.Event]bool{}
	}
	f.subs[ch] = true
	return ch, func() {
		go func() { // whoever is sending must not wait for ever
			for range ch {
			}
		}()
		f.mu.Lock()
		delete(f.subs, ch)
		f.mu.Unlock()
		close(ch)
	}
}

// fakeHost unmounts by closing the server, as a daemon does.
type fakeHost struct {
	server *Server
	busy   bool
	freed  chan struct{} // closed when the workspace is released
}

func (h *fakeHost) Info() Daemon {
	return Daemon{PID: 42, Mountpoint: "/workspace", InPlace: true, Version: Version{Version: "test"}}
}

func (h *fakeHost) Counters() map[string]uint64 { return map[string]uint64{"LOOKUP": 3} }

func (h *fakeHost) Stats() MountStats {
	var took latency.Histogram
	took.Add(10 * time.Microsecond)
	took.Add(20 * time.Microsecond)
	return MountStats{Operations: []Operation{NewOperation("lookup", true, 1, took.Snapshot())}, Events: map[string]uint64{"inval_inode": 4}}
}

func (h *fakeHost) Unmount(_ context.Context, o UnmountOptions) error {
	if h.busy && !o.Lazy {
		return errs.New(Busy, "unmount", "/workspace", "files are open").WithHint("--lazy")
	}
	go h.server.Close(func() error { close(h.freed); return nil })
	return nil
}

// started is a server on a real socket, and a client of it.
type started struct {
	*Client
	server *Server
	host   *fakeHost
	socket string
}

// start serves w until the test ends.
func start(t testing.TB, w Workspace) *started {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	h := &fakeHost{freed: make(chan struct{})}
	s := NewServer(Options{Workspace: w, Host: h, SpoolDir: t.TempDir()})
	h.server = s
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c := NewClient(socket)
	t.Cleanup(func() {
		c.Close()
		s.Close(nil)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return &started{Client: c, server: s, host: h, socket: socket}
}

// wantCode fails the test unless err has the code and names what it is about.
func wantCode(t *testing.T, err error, code Code, mentions string) {
	t.Helper()
	if CodeOf(err) != code || !strings.Contains(err.Error(), mentions) {
		t.Errorf("error = %v (%s), want %s that mentions %q", err, CodeOf(err), code, mentions)
	}
}

// panicking panics where it is asked to reserve an ID.
type panicking struct{ fakeWorkspace }

func (p *panicking) Reserve() string { panic("seeded") }
