package devfuse

import "testing"

// ticks gives a regime what happens in each of n ticks, and tells what the last one said.
func ticks(r *regime, n int, t tally) (more bool) {
	for range n {
		more = r.tick(t)
	}
	return more
}

func TestManyRequestsOfOneThreadMakeThePoolNarrow(t *testing.T) {
	var r regime
	if more := ticks(&r, 1, tally{taken: brisk}); !more || !r.narrow {
		t.Errorf("%+v, %v", r, more)
	}
	if ticks(&r, 1, tally{taken: brisk - 1}); !r.narrow {
		t.Error("a tick with few requests makes it wide")
	}
}

func TestWhatSpeaksAgainstANarrowPoolKeepsItWideForAWhile(t *testing.T) {
	for what, happens := range map[string]tally{
		"a request that takes long":   {stuck: true},
		"requests of several threads": {taken: 16, turns: 5},
		"few of several threads":      {taken: 2, turns: 2},
	} {
		r := regime{narrow: true}
		r.tick(happens)
		if r.narrow {
			t.Error(what, "leaves it narrow")
		}
		if ticks(&r, holds, tally{taken: 50, turns: 1}); r.narrow {
			t.Error(what, "is forgotten too soon")
		}
		if ticks(&r, 1, tally{taken: 50, turns: 1}); !r.narrow {
			t.Error(what, "is never forgotten")
		}
	}
}

func TestTheWatchSleepsWhenFewRequestsCome(t *testing.T) {
	r := regime{narrow: true}
	if more := ticks(&r, quietEnough-1, tally{taken: 1}); !more || !r.narrow {
		t.Errorf("too soon: %+v", r)
	}
	if more := r.tick(tally{taken: 1}); more || r.narrow {
		t.Errorf("it goes on, or the pool stays narrow: %+v", r)
	}
}

func TestSmallRequestsInQuickSuccessionHaveTheNearWorkerRead(t *testing.T) {
	var r regime
	if ticks(&r, 1, tally{taken: nearBrisk - 1}); r.near {
		t.Error("by fewer requests")
	}
	if ticks(&r, 1, tally{taken: nearBrisk, brought: nearBrisk * nearBrought, given: nearBrisk * nearGiven}); !r.near {
		t.Error("not by many")
	}
	if ticks(&r, 1, tally{given: nearGiven}); !r.near {
		t.Error("an answer to what was asked in the tick before ends it")
	}
	if more := ticks(&r, quietNear-2, tally{}); !more || !r.near {
		t.Error("it ends too soon")
	}
	if more := r.tick(tally{}); more || r.near || r.narrow {
		t.Errorf("it never ends: %+v", r)
	}
	for what, happens := range map[string]tally{
		"large answers":               {taken: 50, given: 50*nearGiven + 1},
		"large requests":              {taken: 50, brought: 50*nearBrought + 1},
		"requests of several threads": {taken: 50, turns: 25},
	} {
		r := regime{narrow: true, near: true}
		if r.tick(happens); r.near || r.apart > 0 {
			t.Errorf("%s: %+v", what, r)
		}
	}
}

// TestAnotherThreadNowAndThenIsNoReasonToBeWide has a program make a request in each tick, and one in ten by another thread.
func TestAnotherThreadNowAndThenIsNoReasonToBeWide(t *testing.T) {
	r := regime{narrow: true, near: true}
	for i := range 100 {
		var turns uint64
		if i%10 > 8 {
			turns = 1
		}
		if r.tick(tally{taken: 1, turns: turns}); i > 20 && !r.near {
			t.Fatalf("after %d: %+v", i, r)
		}
	}
	if ticks(&r, 10, tally{taken: 1, turns: 1}); r.near || r.narrow {
		t.Errorf("%+v", r)
	}
}

func TestANearWorkerThatGetsNoCPUIsLeftAloneForLongerEachTime(t *testing.T) {
	starved, busy := tally{stuck: true, near: true}, tally{taken: 50}
	r := regime{narrow: true, near: true}
	for want := minApart; want <= 2*maxApart; want *= 2 {
		r.tick(starved)
		if r.near || !r.narrow {
			t.Fatalf("%+v", r)
		}
		want := min(want, maxApart)
		if ticks(&r, want-1, busy); r.near {
			t.Errorf("it reads again within %d ticks", want)
		}
		if ticks(&r, 1, busy); !r.near {
			t.Errorf("after %d ticks it does not read: %+v", want, r)
		}
	}
	ticks(&r, 4*maxApart+1, busy)
	r.tick(starved)
	if ticks(&r, minApart, busy); !r.near {
		t.Errorf("what was long ago still counts: %+v", r)
	}
}

func TestANearWorkerThatWasWorthwhileIsLeftAloneForAMomentOnly(t *testing.T) {
	starved, busy := tally{stuck: true, near: true}, tally{taken: 50}
	r := regime{narrow: true, near: true}
	for range 20 {
		ticks(&r, worthwhile, busy)
		r.tick(starved)
		ticks(&r, minApart-1, busy)
		if r.near {
			t.Fatal("it reads again too soon")
		}
		if ticks(&r, 1, busy); !r.near {
			t.Fatalf("after %d ticks it does not read: %+v", minApart, r)
		}
	}
}
