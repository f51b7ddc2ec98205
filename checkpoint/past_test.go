package checkpoint_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/strategy"
)

// wants asks an open Past for the slot d/x, and for the names of the content of the inode 7.
func wants(t *testing.T, a *checkpoint.Past, ino uint64, parts ...string) {
	t.Helper()
	o, ok, err := a.Slot(checkpoint.Slot{id(1), "x"})
	must(t, err)
	if ok != (ino != 0) || o.ID.Ino != ino {
		t.Errorf("epoch %d: the slot held %d (%v), want %d", a.Epoch(), o.ID.Ino, ok, ino)
	}
	c, _, err := a.Content(id(7))
	must(t, err)
	var names []string
	for _, ref := range c.Refs() {
		names = append(names, ref.Name)
	}
	if !slices.Equal(names, parts) {
		t.Errorf("epoch %d: the content is %v, want %v", a.Epoch(), names, parts)
	}
}

func putAt(t *testing.T, s *checkpoint.Store, e checkpoint.Epoch, ino uint64, c checkpoint.Content) {
	t.Helper()
	must(t, s.Update(func(tx *checkpoint.Tx) error {
		if err := tx.PutSlot(e, checkpoint.Slot{id(1), "x"}, checkpoint.Occupant{ID: id(ino)}); err != nil {
			return err
		}
		return tx.PutContent(e, id(7), c)
	}))
}

func blocksOf(names ...string) (c checkpoint.Content) {
	for _, n := range names {
		c.Parts = append(c.Parts, strategy.Ref{Tier: strategy.PureManifest, Name: n, Blocks: true})
	}
	return c
}

func wholeOf(name string) checkpoint.Content {
	return checkpoint.Content{Ref: strategy.Ref{Tier: strategy.PureManifest, Name: name}}
}

func openPast(t *testing.T, s *checkpoint.Store, e checkpoint.Epoch) *checkpoint.Past {
	t.Helper()
	a, err := s.OpenPast(e)
	must(t, err)
	return a
}

func TestPastIsTheEarliestRecordSince(t *testing.T) {
	s := fresh(t)
	putAt(t, s, 2, 20, blocksOf("p2"))
	three := openPast(t, s, 3)
	wants(t, three, 0)
	putAt(t, s, 3, 30, blocksOf("p3"))
	wants(t, three, 30, "p3")
	five := openPast(t, s, 5)
	wants(t, five, 0)
	two := openPast(t, s, 2) // earlier than those that are open
	wants(t, two, 20, "p2", "p3")
	putAt(t, s, 5, 50, blocksOf("p5"))
	putAt(t, s, 6, 60, wholeOf("w6"))
	putAt(t, s, 7, 70, wholeOf("w7"))
	four := openPast(t, s, 4) // between two
	for _, a := range []*checkpoint.Past{three, two, five, four} {
		switch a {
		case two:
			wants(t, a, 20, "p2", "p3", "p5", "w6")
		case three:
			wants(t, a, 30, "p3", "p5", "w6")
		default:
			wants(t, a, 50, "p5", "w6")
		}
	}
	five.Close() // what it has, the earlier ones need
	wants(t, four, 50, "p5", "w6")
	wants(t, two, 20, "p2", "p3", "p5", "w6")
	four.Close()
	wants(t, three, 30, "p3", "p5", "w6")
	putAt(t, s, 8, 80, wholeOf("w8"))
	eight := openPast(t, s, 8)
	wants(t, eight, 80, "w8")
	again := openPast(t, s, 3)
	three.Close()
	wants(t, again, 30, "p3", "p5", "w6")
}

func TestPastFollowsWhatIsJoined(t *testing.T) {
	s := fresh(t)
	for e := checkpoint.Epoch(2); e < 6; e++ {
		putAt(t, s, e, uint64(e)*10, blocksOf(fmt.Sprint("p", e)))
	}
	two, five := openPast(t, s, 2), openPast(t, s, 5)
	_, err := s.FoldEpochs(2, 5)
	must(t, err)
	wants(t, two, 20, "p2", "p3", "p4", "p5")
	must(t, s.Update(func(tx *checkpoint.Tx) error { return tx.PutContent(2, id(7), blocksOf("p2")) })) // they were merged
	wants(t, two, 20, "p2", "p5")
	wants(t, five, 50, "p5")
	last := openPast(t, s, 3)
	wants(t, last, 50, "p5")
	last.Close()
	b := s.NewBatch()
	must(t, b.PutContent(9, id(7), wholeOf("w9")))
	must(t, b.PutSlot(9, checkpoint.Slot{id(1), "y"}, checkpoint.Occupant{ID: id(90)}))
	must(t, b.Flush())
	wants(t, two, 20, "p2", "p5", "w9")
	names, err := five.Names(id(1))
	must(t, err)
	if len(names) != 2 || names["x"].ID != id(50) || names["y"].ID != id(90) {
		t.Errorf("the directory had %v", names)
	}
	b = s.NewBatch()
	must(t, b.DeleteContent(9, id(7)))
	must(t, b.Flush())
	wants(t, five, 50, "p5")
}

func TestPastNamesDirectoriesAsTheyWereNamed(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	putAt(t, s, 2, 20, wholeOf("w2"))
	two, six := openPast(t, s, 2), openPast(t, s, 6)
	must(t, s.PutAlias(id(1), id(11), 5))
	if o, ok, err := two.Slot(checkpoint.Slot{id(11), "x"}); err != nil || !ok || o.ID != id(20) {
		t.Errorf("by its new identity, the directory had %v, %v, %v", o, ok, err)
	}
	for e, want := range map[checkpoint.Epoch]checkpoint.ID{2: id(1), 5: id(1), 6: id(11)} {
		if got := s.Before(id(11), e); got != want {
			t.Errorf("in epoch %d it was %v, want %v", e, got, want)
		}
	}
	six.Close()
	must(t, s.Close())
	s = open(t, dir)
	t.Cleanup(func() { _ = s.Close() })
	if got := s.Before(id(11), 5); got != id(1) {
		t.Errorf("after a restart it was %v", got)
	}
}

func TestPinsAreKept(t *testing.T) {
	s := fresh(t)
	a, b := checkpoint.Pin{4, "a"}, checkpoint.Pin{3, "b"}
	must(t, s.Update(func(tx *checkpoint.Tx) error { return tx.PutPin(a) }))
	must(t, s.Update(func(tx *checkpoint.Tx) error { return tx.PutPin(b) }))
	var pins []checkpoint.Pin
	read := func() {
		must(t, s.View(func(tx *checkpoint.Tx) (err error) { pins, err = tx.Pins(); return err }))
	}
	if read(); !slices.Equal(pins, []checkpoint.Pin{b, a}) {
		t.Errorf("the pins are %v", pins)
	}
	must(t, s.Update(func(tx *checkpoint.Tx) error { return tx.DeletePin(b) }))
	if read(); !slices.Equal(pins, []checkpoint.Pin{a}) {
		t.Errorf("the pins are %v", pins)
	}
}
