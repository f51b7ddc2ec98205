//go:build linux

package overlay_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// What is large, and of how many bytes a block, in tests; and their large file.
const (
	testLargeMin  = 8 << 10
	testBlockSize = 4 << 10

	largeSize = 20*4096 + 100
	holeFrom  = 8 * 4096
	holeTo    = 12 * 4096
)

// pattern gives n bytes, none of them zero.
func pattern(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(1 + r.IntN(255))
	}
	return p
}

// fillLarge makes a file with a hole that is large for largeSpace.
func fillLarge(dir string) {
	f, err := os.Create(filepath.Join(dir, "large"))
	if err != nil {
		panic(err)
	}
	defer f.Close()
	p := pattern(1, largeSize)
	_, err = f.WriteAt(p[:holeFrom], 0)
	_, err2 := f.WriteAt(p[holeTo:], holeTo)
	if err := errors.Join(err, err2); err != nil {
		panic(err)
	}
}

// largeSpace is a workspace with a file that is large in it.
func largeSpace(t *testing.T, tier string) *space {
	t.Helper()
	dir := t.TempDir()
	fillSmall(dir)
	fillLarge(dir)
	return largeSpaceAt(t, dir, tier)
}

func largeSpaceAt(t *testing.T, dir, tier string) *space {
	t.Helper()
	return spaceWith(t, overlay.Config{Workspace: dir, Tier: tier, LargeMin: testLargeMin, BlockSize: testBlockSize})
}

// inPlaceTiers are those that would have to copy a file.
var inPlaceTiers = []string{"pure-manifest", "posix-link", "tmpfs"}

func (s *space) handle(path string) *overlay.Handle {
	s.Helper()
	h, err := s.tr.Open(s.at(path), unix.O_RDWR, false, nil)
	s.ok(err)
	s.Cleanup(h.Release)
	return h
}

// withHandle runs fn with an open file.
func (s *space) withHandle(path string, fn func(h *overlay.Handle)) {
	s.Helper()
	h, err := s.tr.Open(s.at(path), unix.O_RDWR, false, nil)
	s.ok(err)
	defer h.Release()
	fn(h)
}

func (s *space) truncate(path string, size int64) {
	s.Helper()
	_, err := s.tr.SetAttr(s.at(path), nil, &overlay.SetAttr{Valid: overlay.SetSize, Size: size})
	s.ok(err)
}

func (s *space) fallocate(path string, mode uint32, off, n int64) {
	s.Helper()
	s.withHandle(path, func(h *overlay.Handle) { s.ok(h.Fallocate(mode, off, n)) })
}

// kept gives how many bytes the preimages in the store have.
func (s *space) kept() (n int64) {
	s.Helper()
	for _, name := range s.preimages() {
		st, err := os.Stat(name)
		s.ok(err)
		n += st.Size()
	}
	return n
}

// blockOverhead is what a block preimage takes beside the bytes of the file: its header, and what each entry begins with.
const (
	blockHeader = 48
	blockEntry  = 32
)

