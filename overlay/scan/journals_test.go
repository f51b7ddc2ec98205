//go:build linux || windows

package scan

import (
	"context"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

func (f *fixture) recover() map[string]overlay.Recoverable {
	f.Helper()
	list, err := f.w.Recover(context.Background())
	f.must(err)
	all := map[string]overlay.Recoverable{}
	for _, r := range list {
		all[r.ID] = r
	}
	return all
}

func TestRollbackWithoutAnIDIsToWhatTheStateComesFrom(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	first := f.snapshot()
	want := f.capture()
	f.write("a", "two")
	second := f.snapshot()
	f.write("a", "three")
	f.snapshot()
	f.rollback(second)
	f.must(f.w.Drop(context.Background(), second))
	f.write("a", "four")
	if s := f.w.Status(); s.Newest != first {
		t.Errorf("the newest is %s, want %s, the one before what was dropped", s.Newest, first)
	}
	if r := f.rollback(""); r.Checkpoint != first {
		t.Errorf("the rollback was to %s, want %s", r.Checkpoint, first)
	}
	f.is(want)
	f.reopen()
	if s := f.w.Status(); s.Newest != first {
		t.Errorf("after a start the newest is %s, want %s", s.Newest, first)
	}
}

func TestWhatEarlierSessionsLeftIsRecoveredAndRehydrated(t *testing.T) {
	f := newFixture(t)
	variety(f)
	want := f.capture()
	id := f.snapshot()
	if c, err := f.w.Get(id); err != nil || c.Session != f.w.Session() {
		t.Errorf("it is %+v, %v", c, err)
	}
	havoc(f)
	f.reopen()
	r := f.recover()[id]
	if !r.CanRehydrate || r.Session == f.w.Session() || !strings.HasPrefix(r.Session, "session_") {
		t.Fatalf("it is recovered as %+v", r)
	}
	changed := f.capture()
	c, err := f.w.Rehydrate(context.Background(), id)
	if err != nil || c.Session != f.w.Session() || !c.UpdatedAt.After(r.UpdatedAt) {
		t.Errorf("it was rehydrated as %+v, %v", c, err)
	}
	f.is(changed)
	if len(f.recover()) != 0 {
		t.Error("it is listed though it is this session's own")
	}
	f.rollback(id)
	f.is(want)
	f.sound()
}

func TestRehydrateRefusesDamageAndTouchesNothing(t *testing.T) {
	backup := func(f *fixture) string { return f.only(backupsName) }
	manifest := func(f *fixture) string { return f.only(manifestsName) }
	for name, c := range map[string]struct {
		file func(f *fixture) string
		harm func(f *fixture, file string)
		say  string
	}{
		"backup flipped":   {backup, (*fixture).flip, "a:"},
		"backup cut":       {backup, (*fixture).cut, "a:"},
		"backup removed":   {backup, func(f *fixture, file string) { f.must(os.Remove(file)) }, "a:"},
		"manifest flipped": {manifest, (*fixture).flip, "corrupt"},
		"manifest cut":     {manifest, (*fixture).cut, "corrupt"},
		"manifest removed": {manifest, func(f *fixture, file string) { f.must(os.Remove(file)) }, "manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.write("a", "one and more")
			id := f.snapshot()
			f.write("a", "two")
			f.must(f.w.Close())
			c.harm(f, c.file(f))
			f.open()
			before := f.capture()
			r := f.recover()[id]
			if r.CanRehydrate || !strings.Contains(r.Reason, c.say) {
				t.Errorf("it is recovered as %+v, want a reason with %q", r, c.say)
			}
			_, err := f.w.Rehydrate(context.Background(), id)
			f.wantCode(err, errs.Integrity)
			_, err = f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			f.wantCode(err, errs.Integrity)
			if c, err := f.w.Get(id); err != nil || c.Session == f.w.Session() || c.Status != checkpoint.Active {
				t.Errorf("it is %+v, %v", c, err)
			}
			f.is(before)
		})
	}
}

// only gives the one file that a directory of the store has.
func (f *fixture) only(dir string) string {
	f.Helper()
	list, err := os.ReadDir(f.path(overlay.StoreName + "/" + dir))
	f.must(err)
	var names []string
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, f.path(overlay.StoreName+"/"+dir+"/"+e.Name()))
		}
	}
	if len(names) != 1 {
		f.Fatalf("%s has %v", dir, names)
	}
	return names[0]
}

func (f *fixture) flip(file string) {
	f.Helper()
	b, err := os.ReadFile(file)
	f.must(err)
	b[len(b)/2] ^= 4
	f.must(os.WriteFile(file, b, 0o600))
}

