//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
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
	"allocation":               {func(s *space, p string) { s.fallocate(p, 0, 0, largeSize+4096) }, 0, 0},
	"allocation kept hidden":   {func(s *space, p string) { s.fallocate(p, unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20) }, 0, 0},
	"a copied range":           {func(s *space, p string) { s.copyRange("b.txt", p, 4096, 1<<20) }, 4096, 0},
	"a range copied in itself": {func(s *space, p string) { s.copyRange(p, p, 16*4096, 4096) }, 4096, 0},
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

func TestEveryCheckpointOfALargeFileComesBack(t *testing.T) {
	for _, tier := range inPlaceTiers {
		t.Run(tier, func(t *testing.T) {
			s := largeSpace(t, tier)
			r := rand.New(rand.NewPCG(7, 0))
			var ids []string
			var states []treestate.State
			for i := range 8 {
				ids, states = append(ids, s.snapshot()), append(states, s.state())
				for range 3 {
					s.anyChange(r)
				}
				if i == 4 {
					s.reopen()
					s.anyChange(r)
				}
			}
			for _, i := range []int{7, 3, 5, 0, 6, 0, 7} {
				s.rollback(ids[i])
				s.sameTree(states[i])
				s.anyChange(r)
			}
			s.ok(s.w.Drop(context.Background(), ids[4]))
			s.ok(s.w.Drop(context.Background(), ids[2]))
			s.ok(s.w.Drop(context.Background(), ids[1]))
			for _, i := range []int{3, 0, 5, 3} {
				s.rollback(ids[i])
				s.same(states[i])
			}
		})
	}
}

// anyChange changes the large file somehow.
func (s *space) anyChange(r *rand.Rand) {
	s.Helper()
	off := r.Int64N(largeSize)
	switch r.IntN(6) {
	case 0:
		s.truncate("large", largeSize/2+r.Int64N(largeSize))
	case 1:
		s.fallocate("large", punchHole, off, 1+r.Int64N(10000))
	default:
		s.overwrite("large", string(pattern(r.Uint64(), 1+r.IntN(9000))), off)
	}
}

func TestDroppingInTheMiddleKeepsWhatOthersNeed(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	first := s.snapshot()
	atFirst := s.state()
	s.overwrite("large", "one", 0)
	s.overwrite("large", "one", 2*4096)
	second := s.snapshot()
	s.overwrite("large", "two", 0)
	s.overwrite("large", "two", 4*4096)
	third := s.snapshot()
	atThird := s.state()
	s.overwrite("large", "three", 4*4096)
	s.ok(s.w.Drop(context.Background(), second))
	s.same(s.state()) // fsck has collected, so that what was of no more use is gone
	if got, want := s.kept(), int64(2*blockHeader+4*(4096+blockEntry)); got != want {
		t.Errorf("%d bytes are kept, want %d: three blocks of the first checkpoint and one of the last", got, want)
	}
	s.rollback(third)
	s.same(atThird)
	s.rollback(first)
	s.same(atFirst)
}

