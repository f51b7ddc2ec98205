//go:build linux || windows

package scan

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

func TestRollbackRestoresEverything(t *testing.T) {
	f := newFixture(t)
	variety(f)
	want := f.capture()
	id := f.snapshot()
	havoc(f)
	changed := f.capture()
	r := f.rollback(id)
	f.is(want)
	if r.Undo == "" || r.Restored == 0 || r.Removed == 0 || r.Modified == 0 {
		t.Errorf("the rollback says %+v", r)
	}
	f.sound()
	if _, err := f.w.Undo(context.Background()); err != nil {
		t.Fatal(err)
	}
	f.is(changed)
	f.sound()
	f.reopen()
	f.rollback(id)
	f.is(want)
	f.sound()
}

func TestRollbackOfAnUnchangedTreeTouchesNothing(t *testing.T) {
	f := newFixture(t)
	variety(f)
	id := f.snapshot()
	before, err := os.Stat(f.path("a"))
	f.must(err)
	if r := f.rollback(id); r.Restored+r.Removed+r.Modified != 0 {
		t.Errorf("the rollback says %+v", r)
	}
	after, err := os.Stat(f.path("a"))
	f.must(err)
	if !os.SameFile(before, after) {
		t.Error("a file was replaced by its like")
	}
}

func TestRollbackRestoresHardLinks(t *testing.T) {
	tests := []struct {
		name    string
		disturb func(f *fixture)
	}{
		{"one name replaced", func(f *fixture) { f.must(os.Remove(f.path("d/two"))); f.write("d/two", "same") }},
		{"first name replaced", func(f *fixture) { f.must(os.Remove(f.path("one"))); f.write("one", "same") }},
		{"all names replaced", func(f *fixture) {
			for _, name := range []string{"one", "d/two", "three"} {
				f.must(os.Remove(f.path(name)))
				f.write(name, "other "+name)
			}
		}},
		{"written to", func(f *fixture) { f.write("three", "more") }},
		{"joined with another file", func(f *fixture) {
			f.must(os.Remove(f.path("alone")))
			f.must(os.Link(f.path("one"), f.path("alone")))
		}},
		{"swapped", func(f *fixture) {
			f.must(os.Rename(f.path("alone"), f.path("x")))
			f.must(os.Rename(f.path("one"), f.path("alone")))
			f.must(os.Rename(f.path("x"), f.path("one")))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			f.write("one", "same")
			f.write("alone", "same")
			f.must(os.Mkdir(f.path("d"), 0o755))
			f.must(os.Link(f.path("one"), f.path("d/two")))
			f.must(os.Link(f.path("one"), f.path("three")))
			want := f.capture()
			id := f.snapshot()
			test.disturb(f)
			changed := f.capture()
			f.rollback(id)
			f.is(want)
			f.sound()
			_, err := f.w.Undo(context.Background())
			f.must(err)
			f.is(changed)
		})
	}
}

func TestASecondSnapshotSavesNothingAgain(t *testing.T) {
	f := newFixture(t)
	variety(f)
	f.snapshot()
	n := f.backupCount()
	f.snapshot()
	if f.backupCount() != n {
		t.Errorf("there are %d backups, and were %d", f.backupCount(), n)
	}
	f.must(os.Rename(f.path("dir"), f.path("moved")))
	f.must(os.Chtimes(f.path("a"), time.Now(), time.Now()))
	f.snapshot()
	if f.backupCount() != n {
		t.Errorf("there are %d backups after a rename and a touch, and were %d", f.backupCount(), n)
	}
	f.sound()
}

// A change in the same tick of the clock, that leaves size and mtime alone, is found by comparing.
func TestAChangeRightAfterASnapshotIsSeen(t *testing.T) {
	f := newFixture(t)
	tries := 30
	if testing.Short() {
		tries = 5
	}
	for range tries {
		f.write("racy", "before")
		st, err := os.Stat(f.path("racy"))
		f.must(err)
		id := f.snapshot()
		f.write("racy", "after!")
		f.must(os.Chtimes(f.path("racy"), st.ModTime(), st.ModTime()))
		f.rollback(id)
		if got := f.read("racy"); got != "before" {
			t.Fatalf("it holds %q", got)
		}
		f.must(f.w.Drop(context.Background(), id))
	}
}

