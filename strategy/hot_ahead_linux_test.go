package strategy_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/strategy"
	"github.com/hyperfs/hyperfs/strategy/strategytest"
)

// openPrepared opens the hot buffer, which has pages for what is saved next if it is in plenty of RAM.
func openPrepared(t testing.TB, dir string, o strategy.HotOptions) *strategy.HotBuffer {
	t.Helper()
	h := openHot(t, dir, o)
	ref, ok := save(h, hotFile(t, dir, "first", []byte("has a segment made")))
	if !ok {
		t.Fatal("the first one was not taken")
	}
	h.Prepare()
	if err := errors.Join(h.Remove(ref), os.Remove(filepath.Join(dir, "first"))); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestPreparedHotBufferConforms(t *testing.T) {
	dir := testfs.Tmpfs(t, 512<<20)
	strategytest.Run(t, func(t *testing.T) (strategy.Strategy, string, strategytest.Kept) {
		return hotSubject(t, dir, func(own string) *strategy.HotBuffer {
			return openPrepared(t, own, strategy.HotOptions{Limits: strategy.DefaultHotLimits})
		})
	})
}

func TestHotBufferHasPagesReadyWhereThereIsPlentyOfRAM(t *testing.T) {
	for _, c := range []struct {
		size  int64
		ready bool
	}{{256 << 20, true}, {32 << 20, false}} {
		dir := testfs.Tmpfs(t, c.size)
		h := openPrepared(t, dir, strategy.HotOptions{Limits: strategy.DefaultHotLimits})
		if n, _ := allocated(t, dir); (n >= 2<<20) != c.ready {
			t.Errorf("%d bytes are ready on a tmpfs of %d", n, c.size)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if n, files := allocated(t, dir); n != 0 || files != 0 {
			t.Errorf("%d bytes are left in %d files", n, files)
		}
	}
}

// TestWhatWasReadIntoPreparedPagesIsThere goes through several segments, with and without pages, and opens them again as after a kill.
func TestWhatWasReadIntoPreparedPagesIsThere(t *testing.T) {
	dir := testfs.Tmpfs(t, 512<<20)
	h := openPrepared(t, dir, strategy.HotOptions{Limits: strategy.HotLimits{FileBytes: 1 << 20, TotalBytes: 1 << 40, Files: 1 << 30}})
	var refs []strategy.Ref
	for i := range 300 {
		f := hotFile(t, dir, "f", bytesOf(100_000+i, byte(i+1)))
		ref, ok := save(h, f)
		if !ok {
			t.Fatal("it was not taken")
		}
		_ = f.Close()
		if refs = append(refs, ref); i%7 == 0 {
			h.Prepare()
		}
	}
	if s := h.Stats(); s.Segments < 2 || s.Hits != 301 {
		t.Fatalf("the counters are %+v", s)
	}
	again := openHot(t, dir, strategy.HotOptions{})
	for i, ref := range refs {
		if err := errors.Join(h.Verify(ref), again.Verify(ref)); err != nil || ref.Size != int64(100_000+i) {
			t.Errorf("preimage %d has %d bytes: %v", i, ref.Size, err)
		}
	}
	if err := errors.Join(again.Close(), h.Close()); err != nil {
		t.Error(err)
	}
}

func TestAPreparedHotBufferTakesNoHolesAndNoMoreThanThereIs(t *testing.T) {
	dir := testfs.Tmpfs(t, 256<<20)
	h := openPrepared(t, dir, strategy.HotOptions{Limits: strategy.DefaultHotLimits})
	sparse := hotFile(t, dir, "sparse", bytesOf(4096, 1))
	if err := os.Truncate(sparse.Name(), 16<<10); err != nil {
		t.Fatal(err)
	}
	if _, ok := save(h, sparse); ok {
		t.Error("it has taken a file with holes")
	}
	short := hotFile(t, dir, "short", bytesOf(1000, 2))
	ref, ok := h.Save(int(short.Fd()), 5000)
	if !ok || ref.Size != 1000 {
		t.Errorf("of a file that has got shorter it took %d bytes, %v", ref.Size, ok)
	}
	next, ok := save(h, hotFile(t, dir, "zeros", make([]byte, 8192)))
	if !ok {
		t.Error("it has not taken zeros that are no hole")
	}
	if err := errors.Join(h.Verify(ref), h.Verify(next)); err != nil {
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// TestACutSegmentDoesNotEndTheProcess cuts the segment that preimages are read into.
func TestACutSegmentDoesNotEndTheProcess(t *testing.T) {
	dir := testfs.Tmpfs(t, 256<<20)
	h := openPrepared(t, dir, strategy.HotOptions{Limits: strategy.DefaultHotLimits})
	f := hotFile(t, dir, "f", bytesOf(5000, 7))
	before, ok := save(h, f)
	if !ok {
		t.Fatal("it was not taken")
	}
	segment, _ := placeOf(t, dir, before)
	if err := os.Truncate(segment, 0); err != nil {
		t.Fatal(err)
	}
	after, ok := save(h, f)
	if !ok || h.Verify(after) != nil {
		t.Errorf("what is saved afterwards is not there: %v", h.Verify(after))
	}
	if err := h.Verify(before); !errors.Is(err, strategy.ErrCorrupt) {
		t.Errorf("what was cut off: %v", err)
	}
	_ = h.Close()
}

// BenchmarkHotSave saves files of 4 KiB, with and without pages that are ready.
func BenchmarkHotSave(b *testing.B) {
	for _, prepared := range []bool{false, true} {
		b.Run(fmt.Sprintf("prepared %v", prepared), func(b *testing.B) {
			dir := testfs.Tmpfs(b, 256<<20)
			h := openPrepared(b, dir, strategy.HotOptions{Limits: strategy.HotLimits{FileBytes: 1 << 20, TotalBytes: 1 << 40, Files: 1 << 30}})
			defer func() { _ = h.Close() }()
			f := hotFile(b, dir, "f", bytesOf(4096, 7))
			for i := 0; b.Loop(); i++ {
				if prepared && i%400 == 0 {
					b.StopTimer()
					h.Prepare()
					b.StartTimer()
				}
				ref, ok := h.Save(int(f.Fd()), 4096)
				if !ok {
					b.Fatal("it was not taken")
				}
				if i%400 == 399 {
					b.StopTimer()
					_ = h.Remove(ref)
					b.StartTimer()
				}
			}
		})
	}
}
