package overlay

import (
	"sync"
	"time"
)

// eventBuffer is how many events a subscriber may be behind. One that is slower loses some.
const eventBuffer = 256

// events hands out changes of state.
type events struct {
	mu   sync.Mutex // guards subs
	subs map[chan Event]struct{}
}

func newEvents() *events { return &events{subs: map[chan Event]struct{}{}} }

// send never blocks.
func (e *events) send(ev Event) {
	ev.Time = time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.subs {
		select {
		case c <- ev:
		default:
		}
	}
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.subs {
		close(c)
	}
	e.subs = nil
}

// Subscribe gives a channel of all changes of state from now on, and a function that ends it. The channel is closed by
// that function, or when the workspace is closed. A subscriber who does not read loses events.
func (w *Workspace) Subscribe() (<-chan Event, func()) {
	e := w.events
	c := make(chan Event, eventBuffer)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.subs == nil {
		close(c)
		return c, func() {}
	}
	e.subs[c] = struct{}{}
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if _, ok := e.subs[c]; ok {
			delete(e.subs, c)
			close(c)
		}
	}
}
