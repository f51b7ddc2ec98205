// Package latency counts how long things take: by a Histogram that anybody may add to without a lock, and by Snapshots of it, which can be taken from one
// another, so that it is seen what a stretch of time has added.
package latency

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// first is the exponent of the first bound: all that takes less than 2^first ns is in one bucket.
	first = 9
	// octaves is how many times a bound is doubled; what takes longer than the last one, some nine minutes, is in one bucket.
	octaves = 30
	// perOctave is how many buckets lie between a bound and its double. So a quantile is told with an error of at most a quarter.
	perOctave = 4

	buckets = octaves*perOctave + 2
)

// Histogram counts durations. The zero value is ready for use; it must not be copied. Its methods may be called concurrently, allocate nothing but for
// Snapshot, and take some nanoseconds.
type Histogram struct {
	counts [buckets]atomic.Uint64
	total  atomic.Int64 // ns
	max    atomic.Int64 // ns
}

// Add counts one duration. One below 0 is 0.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(d)].Add(1)
	h.total.Add(int64(d))
	for {
		longest := h.max.Load()
		if int64(d) <= longest || h.max.CompareAndSwap(longest, int64(d)) {
			return
		}
	}
}

// bucketOf gives the bucket of a duration that is not below 0.
func bucketOf(d time.Duration) int {
	exponent := bits.Len64(uint64(d)) - 1
	if exponent < first {
		return 0
	}
	if exponent >= first+octaves {
		return buckets - 1
	}
	part := int(uint64(d)>>(exponent-2)) & (perOctave - 1) // the two bits after the leading one
	return 1 + (exponent-first)*perOctave + part
}

// bound gives the duration that all in a bucket are below; 0 of the last one, which has none.
func bound(bucket int) time.Duration {
	if bucket == buckets-1 {
		return 0
	}
	if bucket == 0 {
		return 1 << first
	}
	exponent, part := first+(bucket-1)/perOctave, (bucket-1)%perOctave
	return time.Duration(perOctave+part+1) << (exponent - 2)
}

// Count gives how many durations there were.
func (h *Histogram) Count() (n uint64) {
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

// Snapshot gives what was counted so far. What is added meanwhile may be in one of its figures and not yet in another.
func (h *Histogram) Snapshot() Snapshot {
	s := Snapshot{Total: time.Duration(h.total.Load()), Max: time.Duration(h.max.Load())}
	for i := range h.counts {
		if n := h.counts[i].Load(); n > 0 {
			s.Buckets = append(s.Buckets, Bucket{bound(i), n})
			s.Count += n
		}
	}
	return s
}
