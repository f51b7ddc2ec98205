package devfuse

import "testing"

// ticks gives a regime what happens in n ticks, and tells what the last one said.
func ticks(r *regime, n int, taken, turns uint64, stuck bool) (more bool) {
	for range n {
		more = r.tick(taken, turns, stuck)
	}
	return more
}

func TestManyRequestsOfOneThreadMakeThePoolNarrow(t *testing.T) {
	var r regime
	if more := ticks(&r, 1, brisk, 0, false); !more || !r.narrow {
		t.Errorf("%+v, %v", r, more)
	}
	if ticks(&r, 1, brisk-1, 0, false); !r.narrow {
		t.Error("a tick with few requests makes it wide")
	}
}

func TestWhatSpeaksAgainstANarrowPoolKeepsItWideForAWhile(t *testing.T) {
	for what, happens := range map[string]func(r *regime){
		"a request that takes long":   func(r *regime) { r.tick(0, 0, true) },
		"requests of several threads": func(r *regime) { r.tick(16, 5, false) },
		"few of several threads":      func(r *regime) { r.tick(2, 2, false) },
	} {
		r := regime{narrow: true}
		happens(&r)
		if r.narrow {
			t.Error(what, "leaves it narrow")
		}
		if ticks(&r, holds, 50, 1, false); r.narrow {
			t.Error(what, "is forgotten too soon")
		}
		if ticks(&r, 1, 50, 1, false); !r.narrow {
			t.Error(what, "is never forgotten")
		}
	}
}

func TestTheWatchSleepsWhenFewRequestsCome(t *testing.T) {
	r := regime{narrow: true}
	if more := ticks(&r, quietEnough-1, 1, 0, false); !more || !r.narrow {
		t.Errorf("too soon: %+v", r)
	}
	if more := r.tick(1, 0, false); more || r.narrow {
		t.Errorf("it goes on, or the pool stays narrow: %+v", r)
	}
}
