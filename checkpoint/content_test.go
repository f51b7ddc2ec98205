package checkpoint

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/hyperfs/hyperfs/strategy"
)

// TestOldContentRecordsAreStillRead has bytes that were written before there were block preimages.
func TestOldContentRecordsAreStillRead(t *testing.T) {
	for text, want := range map[string]strategy.Ref{
		"010d707572652d6d616e69666573740a31662d32612d33622d34f2c001aab4aef2eda9fefa300011223344556677": {
			Tier: strategy.PureManifest, Name: "1f-2a-3b-4", Size: 12345, Mtime: 1764000000123456789, Sum: 0x0011223344556677, HasSum: true},
		"01077265666c696e6b03622d320201": {Tier: strategy.Reflink, Name: "b-2", Size: 1, Mtime: -1},
	} {
		v, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeContent(v)
		if err != nil || !reflect.DeepEqual(got, Content{Ref: want}) {
			t.Errorf("%s is read as %+v (%v)", text, got, err)
		}
		if back := (Content{Ref: want}).encode(); !slices.Equal(back, v) {
			t.Errorf("%s is written as %x", text, back)
		}
	}
	if _, err := decodeContent([]byte{3, 0}); err == nil {
		t.Error("a record of a version that is not known is read")
	}
}

// blockRef and wholeRef name preimages.
func blockRef(name string) strategy.Ref {
	return strategy.Ref{Tier: strategy.PureManifest, Name: name, Size: 100, Blocks: true}
}

func wholeRef(name string) strategy.Ref {
	return strategy.Ref{Tier: strategy.PureManifest, Name: name, Size: 100}
}

// namesOf gives the names of the preimages of a content, parts first.
func namesOf(c Content) (names []string) {
	for _, ref := range c.Refs() {
		names = append(names, ref.Name)
	}
	return names
}

// chainStore has content records of one inode: blocks in the epochs 1 to 3, a whole one in 4, blocks in 5.
func chainStore(t *testing.T) (*Store, ID) {
	t.Helper()
	s, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	id := ID{Ino: 7, Birth: 8}
	b := s.NewBatch()
	for e, c := range map[Epoch]Content{
		1: {Parts: []strategy.Ref{blockRef("one")}}, 2: {Parts: []strategy.Ref{blockRef("two")}}, 3: {Parts: []strategy.Ref{blockRef("three")}},
		4: {Ref: wholeRef("four")}, 5: {Parts: []strategy.Ref{blockRef("five")}},
	} {
		if err := b.PutContent(e, id, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	return s, id
}

func wantContent(t *testing.T, s *Store, id ID, from, to Epoch, want ...string) {
	t.Helper()
	f, err := s.Fold(from, to)
	if err != nil {
		t.Fatal(err)
	}
	if got := namesOf(f.Contents[id]); !slices.Equal(got, want) {
		t.Errorf("of the epochs from %d to %d are %q, want %q", from, to, got, want)
	}
}

func TestAFoldJoinsBlocksUpToAWholePreimage(t *testing.T) {
	s, id := chainStore(t)
	wantContent(t, s, id, 1, 0, "one", "two", "three", "four")
	wantContent(t, s, id, 3, 0, "three", "four")
	wantContent(t, s, id, 1, 3, "one", "two")
	wantContent(t, s, id, 4, 0, "four")
	wantContent(t, s, id, 5, 0, "five")
	f, err := s.Fold(2, 0)
	if err != nil || f.Saved[id] != 2 || f.WholeIn[id] != 4 {
		t.Errorf("it was first saved in epoch %d and whole in %d (%v)", f.Saved[id], f.WholeIn[id], err)
	}
	if f, err = s.Fold(1, 3); err != nil || f.Contents[id].Whole() || len(f.WholeIn) != 0 {
		t.Errorf("without the whole one there is %+v (%v)", f.Contents[id], err)
	}
}

func TestFoldedEpochsKeepTheBlocksThatAreNeeded(t *testing.T) {
	s, id := chainStore(t)
	freed, err := s.FoldEpochs(2, 4)
	if err != nil || len(freed.Contents) != 0 {
		t.Errorf("folding blocks frees %v (%v)", freed.Contents, err)
	}
	wantContent(t, s, id, 1, 0, "one", "two", "three", "four")
	wantContent(t, s, id, 2, 3, "two", "three")
	wantContent(t, s, id, 3, 4)
	joined, err := s.Joined(1, 0)
	if err != nil || len(joined) != 1 || joined[0].Epoch != 2 || joined[0].ID != id {
		t.Errorf("joined are %+v (%v)", joined, err)
	}
	if freed, err = s.FoldEpochs(1, 0); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(namesOf(Content{Parts: freed.Contents})); got != "[five]" {
		t.Errorf("folding all frees %s, want what is behind the whole one", got)
	}
	wantContent(t, s, id, 1, 0, "one", "two", "three", "four")
	all, err := s.All()
	if err != nil || len(all.Contents) != 4 {
		t.Errorf("the log names %v (%v)", all.Contents, err)
	}
	if freed, err = s.DropEpochs(0, 0); err != nil || len(freed.Contents) != 4 {
		t.Errorf("dropping all frees %v (%v)", freed.Contents, err)
	}
}
