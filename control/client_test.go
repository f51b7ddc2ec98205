package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

var ctx = context.Background()

func TestClientCarriesCheckpointsBothWays(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	made, err := s.Snapshot(ctx, overlay.SnapshotOptions{Agent: "a", Subagent: "b", Message: "line one\nline <two>"})
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.List(ctx, overlay.ListOptions{Agent: "a", IncludeInactive: true})
	if err != nil || len(list) != 1 || !list[0].CreatedAt.Equal(made.CreatedAt) || list[0].Message != made.Message {
		t.Fatalf("List = %+v, %v; want only %+v", list, err, made)
	}
	if list, err = s.List(ctx, overlay.ListOptions{Agent: "another"}); err != nil || len(list) != 0 {
		t.Errorf("List of another agent = %v, %v", list, err)
	}
	shown, err := s.Show(ctx, made.ID)
	if err != nil || shown.ID != made.ID || len(shown.Lineage) != 1 {
		t.Errorf("Show = %+v, %v", shown, err)
	}
	if id, err := s.Reserve(ctx); err != nil || id != "ckpt_reserved" {
		t.Errorf("Reserve = %q, %v", id, err)
	}
}

func TestClientCallsReachTheWorkspace(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	k, err := s.Snapshot(ctx, overlay.SnapshotOptions{ID: "ckpt_mine"})
	if err != nil || k.ID != "ckpt_mine" {
		t.Fatal(k, err)
	}
	if r, err := s.Rollback(ctx, k.ID, overlay.RollbackOptions{Discard: true}); err != nil || r.Undo != "" || r.Duration != time.Millisecond {
		t.Errorf("Rollback with discard = %+v, %v", r, err)
	}
	if r, err := s.Rollback(ctx, k.ID, overlay.RollbackOptions{}); err != nil || r.Undo != "ckpt_undo" {
		t.Errorf("Rollback = %+v, %v", r, err)
	}
	if r, err := s.Promote(ctx, k.ID, PromoteOptions{}); err != nil || r.Checkpoint.Status != checkpoint.Promoted || r.Patch != "" {
		t.Errorf("Promote = %+v, %v", r, err)
	}
	if l, err := s.Recover(ctx); err != nil || len(l) == 0 || !l[0].CanRehydrate {
		t.Errorf("Recover = %+v, %v", l, err)
	}
	if r, err := s.Rehydrate(ctx, k.ID); err != nil || r.ID != k.ID || r.Session == "" {
		t.Errorf("Rehydrate = %+v, %v", r, err)
	}
	if err := s.Drop(ctx, k.ID); err != nil {
		t.Errorf("Drop: %v", err)
	}
	if r, err := s.GC(ctx); err != nil || r.Bytes != 4096 {
		t.Errorf("GC = %+v, %v", r, err)
	}
	if p, err := s.Fsck(ctx, false); err != nil || len(p) != 0 {
		t.Errorf("Fsck = %v, %v", p, err)
	}
	if p, err := s.Fsck(ctx, true); err != nil || len(p) != 1 {
		t.Errorf("deep Fsck = %v, %v", p, err)
	}
	if st, err := s.Status(ctx); err != nil || st.Tier != "reflink" || st.Daemon.PID != 42 || st.Daemon.Requests == 0 {
		t.Errorf("Status = %+v, %v", st, err)
	}
	if d, err := s.Diagnostics(ctx); err != nil || len(d.Probes) != 1 || d.Active == nil {
		t.Errorf("Diagnostics = %+v, %v", d, err)
	}
	if v, err := s.Version(ctx); err != nil || v.Version != "test" {
		t.Errorf("Version = %+v, %v", v, err)
	}
}

func TestErrorsCrossTheSocketWhole(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	_, err := s.Rollback(ctx, "ckpt_none", overlay.RollbackOptions{})
	var e *Error
	if !errors.As(err, &e) || e.Code != NotFound || e.Op != "find checkpoint" || e.On != "ckpt_none" || e.Hint == "" || e.Err.Error() != "there is none" {
		t.Errorf("Rollback of an unknown checkpoint = %#v", err)
	}
	_, err = s.Undo(ctx, "")
	wantCode(t, err, Rollback, "no rollback to undo")
}

func TestEveryCodeSurvivesTheRoundTrip(t *testing.T) {
	for code := range httpStatus {
		w := &fakeWorkspace{fail: errs.New(code, "patch", "x", "why")}
		err := start(t, w).Patch(ctx, Between{}, io.Discard)
		wantCode(t, err, code, "patch x: why")
	}
}

func TestIDsThatAreNoPathElementAreRefused(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	for _, id := range []string{"", ".", "..", "a/b", "../status", "%2e%2e", "a b", "\x00", "é", "reserve"} {
		if _, err := s.Show(ctx, id); CodeOf(err) != NotFound && CodeOf(err) != Usage {
			t.Errorf("Show(%q) = %v (%s), want NOT_FOUND or USAGE", id, err, CodeOf(err))
		}
	}
}

