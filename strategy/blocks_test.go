package strategy

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// bench of block preimages: a directory for them, and files to save from.
type blockBench struct {
	*testing.T
	dir string
	b   *Blocks
}

func newBlockBench(t *testing.T) *blockBench {
	t.Helper()
	dir := t.TempDir()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b, err := OpenBlocks(d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return &blockBench{t, dir, b}
}

func (b *blockBench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// file makes a file with these bytes.
func (b *blockBench) file(content []byte) *os.File {
	b.Helper()
	f, err := os.CreateTemp(b.TempDir(), "file")
	b.ok(err)
	b.Cleanup(func() { _ = f.Close() })
	_, err = f.WriteAt(content, 0)
	b.ok(err)
	return f
}

// begin makes a preimage of a file with size bytes, with some ranges of it.
func (b *blockBench) begin(name string, src *os.File, size int64, ranges ...Extent) Ref {
	b.Helper()
	w, err := b.b.Create(name, size)
	b.ok(err)
	defer w.Close()
	for _, r := range ranges {
		b.ok(w.Save(src, r.From, r.To))
	}
	b.ok(w.Commit())
	return w.Ref()
}

func (b *blockBench) add(ref Ref, src *os.File, ranges ...Extent) {
	b.Helper()
	w, err := b.b.Append(ref)
	b.ok(err)
	defer w.Close()
	for _, r := range ranges {
		b.ok(w.Save(src, r.From, r.To))
	}
	b.ok(w.Commit())
}

// restored gives what the preimages make of a file.
func (b *blockBench) restored(live []byte, refs ...Ref) []byte {
	b.Helper()
	f := b.file(live)
	c, err := b.b.OpenChain(refs)
	b.ok(err)
	defer c.Close()
	b.ok(c.Apply(f))
	got, err := os.ReadFile(f.Name())
	b.ok(err)
	return got
}

func (b *blockBench) path(ref Ref) string { return filepath.Join(b.dir, ref.Name) }

func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(1 + r.IntN(255))
	}
	return p
}

const block4 = 4096

// changed gives old with other bytes in some ranges.
func changed(old []byte, ranges ...Extent) []byte {
	p := bytes.Clone(old)
	for _, r := range ranges {
		for i := r.From; i < r.To; i++ {
			p[i] ^= 0xff
		}
	}
	return p
}

func TestBlocksComeBackInPlace(t *testing.T) {
	b := newBlockBench(t)
	old := randomBytes(1, 10*block4+100)
	src := b.file(old)
	first, last := Extent{block4, 3 * block4}, Extent{10 * block4, 10*block4 + 100}
	ref := b.begin("p", src, int64(len(old)), first)
	b.add(ref, src, last, Extent{6 * block4, 7 * block4})
	live := changed(old, first, last, Extent{6 * block4, 6*block4 + 1})
	for name, live := range map[string][]byte{"as it is": live, "grown": append(bytes.Clone(live), "more"...), "cut": live[:10*block4]} {
		if got := b.restored(live, ref); !bytes.Equal(got, old) {
			t.Errorf("%s: it does not come back", name)
		}
	}
	b.ok(b.b.Verify(ref))
}