func (f *fixture) cut(file string) { f.must(os.Truncate(file, 5)) }

func TestRehydrateRefusesWhatHasEnded(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	dropped, promoted := f.snapshot(), f.snapshot()
	f.must(f.w.Drop(context.Background(), dropped))
	_, err := f.w.Promote(context.Background(), promoted, nil)
	f.must(err)
	f.reopen()
	for _, id := range []string{dropped, promoted} {
		if r := f.recover()[id]; r.CanRehydrate || r.Reason == "" {
			t.Errorf("it is recovered as %+v", r)
		}
		_, err := f.w.Rehydrate(context.Background(), id)
		f.wantCode(err, errs.Rollback)
	}
	_, err = f.w.Rehydrate(context.Background(), "ckpt_none")
	f.wantCode(err, errs.NotFound)
}

// failing is a writer that takes nothing.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestAPromotionWhosePatchFailsChangesNothing(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	before, id := f.capture(), f.snapshot()
	f.write("a", "changed")
	after := f.capture()
	full := errors.New("no room for it")
	if _, err := f.w.Promote(context.Background(), id, failing{full}); !errors.Is(err, full) {
		t.Fatalf("a patch that can't be written gives %v", err)
	}
	f.is(after)
	if c, err := f.w.Get(id); err != nil || c.Status != checkpoint.Active {
		t.Errorf("the checkpoint is %s, %v", c.Status, err)
	}
	f.rollback(id)
	f.is(before)
}

func TestDiagnosticsAreASnapshot(t *testing.T) {
	f := newFixtureAt(t, t.TempDir())
	f.must(f.w.Close())
	f.ignore = []string{"ignored/"}
	f.open()
	f.write("a", "one")
	f.snapshot()
	before, again := f.w.Diagnostics(), f.w.Diagnostics()
	f.write("b", "two") // which a scan would find
	again.Probes[0].Reason, again.Active[0].Message, again.Ignore.Patterns[0], again.Scan.Entries = "x", "x", "x", 99
	if now := f.w.Diagnostics(); !reflect.DeepEqual(now, before) {
		t.Errorf("they are %+v,\nand were %+v", now, before)
	}
}

func TestADamagedRecordIsNamedAndHidesNoOther(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	id, broken := f.snapshot(), f.snapshot()
	f.must(f.w.store.Update(func(tx *checkpoint.Tx) error { return tx.Set([]byte("k"+broken), []byte(`{`)) }))
	f.reopen()
	all := f.recover()
	if len(all) != 2 || !all[id].CanRehydrate || all[broken].CanRehydrate {
		t.Errorf("there are %+v", all)
	}
	_, err := f.w.Rollback(context.Background(), broken, overlay.RollbackOptions{})
	f.wantCode(err, errs.Integrity)
	problems, err := f.w.Fsck(context.Background(), false)
	f.must(err)
	if len(problems) == 0 || problems[0].Where != broken || !strings.Contains(problems[0].What, "its record is damaged") {
		t.Errorf("fsck finds %+v", problems)
	}
	f.must(f.w.Drop(context.Background(), broken))
	_, err = f.w.GC(context.Background())
	f.must(err)
	f.sound()
}

func TestWithoutDurableJournalsCheckpointsEnd(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	kept := f.snapshot()
	f.must(f.w.Close())
	w, err := Open(overlay.Config{Workspace: f.dir, NoJournals: true})
	f.must(err)
	f.w = w
	f.write("a", "two")
	gone := f.snapshot()
	if len(f.recover()) != 0 {
		t.Error("there is something to recover")
	}
	_, err = f.w.Rehydrate(context.Background(), kept)
	f.wantCode(err, errs.Unsupported)
	f.reopen()
	if r := f.recover()[gone]; r.Status != checkpoint.Disposed {
		t.Errorf("it is recovered as %+v", r)
	}
	if n := f.backupCount(); n != 1 {
		t.Errorf("there are %d backups", n)
	}
	f.rollback(kept)
	f.sound()
}

func TestAMovedWorkspaceHasItsCheckpoints(t *testing.T) {
	f := newFixture(t)
	variety(f)
	want := f.capture()
	id := f.snapshot()
	havoc(f)
	f.must(f.w.Close())
	moved := f.dir + "-moved"
	f.must(os.Rename(f.dir, moved))
	f.dir = moved
	f.open()
	if r := f.recover()[id]; !r.CanRehydrate {
		t.Errorf("it is recovered as %+v", r)
	}
	f.rollback(id)
	f.is(want)
	f.sound()
}
