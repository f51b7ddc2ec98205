package latency

import "time"

// Snapshot is what a Histogram has counted.
type Snapshot struct {
	Count   uint64        `json:"count"`
	Total   time.Duration `json:"total_ns"`
	Max     time.Duration `json:"max_ns"`  // of the difference of two snapshots: no more than this
	Buckets []Bucket      `json:"buckets"` // those that are not empty, the shortest first
}

// Bucket is how many durations there were below a bound, and not below that of the bucket before.
type Bucket struct {
	Below time.Duration `json:"below_ns"` // 0: without a bound
	Count uint64        `json:"count"`
}

// Mean gives the average; 0 of nothing.
func (s Snapshot) Mean() time.Duration {
	if s.Count == 0 {
		return 0
	}
	return s.Total / time.Duration(s.Count)
}

// Quantile gives a duration that the share q of all, between 0 and 1, does not exceed. It is the bound of a bucket, so up to a quarter more than it need be,
// but no more than Max. 0 of nothing.
func (s Snapshot) Quantile(q float64) time.Duration {
	var sum uint64
	for _, b := range s.Buckets {
		if sum += b.Count; float64(sum) >= q*float64(s.Count) {
			if b.Below == 0 {
				break
			}
			return min(b.Below, s.Max)
		}
	}
	return s.Max
}

// Sub gives what has been added since an earlier snapshot of the same histogram. The longest is known only if it is the longest of all; else it is less than
// the bound of its bucket.
func (s Snapshot) Sub(earlier Snapshot) Snapshot {
	d := Snapshot{Total: s.Total - earlier.Total}
	before := map[time.Duration]uint64{}
	for _, b := range earlier.Buckets {
		before[b.Below] = b.Count
	}
	for _, b := range s.Buckets {
		if n := b.Count - before[b.Below]; n > 0 {
			d.Buckets = append(d.Buckets, Bucket{b.Below, n})
			d.Count += n
			d.Max = s.Max
			if b.Below != 0 && s.Max == earlier.Max {
				d.Max = min(b.Below, s.Max)
			}
		}
	}
	return d
}
