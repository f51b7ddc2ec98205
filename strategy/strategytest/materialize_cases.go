package strategytest

import (
	"errors"
	"io/fs"
	"os"
)

var materializeCases = []testCase{
	{"Materialize makes a file of every shape", materializeShapes},
	{"Materialize without sharing makes an independent file", materializeIndependent},
	{"Materialize with sharing leaves the file when the preimage is removed", materializeShared},
	{"Materialize keeps a file that is there", materializeTaken},
	{"Materialize takes raw bytes for a name, and nothing that is no name", materializeNames},
}

func materializeShapes(b *bench) {
	b.each(func(b *bench, name string, c content) {
		ref := b.save(b.file(name, c), name)
		b.must(b.materialize(ref, name+"-own", false))
		b.holds(b.path(name+"-own"), c)
		b.must(b.s.Verify(ref))
		b.must(b.materialize(ref, name+"-shared", true))
		b.must(b.s.Remove(ref))
		b.holds(b.path(name+"-shared"), c)
	})
}

func materializeIndependent(b *bench) {
	c := dense(10000)
	ref := b.saved(c)
	b.must(b.materialize(ref, "made", false))
	b.must(os.WriteFile(b.path("made"), []byte("changed"), 0))
	b.must(b.s.Verify(ref))
	b.keeps(ref, c)
}

func materializeShared(b *bench) {
	c := dense(10000)
	ref := b.saved(c)
	b.must(b.materialize(ref, "made", true))
	b.must(b.s.Remove(ref))
	b.holds(b.path("made"), c)
	if names := b.names(); len(names) != 0 {
		b.Errorf("the tier still holds %v", names)
	}
}

func materializeTaken(b *bench) {
	ref := b.saved(dense(10000))
	there := dense(7)
	b.file("made", there)
	for _, share := range []bool{false, true} {
		if err := b.materialize(ref, "made", share); !errors.Is(err, fs.ErrExist) {
			b.Errorf("share=%v: a taken name says %v", share, err)
		}
		b.holds(b.path("made"), there)
	}
}

func materializeNames(b *bench) {
	c := dense(10)
	ref := b.saved(c)
	for _, name := range []string{"", ".", "..", "a/b", "../up", "nul\x00", "/abs"} {
		if err := b.materialize(ref, name, false); !errors.Is(err, fs.ErrInvalid) {
			b.Errorf("the name %q says %v", name, err)
		}
	}
	b.must(b.materialize(ref, ".hidden name é", false))
	b.holds(b.path(".hidden name é"), c)
}
