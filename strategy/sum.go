package strategy

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"

	"github.com/cespare/xxhash/v2"
)

// blockSize is the unit of holes: an aligned block of so many zero bytes counts as a hole, for the checksum.
const blockSize = 4096

var zeroBlock [blockSize]byte

// summer computes the checksum of a preimage: the xxHash64 with seed 0 of what follows, integers as 64-bit little endian:
//
//	for every run of blocks that aren't all zero, as long as it gets, in ascending order:
//	    its bytes, its offset, its length
//	the size
//
// A block is 4096 bytes at a multiple of 4096, the last one what is left. So the sum depends on size and bytes alone,
// not on which zeros the filesystem keeps as holes, and a hole costs nothing, however large.
type summer struct {
	digest     xxhash.Digest
	start, end int64 // the run under way
}

func newSummer() *summer {
	s := &summer{}
	s.digest.Reset()
	return s
}

// add takes the bytes p at off, a multiple of blockSize. Calls come in ascending order; what is between them is zeros.
// Only at the end of the file may len(p) be no multiple of blockSize.
func (s *summer) add(p []byte, off int64) {
	for from, to := nextRun(p, 0); from < to; from, to = nextRun(p, to) {
		s.addRun(p[from:to], off+int64(from))
	}
}

func (s *summer) addRun(p []byte, off int64) {
	if off != s.end {
		s.endRun()
		s.start = off
	}
	_, _ = s.digest.Write(p)
	s.end = off + int64(len(p))
}

func (s *summer) endRun() {
	if s.start < s.end {
		s.addInt(s.start)
		s.addInt(s.end - s.start)
	}
}

func (s *summer) addInt(n int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	_, _ = s.digest.Write(b[:])
}

// sum ends the last run and gives the checksum of a file of size bytes.
func (s *summer) sum(size int64) uint64 {
	s.endRun()
	s.addInt(size)
	return s.digest.Sum64()
}

// nextRun finds the first run of blocks in p, from the block at from on, that aren't all zero. It gives an empty run
// at the end.
func nextRun(p []byte, from int) (start, end int) {
	for from < len(p) && isZero(block(p, from)) {
		from += blockSize
	}
	start = min(from, len(p))
	end = start
	for end < len(p) && !isZero(block(p, end)) {
		end += len(block(p, end))
	}
	return start, end
}

func hasZeroBlock(p []byte) bool {
	start, end := nextRun(p, 0)
	return start != 0 || end != len(p)
}

func block(p []byte, at int) []byte { return p[at:min(at+blockSize, len(p))] }

func isZero(b []byte) bool { return b[0] == 0 && bytes.Equal(b, zeroBlock[:len(b)]) }

// SumFile reads the regular file f, open for reading, and gives its size and the checksum that a preimage of it would have.
// It leaves f's offset alone.
func SumFile(f *os.File) (sum uint64, size int64, err error) {
	defer runtime.KeepAlive(f)
	st, err := fileOf(f).stat()
	if err != nil {
		return 0, 0, err
	}
	sum, err = sumOf(source{file: fileOf(f)}, st.size)
	return sum, st.size, err
}
