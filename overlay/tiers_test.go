//go:build linux

package overlay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// withoutHot has small preimages go to the tier too.
var withoutHot = overlay.HotConfig{Off: true}

// tmpfsSpace opens a filled workspace whose preimages go to RAM below ram.
func tmpfsSpace(t *testing.T, ram string) *space {
	t.Helper()
	return spaceWith(t, overlay.Config{Workspace: filled(t, t.TempDir())(), Tier: string(strategy.Tmpfs), TmpfsDir: ram, Hot: withoutHot})
}

func (s *space) wantRecoverable(id, want string) {
	s.Helper()
	c, err := s.w.Get(id)
	if err != nil || c.Recoverable != want {
		s.Errorf("the checkpoint is recoverable: %q (%v), want %q", c.Recoverable, err, want)
	}
}

func TestACheckpointSaysWhatARebootWouldTake(t *testing.T) {
	s := tmpfsSpace(t, "")
	id := s.snapshot()
	s.wantRecoverable(id, checkpoint.RecoverableAlways)
	s.overwrite("b.txt", "X", 0)
	s.wantRecoverable(id, checkpoint.RecoverableUntilReboot)
	later := s.snapshot()
	s.wantRecoverable(later, checkpoint.RecoverableAlways)
	s.wantRecoverable(id, checkpoint.RecoverableUntilReboot)
	for _, name := range s.preimages() {
		s.ok(os.Remove(name))
	}
	s.wantRecoverable(id, checkpoint.RecoverableNot)
}

func TestClosingMovesPreimagesFromRAMToDisk(t *testing.T) {
	s := tmpfsSpace(t, "")
	before := s.state()
	id := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	if n := len(s.storeFiles("backup")); n != 0 {
		t.Fatalf("%d preimages are on disk before the end", n)
	}
	s.ok(s.w.Close())
	for _, dir := range s.glob(filepath.Join(s.cfg.TmpfsDir, "*")) {
		t.Errorf("there is left %s", dir)
	}
	s.open()
	s.wantRecoverable(id, checkpoint.RecoverableAlways)
	s.rollback(id)
	s.same(before)
}

// TestSettlingIsFinishedAfterAKill has an incomplete file where a kill cut off the move to disk.
func TestSettlingIsFinishedAfterAKill(t *testing.T) {
	s := tmpfsSpace(t, "")
	before := s.state()
	id := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	name := filepath.Base(s.preimages()[0])
	s.ok(os.WriteFile(filepath.Join(s.dir, overlay.StoreName, "backup", name), []byte("f"), 0o600))
	s.reopen()
	s.rollback(id)
	s.same(before)
}

func TestPreimagesThatARebootTookStopARollback(t *testing.T) {
	s := tmpfsSpace(t, "")
	id := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	changed := s.state()
	for _, name := range s.preimages() {
		s.ok(os.Remove(name))
	}
	_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	wantCode(t, err, errs.Integrity)
	var e *errs.Error
	if !errors.As(err, &e) || e.On != "b.txt" {
		t.Errorf("the error does not name the file: %v", err)
	}
	s.sameTree(changed)
	s.ok(s.w.Drop(context.Background(), id))
}

// manyFiles makes files of 4 KiB and gives their names.
func (s *space) manyFiles(n int) []string {
	var names []string
	for i := range n {
		name := fmt.Sprintf("file-%04d", i)
		s.ok(os.WriteFile(filepath.Join(s.dir, name), []byte(strings.Repeat(name+"\n", 4096/10)), 0o644))
		names = append(names, name)
	}
	return names
}

// degradesTo checks that the tier in use failed once, and that another one is in use since.
func (s *space) degradesTo(kinds ...strategy.Kind) {
	s.Helper()
	d := s.w.Diagnostics()
	if len(d.Degraded) != len(kinds) || d.Tier != string(kinds[len(kinds)-1]) {
		s.Fatalf("the tier is %s, after %+v", d.Tier, d.Degraded)
	}
	for i, kind := range kinds {
		if d.Degraded[i].To != string(kind) || d.Degraded[i].Reason == "" {
			s.Errorf("the tier went to %+v, want %s", d.Degraded[i], kind)
		}
	}
}

