//go:build !windows

package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// setHead gives a journal another head.
func setHead(t *testing.T, name string, h journalHead) {
	t.Helper()
	edit(t, name, func(b []byte) []byte { copy(b, h.encode()); return b })
}

// edit changes the bytes of a file.
func edit(t *testing.T, name string, fn func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, fn(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte { b[at] ^= 4; return b }
}

// wantRefused fails the test unless the store can't be opened, for a reason that says where, and stays as it is.
func wantRefused(t *testing.T, dir string, say ...string) {
	t.Helper()
	before := contents(t, dir)
	s, err := Open(dir, Options{})
	if err == nil {
		_ = s.Close()
		t.Fatal("it can be opened")
	}
	if errs.CodeOf(err) != errs.Integrity {
		t.Errorf("the error is %v, want one with the code %s", err, errs.Integrity)
	}
	for _, part := range say {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %q, want one with %q", err, part)
		}
	}
	after := contents(t, dir)
	for name, was := range before {
		if !bytes.Equal(was, after[name]) {
			t.Errorf("%s was changed", name)
		}
	}
}

// contents gives what the files of a store hold, but for those of Badger, which cuts off what it takes for torn, the lock and the reserve.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err == nil && e.Name() == "db" && name != dir {
			return filepath.SkipDir
		}
		if err != nil || !e.Type().IsRegular() || e.Name() == "lock" || e.Name() == "reserve" {
			return err
		}
		all[name], err = os.ReadFile(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// twoCommits gives a store as a kill leaves it that has two commits in a journal, the second beginning and ending there.
func twoCommits(t *testing.T) (copied, journal string, second, end int) {
	t.Helper()
	dir := t.TempDir()
	s := reopened(t, dir)
	put(t, s, "given", "0")
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	notGiven(t, s)
	put(t, s, "first", "1")
	second = int(s.pending.active.journal.head.end)
	put(t, s, "second", "2")
	return killed(t, dir), filepath.Base(s.pending.active.journal.f.Name()), second, int(s.pending.active.journal.head.end)
}

func TestAFlippedBitInTheJournalIsFound(t *testing.T) {
	dir, journal, second, end := twoCommits(t)
	for _, at := range []int{0, 7, 14, 22, 30, headLen - 1, // in each field of the head
		journalStart + 2, second - 1, // of the first commit: length, and what it holds
		second + 4, end - 1} {
		edit(t, filepath.Join(dir, journal), flip(at))
		wantRefused(t, dir, journal)
		edit(t, filepath.Join(dir, journal), flip(at))
		if t.Failed() {
			t.Fatalf("with the byte %d flipped", at)
		}
	}
	after := reopened(t, dir)
	if a, b := meta(t, after, "first"), meta(t, after, "second"); a != "1" || b != "2" {
		t.Errorf("unharmed, it has %q and %q", a, b)
	}
}

func TestAShortOrMissingJournalIsFound(t *testing.T) {
	for name, harm := range map[string]func(name string) error{
		"cut":     func(name string) error { return os.Truncate(name, journalStart+10) },
		"headcut": func(name string) error { return os.Truncate(name, 5) },
		"emptied": func(name string) error { return os.Truncate(name, 0) },
		"removed": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir, journal, _, _ := twoCommits(t)
			if err := harm(filepath.Join(dir, journal)); err != nil {
				t.Fatal(err)
			}
			if name == "removed" {
				if _, err := Open(dir, Options{}); errs.CodeOf(err) != errs.Integrity {
					t.Errorf("the error is %v", err)
				}
				return
			}
			wantRefused(t, dir, journal)
		})
	}
}

// TestWhatALossOfPowerHasTornIsNotTakenForDamage as the disk may have the one page and not the other.
func TestWhatALossOfPowerHasTornIsNotTakenForDamage(t *testing.T) {
	dir, journal, second, _ := twoCommits(t)
	name := filepath.Join(dir, journal)
	edit(t, name, func(b []byte) []byte {
		h, ok := decodeHead(b)
		if !ok {
			t.Fatal("the journal has no head")
		}
		h.boot++
		copy(b, h.encode())
		clear(b[second:])
		return b
	})
	after := reopened(t, dir)
	if a, b := meta(t, after, "first"), meta(t, after, "second"); a != "1" || b != "" {
		t.Errorf("it has %q and %q", a, b)
	}
}

