package devfuse

// regime decides by what has happened in each tick of the watch whether the pool is narrow, and whether the near worker is to read.
type regime struct {
	narrow bool
	hold   int // ticks for which it stays wide
	quiet  int // ticks in a row in which few requests came

	near  bool // never unless it is narrow
	apart int  // ticks for which it is not to be near
	last  int  // what apart was set to last; 0 if that was long ago
	good  int  // ticks in a row for which it has been near
}

// tally is what happened in a tick.
type tally struct {
	taken   uint64 // requests
	turns   uint64 // of these, such as were of another thread than the one before
	moved   uint64 // bytes of requests and answers
	stuck   bool   // one is still worked on, and nobody reads
	near    bool   // by the near worker
	resting bool   // which has answered it, and not had its CPU since
}

const (
	// brisk is how many requests in a tick make the pool narrow.
	brisk = 3
	// holds is how many ticks it stays wide for where something speaks against it.
	holds = 20
	// quietEnough is after how many ticks with few requests the watch sleeps.
	quietEnough = 10

	// nearBrisk is how many requests in a tick have the near worker begin.
	nearBrisk = 8
	// nearBytes is how many bytes of a request and its answer are too many for it, on average: who reads or writes large files can do so while the daemon fetches what comes next.
	nearBytes = 16 << 10
	// minApart and maxApart are for how many ticks there is no near worker after it did not get its CPU. It's twice as many each time.
	minApart, maxApart = 4, 2048
)

// tick takes what has happened. It reports whether the watch is to go on.
func (r *regime) tick(t tally) bool {
	r.quiet++
	if t.taken >= brisk {
		r.quiet = 0
	}
	switch {
	case t.stuck && !t.near || 4*t.turns > t.taken:
		r.narrow, r.hold = false, holds
	case r.hold > 0:
		r.hold--
	case t.taken >= brisk:
		r.narrow = true
	}
	r.decideNear(t)
	if r.quiet < quietEnough {
		return true
	}
	*r = regime{apart: r.apart, last: r.last}
	return false
}

func (r *regime) decideNear(t tally) {
	switch {
	case t.stuck && t.near && !t.resting:
		r.last = min(max(2*r.last, minApart), maxApart)
		r.apart = r.last
	case r.apart > 0:
		r.apart--
	}
	enough := uint64(nearBrisk)
	if r.near {
		enough = brisk
	}
	r.near = r.narrow && r.apart == 0 && t.taken >= enough && t.moved <= t.taken*nearBytes
	if r.good++; !r.near {
		r.good = 0
	}
	if r.good > 4*r.last {
		r.last = 0
	}
}