func TestACorruptBackupStopsARollbackBeforeItTouchesAnything(t *testing.T) {
	for _, damage := range []string{"flipped", "missing"} {
		t.Run(damage, func(t *testing.T) {
			f := newFixture(t)
			f.write("a", "one")
			f.write("b", strings.Repeat("two", 9000))
			id := f.snapshot()
			m, err := f.w.manifest(id)
			f.must(err)
			for i := range m.entries {
				if m.entries[i].name != "b" {
					continue
				}
				name := filepath.Join(f.w.StorePath(), backupsName, m.entries[i].ref.Name)
				if damage == "missing" {
					f.must(os.Remove(name))
					continue
				}
				b, err := os.ReadFile(name)
				f.must(err)
				b[777] ^= 1
				f.must(os.WriteFile(name, b, 0o600))
			}
			f.write("a", "changed")
			f.write("b", "changed")
			want := f.capture()
			_, err = f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			f.wantCode(err, errs.Integrity)
			if !strings.Contains(err.Error(), "rollback b:") {
				t.Errorf("the error does not name the file: %v", err)
			}
			f.is(want)
			problems, err := f.w.Fsck(context.Background(), true)
			f.must(err)
			if len(problems) != 1 {
				t.Errorf("fsck finds %v", problems)
			}
			c, err := f.w.Get(id)
			f.must(err)
			if !isActive(&c) {
				t.Errorf("the checkpoint is %s", c.Status)
			}
		})
	}
}

func TestACorruptManifestIsAnIntegrityError(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	id := f.snapshot()
	name := f.w.manifestPath(id)
	b, err := os.ReadFile(name)
	f.must(err)
	b[len(b)/2] ^= 1
	f.must(os.WriteFile(name, b, 0o600))
	f.write("a", "changed")
	_, err = f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	f.wantCode(err, errs.Integrity)
	if got := f.read("a"); got != "changed" {
		t.Errorf("it holds %q", got)
	}
	f.must(f.w.Drop(context.Background(), id))
	f.snapshot()
}

func TestDropFreesWhatNobodyElseNeeds(t *testing.T) {
	f := newFixture(t)
	f.write("shared", "s")
	f.write("a", "one")
	first := f.snapshot()
	f.write("a", "two!")
	second := f.snapshot()
	if n := f.backupCount(); n != 3 {
		t.Fatalf("there are %d backups", n)
	}
	f.must(f.w.Drop(context.Background(), first))
	if n := f.backupCount(); n != 2 {
		t.Errorf("there are %d backups after a drop, want 2", n)
	}
	f.sound()
	f.write("a", "three")
	f.rollback(second)
	if got := f.read("a"); got != "two!" {
		t.Errorf("it holds %q", got)
	}
	_, err := f.w.Rollback(context.Background(), first, overlay.RollbackOptions{})
	f.wantCode(err, errs.Rollback)
}

func TestTheListSaysHowMuchChangedAfterACheckpoint(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	f.write("b", "two")
	id := f.snapshot()
	f.write("a", "changed")
	f.must(os.Remove(f.path("b")))
	f.write("c", "new")
	f.snapshot()
	c, err := f.w.Get(id)
	f.must(err)
	if c.Dirty != 3 {
		t.Errorf("%d are dirty, want 3", c.Dirty)
	}
}

func TestManifestsThatAreOneFileLiveOnTheirOwn(t *testing.T) {
	f := newFixture(t)
	variety(f)
	time.Sleep(2 * raceSlop) // so that nothing has to be compared
	want := f.capture()
	first := f.snapshot()
	second := f.snapshot()
	third := f.snapshot()
	a, err := os.Stat(f.w.manifestPath(second))
	f.must(err)
	b, err := os.Stat(f.w.manifestPath(third))
	f.must(err)
	if !os.SameFile(a, b) {
		t.Error("nothing has changed, and a manifest was written again")
	}
	havoc(f)
	changed := f.capture()
	fourth := f.snapshot()
	f.rollback(second)
	f.is(want)
	f.must(f.w.Drop(context.Background(), first))
	f.rollback(fourth)
	f.is(changed)
	f.must(f.w.Drop(context.Background(), second))
	f.rollback(third)
	f.is(want)
	f.sound()
}

func TestATierThatWouldShareFilesOfTheWorkspaceIsRefused(t *testing.T) {
	for _, tier := range []string{"posix-link", "ntfs-link", "tmpfs"} {
		w, err := Open(overlay.Config{Workspace: t.TempDir(), Tier: tier})
		if err == nil {
			_ = w.Close()
		}
		if errs.CodeOf(err) != errs.Unsupported {
			t.Errorf("%s: %v", tier, err)
		}
	}
}
