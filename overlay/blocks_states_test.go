//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

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

// TestStepsThroughAFileAreKeptAheadOfThem but never more than twice what they have overwritten.
func TestStepsThroughAFileAreKeptAheadOfThem(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	const blocks = 256
	s.ok(os.WriteFile(filepath.Join(s.dir, "stepped"), pattern(5, blocks*4096), 0o644))
	before := s.state()
	id := s.snapshot()
	saves := 0
	for i, kept := int64(0), int64(0); i < blocks; i++ {
		s.overwrite("stepped", "changed", i*4096)
		now := s.kept()
		if data := now - blockHeader - blockEntry*blocks; data > 2*(i+1)*4096 {
			t.Fatalf("when %d blocks are overwritten, %d bytes are kept", i+1, now)
		}
		if now != kept {
			kept, saves = now, saves+1
		}
	}
	if saves > blocks/8 {
		t.Errorf("it took %d steps to keep %d blocks", saves, blocks)
	}
	s.rollback(id)
	s.same(before)
}

func TestAHugeHoleCostsOneEntry(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	const huge = 1 << 40
	s.ok(os.Truncate(filepath.Join(s.dir, "large"), huge))
	id := s.snapshot()
	s.truncate("large", largeSize+4096-largeSize%4096)
	if got, want := s.kept(), int64(blockHeader+blockEntry); got != want {
		t.Errorf("%d bytes are kept, want %d", got, want)
	}
	s.rollback(id)
	st, err := os.Stat(filepath.Join(s.dir, "large"))
	if err != nil || st.Size() != huge {
		t.Errorf("it has %d bytes (%v)", st.Size(), err)
	}
}
