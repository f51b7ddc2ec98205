package checkpoint_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
	"pgregory.net/rapid"
)

func open(t *testing.T, dir string) *checkpoint.Store {
	t.Helper()
	s, err := checkpoint.Open(dir, checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fresh(t *testing.T) *checkpoint.Store {
	s := open(t, t.TempDir())
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func id(n uint64) checkpoint.ID { return checkpoint.ID{Ino: n, Birth: int64(n) * 1e9} }

func TestRecordsComeBackAsTheyWereWritten(t *testing.T) {
	s := fresh(t)
	anyID := rapid.Custom(func(t *rapid.T) checkpoint.ID {
		return checkpoint.ID{Ino: rapid.Uint64Min(1).Draw(t, "ino"), Birth: rapid.Int64().Draw(t, "birth")}
	})
	var epoch checkpoint.Epoch
	rapid.Check(t, func(rt *rapid.T) {
		epoch += 2
		name := string(rapid.SliceOfN(rapid.ByteRange(1, 255), 1, 255).Draw(rt, "name"))
		slot := checkpoint.Slot{Dir: anyID.Draw(rt, "dir"), Name: name}
		occ := checkpoint.Occupant{ID: anyID.Draw(rt, "occupant"), Mode: rapid.Uint32().Draw(rt, "mode"), Size: rapid.Int64().Draw(rt, "size"), Mtime: rapid.Int64().Draw(rt, "mtime")}
		if rapid.Bool().Draw(rt, "empty") {
			occ = checkpoint.Occupant{}
		}
		attr := checkpoint.Attr{At: slot, Mode: 1, UID: rapid.Uint32().Draw(rt, "uid"), GID: 2, Rdev: rapid.Uint64().Draw(rt, "rdev"), Size: 3, Mtime: -4, Ctime: 5, Nlink: 6}
		content := checkpoint.Content{Ref: strategy.Ref{Tier: strategy.Reflink, Name: name, Size: 7, Mtime: -8, Sum: rapid.Uint64().Draw(rt, "sum"), HasSum: true}}
		if rapid.Bool().Draw(rt, "no sum") {
			content.Ref.Sum, content.Ref.HasSum = 0, false
		}
		for i := range rapid.IntRange(0, 3).Draw(rt, "parts") {
			content.Parts = append(content.Parts, strategy.Ref{Tier: strategy.PureManifest, Name: fmt.Sprint(name, i), Size: rapid.Int64Min(0).Draw(rt, "size"), Blocks: true})
		}
		if len(content.Parts) > 0 && rapid.Bool().Draw(rt, "no whole") {
			content.Ref = strategy.Ref{}
		}
		xattrs := []checkpoint.Xattr{{Name: "user." + name, Value: rapid.SliceOf(rapid.Byte()).Draw(rt, "value")}}
		err := s.Update(func(tx *checkpoint.Tx) error {
			return errors.Join(tx.PutSlot(epoch, slot, occ), tx.PutAttr(epoch, occ.ID, attr), tx.PutContent(epoch, occ.ID, content), tx.PutXattrs(epoch, occ.ID, xattrs))
		})
		if err != nil {
			rt.Fatal(err)
		}
		f, err := s.Fold(epoch, epoch+1)
		if err != nil {
			rt.Fatal(err)
		}
		if got := f.Slots[slot]; got != occ {
			rt.Errorf("slot record: got %+v, want %+v", got, occ)
		}
		if got := f.Attrs[occ.ID]; got != attr {
			rt.Errorf("attribute record: got %+v, want %+v", got, attr)
		}
		if got := f.Contents[occ.ID]; !reflect.DeepEqual(got, content) {
			rt.Errorf("content record: got %+v, want %+v", got, content)
		}
		if got := f.Xattrs[occ.ID]; fmt.Sprint(got) != fmt.Sprint(xattrs) {
			rt.Errorf("xattr record: got %v, want %v", got, xattrs)
		}
	})
}

func TestFoldKeepsTheEarliestRecord(t *testing.T) {
	s := fresh(t)
	slot := checkpoint.Slot{Dir: id(1), Name: "f"}
	must(t, s.Update(func(tx *checkpoint.Tx) error {
		for e := checkpoint.Epoch(1); e <= 3; e++ {
			if err := tx.PutSlot(e, slot, checkpoint.Occupant{ID: id(10 + uint64(e)), Mode: 1}); err != nil {
				return err
			}
			ref := strategy.Ref{Tier: strategy.PureManifest, Name: fmt.Sprint(e)}
			if err := tx.PutContent(e, id(5), checkpoint.Content{Ref: ref}); err != nil {
				return err
			}
		}
		return nil
	}))
	for from, want := range map[checkpoint.Epoch]uint64{1: 11, 2: 12, 3: 13} {
		f, err := s.Fold(from, 0)
		must(t, err)
		if got := f.Slots[slot].ID.Ino; got != want || f.Saved[id(5)] != from {
			t.Errorf("from %d: got inode %d saved in %d, want %d", from, got, f.Saved[id(5)], want)
		}
	}
	freed, err := s.FoldEpochs(1, 3)
	must(t, err)
	if !reflect.DeepEqual(freed.Occupants, []checkpoint.ID{id(12)}) || len(freed.Contents) != 1 || freed.Contents[0].Name != "2" {
		t.Errorf("folding freed %+v, want what epoch 2 had", freed)
	}
	f, err := s.Fold(1, 0)
	must(t, err)
	if f.Slots[slot].ID != id(11) {
		t.Errorf("folding lost the earliest record: %+v", f.Slots[slot])
	}
	if freed, err = s.DropEpochs(0, 4); err != nil || len(freed.Occupants) != 2 || len(freed.Contents) != 2 {
		t.Errorf("dropping all freed %+v, %v", freed, err)
	}
	if f, err = s.Fold(0, 0); err != nil || !f.Empty() {
		t.Errorf("after dropping all there is %+v, %v", f, err)
	}
}

func TestReverseIndexKnowsWhoIsNamed(t *testing.T) {
	s := fresh(t)
	slot := checkpoint.Slot{Dir: id(1), Name: "f"}
	check := func(what string, wantNamed, wantOld bool) {
		t.Helper()
		must(t, s.View(func(tx *checkpoint.Tx) error {
			named, err := tx.Named(id(7))
			must(t, err)
			old, err := tx.MarkedOld(2, id(7))
			must(t, err)
			if named != wantNamed || old != wantOld {
				t.Errorf("%s: named %v, old %v", what, named, old)
			}
			return nil
		}))
	}
	check("at first", false, false)
	must(t, s.Update(func(tx *checkpoint.Tx) error { return tx.MarkLinked(2, id(7), slot) }))
	check("marked", false, true)
	must(t, s.Update(func(tx *checkpoint.Tx) error { return tx.PutSlot(2, slot, checkpoint.Occupant{ID: id(7)}) }))
	check("named", true, true)
	if _, err := s.DropEpochs(0, 3); err != nil {
		t.Fatal(err)
	}
	check("dropped", false, false)
	must(t, s.CheckReverse(func(what string) { t.Error(what) }))
}

func TestAliasesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	must(t, s.Update(func(tx *checkpoint.Tx) error {
		return tx.PutSlot(1, checkpoint.Slot{Dir: id(1), Name: "f"}, checkpoint.Occupant{ID: id(1)})
	}))
	must(t, s.PutAlias(id(1), id(2), 1))
	must(t, s.PutAlias(id(2), id(3), 2))
	must(t, s.Close())
	s = open(t, dir)
	defer s.Close()
	f, err := s.Fold(1, 0)
	must(t, err)
	if got := f.Slots[checkpoint.Slot{Dir: id(3), Name: "f"}]; got.ID != id(3) {
		t.Errorf("got %+v in %+v", got, f.Slots)
	}
}

func TestOneProcessHoldsAStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := checkpoint.Open(dir, checkpoint.Options{}); errs.CodeOf(err) != errs.Busy {
		t.Errorf("a second one got %v", err)
	}
	must(t, s.Close())
	must(t, open(t, dir).Close())
}

func TestCorruptRecordIsAnIntegrityError(t *testing.T) {
	dir := t.TempDir()
	must(t, open(t, dir).Close())
	must(t, os.WriteFile(filepath.Join(dir, "format"), []byte(fmt.Sprintln(checkpoint.FormatVersion+1)), 0o600))
	if _, err := checkpoint.Open(dir, checkpoint.Options{}); errs.CodeOf(err) != errs.Unsupported {
		t.Errorf("a newer format gave %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "format"), []byte(fmt.Sprintln(checkpoint.FormatVersion)), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "db", "MANIFEST"), []byte("nonsense"), 0o600))
	if _, err := checkpoint.Open(dir, checkpoint.Options{}); errs.CodeOf(err) != errs.Integrity {
		t.Errorf("a damaged database gave %v", err)
	}
}

func TestLogFilesThatWereNeverBornAreNoDamage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	slot, held := checkpoint.Slot{Dir: id(1), Name: "a"}, checkpoint.Occupant{ID: id(2)}
	must(t, s.Update(func(tx *checkpoint.Tx) error { return tx.PutSlot(1, slot, held) }))
	must(t, s.Close())
	for _, name := range []string{"000099.vlog", "00099.mem"} {
		must(t, os.WriteFile(filepath.Join(dir, "db", name), nil, 0o600))
	}
	s = open(t, dir)
	defer s.Close()
	must(t, s.View(func(tx *checkpoint.Tx) error {
		got, ok, err := tx.Slot(1, slot)
		if !ok || got != held {
			t.Errorf("the record is %v, %v", got, ok)
		}
		return err
	}))
}

func TestLargeBatchesAreWritten(t *testing.T) {
	s := fresh(t)
	b := s.NewBatch()
	const n = 50_000
	for i := range n {
		must(t, b.PutSlot(1, checkpoint.Slot{Dir: id(1), Name: fmt.Sprint(i)}, checkpoint.Occupant{ID: id(uint64(i) + 2)}))
	}
	must(t, b.Flush())
	f, err := s.Fold(1, 0)
	must(t, err)
	if len(f.Slots) != n {
		t.Errorf("got %d records, want %d", len(f.Slots), n)
	}
	if slots, _, err := s.Count(1, 1000); err != nil || slots != 1000 {
		t.Errorf("counting stopped at %d, %v", slots, err)
	}
}