// TestALogThatTheDatabaseHasLostTheEndOfIsFound though Badger takes it for torn.
func TestALogThatTheDatabaseHasLostTheEndOfIsFound(t *testing.T) {
	commit := func(t *testing.T, s *Store) {
		put(t, s, "last", "1")
		if err := s.settle(); err != nil {
			t.Fatal(err)
		}
	}
	batch := func(t *testing.T, s *Store) {
		b := s.NewBatch()
		if err := b.PutAttr(1, ID{2, 3}, Attr{Mode: 4}); err != nil {
			t.Fatal(err)
		}
		if err := b.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		write func(t *testing.T, s *Store)
		sync  bool
	}{
		"a commit": {commit, false}, "a batch": {batch, false}, "a commit, with sync": {commit, true}, "a batch, with sync": {batch, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, Options{Sync: c.sync})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			put(t, s, "first", "1")
			if err := s.settle(); err != nil {
				t.Fatal(err)
			}
			before := usedOf(t, logOf(t, dir))
			c.write(t, s)
			copied := killed(t, dir)
			edit(t, logOf(t, copied), flip(before+20))
			if _, err := Open(copied, Options{}); errs.CodeOf(err) != errs.Integrity || !strings.Contains(err.Error(), "database") {
				t.Errorf("the error is %v", err)
			}
			whole := reopened(t, killed(t, dir))
			if meta(t, whole, "first") != "1" {
				t.Error("unharmed, it has not what was committed")
			}
		})
	}
}

// TestCommitsAtOnceLeaveNoGap in what the database is said to have, whatever the order in which they return.
func TestCommitsAtOnceLeaveNoGap(t *testing.T) {
	for _, sync := range []bool{false, true} {
		dir := t.TempDir()
		s, err := Open(dir, Options{Sync: sync})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		done := make(chan error)
		for i := range 8 {
			go func() {
				var err error
				for k := range 10 {
					err = errors.Join(err, s.Update(func(tx *Tx) error { return tx.PutMeta(fmt.Sprint(i, " ", k), []byte("x")) }))
				}
				done <- err
			}()
		}
		for range 8 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if err := s.settle(); err != nil { // else the copy may be of more than one moment
			t.Fatal(err)
		}
		if after, err := Open(killed(t, dir), Options{}); err != nil {
			t.Errorf("sync %v: %v", sync, err)
		} else if err := after.Close(); err != nil {
			t.Error(err)
		}
	}
}

// logOf gives the log of the database.
func logOf(t *testing.T, dir string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "db", "*.mem"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("the logs are %v, %v", logs, err)
	}
	return logs[0]
}

// usedOf gives how much of a file is no zeros at its end.
func usedOf(t *testing.T, name string) int {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 4096)
	for len(b) >= len(zeros) && bytes.Equal(b[len(b)-len(zeros):], zeros) { // quicker than byte by byte
		b = b[:len(b)-len(zeros)]
	}
	return len(bytes.TrimRight(b, "\x00"))
}

// TestAStoreOfTheFormatBeforeIsRead whose journals have commits and no more of a head than a generation, also after a death in the middle of that.
func TestAStoreOfTheFormatBeforeIsRead(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("again ", again), func(t *testing.T) {
			dir := t.TempDir()
			reopened(t, dir)
			copied := killed(t, dir) // of a database that was given nothing yet
			makeFormat1(t, copied)
			if again {
				giveWhatJournalsHold(t, copied)
			}
			after := reopened(t, copied)
			if got := meta(t, after, "old"); got != "1" {
				t.Errorf("it has %q", got)
			}
			if b, err := os.ReadFile(filepath.Join(copied, "format")); err != nil || string(b) != "2\n" {
				t.Errorf("its format is %q, %v", b, err)
			}
		})
	}
}

