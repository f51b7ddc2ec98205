//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// TestWritersAtOnceKeepEachBlockOnce has several writers change the same blocks of one file, while checkpoints are made.
func TestWritersAtOnceKeepEachBlockOnce(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	const size = 64 * 4096
	s.ok(os.WriteFile(filepath.Join(s.dir, "shared"), pattern(5, size), 0o644))
	want := s.state()
	first := s.snapshot()
	s.writeAtOnce("shared", 4, 400, size)
	if got, most := s.kept(), int64(blockHeader+64*(4096+blockEntry)); got > most {
		t.Errorf("%d bytes are kept, more than each block once: %d", got, most)
	}
	second := s.snapshot()
	wantSecond := s.state()
	s.writeAtOnce("shared", 4, 400, size)
	s.rollback(second)
	s.same(wantSecond)
	s.rollback(first)
	s.same(want)
}

// writeAtOnce has writers write n times each, somewhere, over and behind the end of the file too.
func (s *space) writeAtOnce(path string, writers, n int, size int64) {
	s.Helper()
	n0 := s.at(path)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			h, err := s.tr.Open(n0, unix.O_RDWR, false, nil)
			if err != nil {
				s.Error(err)
				return
			}
			defer h.Release()
			for i := range n {
				if i%50 == 49 {
					_, err = s.tr.SetAttr(n0, h, &overlay.SetAttr{Valid: overlay.SetSize, Size: size/2 + r.Int64N(size)})
				} else {
					_, err = h.WriteAt(pattern(r.Uint64(), 1+r.IntN(6000)), r.Int64N(size))
				}
				if err != nil {
					s.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestAWriterDoesNotShowThroughADiff reads an old state all the time while the file is being changed.
func TestAWriterDoesNotShowThroughADiff(t *testing.T) {
	for name, c := range map[string]struct {
		size  int64
		begun bool // the writer's epoch has something of the file when the reading begins
	}{
		"whose blocks are kept already": {64 * 4096, true},
		"of which nothing is kept yet":  {64 * 4096, false},
		"that is kept whole":            {testLargeMin, false},
	} {
		t.Run("a file "+name, func(t *testing.T) {
			for range 5 {
				showThrough(t, c.size, c.begun)
			}
		})
	}
}

func showThrough(t *testing.T, size int64, begun bool) {
	s := largeSpace(t, "pure-manifest")
	s.ok(os.WriteFile(filepath.Join(s.dir, "shared"), pattern(5, int(size)), 0o644))
	first := s.snapshot()
	s.overwrite("shared", "old", 0)
	second := s.snapshot()
	want := s.patch(first, second)
	if begun {
		s.overwrite("shared", "begun", 5000)
	}
	h := s.handle("shared")
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		r := rand.New(rand.NewPCG(3, 1))
		for !stop.Load() {
			if _, err := h.WriteAt(pattern(r.Uint64(), 3000), r.Int64N(size-3000)); err != nil {
				t.Error(err)
			}
		}
	})
	for range 10 {
		if got := s.patch(first, second); got != want {
			t.Error("what is written now shows in what was before")
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}

// patch gives what changed from one checkpoint to another.
func (s *space) patch(from, to string) string {
	s.Helper()
	var b []byte
	s.ok(s.w.Patch(context.Background(), from, to, writerFunc(func(p []byte) (int, error) {
		b = append(b, p...)
		return len(p), nil
	})))
	if len(b) == 0 {
		s.Fatal("the patch is empty")
	}
	return fmt.Sprintf("%x", b)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