// filler takes all space of a filesystem.
func filler(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 64<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling says %v", err)
	}
}

func TestAFailingTierDegradesInTheMiddleOfWrites(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(t *testing.T, mount, ram string)
		lost bool // what was in the tier is gone
	}{
		"full by itself":   {func(*testing.T, string, string) {}, false},
		"filled by others": {func(t *testing.T, mount, _ string) { filler(t, mount) }, false},
		"read-only":        {func(t *testing.T, mount, _ string) { testfs.ReadOnly(t, mount) }, false},
		"vanished": {func(t *testing.T, _, ram string) {
			if err := os.RemoveAll(ram); err != nil {
				t.Fatal(err)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			mount := testfs.Tmpfs(t, 2<<20)
			ram := filepath.Join(mount, "hyperfs")
			s := tmpfsSpace(t, ram)
			names := s.manyFiles(1000)
			before := s.state()
			id := s.snapshot()
			for i, name := range names {
				if i == 100 {
					c.fail(t, mount, ram)
				}
				s.overwrite(name, "changed", 5)
			}
			s.degradesTo(strategy.PosixLink)
			if !c.lost {
				s.rollback(id)
				s.sameTree(before) // what a read-only tier has can't be freed, as fsck would say
				return
			}
			_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			wantCode(t, err, errs.Integrity)
			s.wantRecoverable(id, checkpoint.RecoverableNot)
		})
	}
}

// TestManyWritersSeeOneDegrade has the tier fail under several writers at once.
func TestManyWritersSeeOneDegrade(t *testing.T) {
	ram := filepath.Join(testfs.Tmpfs(t, 1<<20), "hyperfs")
	s := tmpfsSpace(t, ram)
	names := s.manyFiles(800)
	before := s.state()
	id := s.snapshot()
	var handles []*overlay.Handle
	for _, name := range names {
		h, err := s.tr.Open(s.at(name), unix.O_WRONLY, false, nil)
		s.ok(err)
		handles = append(handles, h)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < len(handles); i += 4 {
				if _, err := handles[i].WriteAt([]byte("changed"), 5); err != nil {
					t.Error(err)
				}
				handles[i].Release()
			}
		})
	}
	wg.Wait()
	s.degradesTo(strategy.PosixLink)
	s.rollback(id)
	s.same(before)
}

func TestWithoutAnyTierLeftWritesFailAndNothingIsLost(t *testing.T) {
	disk := testfs.Tmpfs(t, 48<<20)
	ram := filepath.Join(testfs.Tmpfs(t, 1<<20), "hyperfs")
	s := spaceWith(t, overlay.Config{Workspace: filled(t, disk)(), TmpfsDir: ram, Hot: withoutHot})
	names := s.manyFiles(600)
	s.ok(os.WriteFile(filepath.Join(s.dir, "large"), make([]byte, 3<<20), 0o644))
	before := s.state()
	id := s.snapshot()
	for _, name := range names[:300] {
		s.overwrite(name, "changed", 5)
	}
	if got := os.WriteFile(filepath.Join(disk, "filler"), make([]byte, 64<<20), 0o644); !errors.Is(got, unix.ENOSPC) {
		t.Fatalf("filling says %v", got)
	}
	h, err := s.tr.Open(s.at("large"), unix.O_RDWR, false, nil)
	s.ok(err)
	if _, err := h.WriteAt([]byte("changed"), 0); err != unix.ENOSPC {
		t.Errorf("a write without a tier says %v, want ENOSPC", err)
	}
	h.Release()
	s.ok(os.Remove(filepath.Join(disk, "filler")))
	s.rollback(id)
	s.same(before)
}
