package strategytest

import (
	"fmt"
)

var sumCases = []testCase{
	{"Sum depends on the bytes, not on the holes", sumIgnoresHoles},
	{"Sum tells apart what differs in place or size alone", sumSeesPlaces},
}

// sum saves the content and gives its checksum.
func (b *bench) sum(c content, name string) uint64 {
	b.Helper()
	ref, err := b.s.Sum(b.save(b.file(name, c), name))
	b.must(err)
	if !ref.HasSum {
		b.Fatal("Sum gave no checksum")
	}
	b.must(b.s.Verify(ref))
	return ref.Sum
}

func sumIgnoresHoles(b *bench) {
	for i, size := range []int{32 << 10, 3 * mib} {
		head, tail := random(5000), random(4096)
		zeros := make([]byte, size)
		same := []content{
			sparse(int64(size), piece{0, head}, piece{16384, tail}),
			sparse(int64(size), piece{0, zeros}, piece{0, head}, piece{16384, tail}),
			sparse(int64(size), piece{8192, make([]byte, 4096)}, piece{0, head}, piece{16384, tail}),
		}
		want := b.sum(same[0], fmt.Sprint("sparse", i))
		for j, c := range same[1:] {
			if got := b.sum(c, fmt.Sprintf("filled-%d-%d", i, j)); got != want {
				b.Errorf("size %d, layout %d: the sum is %x, with holes it is %x", size, j, got, want)
			}
		}
	}
}

func sumSeesPlaces(b *bench) {
	data := random(4096)
	seen := map[uint64]int{}
	for i, c := range []content{
		{},
		sparse(1),
		sparse(4096),
		sparse(8192),
		sparse(8192, piece{0, data}),
		sparse(8192, piece{4096, data}),
		sparse(8192, piece{0, data}, piece{4096, data}),
		sparse(12288, piece{0, data}, piece{4096, data}),
		sparse(12288, piece{0, data}, piece{8192, data}),
		sparse(4096, piece{0, data}),
		sparse(4097, piece{0, data}),
		sparse(huge),
	} {
		sum := b.sum(c, fmt.Sprint("content", i))
		if j, ok := seen[sum]; ok {
			b.Errorf("contents %d and %d have the same sum", i, j)
		}
		seen[sum] = i
	}
}
