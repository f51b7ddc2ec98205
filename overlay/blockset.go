//go:build linux

package overlay

import (
	"math"
	"math/bits"
	"sync"
)

// span is a range of a file's bytes.
type span struct{ from, to int64 }

// Spans that end nowhere, and that hold nothing: a change beyond the old end, of which only the old length counts.
const toEnd = math.MaxInt64

var (
	allBytes = span{0, toEnd}
	noBytes  = span{}
)

// spanOf is n bytes at off.
func spanOf(off int64, n int64) span {
	if off < 0 || n <= 0 {
		return noBytes
	}
	if n > toEnd-off {
		return span{off, toEnd}
	}
	return span{off, off + n}
}

func (s span) within(size int64) span {
	s.to = min(s.to, size)
	if s.from >= s.to {
		return noBytes
	}
	return s
}

// blockSet is a set of a file's blocks. It takes a bit for each, and nothing where none or all of many neighbours are in it.
type blockSet struct {
	mu     sync.RWMutex
	size   int64 // bytes: of the file
	block  int64 // bytes
	chunks map[int64]*chunk
}

const chunkBits = 4096

type chunk [chunkBits / 64]uint64

// fullChunk stands for every chunk that has all its bits. It is never changed.
var fullChunk = func() *chunk {
	var c chunk
	for i := range c {
		c[i] = math.MaxUint64
	}
	return &c
}()

func newBlockSet(size, block int64) *blockSet {
	return &blockSet{size: size, block: block, chunks: map[int64]*chunk{}}
}

// blocks gives the first block that s touches, and the one behind the last.
func (b *blockSet) blocks(s span) (first, end int64) {
	s = s.within(b.size)
	return s.from / b.block, (s.to + b.block - 1) / b.block
}

// has reports whether all blocks that s touches are in the set.
func (b *blockSet) has(s span) bool {
	_, more := b.missing(s)
	return !more
}

// missing gives the first blocks that s touches and that are not in the set, as bytes.
func (b *blockSet) missing(s span) (span, bool) {
	first, end := b.blocks(s)
	b.mu.RLock()
	defer b.mu.RUnlock()
	from := b.find(first, end, false)
	if from == end {
		return noBytes, false
	}
	return span{from * b.block, b.find(from, end, true) * b.block}.within(b.size), true
}

// find gives the first block from first on that is in the set, or is not; end if there is none before.
func (b *blockSet) find(first, end int64, in bool) int64 {
	for at := first; at < end; {
		c, bit := b.chunks[at/chunkBits], at%chunkBits
		switch {
		case c == nil && in, c == fullChunk && !in:
			at += chunkBits - bit
			continue
		case c == nil, c == fullChunk:
			return at
		}
		word := c[bit/64]
		if !in {
			word = ^word
		}
		if word >>= bit % 64; word != 0 {
			return min(at+int64(bits.TrailingZeros64(word)), end)
		}
		at += 64 - bit%64
	}
	return end
}

// add puts the blocks into the set of which s has all bytes.
func (b *blockSet) add(s span) {
	s = s.within(b.size)
	first, end := (s.from+b.block-1)/b.block, s.to/b.block
	if s.to == b.size {
		_, end = b.blocks(s)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for at := first; at < end; {
		k, bit := at/chunkBits, at%chunkBits
		n := min(chunkBits-bit, end-at)
		if n == chunkBits {
			b.chunks[k] = fullChunk
		} else if c := b.chunk(k); c != fullChunk {
			for i := bit; i < bit+n; i++ {
				c[i/64] |= 1 << (i % 64)
			}
			if *c == *fullChunk {
				b.chunks[k] = fullChunk
			}
		}
		at += n
	}
}

func (b *blockSet) chunk(k int64) *chunk {
	c := b.chunks[k]
	if c == nil {
		c = &chunk{}
		b.chunks[k] = c
	}
	return c
}