func TestOfSeveralPreimagesOfABlockTheEarliestCounts(t *testing.T) {
	b := newBlockBench(t)
	r := rand.New(rand.NewPCG(9, 9))
	for range 50 {
		states := [][]byte{randomBytes(r.Uint64(), block4+r.IntN(20*block4))}
		var refs []Ref
		for e := range 4 {
			now := states[len(states)-1]
			src := b.file(now)
			w, err := b.b.Create(string(rune('a'+e)), int64(len(now)))
			b.ok(err)
			for range r.IntN(4) { // overwrite somewhere
				at := r.Int64N(int64(len(now))) / block4 * block4
				x := Extent{at, min(at+block4*(1+r.Int64N(3)), int64(len(now)))}
				b.ok(w.Save(src, x.From, x.To))
				now = changed(now, x)
			}
			if size := block4 + r.IntN(20*block4); size < len(now) {
				b.ok(w.Save(src, int64(size)/block4*block4, int64(len(now))))
				now = now[:size]
			} else {
				now = append(bytes.Clone(now), randomBytes(r.Uint64(), size-len(now))...)
			}
			b.ok(w.Commit())
			w.Close()
			refs, states = append(refs, w.Ref()), append(states, now)
		}
		live := states[len(states)-1]
		for i := range refs {
			if got := b.restored(live, refs[i:]...); !bytes.Equal(got, states[i]) {
				t.Fatalf("state %d does not come back", i)
			}
			if got := b.patched(live, refs[i:]...); !bytes.Equal(got, states[i]) {
				t.Fatalf("state %d can't be read", i)
			}
		}
		b.ok(b.b.Merge(refs))
		b.ok(b.b.Merge(refs)) // as after a death before the record was made
		b.ok(b.b.Verify(refs[0]))
		if got := b.restored(live, refs[0]); !bytes.Equal(got, states[0]) {
			t.Fatal("what was merged does not come back")
		}
		for _, ref := range refs {
			b.ok(os.Remove(b.path(ref)))
		}
	}
}

// patched reads what the preimages make of a file, in pieces.
func (b *blockBench) patched(live []byte, refs ...Ref) []byte {
	b.Helper()
	c, err := b.b.OpenChain(refs)
	b.ok(err)
	defer c.Close()
	b.ok(c.Fits(int64(len(live))))
	p := make([]byte, c.Size())
	copy(p, live)
	for off := 0; off < len(p); off += 1000 {
		b.ok(c.Patch(p[off:min(off+1000, len(p))], int64(off)))
	}
	return p
}

func TestATornTailIsIgnoredAtEveryByte(t *testing.T) {
	b := newBlockBench(t)
	old := randomBytes(2, 3*block4)
	src := b.file(old)
	ref := b.begin("p", src, int64(len(old)), Extent{0, block4})
	committed, err := os.Stat(b.path(ref))
	b.ok(err)
	w, err := b.b.Append(ref)
	b.ok(err)
	b.ok(w.Save(src, block4, 2*block4))
	w.Close()
	all, err := os.ReadFile(b.path(ref))
	b.ok(err)
	live := changed(old, Extent{0, block4})
	for n := committed.Size(); n <= int64(len(all)); n++ {
		b.ok(os.WriteFile(b.path(ref), all[:n], 0o600))
		b.ok(b.b.Verify(ref))
		if n%97 == 0 || n == int64(len(all)) {
			if got := b.restored(live, ref); !bytes.Equal(got, old) {
				t.Fatalf("with %d bytes it does not come back", n)
			}
			b.add(ref, src, Extent{2 * block4, 3 * block4})
			b.ok(b.b.Verify(ref))
			if got := b.restored(changed(old, Extent{2 * block4, 3 * block4}), ref); !bytes.Equal(got, old) {
				t.Fatalf("what was added behind %d bytes does not come back", n)
			}
		}
	}
	for n := int64(0); n < committed.Size(); n++ { // what was committed is missing
		b.ok(os.WriteFile(b.path(ref), all[:n], 0o600))
		if err := b.b.Verify(ref); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("with %d of %d bytes Verify says %v", n, committed.Size(), err)
		}
	}
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	b := newBlockBench(t)
	old := randomBytes(3, 3*block4)
	src := b.file(old)
	b.ok(src.Truncate(6 * block4))
	ref := b.begin("p", src, 6*block4, Extent{0, block4}, Extent{4 * block4, 6 * block4})
	b.add(ref, src, Extent{2 * block4, 3 * block4})
	all, err := os.ReadFile(b.path(ref))
	b.ok(err)
	for i := range all {
		bad := bytes.Clone(all)
		bad[i] ^= 1 << (i % 8)
		b.ok(os.WriteFile(b.path(ref), bad, 0o600))
		if err := b.b.Verify(ref); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("with a flipped bit at %d of %d Verify says %v", i, len(all), err)
		}
	}
}

