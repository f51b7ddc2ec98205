package strategy

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// TestScanFindsTheSameWithoutALayout compares what is found in a file whose holes the filesystem tells with what is
// found by looking for zeros.
func TestScanFindsTheSameWithoutALayout(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	const size = 5<<20 + 11
	for _, off := range []int64{0, 1 << 20, 1<<20 + 8192, size - 11} {
		if _, err := f.WriteAt(bytes.Repeat([]byte{7}, 11), off); err != nil {
			t.Fatal(err)
		}
	}
	src := source{file: fileOf(f)}
	sums := map[string]uint64{}
	for name, scan := range map[string]func(source, int64, []byte, func([]byte, int64) error) (int64, error){
		"with": scan, "without": scanDense,
	} {
		s := newSummer()
		var data int
		end, err := scan(src, size, make([]byte, 64<<10), func(p []byte, off int64) error {
			s.add(p, off)
			data += len(p)
			return nil
		})
		if err != nil || end != size {
			t.Fatalf("%s a layout: %d bytes, %v", name, end, err)
		}
		if data > 64<<10 {
			t.Errorf("%s a layout %d bytes were taken for data", name, data)
		}
		sums[name] = s.sum(end)
	}
	if sums["with"] != sums["without"] {
		t.Errorf("the sums differ: %x", sums)
	}
}

// TestSumIsWhatIsDocumented pins the checksum: stores hold it.
func TestSumIsWhatIsDocumented(t *testing.T) {
	const name = "hyperfs"
	for _, c := range []struct {
		what   string
		add    func(s *summer)
		size   int64
		hashed []any // what the definition says is hashed
	}{
		{"an empty file", func(*summer) {}, 0, []any{int64(0)}},
		{"a hole", func(*summer) {}, 6 << 30, []any{int64(6 << 30)}},
		{"data", func(s *summer) { s.add([]byte(name), 0) }, 7, []any{[]byte(name), int64(0), int64(7), int64(7)}},
		{"data after a zero block and before a hole", func(s *summer) {
			s.add(append(make([]byte, blockSize), name...), blockSize)
		}, 1 << 20, []any{[]byte(name), int64(2 * blockSize), int64(7), int64(1 << 20)}},
	} {
		var hashed bytes.Buffer
		for _, part := range c.hashed {
			if err := binary.Write(&hashed, binary.LittleEndian, part); err != nil {
				t.Fatal(err)
			}
		}
		s := newSummer()
		c.add(s)
		if got, want := s.sum(c.size), xxhash.Sum64(hashed.Bytes()); got != want {
			t.Errorf("the sum of %s is %#x, want %#x", c.what, got, want)
		}
	}
}

func TestSumDoesNotDependOnHowItIsCut(t *testing.T) {
	p := make([]byte, 10*blockSize+100)
	for _, at := range []int{0, blockSize, 3*blockSize + 5, 8 * blockSize, len(p) - 1} {
		p[at] = 1
	}
	whole := newSummer()
	whole.add(p, 0)
	want := whole.sum(int64(len(p)))
	for cut := blockSize; cut < len(p); cut += blockSize {
		s := newSummer()
		s.add(p[:cut], 0)
		s.add(p[cut:], int64(cut))
		if got := s.sum(int64(len(p))); got != want {
			t.Errorf("cut at %d the sum is %#x, in one piece %#x", cut, got, want)
		}
	}
}
