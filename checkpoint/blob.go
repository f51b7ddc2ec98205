package checkpoint

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfs/hyperfs/internal/parallel"
	"lukechampine.com/blake3"
)

// sum is the BLAKE3 sum of a blob.
type sum [32]byte

func sumOf(b []byte) sum { return blake3.Sum256(b) }

// sumTogether is up to how many bytes of blobs are summed by one goroutine.
const sumTogether = 32 << 10

// sumAll gives the sums of blobs. Without instructions for it in the processor, that takes longer than all else that is done to them.
func sumAll(blobs [][]byte) []sum {
	sums := make([]sum, len(blobs))
	type part struct{ from, to int }
	var parts []part
	for i := 0; i < len(blobs); {
		p := part{i, i}
		for bytes := 0; p.to < len(blobs) && bytes < sumTogether; p.to++ {
			bytes += len(blobs[p.to])
		}
		parts, i = append(parts, p), p.to
	}
	_ = parallel.Each(parts, func(p part) error {
		for i := p.from; i < p.to; i++ {
			sums[i] = sumOf(blobs[i])
		}
		return nil
	})
	return sums
}

func blobOf(s sum, size int64) Blob {
	b := make([]byte, 2*len(s), 2*len(s)+12)
	hex.Encode(b, s[:])
	return Blob(strconv.AppendInt(append(b, '-'), size, 10))
}

// parse takes the name apart.
func (b Blob) parse() (s sum, size int64, ok bool) {
	text, length, _ := strings.Cut(string(b), "-")
	n, err := hex.Decode(s[:], []byte(text)[:min(len(text), 2*len(s))])
	if err != nil || n != len(s) || len(text) != 2*len(s) {
		return s, 0, false
	}
	size, err = strconv.ParseInt(length, 10, 64)
	return s, size, err == nil && size >= 0 && blobOf(s, size) == b
}

// Size gives how many bytes the blob has, and -1 where b names none.
func (b Blob) Size() int64 {
	_, size, ok := b.parse()
	if !ok {
		return -1
	}
	return size
}

// Blobs gives the blobs that the state names, without those that its pages list.
func (s *TurnState) Blobs() []Blob {
	list := slices.Clone(s.Pages)
	for _, a := range s.Artifacts {
		list = append(list, a.Data)
	}
	for _, b := range []*Blob{s.Custom, s.Bindings} {
		if b != nil {
			list = append(list, *b)
		}
	}
	return list
}

// EncodePage gives the bytes of a page, which lists blobs.
func EncodePage(list []Blob) ([]byte, error) {
	b := append(make([]byte, 0, 1+len(list)*(len(sum{})+3)), recordVersion)
	for _, name := range list {
		s, size, ok := name.parse()
		if !ok {
			return nil, fmt.Errorf("%q names no blob", name)
		}
		b = binary.AppendUvarint(append(b, s[:]...), uint64(size))
	}
	return b, nil
}

// DecodePage gives the list again.
func DecodePage(b []byte) ([]Blob, error) {
	d := newDecoder(b)
	var list []Blob
	for d.err == nil && len(d.b) > 0 {
		s := sum(d.take(len(sum{})))
		size := d.uvarint()
		if size > 1<<62 {
			return nil, errShort
		}
		list = append(list, blobOf(s, int64(size)))
	}
	return list, d.err
}
