package latency

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestEveryDurationIsBelowTheBoundOfItsBucketAlone(t *testing.T) {
	check := func(d time.Duration) {
		b := bucketOf(d)
		if up := bound(b); up != 0 && d >= up {
			t.Fatalf("%d is in bucket %d, which ends below %d", d, b, up)
		}
		if b > 0 && d < bound(b-1) {
			t.Fatalf("%d is in bucket %d, though the one before has all below %d", d, b, bound(b-1))
		}
	}
	for bit := range 63 {
		for _, near := range []int64{-1, 0, 1} {
			check(max(0, time.Duration(int64(1)<<bit+near)))
		}
	}
	for range 100_000 {
		check(time.Duration(rand.Uint64() >> (1 + rand.IntN(63))))
	}
}

func TestBoundsGrowByAQuarterAtMost(t *testing.T) {
	for i := 1; i < buckets-1; i++ {
		if a, b := bound(i-1), bound(i); b <= a || b > a+a/4 {
			t.Errorf("bucket %d ends at %d, the one before at %d", i, b, a)
		}
	}
}

func TestQuantilesAreTheExactOnesOrUpToAQuarterMore(t *testing.T) {
	var h Histogram
	var all []time.Duration
	for range 20_000 {
		d := time.Duration(rand.ExpFloat64() * float64(50*time.Microsecond))
		all = append(all, d)
		h.Add(d)
	}
	slices.Sort(all)
	s := h.Snapshot()
	if s.Count != 20_000 || h.Count() != 20_000 || s.Max != all[len(all)-1] {
		t.Fatalf("%d of %d, the longest %v instead of %v", s.Count, len(all), s.Max, all[len(all)-1])
	}
	for _, q := range []float64{0.1, 0.5, 0.9, 0.99, 0.999, 1} {
		exact, got := all[int(q*float64(len(all)))-1], s.Quantile(q)
		if got < exact || got > max(exact+exact/4+1, 1<<first) {
			t.Errorf("%v of all take %v at most, not %v", q, exact, got)
		}
	}
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	if s.Total != sum || s.Mean() != sum/20_000 {
		t.Errorf("in total %v, a mean of %v, instead of %v and %v", s.Total, s.Mean(), sum, sum/20_000)
	}
}

func TestDifferenceIsWhatWasAddedSince(t *testing.T) {
	var h Histogram
	add := func(list ...time.Duration) Snapshot {
		for _, d := range list {
			h.Add(d)
		}
		return h.Snapshot()
	}
	a := add(time.Microsecond, time.Second)
	b := add(3*time.Microsecond, 40*time.Microsecond)
	d := b.Sub(a)
	if d.Count != 2 || d.Total != 43*time.Microsecond || d.Max < 40*time.Microsecond || d.Max > 50*time.Microsecond {
		t.Errorf("%+v", d)
	}
	if d := add(time.Hour).Sub(b); d.Count != 1 || d.Max != time.Hour || d.Quantile(0.5) != time.Hour {
		t.Errorf("%+v", d)
	}
	if d := b.Sub(b); d.Count != 0 || d.Max != 0 || d.Mean() != 0 || d.Quantile(0.99) != 0 {
		t.Errorf("%+v", d)
	}
}

func TestNothingIsLostBetweenWriters(t *testing.T) {
	var h Histogram
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 10_000 {
				h.Add(time.Duration(i*10_000 + k))
			}
		})
	}
	all.Wait()
	if s := h.Snapshot(); s.Count != 80_000 || s.Max != 79_999 || s.Total != 80_000*79_999/2 {
		t.Errorf("%+v", s)
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	var h Histogram
	if n := testing.AllocsPerRun(1000, func() { h.Add(time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	var h Histogram
	for i := 0; b.Loop(); i++ {
		h.Add(time.Duration(i))
	}
}
