package strategytest

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/strategy"
)

// bench is what one case works with: a tier, and files beside it.
type bench struct {
	*testing.T
	s    strategy.Strategy
	dir  string
	kept Kept
	open New
}

// within is the same for a test within the test.
func (b *bench) within(t *testing.T) *bench { return &bench{t, b.s, b.dir, b.kept, b.open} }

// anew is one with a tier of its own, which may be damaged beyond repair.
func (b *bench) anew(t *testing.T) *bench {
	s, dir, kept := b.open(t)
	t.Cleanup(func() { _ = s.Close() })
	return &bench{t, s, dir, kept, b.open}
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// place is the tier's own file with the preimage, and where in it that begins.
func (b *bench) place(ref strategy.Ref) (path string, off int64) {
	if b.kept.Place != nil {
		return b.kept.Place(ref)
	}
	return filepath.Join(b.kept.Dir, ref.Name), 0
}

// keeps checks what the tier has for a preimage.
func (b *bench) keeps(ref strategy.Ref, c content) {
	b.Helper()
	f, err := b.s.Open(ref)
	b.must(err)
	defer func() { _ = f.Close() }()
	b.fileHolds(f, c)
}

// file makes a file that is open for reading and writing until the case ends.
func (b *bench) file(name string, c content) *os.File {
	b.Helper()
	f, err := os.OpenFile(b.path(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	b.must(err)
	b.Cleanup(func() { _ = f.Close() })
	c.write(b, f)
	return f
}

// save saves src under name and fails the case if that doesn't work.
func (b *bench) save(src *os.File, name string) strategy.Ref {
	b.Helper()
	ref, err := b.s.Save(src, name)
	b.must(err)
	return ref
}

// saved makes a file with the content c, and its preimage.
func (b *bench) saved(c content) strategy.Ref {
	b.Helper()
	return b.save(b.file("saved", c), "preimage")
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// holds checks what the file at path holds.
func (b *bench) holds(path string, c content) {
	b.Helper()
	f, err := os.Open(path)
	b.must(err)
	defer func() { _ = f.Close() }()
	b.fileHolds(f, c)
}

func (b *bench) fileHolds(f *os.File, c content) {
	b.Helper()
	info, err := f.Stat()
	b.must(err)
	if info.Size() != c.size {
		b.Fatalf("%s has %d bytes, want %d", f.Name(), info.Size(), c.size)
	}
	for _, p := range c.pieces {
		got := make([]byte, len(p.data))
		_, err := f.ReadAt(got, p.off)
		b.must(err)
		if !bytes.Equal(got, p.data) {
			b.Fatalf("%s has other bytes at %d", f.Name(), p.off)
		}
	}
	if c.size <= 64<<20 {
		b.zeroElsewhere(f, c)
	}
	c.checkHoles(b, f)
}

func (b *bench) zeroElsewhere(f *os.File, c content) {
	b.Helper()
	got, err := io.ReadAll(io.NewSectionReader(f, 0, c.size))
	b.must(err)
	for _, p := range c.pieces {
		clear(got[p.off : p.off+int64(len(p.data))])
	}
	if !bytes.Equal(got, make([]byte, c.size)) {
		b.Fatalf("%s has bytes where a hole should read as zeros", f.Name())
	}
}

// dirHandle opens the case's directory.
func (b *bench) dirHandle() *os.File {
	b.Helper()
	d, err := os.Open(b.dir)
	b.must(err)
	b.Cleanup(func() { _ = d.Close() })
	return d
}

func (b *bench) materialize(ref strategy.Ref, name string, share bool) error {
	b.Helper()
	return b.s.Materialize(ref, int(b.dirHandle().Fd()), name, share)
}

// names lists the tier.
func (b *bench) names() map[string]int64 {
	b.Helper()
	names := map[string]int64{}
	b.must(b.s.List(func(name string, size int64) error {
		names[name] = size
		return nil
	}))
	return names
}
