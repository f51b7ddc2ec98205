package devfuse

// regime decides by what has happened in each tick of the watch whether the pool is narrow.
type regime struct {
	narrow bool
	hold   int // ticks for which it stays wide
	quiet  int // ticks in a row in which few requests came
}

const (
	// brisk is how many requests in a tick make the pool narrow.
	brisk = 3
	// holds is how many ticks it stays wide for where something speaks against it.
	holds = 20
	// quietEnough is after how many ticks with few requests the watch sleeps.
	quietEnough = 10
)

// tick takes how many requests were taken, how many of them were of another thread than the one before, and whether one is still worked on while nobody
// reads. It reports whether the watch is to go on.
func (r *regime) tick(taken, turns uint64, stuck bool) bool {
	r.quiet++
	if taken >= brisk {
		r.quiet = 0
	}
	switch {
	case stuck || 4*turns > taken:
		r.narrow, r.hold = false, holds
	case r.hold > 0:
		r.hold--
	case taken >= brisk:
		r.narrow = true
	}
	if r.quiet < quietEnough {
		return true
	}
	*r = regime{}
	return false
}
