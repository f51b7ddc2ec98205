package strategytest

import (
	"fmt"
	"io"
	"os"
	"testing"
)

var contentCases = []testCase{
	{"Restore gives back every shape of content", restoreGivesBack},
	{"Restore overwrites files that are longer, shorter or have other holes", restoreOverwrites},
	{"Restore finishes what an interrupted one left", restoreAfterInterruption},
	{"Restore keeps the mode", restoreKeepsMode},
	{"Open reads what was saved", openReads},
}

// each runs fn for all contents, as subtests.
func (b *bench) each(fn func(b *bench, name string, c content)) {
	i := 0
	for shape, c := range contents {
		i++
		name := fmt.Sprintf("shape-%d", i)
		b.Run(shape, func(t *testing.T) { fn(b.within(t), name, c) })
	}
}

func restoreGivesBack(b *bench) {
	b.each(func(b *bench, name string, c content) {
		f := b.file(name, c)
		ref := b.save(f, name)
		if ref.Size != c.size || ref.Name != name || ref.Tier != b.s.Kind() {
			b.Errorf("the reference is %+v", ref)
		}
		b.must(f.Truncate(0))
		_, err := f.WriteAt([]byte("overwritten"), 0)
		b.must(err)
		b.must(b.s.Verify(ref))
		b.must(b.s.Restore(ref, f))
		b.fileHolds(f, c)
	})
}

func restoreOverwrites(b *bench) {
	b.each(func(b *bench, name string, c content) {
		ref := b.save(b.file(name, c), name)
		for shape, old := range map[string]content{
			"empty":       {},
			"longer":      dense(int(min(c.size, 5*mib)) + 100000),
			"other bytes": dense(int(min(c.size, 5*mib))),
			"hole":        sparse(c.size),
			"same":        c,
		} {
			dst := b.file("dst", old)
			if err := b.s.Restore(ref, dst); err != nil {
				b.Fatalf("over %s: %v", shape, err)
			}
			b.fileHolds(dst, c)
		}
	})
}

func restoreAfterInterruption(b *bench) {
	c := contents["holes in front, between, behind"]
	ref := b.saved(c)
	dst := b.file("dst", dense(5*mib))
	b.must(b.s.Restore(ref, dst))
	// As if the first try had died in the middle: part of it is there, the rest is something else.
	_, err := dst.WriteAt(random(mib), 3*mib)
	b.must(err)
	b.must(dst.Truncate(4 * mib))
	b.must(b.s.Restore(ref, dst))
	b.fileHolds(dst, c)
}

func restoreKeepsMode(b *bench) {
	ref := b.saved(dense(5000))
	dst := b.file("dst", dense(3))
	b.must(dst.Chmod(0o751))
	before, err := dst.Stat()
	b.must(err)
	b.must(b.s.Restore(ref, dst))
	after, err := dst.Stat()
	b.must(err)
	if after.Mode() != before.Mode() {
		b.Errorf("the mode went from %v to %v", before.Mode(), after.Mode())
	}
}

func openReads(b *bench) {
	c := dense(100000)
	ref := b.saved(c)
	f, err := b.s.Open(ref)
	b.must(err)
	defer func() { _ = f.Close() }()
	b.fileHolds(f, c)
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		b.Error("the preimage could be written to")
	}
}

// offset is the position of f's descriptor.
func (b *bench) offset(f *os.File) int64 {
	b.Helper()
	off, err := f.Seek(0, io.SeekCurrent)
	b.must(err)
	return off
}
