//go:build linux || windows

package scan

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// turnID is the turn that is ended, and the checkpoint that its snapshot makes.
const turnID = "ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAV"

func putTurn(tx *checkpoint.Tx) error { return tx.PutTurn(checkpoint.Turn{ID: turnID}) }

// ended reports whether there is a record of the turn.
func (f *fixture) ended() bool {
	f.Helper()
	_, err := f.w.Turns().Get(turnID)
	if errs.CodeOf(err) == errs.NotFound {
		return false
	}
	f.must(err)
	return true
}

func TestATurnIsOnTheSideOfItsFilesWhateverIsCut(t *testing.T) {
	commits := []string{"journal-appended:1", "journal-appended:2", "journal-appended:3", "journal-appended:4"} // among them those of the start
	for what, points := range map[string][]string{
		"snapshot": {"scan-saved", "scan-manifest", "scan-committed"},
		"rollback": {"scan-saved", "scan-manifest", "scan-committed", "scan-removed", "scan-made", "scan-placed", "scan-applied", "scan-renewed", "scan-done"},
	} {
		sides := map[bool]int{}
		for _, at := range append(points, commits...) {
			t.Run(what+" "+at, func(t *testing.T) { sides[cutTurn(t, what, at)]++ })
		}
		if sides[true] == 0 || sides[false] == 0 {
			t.Errorf("%s: the turn had ended %d times, and had not %d times", what, sides[true], sides[false])
		}
	}
}

// cutTurn has a turn end in a process that dies at a point, and reports whether the turn has ended.
func cutTurn(t *testing.T, what, at string) bool {
	f := newFixture(t)
	variety(f)
	before := f.capture()
	id := f.snapshot()
	havoc(f)
	changed := f.capture()
	f.must(f.w.Close())
	to := ""
	if what == "rollback" {
		to = id
	}
	died := killInTurn(t, f.dir, to, at, turnID)
	f.open()
	done := f.ended()
	if !died && (!done || !strings.HasPrefix(at, "journal")) {
		t.Errorf("it was not killed; the turn has ended: %v", done)
	}
	if what == "rollback" && done {
		f.is(before)
	} else {
		f.is(changed)
	}
	if _, err := f.w.Get(turnID); what == "snapshot" && (err == nil) != done {
		t.Errorf("the turn has ended: %v; its checkpoint: %v", done, err)
	}
	_, err := f.w.GC(context.Background())
	f.must(err)
	f.sound()
	return done
}

func TestWhatCannotBeCommittedLeavesAllAsItWas(t *testing.T) {
	f := newFixture(t)
	variety(f)
	id := f.snapshot()
	havoc(f)
	changed, kept, no := f.capture(), f.backupCount(), errors.New("no")
	refuse := func(tx *checkpoint.Tx) error { f.must(putTurn(tx)); return no }
	if _, err := f.w.Snapshot(context.Background(), overlay.SnapshotOptions{ID: turnID, Commit: refuse}); !errors.Is(err, no) {
		t.Errorf("Snapshot: %v", err)
	}
	if _, err := f.w.Rollback(context.Background(), id, overlay.RollbackOptions{Commit: refuse}); !errors.Is(err, no) {
		t.Errorf("Rollback: %v", err)
	}
	for range 2 {
		list, err := f.w.List(overlay.ListOptions{IncludeInactive: true})
		if err != nil || len(list) != 1 || f.ended() || f.backupCount() != kept || f.w.Status().Newest != id {
			t.Errorf("there are %v, %v, and %d backups, not %d; the turn has ended: %v", list, err, f.backupCount(), kept, f.ended())
		}
		f.is(changed)
		f.sound()
		f.reopen()
	}
}

func TestATurnEndsWithARollbackThatHasNothingToPutBack(t *testing.T) {
	f := newFixture(t)
	variety(f)
	want := f.capture()
	id := f.snapshot()
	_, err := f.w.Rollback(context.Background(), id, overlay.RollbackOptions{Commit: putTurn})
	f.must(err)
	if !f.ended() || f.w.Unchanged(id) {
		t.Errorf("the turn has ended: %v; without a scan it is known what has changed: %v", f.ended(), f.w.Unchanged(id))
	}
	f.is(want)
	f.sound()
}

func TestFsckFindsDamagedStatesOfTurns(t *testing.T) {
	f := newFixture(t)
	blobs, err := f.w.Turns().Keep(make([]byte, 100<<10))
	f.must(err)
	_, err = f.w.Snapshot(context.Background(), overlay.SnapshotOptions{ID: turnID, Commit: func(tx *checkpoint.Tx) error {
		return tx.PutTurn(checkpoint.Turn{ID: turnID, State: checkpoint.TurnState{Custom: &blobs[0]}})
	}})
	f.must(err)
	f.sound()
	before := f.w.Diagnostics().StoreBytes
	f.must(os.Remove(filepath.Join(f.w.storeAt, "turns", string(blobs[0]))))
	problems, err := f.w.Fsck(context.Background(), false)
	if err != nil || len(problems) != 1 || problems[0].Where != turnID || !strings.Contains(problems[0].What, string(blobs[0])) {
		t.Errorf("Fsck = %v, %v, want the turn and its blob", problems, err)
	}
	if after := f.w.Diagnostics().StoreBytes; after > before-100<<10 {
		t.Errorf("the store has %d bytes, and had %d with the blob", after, before)
	}
}