// inPlace are the ways to change a large file, with how many bytes of it must be kept.
var inPlace = map[string]struct {
	change func(s *space, path string)
	data   int64 // bytes
	holes  int   // entries without bytes
}{
	"a write within a block":   {func(s *space, p string) { s.overwrite(p, "changed", 5000) }, 4096, 0},
	"a write over two blocks":  {func(s *space, p string) { s.overwrite(p, "changed", 3*4096-3) }, 8192, 0},
	"a write to the last":      {func(s *space, p string) { s.overwrite(p, "changed", largeSize-5) }, 100, 0},
	"a write into a hole":      {func(s *space, p string) { s.overwrite(p, "changed", holeFrom+5000) }, 0, 1},
	"an append":                {func(s *space, p string) { s.overwrite(p, "appended", largeSize) }, 0, 0},
	"a write far behind":       {func(s *space, p string) { s.overwrite(p, "far", 1<<20) }, 0, 0},
	"growing":                  {func(s *space, p string) { s.truncate(p, 1<<20) }, 0, 0},
	"shrinking":                {func(s *space, p string) { s.truncate(p, 17*4096+7) }, 3*4096 + 100, 0},
	"shrinking into a hole":    {func(s *space, p string) { s.truncate(p, holeFrom+4096) }, 8*4096 + 100, 1},
	"shrinking and growing":    {func(s *space, p string) { s.truncate(p, 18*4096); s.overwrite(p, "again", 19*4096) }, 2*4096 + 100, 0},
	"the same size":            {func(s *space, p string) { s.truncate(p, largeSize) }, 0, 0},
	"a hole":                   {func(s *space, p string) { s.fallocate(p, punchHole, 4096, 8192) }, 8192, 0},
	"zeros":                    {func(s *space, p string) { s.fallocate(p, unix.FALLOC_FL_ZERO_RANGE, 4096, 4096) }, 4096, 0},
	"allocation":               {func(s *space, p string) { s.fallocate(p, 0, 0, largeSize+4096) }, 0, 1},
	"allocation kept hidden":   {func(s *space, p string) { s.fallocate(p, unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20) }, 0, 1},
	"a copied range":           {func(s *space, p string) { s.copyRange("b.txt", p, 4096, 1<<20) }, 4096, 0},
	"a range copied in itself": {func(s *space, p string) { s.copyRange(p, p, 16*4096, 4096) }, 4096, 0},
}

// TestARollbackTakesBackWhatWasAllocatedInAHole so that the file takes up no more room than it did.
func TestARollbackTakesBackWhatWasAllocatedInAHole(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	blocks := func() int64 {
		var st unix.Stat_t
		s.ok(unix.Stat(s.dir+"/large", &st))
		return st.Blocks
	}
	before := blocks()
	id := s.snapshot()
	s.fallocate("large", unix.FALLOC_FL_KEEP_SIZE, 4096, largeSize)
	if blocks() <= before {
		t.Fatal("nothing was allocated")
	}
	s.rollback(id)
	if got := blocks(); got != before {
		t.Errorf("it takes up %d blocks of 512 bytes, want %d", got, before)
	}
}

const punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE

func (s *space) copyRange(from, to string, off int64, n int) {
	s.Helper()
	in, err := s.tr.Open(s.at(from), unix.O_RDONLY, false, nil)
	s.ok(err)
	defer in.Release()
	s.withHandle(to, func(h *overlay.Handle) {
		if _, err := in.CopyFileRange(0, h, off, n, 0); err != nil {
			s.Fatal(err)
		}
	})
}

func TestOnlyTheBlocksThatChangeAreKept(t *testing.T) {
	for _, tier := range inPlaceTiers {
		for name, c := range inPlace {
			t.Run(tier+" "+name, func(t *testing.T) {
				s := largeSpace(t, tier)
				id := s.snapshot()
				before := s.state()
				c.change(s, "large")
				entries := int64(c.holes)
				if c.data > 0 {
					entries++
				}
				if got, want := s.kept(), blockHeader+blockEntry*entries+c.data; got != want {
					t.Errorf("%d bytes are kept, want %d", got, want)
				}
				after := s.state()
				s.rollback(id)
				s.same(before)
				s.undo()
				s.same(after)
				s.rollback(id)
				s.same(before)
			})
		}
	}
}

func TestShiftedBytesComeBack(t *testing.T) {
	for name, mode := range map[string]uint32{"collapse": unix.FALLOC_FL_COLLAPSE_RANGE, "insert": unix.FALLOC_FL_INSERT_RANGE} {
		t.Run(name, func(t *testing.T) {
			s := largeSpace(t, "pure-manifest")
			s.needShift()
			id := s.snapshot()
			before := s.state()
			s.fallocate("large", mode, 4*4096, 8192)
			s.rollback(id)
			s.same(before)
		})
	}
}

// needShift skips where the lower has no fallocate that shifts.
func (s *space) needShift() {
	s.Helper()
	f, err := os.Create(filepath.Join(s.dir, "shift"))
	s.ok(err)
	defer f.Close()
	s.ok(f.Truncate(1 << 16))
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096); err != nil {
		s.Skipf("the lower can't shift: %v", err)
	}
	s.ok(os.Remove(f.Name()))
}