func TestPathsThatAreNotUTF8SurviveTheRoundTrip(t *testing.T) {
	odd := "caf\xe9/\xff\xfe\n\"x\""
	w := &fakeWorkspace{
		diff: overlay.Diff{Changes: []overlay.Change{{Kind: overlay.Renamed, Path: odd, OldPath: "\x80", Type: "file"}, {Kind: overlay.Created, Path: "é", Type: "dir", Tree: true}}},
		changed: overlay.ReconcileResult{Created: []string{"ok", odd}, Modified: []string{"\xff"}, Deleted: []string{"\xfe"},
			Renamed: []overlay.Rename{{From: odd, To: "\xfd"}}},
		patch: "+caf\xe9\n",
	}
	s := start(t, w)
	d, err := s.Diff(ctx, Between{From: "a", To: "b"}, true)
	if want := (overlay.Diff{From: "a", To: "b", Changes: w.diff.Changes}); err != nil || !reflect.DeepEqual(d, want) {
		t.Errorf("Diff = %#v, %v; want %#v", d, err, want)
	}
	r, err := s.Reconcile(ctx, "", "a")
	want := w.changed
	want.Checkpoint = "a"
	if err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("Reconcile = %#v, %v; want %#v", r, err, want)
	}
	k, _ := s.Snapshot(ctx, overlay.SnapshotOptions{})
	p, err := s.Promote(ctx, k.ID, PromoteOptions{Patch: true})
	if err != nil || p.Patch != w.patch {
		t.Errorf("Promote gave the patch %q, %v; want %q", p.Patch, err, w.patch)
	}
}

func TestPatchArrivesWholeWhateverItsSize(t *testing.T) {
	for _, size := range []int{0, 1, spoolMemory - 1, spoolMemory, spoolMemory + 1, 5 * spoolMemory} {
		w := &fakeWorkspace{patch: strings.Repeat("x", size)}
		var got bytes.Buffer
		if err := start(t, w).Patch(ctx, Between{}, &got); err != nil || got.String() != w.patch {
			t.Errorf("a patch of %d bytes came as %d, %v", size, got.Len(), err)
		}
	}
}

func TestPatchThatFailsLateIsAnErrorAndNotAShortPatch(t *testing.T) {
	w := &fakeWorkspace{patch: strings.Repeat("x", 3*spoolMemory), fail: errs.New(Integrity, "patch", "a.txt", "preimage is corrupt")}
	var got bytes.Buffer
	err := start(t, w).Patch(ctx, Between{}, &got)
	wantCode(t, err, Integrity, "a.txt")
	if got.Len() != 0 {
		t.Errorf("%d bytes of a failed patch arrived", got.Len())
	}
}

func TestPromoteRefusesAPatchThatDoesNotFit(t *testing.T) {
	b := limitedBuffer{max: 3}
	if _, err := b.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	_, err := b.Write([]byte("d"))
	wantCode(t, err, Capacity, "larger")
}

func TestWriterErrorsOfAPatchAreNotTheDaemons(t *testing.T) {
	w := &fakeWorkspace{patch: strings.Repeat("x", 3*spoolMemory)}
	err := start(t, w).Patch(ctx, Between{}, brokenWriter{})
	if !errors.Is(err, io.ErrShortBuffer) || strings.Contains(err.Error(), "daemon") {
		t.Errorf("Patch into a broken writer = %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrShortBuffer }

func TestADaemonThatIsNotThereIsNotFound(t *testing.T) {
	_, err := NewClient(filepath.Join(t.TempDir(), "none")).Status(ctx)
	wantCode(t, err, NotFound, "hyperfs mount")
}

func TestADaemonThatDiesInACallIsSaidToHave(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 10))
			c.Close()
		}
	}()
	_, err = NewClient(socket).Status(ctx)
	wantCode(t, err, Internal, "ended before it answered")
}

func TestARequestThatIsTooLargeIsNotSent(t *testing.T) {
	_, err := start(t, &fakeWorkspace{}).Snapshot(ctx, overlay.SnapshotOptions{Message: strings.Repeat("x", maxBody)})
	wantCode(t, err, Usage, "larger than 1 MiB")
}

func TestConnectionsAreKeptOpenAndUsedAgain(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	for range 10 {
		if _, err := s.Snapshot(ctx, overlay.SnapshotOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Show(ctx, "none"); CodeOf(err) != NotFound {
			t.Fatal(err)
		}
	}
	if n := len(s.transport.idle); n != 1 {
		t.Errorf("%d connections were needed for calls one after the other", n)
	}
	var wg sync.WaitGroup
	for range 4 * maxIdleConns {
		wg.Go(func() {
			if _, err := s.Status(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(s.transport.idle); n > maxIdleConns {
		t.Errorf("%d idle connections are kept", n)
	}
}

func TestAClientOutlivesItsDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	c := NewClient(socket)
	defer c.Close()
	for range 3 {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := NewServer(Options{Workspace: &fakeWorkspace{}})
		go s.Serve(l)
		if _, err := c.Snapshot(ctx, overlay.SnapshotOptions{}); err != nil {
			t.Error(err)
		}
		s.Close(nil)
		_, err = c.Snapshot(ctx, overlay.SnapshotOptions{})
		wantCode(t, err, NotFound, "cannot be reached")
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	w := &fakeWorkspace{block: make(chan struct{})}
	s := start(t, w)
	c, cancel := context.WithCancel(ctx)
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := s.GC(c); !errors.Is(err, context.Canceled) {
		t.Errorf("GC with a cancelled context = %v", err)
	}
}

func TestLocalClientNeedsNoSocket(t *testing.T) {
	s := NewServer(Options{Workspace: &fakeWorkspace{}})
	c := Local(s)
	k, err := c.Snapshot(ctx, overlay.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Show(ctx, k.ID); err != nil {
		t.Error(err)
	}
	_, err = c.Unmount(ctx, UnmountOptions{})
	wantCode(t, err, NotFound, "nothing is mounted")
	released := false
	if err := s.Close(func() error { released = true; return nil }); err != nil || !released {
		t.Errorf("Close = %v, released %v", err, released)
	}
	if _, err := c.Status(ctx); err == nil {
		t.Error("a closed server answered")
	}
}
