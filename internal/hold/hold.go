// Package hold keeps those waiting who are to begin something, where somebody needs it to stay as it is for a while.
package hold

import "sync"

// Set has the names that are held. Its zero value holds none. Whoever uses it guards it, but for what Held gives.
type Set struct {
	held map[string]*hold
}

type hold struct {
	by   int           // how many hold it
	ends chan struct{} // closed when none does any more
}

// Hold holds a name until release, which is to be called once. The caller holds guard, which release takes.
func (s *Set) Hold(name string, guard sync.Locker) (release func()) {
	if s.held == nil {
		s.held = map[string]*hold{}
	}
	h := s.held[name]
	if h == nil {
		h = &hold{ends: make(chan struct{})}
		s.held[name] = h
	}
	h.by++
	return func() {
		guard.Lock()
		defer guard.Unlock()
		s.release(name)
	}
}

func (s *Set) release(name string) {
	h := s.held[name]
	if h.by--; h.by == 0 {
		delete(s.held, name)
		close(h.ends)
	}
}

// Held gives what is closed when nobody holds the name any more, or nil if nobody does.
func (s *Set) Held(name string) <-chan struct{} {
	if h := s.held[name]; h != nil {
		return h.ends
	}
	return nil
}
