// Package hold keeps those waiting who are to begin something, where somebody needs it to stay as it is for a while.
package hold

// Set has the names that are held. Its zero value holds none. Whoever uses it guards it, but for what Held gives.
type Set struct {
	held map[string]*hold
}

type hold struct {
	by   int           // how many hold it
	ends chan struct{} // closed when none does any more
}

// Hold holds a name until Release was called as often.
func (s *Set) Hold(name string) {
	if s.held == nil {
		s.held = map[string]*hold{}
	}
	h := s.held[name]
	if h == nil {
		h = &hold{ends: make(chan struct{})}
		s.held[name] = h
	}
	h.by++
}

// Release ends one Hold.
func (s *Set) Release(name string) {
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