func TestAPreimageCantPassForAnother(t *testing.T) {
	b := newBlockBench(t)
	src := b.file(randomBytes(4, 2*block4))
	one, two := b.begin("one", src, 2*block4, Extent{0, block4}), b.begin("two", src, 2*block4, Extent{0, block4})
	b.ok(os.Rename(b.path(one), b.path(two)))
	if err := b.b.Verify(two); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Verify says %v", err)
	}
	if err := b.b.Verify(one); !errors.Is(err, ErrMissing) {
		t.Errorf("of the one that is gone, Verify says %v", err)
	}
	if _, err := b.b.Create("two", 1); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create over another says %v", err)
	}
}

func TestAPreimageThatDoesNotFitIsRefused(t *testing.T) {
	b := newBlockBench(t)
	old := randomBytes(5, 4*block4)
	src := b.file(old)
	ref := b.begin("p", src, 4*block4, Extent{3 * block4, 4 * block4})
	c, err := b.b.OpenChain([]Ref{ref})
	b.ok(err)
	defer c.Close()
	b.ok(c.Fits(3 * block4))
	if err := c.Fits(3*block4 - 1); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Fits says %v", err)
	}
	short := b.begin("short", src, 2*block4)
	if _, err := b.b.OpenChain([]Ref{ref, short}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a chain with a part that is too short says %v", err)
	}
}

func TestMergingDoesNotHideDamage(t *testing.T) {
	b := newBlockBench(t)
	src := b.file(randomBytes(6, 4*block4))
	refs := []Ref{b.begin("a", src, 4*block4, Extent{0, block4}), b.begin("b", src, 4*block4, Extent{block4, 2 * block4})}
	all, err := os.ReadFile(b.path(refs[1]))
	b.ok(err)
	all[len(all)-5] ^= 1
	b.ok(os.WriteFile(b.path(refs[1]), all, 0o600))
	if err := b.b.Merge(refs); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Merge says %v", err)
	}
}

// TestAChainKeepsFewFilesOpen has more preimages than a process may have descriptors.
func TestAChainKeepsFewFilesOpen(t *testing.T) {
	b := newBlockBench(t)
	old := randomBytes(7, 100*block4)
	src := b.file(old)
	var refs []Ref
	for i := range int64(100) {
		refs = append(refs, b.begin(string(rune('a'+i/26))+string(rune('a'+i%26)), src, int64(len(old)), Extent{i * block4, (i + 1) * block4}))
	}
	c, err := b.b.OpenChain(refs)
	b.ok(err)
	defer c.Close()
	if n := len(c.open); n > maxOpen {
		t.Errorf("%d are open", n)
	}
	if got := b.restored(make([]byte, len(old)), refs...); !bytes.Equal(got, old) {
		t.Error("it does not come back")
	}
}

// TestWhereTheLayoutIsNotToldZerosAreHoles as on systems other than Linux.
func TestWhereTheLayoutIsNotToldZerosAreHoles(t *testing.T) {
	b := newBlockBench(t)
	old := randomBytes(8, 40*block4+10)
	clear(old[block4 : 3*block4])
	clear(old[20*block4:])
	old[39*block4] = 1
	src := b.file(old)
	w, err := b.b.Create("p", int64(len(old)))
	b.ok(err)
	defer w.Close()
	buf := make([]byte, 8*block4+entryLen)
	b.ok(w.save(fileOf(src), noLayout{}, 0, int64(len(old)), buf))
	b.ok(w.Commit())
	if got := b.restored(bytes.Repeat([]byte{5}, len(old)), w.Ref()); !bytes.Equal(got, old) {
		t.Error("it does not come back")
	}
	if st, err := os.Stat(b.path(w.Ref())); err != nil || st.Size() > 20*block4 {
		t.Errorf("19 blocks and zeros take %d bytes (%v)", st.Size(), err)
	}
}
