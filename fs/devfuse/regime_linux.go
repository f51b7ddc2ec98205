package devfuse

import "time"

// regime decides by what has happened in each tick of the watch whether the pool is narrow, and whether the near worker is to read.
type regime struct {
	narrow bool
	hold   int    // ticks for which it stays wide
	quiet  int    // ticks in a row in which few requests came
	taken  uint64 // sums of what each tick had, in parts, and of those before the last one less and less
	turns  uint64

	near  bool // never unless it is narrow
	apart int  // ticks for which it is not to be near
	last  int  // what apart was set to last; 0 if that was long ago
	good  int  // ticks in a row for which it has been near
}

// tally is what happened in a tick.
type tally struct {
	taken   uint64 // requests
	turns   uint64 // of these, such as were of another thread than the one before
	brought uint64 // bytes of requests
	given   uint64 // bytes of answers
	stuck   bool   // nobody reads, or who does gets no CPU
	near    bool   // that is the near worker, or it is at work
}

const (
	// brisk is how many requests in a tick make the pool narrow.
	brisk = 3
	// holds is how many ticks it stays wide for where something speaks against it.
	holds = 20
	// parts are those of one that are left to fade.
	parts = 64
	// quietEnough is after how many ticks with few requests the watch sleeps.
	quietEnough = 10
	// quietNear is after how many ticks without any it does, where the near worker reads: a program that computes meanwhile gains most by not having to wake anybody on another CPU,
	// which sleeps the deeper the longer there was nothing to do.
	quietNear = 50

	// nearBrisk is how many requests in a tick have the near worker begin.
	nearBrisk = 8
	// nearGiven is how many bytes of an answer it may give, on average: who reads large files can do so while the daemon fetches what comes next. Who writes has to wait in any case, and what it has
	// written is in that CPU's cache, unless it's more than nearBrought.
	nearGiven, nearBrought = 16 << 10, 256 << 10
	// minApart and maxApart are for how many ticks there is no near worker after it did not get its CPU. It's twice as many each time.
	minApart, maxApart = 4, 2048
	// worthwhile is for how many ticks it must have been there before, for it to be left alone no longer than the first time: it has saved more by then than was lost. A hypervisor that takes
	// the CPU away now and then looks like programs that want it.
	worthwhile = 16
)

// tick takes what has happened. It reports whether the watch is to go on.
func (r *regime) tick(t tally) bool {
	r.quiet++
	enough := quietEnough
	if r.near {
		enough = quietNear
	}
	if t.taken >= brisk || r.near && t.taken > 0 {
		r.quiet = 0
	}
	r.taken, r.turns = fade(r.taken)+parts*t.taken, fade(r.turns)+parts*t.turns
	switch {
	case t.stuck && !t.near || 4*r.turns > r.taken:
		r.narrow, r.hold = false, holds
	case r.hold > 0:
		r.hold--
	case t.taken >= brisk:
		r.narrow = true
	}
	r.decideNear(t)
	if r.quiet < enough {
		return true
	}
	*r = regime{apart: r.apart, last: r.last}
	return false
}

// pause is how long the next tick may take.
func (r *regime) pause() time.Duration {
	if r.quiet > quietEnough {
		return 4 * tick
	}
	return tick
}

// fade makes room in a sum of parts for those of the next tick.
func fade(sum uint64) uint64 { return sum * 7 / 8 }

func (r *regime) decideNear(t tally) {
	switch {
	case t.stuck && t.near:
		if r.last = min(max(2*r.last, minApart), maxApart); r.good >= worthwhile {
			r.last = minApart
		}
		r.apart = r.last
	case r.apart > 0:
		r.apart--
	}
	r.near = r.narrow && r.apart == 0 && (r.near || t.taken >= nearBrisk) &&
		(t.taken == 0 || t.given <= t.taken*nearGiven && t.brought <= t.taken*nearBrought)
	if r.good++; !r.near {
		r.good = 0
	}
	if r.good > 4*r.last {
		r.last = 0
	}
}
