package strategy_test

import (
	"testing"

	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/strategy"
)

func TestHotBufferHasPagesReadyWhereThereIsPlentyOfRAM(t *testing.T) {
	for _, c := range []struct {
		size  int64
		ready int64 // bytes
	}{{256 << 20, 2 << 20}, {32 << 20, 0}} {
		dir := testfs.Tmpfs(t, c.size)
		h := openHot(t, dir, strategy.HotOptions{Limits: strategy.DefaultHotLimits})
		f := hotFile(t, dir, "f", bytesOf(5000, 7))
		var refs []strategy.Ref
		for range 3 { // into pages that are ready, from the second on
			ref, ok := save(h, f)
			if !ok {
				t.Fatal("it was not taken")
			}
			refs = append(refs, ref)
			waitFor(t, "the mirror", func() bool { return h.Mirrored(ref) })
			waitFor(t, "pages", func() bool { n, _ := allocated(t, dir); return n >= c.ready })
		}
		for _, ref := range refs {
			if err := h.Verify(ref); err != nil {
				t.Error(err)
			}
		}
		if n, _ := allocated(t, dir); c.ready == 0 && n > 6*4096 {
			t.Errorf("on a small tmpfs there are %d bytes", n)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		h = openHot(t, dir, strategy.HotOptions{})
		for _, ref := range refs {
			if err := h.Verify(ref); err != nil {
				t.Error(err)
			}
		}
		h.Adopt(func(func(strategy.Ref) bool) {})
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if n, files := allocated(t, dir); n != 0 || files != 0 {
			t.Errorf("%d bytes are left in %d files", n, files)
		}
	}
}