// makeFormat1 leaves a store as one of the format before, in which a commit is in a journal.
func makeFormat1(t *testing.T, dir string) {
	t.Helper()
	w := write{key: metaKey("old"), value: []byte("1")}
	commit := w.encode(make([]byte, commitHead))
	old := journal{head: journalHead{generation: 7}}
	putUint32s(commit, uint32(len(commit)-commitHead), crc32.Update(sumGeneration(old.head.generation), castagnoli, commit[commitHead:]))
	b := append([]byte{0, 0, 0, 0, 0, 0, 0, 7}, commit...)
	for name, content := range map[string][]byte{"format": []byte("1\n"), "journal-0": b, "journal-1": {}} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// giveWhatJournalsHold opens a store as far as that the database has what is in the journals, and these have it still.
func giveWhatJournalsHold(t *testing.T, dir string) {
	t.Helper()
	before := map[string][]byte{}
	for i := range 2 {
		b, err := os.ReadFile(filepath.Join(dir, journalName(i)))
		if err != nil {
			t.Fatal(err)
		}
		before[journalName(i)] = b
	}
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, b := range before {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func putUint32s(b []byte, vs ...uint32) {
	for i, v := range vs {
		b[4*i], b[4*i+1], b[4*i+2], b[4*i+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
	}
}

// closedStore gives a store with checkpoints in a table of its database.
func closedStore(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"ckpt_a", "ckpt_b"} {
		if err := s.Update(func(tx *Tx) error { return tx.PutCheckpoint(Checkpoint{ID: id, Status: Active}) }); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s, "owner", "me")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tableOf(t *testing.T, dir string) string {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(dir, "db", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("the tables are %v, %v", tables, err)
	}
	return tables[0]
}

func TestDamagedTablesAreFoundBeforeAnythingIsTouched(t *testing.T) {
	flipAt := func(share int) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			edit(t, tableOf(t, dir), func(b []byte) []byte { b[min(len(b)*share/8, len(b)-1)] ^= 4; return b })
		}
	}
	for name, harm := range map[string]func(t *testing.T, dir string){
		"first byte flipped":   flipAt(0),
		"flipped in a block":   flipAt(1),
		"flipped in the index": flipAt(7),
		"last byte flipped":    flipAt(8),
		"cut": func(t *testing.T, dir string) {
			edit(t, tableOf(t, dir), func(b []byte) []byte { return b[:len(b)/2] })
		},
		"emptied":          func(t *testing.T, dir string) { edit(t, tableOf(t, dir), func(b []byte) []byte { return nil }) },
		"missing":          func(t *testing.T, dir string) { remove(t, tableOf(t, dir)) },
		"manifest missing": func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "db", "MANIFEST")) },
		"manifest flipped": func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "db", "MANIFEST"), func(b []byte) []byte { b[len(b)-2] ^= 4; return b })
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := closedStore(t)
			harm(t, dir)
			db := contents(t, filepath.Join(dir, "db"))
			wantRefused(t, dir, "database")
			for name, was := range db {
				if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, was) {
					t.Errorf("%s was changed, %v", name, err)
				}
			}
			before := contents(t, dir)
			if i, err := Inspect(dir, "owner"); err != nil || errs.CodeOf(i.Err) != errs.Integrity {
				t.Errorf("inspection gave %+v, %v", i, err)
			}
			sameContents(t, dir, before)
		})
	}
}

func remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

func sameContents(t *testing.T, dir string, before map[string][]byte) {
	t.Helper()
	after := contents(t, dir)
	for name, was := range before {
		if !bytes.Equal(was, after[name]) {
			t.Errorf("%s was changed", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("there were %d files, now %d", len(before), len(after))
	}
}

func idsOf(i Inspection) (ids []string) {
	for _, c := range i.Checkpoints {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestInspectionReadsWhatAKillHasLeftAndChangesNothing(t *testing.T) {
	dir := closedStore(t)
	s := reopened(t, dir)
	notGiven(t, s)
	if err := s.Update(func(tx *Tx) error {
		if err := tx.PutCheckpoint(Checkpoint{ID: "ckpt_c", Status: Active}); err != nil {
			return err
		}
		return tx.DeleteCheckpoint("ckpt_b")
	}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"as it is", "journal damaged", "manifest missing"} {
		copied := killed(t, dir)
		switch name {
		case "journal damaged":
			edit(t, filepath.Join(copied, "journal-0"), flip(journalStart+commitHead+3))
			edit(t, filepath.Join(copied, "journal-1"), flip(journalStart+commitHead+3))
		case "manifest missing":
			remove(t, filepath.Join(copied, "db", "MANIFEST"))
		}
		before := everything(t, copied)
		i, err := Inspect(copied, "owner")
		if err != nil {
			t.Fatal(err)
		}
		want := "ckpt_a ckpt_c"
		if name == "journal damaged" {
			want = "ckpt_a ckpt_b" // what is lost can't be known
		}
		if got := strings.Join(idsOf(i), " "); got != want || (i.Err == nil) != (name == "as it is") {
			t.Errorf("%s: it has %q, %v", name, got, i.Err)
		}
		if i.Err == nil && i.Owner != "me" {
			t.Errorf("the owner is %q", i.Owner)
		}
		after := everything(t, copied)
		for name, was := range before {
			if !bytes.Equal(was, after[name]) {
				t.Errorf("%s was changed", name)
			}
		}
	}
}

// everything gives what all files of a store hold, those of the database among them.
func everything(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := contents(t, dir)
	for name, b := range contents(t, filepath.Join(dir, "db")) {
		all[name] = b
	}
	return all
}

func TestInspectionOfAStoreInUseSaysSo(t *testing.T) {
	dir := closedStore(t)
	reopened(t, dir)
	i, err := Inspect(dir, "owner")
	if err != nil || errs.CodeOf(i.Err) != errs.Busy || len(i.Checkpoints) != 2 {
		t.Errorf("inspection gave %+v, %v", i, err)
	}
}

func TestADamagedRecordHidesNoOther(t *testing.T) {
	dir := closedStore(t)
	s := reopened(t, dir)
	if err := s.Update(func(tx *Tx) error { return tx.Set([]byte("kckpt_x"), []byte(`{"id":`)) }); err != nil {
		t.Fatal(err)
	}
	err := s.View(func(tx *Tx) error {
		all, damaged, err := tx.Checkpoints()
		if len(all) != 2 || len(damaged) != 1 || damaged[0].ID != "ckpt_x" {
			t.Errorf("there are %v and %v", all, damaged)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
