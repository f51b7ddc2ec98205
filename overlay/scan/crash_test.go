//go:build linux || windows

package scan

import (
	"context"
	"fmt"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
)

func TestAKilledSnapshotLeavesNothingButStrays(t *testing.T) {
	for _, at := range []string{"scan-saved", "scan-manifest", "scan-committed"} {
		t.Run(at, func(t *testing.T) {
			f := newFixture(t)
			variety(f)
			id := f.snapshot()
			want := f.capture()
			havoc(f)
			f.must(f.w.Close())
			if !kill(t, f.dir, "", at) {
				t.Fatal("it was not killed")
			}
			f.open()
			f.snapshot()
			if _, err := f.w.GC(context.Background()); err != nil {
				t.Fatal(err)
			}
			f.sound()
			f.rollback(id)
			f.is(want)
			f.sound()
		})
	}
}

func TestAKilledRollbackIsFinishedByTheNextOpen(t *testing.T) {
	points := []string{"scan-saved", "scan-manifest", "scan-committed", "scan-removed", "scan-made", "scan-placed", "scan-linked",
		"scan-applied", "scan-renewed", "scan-done", "scan-freed"}
	for _, point := range points {
		killed, most := 0, 4
		if testing.Short() {
			most = 1
		}
		passed := true
		for nth := 1; nth <= most && passed; nth++ { // who does not pass it so often does not pass it oftener
			at := fmt.Sprintf("%s:%d", point, nth)
			t.Run(at, func(t *testing.T) {
				f := newFixture(t)
				variety(f)
				want := f.capture()
				id := f.snapshot()
				havoc(f)
				changed := f.capture()
				// An undo checkpoint of before, so that there is something to free.
				f.rollback(id)
				_, err := f.w.Undo(context.Background())
				f.must(err)
				f.must(f.w.Close())
				if passed = kill(t, f.dir, id, at); !passed {
					f.open()
					t.Skip("it does not pass this point so often")
				}
				killed++
				f.open()
				if point == "scan-saved" || point == "scan-manifest" { // the intent was not committed
					f.is(changed)
					f.rollback(id)
				}
				f.is(want)
				_, err = f.w.GC(context.Background())
				f.must(err)
				f.sound()
				list, err := f.w.List(overlay.ListOptions{})
				f.must(err)
				if len(list) != 2 {
					t.Errorf("there are %d checkpoints, want the one that was rolled back to and the undo checkpoint", len(list))
				}
				_, err = f.w.Undo(context.Background())
				f.must(err)
				f.is(changed)
				f.sound()
			})
		}
		if killed == 0 {
			t.Errorf("nothing was killed at %s", point)
		}
	}
}

func TestAKilledRollbackLosesNothingThatWasChangedSince(t *testing.T) {
	for _, at := range []string{"scan-made:2", "scan-placed", "scan-applied"} {
		t.Run(at, func(t *testing.T) {
			f := newFixture(t)
			variety(f)
			want := f.capture()
			id := f.snapshot()
			havoc(f)
			f.must(f.w.Close())
			if !kill(t, f.dir, id, at) {
				t.Fatal("it was not killed")
			}
			f.write("a", "written after the kill")
			f.write("precious", "made after the kill")
			f.open()
			f.is(want)
			list, err := f.w.List(overlay.ListOptions{})
			f.must(err)
			var found string
			for _, c := range list {
				if c.CreatedBy == "unknown" {
					found = c.ID
				}
			}
			if found == "" {
				t.Fatal("no checkpoint has what was changed")
			}
			f.rollback(found)
			if a, b := f.read("a"), f.read("precious"); a != "written after the kill" || b != "made after the kill" {
				t.Errorf("they hold %q and %q", a, b)
			}
			f.sound()
		})
	}
}
