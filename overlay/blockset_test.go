//go:build linux

package overlay

import (
	"math/rand/v2"
	"testing"
)

// TestABlockSetIsLikeAMap at the edges of its chunks too.
func TestABlockSetIsLikeAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		const block = 16
		size := int64(1 + r.IntN(3*chunkBits*block))
		set, model := newBlockSet(size, block), map[int64]bool{}
		blocks := (size + block - 1) / block
		for range 30 {
			from := r.Int64N(size + 50)
			s := span{from, from + r.Int64N(size)}
			if r.IntN(4) == 0 {
				s.to = toEnd
			}
			if r.IntN(2) == 0 {
				set.add(s)
				for b := (s.from + block - 1) / block; b < blocks && (s.to >= size || (b+1)*block <= s.to); b++ {
					model[b] = true
				}
				continue
			}
			got, more := set.missing(s)
			want, wantMore := missingIn(model, s.within(size), size, block)
			if got != want || more != wantMore || set.has(s) == wantMore {
				t.Fatalf("of %v of %d bytes %v are missing (%v), want %v (%v)", s, size, got, more, want, wantMore)
			}
		}
	}
}

// missingIn is blockSet.missing of a map.
func missingIn(have map[int64]bool, s span, size, block int64) (span, bool) {
	end := (s.to + block - 1) / block
	from := s.from / block
	for from < end && have[from] {
		from++
	}
	if from >= end {
		return noBytes, false
	}
	to := from
	for to < end && !have[to] {
		to++
	}
	return span{from * block, min(to*block, size)}, true
}

func TestABlockSetOfAHugeFileIsSmall(t *testing.T) {
	set := newBlockSet(1<<44, 4096)
	for off := int64(0); off < 1<<44; off += 1 << 40 {
		set.add(span{off, off + 4096})
	}
	set.add(span{1 << 30, 1 << 32})
	if n := len(set.chunks); n > 16+1<<8 {
		t.Errorf("it has %d chunks", n)
	}
	for _, c := range set.chunks {
		if c == fullChunk {
			return
		}
	}
	t.Error("no chunk stands for full ones")
}
