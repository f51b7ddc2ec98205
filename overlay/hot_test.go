//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// hotSpace opens a filled workspace with the hot buffer in front of pure-manifest.
func hotSpace(t *testing.T, hot overlay.HotConfig) *space {
	t.Helper()
	return spaceWith(t, overlay.Config{Workspace: filled(t, t.TempDir())(), Tier: string(strategy.PureManifest), Hot: hot})
}

// waitFor waits for what happens in the background.
func (s *space) waitFor(what string, holds func() bool) {
	s.Helper()
	for range 2000 {
		if holds() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.Fatalf("waited in vain for %s", what)
}

func (s *space) hot() strategy.HotStats { return *s.w.Status().Hot }

func (s *space) recoverable(id string) string {
	s.Helper()
	c, err := s.w.Get(id)
	s.ok(err)
	return c.Recoverable
}

func TestACheckpointSaysWhetherItsPreimagesAreMirrored(t *testing.T) {
	s := hotSpace(t, overlay.HotConfig{})
	seen := 0
	for i := range 50 {
		id := s.snapshot()
		s.overwrite("b.txt", fmt.Sprint(i), 0)
		got := s.recoverable(id)
		if s.hot().PendingFiles > 0 { // it was not mirrored when the checkpoint was asked either
			seen++
			if got != checkpoint.RecoverableMirroring {
				t.Fatalf("it is recoverable: %q", got)
			}
		}
		if seen > 3 {
			s.waitFor("the mirror", func() bool { return s.recoverable(id) == checkpoint.RecoverableAlways })
			return
		}
	}
	t.Error("every preimage was mirrored at once")
}

func TestWhatTheHotBufferHoldsIsUsedWithoutIt(t *testing.T) {
	s := hotSpace(t, overlay.HotConfig{})
	before := s.state()
	id := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	s.overwrite("dir/c.txt", "Y", 0)
	if h := s.hot(); h.Hits != 2 || h.Files != 2 || h.Spills != 0 {
		t.Errorf("the counters are %+v", h)
	}
	s.ok(s.w.Close())
	s.cfg.Hot.Off = true
	s.open()
	s.waitFor("the mirror", func() bool { return s.recoverable(id) == checkpoint.RecoverableAlways })
	if h := s.hot(); h.On || h.Reason == "" || h.Files != 2 {
		t.Errorf("the counters are %+v", h)
	}
	s.rollback(id)
	s.same(before)
}

func TestWhatIsTooLargeForTheHotBufferGoesToTheTier(t *testing.T) {
	s := hotSpace(t, overlay.HotConfig{FileBytes: 5000})
	for name, size := range map[string]int{"small": 5000, "large": 5001} {
		s.ok(os.WriteFile(filepath.Join(s.dir, name), bytes.Repeat([]byte(name), size/5), 0o644))
		s.ok(os.Truncate(filepath.Join(s.dir, name), int64(size)))
	}
	s.ok(os.WriteFile(filepath.Join(s.dir, "holes"), []byte("x"), 0o644))
	s.ok(os.Truncate(filepath.Join(s.dir, "holes"), 5000))
	before := s.state()
	id := s.snapshot()
	for _, name := range []string{"small", "large", "holes"} {
		s.overwrite(name, "changed", 0)
	}
	if h, n := s.hot(), len(s.storeFiles("backup")); h.Hits+h.Spills != 3 || h.Spills == 0 || n != int(h.Spills) {
		t.Errorf("%d preimages are in the tier; the counters are %+v", n, h)
	}
	s.rollback(id)
	s.same(before)
}

// TestAFailingHotBufferIsLeftAlone takes its file away. What is saved from then on is safe in the tier.
func TestAFailingHotBufferIsLeftAlone(t *testing.T) {
	s := hotSpace(t, overlay.HotConfig{})
	first := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	for _, name := range s.storeFiles("hot") {
		s.ok(os.Remove(name))
	}
	s.waitFor("the failure", func() bool { return !s.hot().On })
	d := s.w.Diagnostics()
	if len(d.Degraded) != 1 || d.Degraded[0].From != string(strategy.Hot) || d.Tier != string(strategy.PureManifest) {
		t.Errorf("the tier is %s, after %+v", d.Tier, d.Degraded)
	}
	before := s.state()
	second := s.snapshot()
	s.overwrite("b.txt", "Y", 0)
	s.overwrite("dir/c.txt", "Y", 0)
	s.rollback(second)
	s.sameTree(before)
	if _, err := s.w.Rollback(context.Background(), first, overlay.RollbackOptions{}); err == nil {
		t.Error("a rollback went well without its preimage")
	}
	s.sameTree(before)
}

// TestAThousandRoundsDoNotGrowTheHotBuffer counts what its files take up.
func TestAThousandRoundsDoNotGrowTheHotBuffer(t *testing.T) {
	s := hotSpace(t, overlay.HotConfig{})
	names := s.manyFiles(5)
	before := s.state()
	first := s.snapshot()
	rounds := 1000
	if underRace {
		rounds = 100
	}
	for round := range rounds {
		id := s.snapshot()
		for _, name := range names {
			s.overwrite(name, fmt.Sprint(round), 100)
		}
		s.rollback(id)
		s.ok(s.w.Drop(context.Background(), id))
	}
	s.sameTree(before)
	var fs unix.Statfs_t
	s.ok(unix.Statfs(s.dir, &fs))
	ready := int64(0)
	if fs.Type == unix.TMPFS_MAGIC {
		ready = 2<<20 + 4096 // pages that are made in advance
	}
	s.waitFor("the room to be freed", func() bool {
		var total int64
		for _, name := range s.storeFiles("hot") {
			var st unix.Stat_t
			s.ok(unix.Stat(name, &st))
			total += st.Blocks * 512
		}
		return total <= int64(s.hot().Files+2)*2*4096+ready && s.hot().Files <= 4*len(names)
	})
	s.rollback(first)
	s.same(before)
}
