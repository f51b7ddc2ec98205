package control

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/turn"
)

const (
	eventBuffer    = 256              // events kept for a subscriber that is slow
	eventBytes     = 32 << 20         // of documents in them, if it is more than one
	eventHeartbeat = 15 * time.Second // between comments on a quiet stream
	eventPatience  = 30 * time.Second // how long one write to a subscriber may take
)

// EventLost is the type of the event that tells a slow subscriber how many it missed; they are its Data, a number.
const EventLost = "lost"

// events streams until the subscriber goes away or the server closes. Its first bytes come at once: from then on no
// event is missed unless a lost event says so.
func events(s *Server, w http.ResponseWriter, c *call) error {
	return s.follow(w, c, &following{})
}

// following says what a subscriber gets. All may be nil.
type following struct {
	wants func(overlay.Event) bool // which events; nil means all

	// now gives how things are, for the beginning of the stream and after events were lost.
	now func() []overlay.Event

	last func(overlay.Event) bool // reports whether nothing follows on an event
}

// follow streams events.
func (s *Server) follow(w http.ResponseWriter, c *call, f *following) error {
	source, cancel := s.workspace.Subscribe()
	defer cancel()
	q := newEventQueue(f.wants)
	done := make(chan struct{})
	defer close(done)
	go q.fill(source, done)

	w.Header().Set("Content-Type", mediaEvents)
	w.Header().Set("Cache-Control", "no-store")
	stream := eventStream{w: w, rc: http.NewResponseController(w)}
	heartbeat := time.NewTicker(s.heartbeat)
	defer heartbeat.Stop()
	err := stream.comment("subscribed")
	over := false
	send := func(list []overlay.Event) {
		for _, ev := range list {
			if err == nil && !over {
				err = stream.send(ev)
				over = f.last != nil && f.last(ev)
			}
		}
	}
	current := func() {
		if f.now != nil {
			list := f.now()
			send(list)
			over = over || f.last != nil && len(list) == 0 // there is nothing left to follow
		}
	}
	current()
	for err == nil && !over {
		select {
		case <-q.ready:
			list := q.take()
			if send(list); len(list) > 0 && list[len(list)-1].Type == EventLost {
				current()
			}
		case <-heartbeat.C:
			err = stream.comment("still here")
		case <-q.ended:
			send(q.take())
			return nil
		case <-c.Context().Done():
			return nil
		case <-s.closing:
			return nil
		}
	}
	return nil // the subscriber is gone, or has all: nobody is left to be told
}

// eventStream writes server-sent events (WHATWG HTML, "Server-sent events").
type eventStream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (e eventStream) comment(text string) error {
	return e.write(fmt.Sprintf(": %s\n\n", text))
}

func (e eventStream) send(ev overlay.Event) error {
	data, err := json.Marshal(ev)
	if err != nil {
		return err
	}
	return e.write(fmt.Sprintf("event: %s\ndata: %s\n\n", ev.Type, data))
}

func (e eventStream) write(s string) error {
	// Where the connection cannot have a deadline, the write may wait; nothing else depends on it.
	_ = e.rc.SetWriteDeadline(time.Now().Add(eventPatience))
	if _, err := e.w.Write([]byte(s)); err != nil {
		return err
	}
	return e.rc.Flush()
}

// eventQueue takes events as they come and keeps up to eventBuffer of them. What does not fit is counted.
type eventQueue struct {
	ready chan struct{} // holds one element while there is something to take
	ended chan struct{} // closed when the source is
	wants func(overlay.Event) bool

	mu   sync.Mutex // guards what follows
	list []overlay.Event
	size int // of the documents in them, in bytes
	lost int
}

func newEventQueue(wants func(overlay.Event) bool) *eventQueue {
	return &eventQueue{ready: make(chan struct{}, 1), ended: make(chan struct{}), wants: wants}
}

// fill moves events from source to the queue until source or done is closed. It never waits for the subscriber.
func (q *eventQueue) fill(source <-chan overlay.Event, done <-chan struct{}) {
	defer close(q.ended)
	for {
		select {
		case ev, ok := <-source:
			if !ok {
				return
			}
			q.put(ev)
		case <-done:
			return
		}
	}
}

func (q *eventQueue) put(ev overlay.Event) {
	if q.wants != nil && !q.wants(ev) {
		return
	}
	q.mu.Lock()
	size := 0
	if u, ok := ev.Data.(turn.UpdateEvent); ok {
		size = len(u.CustomPatch)
	}
	if len(q.list) < eventBuffer && (q.size == 0 || q.size+size <= eventBytes) {
		q.list = append(q.list, ev)
		q.size += size
	} else {
		q.lost++
	}
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take empties the queue. If events were lost, the last one says how many.
func (q *eventQueue) take() []overlay.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.list
	if q.lost > 0 {
		list = append(list, overlay.Event{Type: EventLost, Time: time.Now(), Data: q.lost})
	}
	q.list, q.size, q.lost = nil, 0, 0
	return list
}
