package strategytest

import (
	"math/rand/v2"
	"os"
)

// content is what a file holds: pieces of data, and holes between them.
type content struct {
	size   int64
	pieces []piece
}

type piece struct {
	off  int64
	data []byte
}

// dense is a content of n random bytes.
func dense(n int) content { return sparse(int64(n), piece{0, random(n)}) }

func sparse(size int64, pieces ...piece) content { return content{size, pieces} }

// random gives n bytes, always the same for the same n, with no zero block among them.
func random(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(p)
	for i := 0; i < n; i += 4096 {
		p[i] |= 1
	}
	return p
}

func (c content) write(b *bench, f *os.File) {
	b.Helper()
	for _, p := range c.pieces {
		_, err := f.WriteAt(p.data, p.off)
		b.must(err)
	}
	b.must(f.Truncate(c.size))
}

// dataBytes is how much of the content is not a hole.
func (c content) dataBytes() int64 {
	var n int64
	for _, p := range c.pieces {
		n += int64(len(p.data))
	}
	return n
}

const mib = 1 << 20

// contents are the shapes that go through every tier.
var contents = map[string]content{
	"empty":                                   {},
	"one byte":                                dense(1),
	"a byte less than a block":                dense(4095),
	"a block":                                 dense(4096),
	"a byte more than a block":                dense(4097),
	"what is read at once":                    dense(64 << 10),
	"a byte more than is read at once":        dense(64<<10 + 1),
	"several buffers":                         dense(3*mib + 5),
	"a small hole in front":                   sparse(8192, piece{4096, random(4096)}),
	"a small hole behind":                     sparse(40000, piece{0, random(4096)}),
	"nothing but a hole":                      sparse(5 * mib),
	"holes in front, between, behind":         sparse(5*mib+1, piece{1 * mib, random(300000)}, piece{3 * mib, random(4096)}),
	"data up to an odd end after a hole":      sparse(2*mib+7, piece{2 * mib, random(7)}),
	"zeros that were written, between others": sparse(3*mib, piece{0, random(mib)}, piece{mib, make([]byte, mib)}, piece{2 * mib, random(mib)}),
	"a lot of nothing with little in it":      sparse(huge, piece{0, random(10)}, piece{huge / 6 * 5 &^ 4095, random(4096)}, piece{huge - 1, []byte{1}}),
}
