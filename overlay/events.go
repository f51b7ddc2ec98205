//go:build linux

package overlay

import (
	"time"

	"github.com/hyperfs/hyperfs/internal/feed"
)

// events hands out changes of state.
type events struct{ feed.Feed[Event] }

func newEvents() *events { return &events{} }

// send never blocks.
func (e *events) send(ev Event) {
	ev.Time = time.Now()
	e.Send(ev)
}

func (e *events) close() { e.Close() }

// Subscribe gives a channel of all changes of state from now on, and a function that ends it. The channel is closed by
// that function, or when the workspace is closed. A subscriber who does not read loses events.
func (w *Workspace) Subscribe() (<-chan Event, func()) { return w.events.Subscribe() }
