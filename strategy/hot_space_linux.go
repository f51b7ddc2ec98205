package strategy

import (
	"slices"

	"github.com/hyperfs/hyperfs/internal/crash"
)

// Remove is Strategy.Remove. The room is freed a little later.
func (h *HotBuffer) Remove(ref Ref) error {
	number, off, err := parsePlace(ref.Name)
	if err != nil {
		return failed("remove", ref.Name, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.segments[number]
	if s == nil || !s.known { // Adopt frees it
		return nil
	}
	size, ok := s.live[uint32(off)]
	if !ok {
		return nil
	}
	s.take(off, size)
	h.wake()
	return nil
}

// Adopt says what is alive of what an earlier process saved: the preimages of refs, which may name others too. All else is
// freed.
func (h *HotBuffer) Adopt(refs func(yield func(Ref) bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ref := range refs {
		number, off, err := placeOf(ref)
		if err != nil {
			continue
		}
		if s := h.segments[number]; s != nil && !s.known && off+ref.Size <= segmentSize {
			if _, twice := s.live[uint32(off)]; !twice {
				s.put(off, ref.Size)
			}
		}
	}
	for _, s := range h.segments {
		if !s.known {
			s.known = true
			s.freed = []span{{0, s.end}}
		}
	}
	h.wake()
}

// List is Strategy.List. What an earlier process saved is listed once it was adopted.
func (h *HotBuffer) List(fn func(name string, size int64) error) error {
	for _, e := range h.entries() {
		if err := fn(e.name, e.size); err != nil {
			return err
		}
	}
	return nil
}

type hotEntry struct {
	name string
	size int64
}

func (h *HotBuffer) entries() []hotEntry {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []hotEntry
	for _, s := range h.segments {
		for off, size := range s.live {
			all = append(all, hotEntry{placeName(s.number, int64(off)), size})
		}
	}
	return all
}

// free gives the room of removed preimages back: segments that hold nothing, and pages of others. With all, the segment that is
// appended to may be removed too.
func (h *HotBuffer) free(all bool) {
	h.mirroring.Lock() // nobody syncs what is removed, or punches too
	defer h.mirroring.Unlock()
	empty, holed := h.freeable(all)
	for _, s := range empty {
		_ = h.dir.remove(segmentName(s.number))
		crash.Point("hot-unlinked")
	}
	for _, s := range holed {
		h.punch(s)
	}
}

// freeable takes the segments out that hold nothing, and gives those that have pages to free.
func (h *HotBuffer) freeable(all bool) (empty, holed []*segment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for number, s := range h.segments {
		if all && s == h.current {
			h.current = nil
			h.let(s)
		}
		switch {
		case !s.known:
		case len(s.live) == 0 && s != h.current && s.users == 0: // who still reads one is waited for until the next time
			h.closeSegment(s)
			delete(h.segments, number)
			empty = append(empty, s)
		case len(s.freed) > 0:
			holed = append(holed, s)
		}
	}
	return empty, holed
}

// punch frees the pages of s that have become free. Nothing is ever put there again, so it needs no lock.
func (h *HotBuffer) punch(s *segment) {
	h.mu.Lock()
	runs := s.freePages()
	err := h.hold(s)
	h.mu.Unlock()
	if err != nil {
		return
	}
	for _, r := range runs {
		if punch(s.f, r.from, r.to) != nil {
			break // it stays until the whole segment goes
		}
		crash.Point("hot-punched")
	}
	h.mu.Lock()
	h.let(s)
	h.mu.Unlock()
}

// freePages gives those pages of what was removed that hold nothing else, and to which nothing more will be appended. What is in the last
// page stays to be freed. The caller holds mu.
func (s *segment) freePages() []span {
	slices.SortFunc(s.freed, func(a, b span) int { return int(a.from - b.from) })
	var runs []span
	next := int64(0) // the first page that was not looked at
	closed := s.end / blockSize
	for _, f := range s.freed {
		first, last := pagesOf(f.from, f.to-f.from)
		for page := max(first, next); page < min(last, closed); page++ {
			next = page + 1
			if page < int64(len(s.pages)) && s.pages[page] > 0 {
				continue
			}
			if k := len(runs); k > 0 && runs[k-1].to == page*blockSize {
				runs[k-1].to = next * blockSize
			} else {
				runs = append(runs, span{page * blockSize, next * blockSize})
			}
		}
	}
	s.freed = slices.DeleteFunc(s.freed, func(f span) bool { return f.to <= closed*blockSize })
	return runs
}
