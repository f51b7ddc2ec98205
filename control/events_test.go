package control

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
)

// next gives the next event, or fails the test if none comes.
func next(t *testing.T, ch <-chan overlay.Event) (overlay.Event, bool) {
	t.Helper()
	select {
	case ev, ok := <-ch:
		return ev, ok
	case <-time.After(10 * time.Second):
		t.Fatal("no event came")
	}
	panic("unreachable")
}

func TestEventsArriveInOrder(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	ch, err := s.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		k, err := s.Snapshot(ctx, overlay.SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ev, _ := next(t, ch); ev.Type != "snapshot" || ev.Checkpoint != k.ID {
			t.Errorf("event %+v, want the snapshot %s", ev, k.ID)
		}
	}
}

func TestEventsEndWithTheServer(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	ch, err := s.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.server.Close(nil)
	if ev, ok := next(t, ch); ok {
		t.Errorf("an event %+v of a closed server", ev)
	}
}

func TestEventsEndWithTheirContext(t *testing.T) {
	w := &fakeWorkspace{}
	s := start(t, w)
	c, cancel := context.WithCancel(ctx)
	ch, err := s.Events(c)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for _, ok := next(t, ch); ok; _, ok = next(t, ch) {
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		n := len(w.subs)
		w.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the subscription outlives its subscriber")
		}
	}
}

func TestAQuietStreamHasHeartbeats(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	s.server.heartbeat = time.Millisecond
	resp, err := s.stream(ctx, "events", "/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("Content-Type = %q", got)
	}
	var seen strings.Builder
	for buf := make([]byte, 100); strings.Count(seen.String(), ": still here\n\n") < 2; {
		n, err := resp.Body.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		seen.Write(buf[:n])
	}
}

func TestASlowSubscriberIsToldWhatItLost(t *testing.T) {
	q := newEventQueue(nil)
	for range eventBuffer + 7 {
		q.put(overlay.Event{Type: "snapshot"})
	}
	list := q.take()
	if len(list) != eventBuffer+1 {
		t.Fatalf("%d events, want %d and one about the lost", len(list), eventBuffer)
	}
	if last := list[eventBuffer]; last.Type != EventLost || last.Data != 7 {
		t.Errorf("the last event is %+v", last)
	}
	if again := q.take(); len(again) != 0 {
		t.Errorf("taken twice: %v", again)
	}
}

func TestASubscriberThatDoesNotReadHoldsUpNobody(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	c, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := s.stream(c, "events", "/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for range 3 * eventBuffer {
		if _, err := s.Snapshot(ctx, overlay.SnapshotOptions{Message: strings.Repeat("x", 1000)}); err != nil {
			t.Fatal(err)
		}
	}
}
