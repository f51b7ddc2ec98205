// Package feed hands out news to whoever asks for them.
package feed

import "sync"

// buffer is how many values a subscriber may be behind. One that is slower loses some.
const buffer = 256

// Feed hands out values. The zero value is ready. Its methods may be called concurrently.
type Feed[T any] struct {
	mu     sync.Mutex // guards what follows
	subs   map[chan T]struct{}
	closed bool
}

// Send gives v to every subscriber. It never blocks.
func (f *Feed[T]) Send(v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.subs {
		select {
		case c <- v:
		default:
		}
	}
}

// Close closes the channels of all subscribers, also of those still to come.
func (f *Feed[T]) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.subs {
		close(c)
	}
	f.subs, f.closed = nil, true
}

// Subscribe gives a channel of all values from now on, and a function that ends it. The channel is closed by that function, or
// by Close.
func (f *Feed[T]) Subscribe() (<-chan T, func()) {
	c := make(chan T, buffer)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		close(c)
		return c, func() {}
	}
	if f.subs == nil {
		f.subs = map[chan T]struct{}{}
	}
	f.subs[c] = struct{}{}
	return c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, ok := f.subs[c]; ok {
			delete(f.subs, c)
			close(c)
		}
	}
}