func TestALargeFileComesBackWhateverBecameOfItsNames(t *testing.T) {
	for name, change := range map[string]func(s *space){
		"several names": func(s *space) {
			s.link("large", "other")
			s.overwrite("other", "changed", 5000)
			s.unlink("large")
		},
		"removed afterwards": func(s *space) { s.overwrite("large", "changed", 5000); s.unlink("large") },
		"renamed over": func(s *space) {
			s.overwrite("large", "changed", 5000)
			s.rename("b.txt", "large", 0)
		},
		"moved": func(s *space) { s.overwrite("large", "changed", 5000); s.rename("large", "dir/moved", 0) },
		"removed while it is open": func(s *space) {
			h := s.handle("large")
			s.unlink("large")
			_, err := h.WriteAt([]byte("changed"), 5000)
			s.ok(err)
		},
		"open": func(s *space) {
			_, err := s.handle("large").WriteAt([]byte("changed"), 5000)
			s.ok(err)
		},
		"emptied afterwards": func(s *space) { s.overwrite("large", "changed", 5000); s.write("large", "small") },
		"emptied while it is open": func(s *space) {
			s.handle("large")
			s.overwrite("large", "changed", 5000)
			s.write("large", "small")
		},
	} {
		for _, tier := range inPlaceTiers {
			t.Run(tier+" "+name, func(t *testing.T) {
				s := largeSpace(t, tier)
				id := s.snapshot()
				before := s.state()
				change(s)
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

func TestASnapshotHoldsALargeFileThatStaysOpen(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	h := s.handle("large")
	var ids []string
	var states []treestate.State
	for i := range 4 {
		ids, states = append(ids, s.snapshot()), append(states, s.state())
		_, err := h.WriteAt([]byte(fmt.Sprint("changed ", i)), int64(i*9000))
		s.ok(err)
	}
	for _, i := range []int{2, 0, 3, 1} {
		s.rollback(ids[i])
		s.same(states[i])
		_, err := h.WriteAt([]byte("through the old handle"), 3000)
		s.ok(err)
	}
}

// TestWritersThatAreNotSeenGetTheWholeKept opens a file past the daemon that has blocks kept already.
func TestWritersThatAreNotSeenGetTheWholeKept(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	before := s.state()
	id := s.snapshot()
	s.overwrite("large", "changed", 5000)
	reader, err := s.tr.Open(s.at("large"), unix.O_RDONLY, true, nil)
	s.ok(err)
	defer reader.Release()
	h, err := s.tr.Open(s.at("large"), unix.O_RDWR, true, nil)
	s.ok(err)
	defer h.Release()
	if !h.Direct() {
		t.Fatal("it is not direct, though another one is")
	}
	_, err = unix.Pwrite(h.Fd(), pattern(3, largeSize+5000), 0)
	s.ok(err)
	s.rollback(id)
	s.same(before)
}

func TestDamagedBlocksStopARollbackBeforeItTouchesAnything(t *testing.T) {
	for name, damage := range map[string]func(s *space, file string){
		"a flipped bit":  func(s *space, file string) { flip(s.T, file) },
		"a missing file": func(s *space, file string) { s.ok(os.Remove(file)) },
		"a cut file":     func(s *space, file string) { s.ok(os.Truncate(file, 1000)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := largeSpace(t, "pure-manifest")
			id := s.snapshot()
			s.overwrite("large", "changed", 5000)
			s.overwrite("b.txt", "changed", 0)
			for _, file := range s.preimages() {
				if st, err := os.Stat(file); err == nil && st.Size() > 4096 {
					damage(s, file)
				}
			}
			changed := s.state()
			_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			wantCode(t, err, errs.Integrity)
			s.sameTree(changed)
		})
	}
}

// TestALargeFileThatLostBytesOutsideIsRefused cuts off what no preimage has, while nobody watches.
func TestALargeFileThatLostBytesOutsideIsRefused(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	id := s.snapshot()
	s.overwrite("large", "changed", 5000)
	s.ok(s.w.Close())
	f, err := os.OpenFile(filepath.Join(s.dir, "large"), os.O_RDWR, 0)
	s.ok(err)
	_, err = f.WriteAt([]byte("outside"), 15*4096)
	s.ok(errors.Join(err, f.Close()))
	s.open()
	changed := s.state()
	_, err = s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	wantCode(t, err, errs.Integrity)
	s.sameTree(changed)
}

func TestViewsShowALargeFileAsItWas(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	old, err := os.ReadFile(filepath.Join(s.dir, "large"))
	s.ok(err)
	first := s.snapshot()
	s.overwrite("large", "one", 5000)
	second := s.snapshot()
	s.overwrite("large", "two", 9000)
	s.truncate("large", 10*4096)
	d, err := s.w.Diff(context.Background(), first, second, false)
	s.ok(err)
	if len(d.Changes) != 1 || d.Changes[0].Path != "large" || d.Changes[0].Size != largeSize || d.Changes[0].OldSize != largeSize {
		t.Errorf("from the first to the second changed %+v", d.Changes)
	}
	d, err = s.w.Diff(context.Background(), second, "", false)
	s.ok(err)
	if len(d.Changes) != 1 || d.Changes[0].OldSize != largeSize || d.Changes[0].Size != 10*4096 {
		t.Errorf("since the second changed %+v", d.Changes)
	}
	s.rollback(first)
	s.overwrite("large", "one", 5000)
	s.overwrite("large", string(old[5000:5003]), 5000)
	if _, err := s.tr.SetAttr(s.at("large"), nil, &overlay.SetAttr{Valid: overlay.SetMtime}); err != nil {
		t.Fatal(err)
	}
	d, err = s.w.Diff(context.Background(), first, "", false)
	s.ok(err)
	if len(d.Changes) != 1 || len(d.Changes[0].What) != 1 || d.Changes[0].What[0] != "mtime" {
		t.Errorf("with the old bytes written again it shows %+v", d.Changes)
	}
	if err := s.w.Patch(context.Background(), first, "", io.Discard); err != nil {
		t.Error(err)
	}
}

func TestAFullStoreRefusesTheWriteAndLosesNothing(t *testing.T) {
	disk := testfs.Tmpfs(t, 48<<20)
	dir := filepath.Join(disk, "workspace")
	fillSmall(dir)
	s := spaceWith(t, overlay.Config{Workspace: dir, Tier: "pure-manifest"})
	s.ok(os.WriteFile(filepath.Join(dir, "large"), bytes.Repeat(pattern(1, 4096), 1024), 0o644))
	before := s.state()
	id := s.snapshot()
	s.overwrite("large", "changed", 0)
	filler(t, disk)
	h := s.handle("large")
	refused := 0
	for off := int64(0); off < 4<<20; off += 64 << 10 {
		if _, err := h.WriteAt([]byte("changed"), off); err == unix.ENOSPC {
			refused++
		}
	}
	if refused < 32 {
		t.Errorf("only %d writes were refused", refused)
	}
	if _, err := h.WriteAt([]byte("again"), 100); err != nil {
		t.Errorf("a write to what is kept already says %v", err)
	}
	s.ok(os.Remove(filepath.Join(disk, "filler")))
	s.rollback(id)
	s.same(before)
}
