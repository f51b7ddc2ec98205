//go:build linux

package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

func TestADurableTierDegradesToRAMOnlyIfThatWasLeftOpen(t *testing.T) {
	for _, c := range []struct {
		noRAM bool
		from  strategy.Kind
		want  []strategy.Kind
	}{
		{false, strategy.Reflink, []strategy.Kind{strategy.Tmpfs, strategy.PosixLink, strategy.PureManifest}},
		{true, strategy.Reflink, []strategy.Kind{strategy.PosixLink, strategy.PureManifest}},
		{true, strategy.Tmpfs, []strategy.Kind{strategy.PosixLink, strategy.PureManifest}},
		{false, strategy.PureManifest, nil},
	} {
		if got := (&tiers{noRAM: c.noRAM}).below(c.from); !slices.Equal(got, c.want) {
			t.Errorf("below %s there are %v, want %v", c.from, got, c.want)
		}
	}
}

// ailing is a tier that begins to fail, or to be slow, after some preimages.
type ailing struct {
	strategy.Strategy
	healthy atomic.Int32 // how many preimages it takes before that
	err     error        // nil: it is slow
}

func (a *ailing) Save(f *os.File, name string) (strategy.Ref, error) {
	if a.healthy.Add(-1) >= 0 {
		return a.Strategy.Save(f, name)
	}
	if a.err != nil {
		return strategy.Ref{}, a.err
	}
	time.Sleep(2 * testSlow)
	return a.Strategy.Save(f, name)
}

// testSlow is what counts as slow in tests.
const testSlow = 20 * time.Millisecond

const ailingFiles = 100

// ailingSpace opens a workspace with a checkpoint, whose tier will fail with err, or get slow, after half of its files.
func ailingSpace(t *testing.T, tier string, err error) (w *Workspace, a *ailing) {
	t.Helper()
	dir := t.TempDir()
	for i := range ailingFiles {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), fmt.Append(nil, "old ", i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ram, e := os.MkdirTemp("/dev/shm", "hyperfs-test-")
	if e != nil {
		t.Fatal(e)
	}
	t.Cleanup(func() { _ = os.RemoveAll(ram) })
	w, e = Open(Config{Workspace: dir, Tier: tier, TmpfsDir: ram, Hot: HotConfig{Off: true}})
	if e != nil {
		t.Fatal(e)
	}
	t.Cleanup(func() { _ = w.Close() })
	a = &ailing{Strategy: w.tiers.current, err: err}
	a.healthy.Store(ailingFiles / 2)
	w.tiers.current = a
	if err == nil { // one that fails is not to be left for being slow as well
		w.tiers.slowSave = testSlow
	}
	if _, err := w.Snapshot(context.Background(), SnapshotOptions{}); err != nil {
		t.Fatal(err)
	}
	return w, a
}

// overwriteAll changes all files, several at once, and gives the first error.
func overwriteAll(w *Workspace) error {
	errs := make([]error, ailingFiles)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < ailingFiles; i += 4 {
				errs[i] = overwriteOne(w.tree, fmt.Sprint(i))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func overwriteOne(t *Tree, name string) error {
	n, _, err := t.Lookup(t.Root(), name)
	if err != nil {
		return err
	}
	h, err := t.Open(n, unix.O_WRONLY, false, nil)
	if err != nil {
		return err
	}
	defer h.Release()
	_, err = h.WriteAt([]byte("new"), 0)
	return err
}

func (w *Workspace) wantOld(t *testing.T) {
	t.Helper()
	if _, err := w.Rollback(context.Background(), "", RollbackOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range ailingFiles {
		if got, err := os.ReadFile(filepath.Join(w.root, fmt.Sprint(i))); string(got) != fmt.Sprint("old ", i) {
			t.Errorf("%d holds %q (%v)", i, got, err)
		}
	}
}

func TestATierThatFailsIsLeftOnceAndNothingIsLost(t *testing.T) {
	for _, cause := range []error{unix.EIO, unix.EDQUOT, unix.EROFS, unix.ENOENT, unix.ESTALE} {
		t.Run(cause.Error(), func(t *testing.T) {
			w, a := ailingSpace(t, "tmpfs", cause)
			if err := overwriteAll(w); err != nil {
				t.Errorf("a program has noticed: %v", err)
			}
			d := w.Diagnostics().Degraded
			if len(d) != 1 || d[0].From != string(strategy.Tmpfs) || !strings.Contains(d[0].Reason, cause.Error()) || w.tiers.Kind() == a.Kind() {
				t.Errorf("the diagnostics say %+v, want that tmpfs was left once", d)
			}
			w.wantOld(t)
		})
	}
}

func TestATierThatGetsSlowIsLeftForADurableOne(t *testing.T) {
	w, _ := ailingSpace(t, "tmpfs", nil)
	if err := overwriteAll(w); err != nil {
		t.Fatal(err)
	}
	d := w.Diagnostics().Degraded
	if len(d) != 1 || d[0].From != string(strategy.Tmpfs) || d[0].To != string(strategy.PosixLink) || !strings.Contains(d[0].Reason, "it took") {
		t.Errorf("the diagnostics say %+v, want that tmpfs was left once, for its slowness", d)
	}
	w.wantOld(t)
}

func TestTheLastTierMayBeSlow(t *testing.T) {
	w, a := ailingSpace(t, "pure-manifest", nil)
	if err := overwriteAll(w); err != nil {
		t.Fatal(err)
	}
	if d := w.Diagnostics().Degraded; len(d) != 0 || w.tiers.saver() != a {
		t.Errorf("the diagnostics say %+v, want nothing", d)
	}
	w.wantOld(t)
}

func TestAWriteFailsWhereTheLastTierDoes(t *testing.T) {
	w, _ := ailingSpace(t, "pure-manifest", unix.EIO)
	if err := overwriteAll(w); !errors.Is(err, unix.EIO) {
		t.Errorf("the writes end with %v, want EIO", err)
	}
	if d := w.Diagnostics().Degraded; len(d) != 0 {
		t.Errorf("the diagnostics say %+v: there is nothing to move to", d)
	}
	w.wantOld(t)
}
