//go:build !windows

package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// killed gives a store as a process would find it that starts after this one was killed now.
func killed(t *testing.T, dir string) (copied string) {
	t.Helper()
	copied = t.TempDir()
	err := filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		to := filepath.Join(copied, strings.TrimPrefix(name, dir))
		switch {
		case err != nil || name == dir:
			return err
		case e.IsDir():
			return os.Mkdir(to, 0o700)
		case e.Name() == reserveName:
			return nil
		}
		return copyFile(name, to) // which is quick, as the files are mostly holes
	})
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

func reopened(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(t *testing.T, s *Store, name, value string) {
	t.Helper()
	if err := s.Update(func(tx *Tx) error { return tx.PutMeta(name, []byte(value)) }); err != nil {
		t.Fatal(err)
	}
}

func meta(t *testing.T, s *Store, name string) (value string) {
	t.Helper()
	err := s.View(func(tx *Tx) error {
		b, err := tx.Meta(name)
		value = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// notGiven keeps the database from getting what is committed, until the test ends.
func notGiven(t *testing.T, s *Store) {
	t.Helper()
	s.pending.flush.Lock()
	t.Cleanup(s.pending.flush.Unlock)
}

func TestWhatWasCommittedIsThereAfterAKill(t *testing.T) {
	dir := t.TempDir()
	s := reopened(t, dir)
	put(t, s, "a", "given")
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	notGiven(t, s)
	for i := range 100 {
		put(t, s, "a", fmt.Sprint(i))
		put(t, s, fmt.Sprint("b", i), "x")
	}
	if err := s.Update(func(tx *Tx) error { return tx.DeleteMeta("b50") }); err != nil {
		t.Fatal(err)
	}
	after := reopened(t, killed(t, dir))
	if got := meta(t, after, "a"); got != "99" {
		t.Errorf("a is %q", got)
	}
	for i := range 100 {
		want := "x"
		if i == 50 {
			want = ""
		}
		if got := meta(t, after, fmt.Sprint("b", i)); got != want {
			t.Errorf("b%d is %q, want %q", i, got, want)
		}
	}
}

// TestAJournalThatTheDatabaseHasAlreadyChangesNothing is what a kill leaves between giving a set and emptying its journal.
func TestAJournalThatTheDatabaseHasAlreadyChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s := reopened(t, dir)
	put(t, s, "a", "1")
	s.pending.flush.Lock()
	set := s.pending.turn()
	put(t, s, "a", "2") // in the other journal
	if err := s.pending.give(set, true); err != nil {
		t.Fatal(err)
	}
	copied := killed(t, dir)
	s.pending.flush.Unlock()
	if got := meta(t, reopened(t, copied), "a"); got != "2" {
		t.Errorf("a is %q after the kill", got)
	}
	if got := meta(t, s, "a"); got != "2" {
		t.Errorf("a is %q", got)
	}
}

func TestATornCommitIsNoneAndThoseBeforeItAre(t *testing.T) {
	dir := t.TempDir()
	s := reopened(t, dir)
	notGiven(t, s)
	put(t, s, "first", "1")
	before := s.pending.active.journal.head
	if err := s.Update(func(tx *Tx) error {
		if err := tx.PutMeta("second", []byte("2")); err != nil {
			return err
		}
		return tx.PutMeta("with it", []byte("2"))
	}); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(s.pending.active.journal.f.Name())
	for cut := before.end; cut < s.pending.active.journal.head.end; cut += 3 {
		copied := killed(t, dir)
		setHead(t, filepath.Join(copied, name), before) // which it gets when the commit is whole
		if err := os.Truncate(filepath.Join(copied, name), cut); err != nil {
			t.Fatal(err)
		}
		after, err := Open(copied, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if a, b, c := meta(t, after, "first"), meta(t, after, "second"), meta(t, after, "with it"); a != "1" || b != "" || c != "" {
			t.Errorf("cut at %d: %q, %q, %q", cut, a, b, c)
		}
		if err := after.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatIsPendingIsSeenByEverybody(t *testing.T) {
	s := reopened(t, t.TempDir())
	s.BeginEpoch(7)
	id, dir := ID{5, 6}, ID{1, 2}
	notYet := func(where string, has bool, err error) {
		if has || err != nil {
			t.Errorf("%s: there is one already, %v", where, err)
		}
	}
	there := func(where string, has bool, err error) {
		if !has || err != nil {
			t.Errorf("%s: there is none, %v", where, err)
		}
	}
	look := func(tx *Tx, check func(string, bool, error)) {
		has, err := tx.HasAttr(7, id)
		check("attributes", has, err)
		has, err = tx.HasSlot(7, Slot{dir, "n"})
		check("slot", has, err)
		has, err = tx.MarkedOld(7, id)
		check("mark", has, err)
		has, err = tx.Named(id)
		check("name", has, err)
	}
	if err := s.Update(func(tx *Tx) error {
		look(tx, notYet)
		if err := tx.PutAttr(7, id, Attr{Mode: 1}); err != nil {
			return err
		}
		if err := tx.PutSlot(7, Slot{dir, "n"}, Occupant{ID: id}); err != nil {
			return err
		}
		look(tx, there) // in the same transaction
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, epoch := range []Epoch{7, 8} { // with and without what is known of the epoch
		s.BeginEpoch(epoch)
		if epoch == 7 {
			s.known.epoch = 0
		}
		if err := s.Update(func(tx *Tx) error { look(tx, there); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.View(func(tx *Tx) error { look(tx, there); return nil }); err != nil {
		t.Fatal(err)
	}
	if slots, inodes, err := s.Count(7, 10); slots != 1 || inodes != 1 || err != nil {
		t.Errorf("there are %d slots and %d inodes, %v", slots, inodes, err)
	}
}

// TestLocationsAreKnownWithoutTheDatabase asks for some that are there, and for one that is not, in a store and when it is opened anew.
func TestLocationsAreKnownWithoutTheDatabase(t *testing.T) {
	for _, count := range []int{100, locsAtMax + 1} {
		dir := t.TempDir()
		s, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		b := s.NewBatch()
		for i := range count - 1 {
			if err := b.PutLoc(ID{Ino: uint64(i + 1)}, Loc{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := s.Update(func(tx *Tx) error { return tx.PutLoc(ID{Ino: uint64(count)}, Loc{}) }); err != nil {
			t.Fatal(err)
		}
		look := func(s *Store, ino uint64, want, looks bool) {
			t.Helper()
			err := s.Get(func(tx *Tx) error {
				has, err := tx.HasLoc(ID{Ino: ino})
				if has != want || (tx.reading != nil) != looks {
					t.Errorf("of %d, the location of inode %d is there: %t; the database was asked: %t", count, ino, has, tx.reading != nil)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		look(s, uint64(count)+1, false, false)
		look(s, 1, true, true)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = reopened(t, dir)
		look(s, uint64(count)+1, false, count > locsAtMax)
		look(s, 1, true, true)
		look(s, uint64(count), true, true)
		if n, err := s.SweepLocs(func(ID) bool { return false }); n != count || err != nil {
			t.Fatal(n, err)
		}
		look(s, 1, false, true) // it may be there, for all that is remembered
	}
}

// TestACommitIsSeenWhileTheDatabaseGetsIt has transactions begin before, while and after what they look for is moved.
func TestACommitIsSeenWhileTheDatabaseGetsIt(t *testing.T) {
	s := reopened(t, t.TempDir())
	stop := make(chan struct{})
	var settler, writers sync.WaitGroup
	settler.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := s.settle(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for w := range 4 {
		writers.Go(func() {
			for i := range 500 {
				name := fmt.Sprintf("%d-%d", w, i)
				if err := s.Update(func(tx *Tx) error { return tx.PutMeta(name, []byte(name)) }); err != nil {
					t.Error(err)
				}
				for _, read := range []func(func(*Tx) error) error{s.Update, s.View} {
					if err := read(func(tx *Tx) error {
						b, err := tx.Meta(name)
						if err == nil && string(b) != name {
							t.Errorf("%s is %q right after it was committed", name, b)
						}
						return err
					}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	settler.Wait()
}

func TestADirectDeletionStaysAfterAKill(t *testing.T) {
	dir := t.TempDir()
	s := reopened(t, dir)
	id := ID{5, 6}
	if err := s.Update(func(tx *Tx) error { return tx.PutAttr(3, id, Attr{Mode: 1}) }); err != nil {
		t.Fatal(err)
	}
	if freed, err := s.DropEpochs(0, 4); err != nil || freed.Records != 1 {
		t.Fatalf("%d records were dropped, %v", freed.Records, err)
	}
	after := reopened(t, killed(t, dir))
	if err := after.View(func(tx *Tx) error {
		has, err := tx.HasAttr(3, id)
		if has {
			t.Error("the record is back")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestASyncedStoreHasWhatAnotherLeftInItsJournals(t *testing.T) {
	dir := t.TempDir()
	s := reopened(t, dir)
	notGiven(t, s)
	put(t, s, "a", "1")
	dir = killed(t, dir)
	synced, err := Open(dir, Options{Sync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer synced.Close()
	if got := meta(t, synced, "a"); got != "1" {
		t.Errorf("it reads %q, want 1", got)
	}
	put(t, synced, "a", "2")
	if got := meta(t, reopened(t, killed(t, dir)), "a"); got != "2" {
		t.Errorf("after a kill it reads %q, want 2: the journal has brought back what was before", got)
	}
}

func TestALargeBatchComesAfterWhatWasCommittedBefore(t *testing.T) {
	s := reopened(t, t.TempDir())
	id := ID{Ino: 1}
	old, moved := Loc{Slots: []Slot{{Name: "old"}}}, Loc{Slots: []Slot{{Name: "new"}}}
	if err := s.Update(func(tx *Tx) error { return tx.PutLoc(id, old) }); err != nil {
		t.Fatal(err)
	}
	b := s.NewBatch()
	defer b.Cancel()
	if err := b.PutLoc(id, moved); err != nil {
		t.Fatal(err)
	}
	for i := range 50_000 { // more than fits into one transaction
		if err := b.PutLoc(ID{Ino: uint64(i + 2)}, moved); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	err := s.View(func(tx *Tx) error {
		l, ok, err := tx.Loc(id)
		if !ok || l.Slots[0].Name != "new" {
			t.Errorf("it reads %v, want what the batch has", l)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
