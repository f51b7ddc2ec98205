package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// countingShelf lends one volume under every name, and counts.
type countingShelf struct {
	vol       overlay.Volume
	names     []string
	fail      error
	lent, all atomic.Int64
}

func (s *countingShelf) Checkpoints() []string { return nil }
func (s *countingShelf) Branches() []string    { return s.names }

func (s *countingShelf) Checkpoint(string) (overlay.Volume, func(), error) {
	return nil, nil, unix.ENOENT
}

func (s *countingShelf) Branch(string) (overlay.Volume, func(), error) {
	if s.fail != nil {
		return nil, nil, s.fail
	}
	s.all.Add(1)
	s.lent.Add(1)
	return s.vol, func() {
		if s.lent.Add(-1) < 0 {
			panic("given back twice")
		}
	}, nil
}

func TestALoanEndsWithItsLastUser(t *testing.T) {
	tree := openTree(t)
	of := &countingShelf{vol: tree.Volume()}
	s := newShelf(of, tree)
	at := slot{s.dirs.kinds[Branches], "b"}
	a, err := s.borrow(at)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.borrow(at)
	if err != nil || a != b || of.all.Load() != 1 {
		t.Fatal("a second user has opened it again:", err)
	}
	a.let()
	if of.lent.Load() != 1 {
		t.Fatal("it was given back while somebody used it")
	}
	b.let()
	if of.lent.Load() != 0 || len(s.loans) != 0 {
		t.Fatal("it was not given back")
	}
	if c, err := s.borrow(at); err != nil || c == a {
		t.Fatal("the old one was lent:", err)
	}
}

func TestLoansAreBorrowedAndEndedAtTheSameTime(t *testing.T) {
	tree := openTree(t)
	of := &countingShelf{vol: tree.Volume()}
	s := newShelf(of, tree)
	at := slot{s.dirs.kinds[Branches], "b"}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5000 {
				l, err := s.borrow(at)
				if err != nil || of.lent.Load() == 0 {
					t.Error("it is not open:", err)
					return
				}
				l.vol.hold()
				l.vol.let()
				l.let()
			}
		})
	}
	wg.Go(func() {
		for range 5000 {
			if l, _ := s.recall(at); l != nil {
				t.Error("it was given up")
				l.let()
			}
		}
	})
	wg.Wait()
	if of.lent.Load() != 0 || len(s.loans) != 0 {
		t.Errorf("%d are still lent", of.lent.Load())
	}
}

func TestAVolumeIsGivenUpOnlyIfItIsCertainlyGone(t *testing.T) {
	tree := openTree(t)
	for _, c := range []struct {
		change     func(of *countingShelf)
		gone, same bool
	}{
		{func(of *countingShelf) {}, false, true},
		{func(of *countingShelf) { of.fail = unix.ENOENT }, true, false},
		{func(of *countingShelf) { of.fail = errs.New(errs.NotFound, "open", "b", "there is none") }, true, false},
		{func(of *countingShelf) { of.fail = unix.EMFILE }, false, false},
		{func(of *countingShelf) { of.fail = errors.New("something") }, false, false},
		{func(of *countingShelf) { of.vol = openTree(t).Volume() }, true, false},
	} {
		of := &countingShelf{vol: tree.Volume()}
		s := newShelf(of, tree)
		at := slot{s.dirs.kinds[Branches], "b"}
		l, err := s.borrow(at)
		if err != nil {
			t.Fatal(err)
		}
		c.change(of)
		stale, same := s.recall(at)
		if stale != nil {
			stale.let()
		}
		if l.gone.Load() != c.gone || same != c.same || (s.loans[at] == nil) != c.gone {
			t.Errorf("after %v: gone is %v", of.fail, l.gone.Load())
		}
		l.let()
		if of.lent.Load() != 0 {
			t.Error("it was not given back")
		}
	}
}

func TestAFailedOpenIsTriedAgain(t *testing.T) {
	tree := openTree(t)
	of := &countingShelf{vol: tree.Volume(), fail: unix.EMFILE}
	s := newShelf(of, tree)
	at := slot{s.dirs.kinds[Branches], "b"}
	if _, err := s.borrow(at); err != unix.EMFILE {
		t.Fatal(err)
	}
	of.fail = nil
	l, err := s.borrow(at)
	if err != nil {
		t.Fatal(err)
	}
	l.let()
}

func TestAShelfThatPanicsKeepsNobodyWaiting(t *testing.T) {
	tree := openTree(t)
	of := &countingShelf{} // has no volume to look at
	s := newShelf(of, tree)
	at := slot{s.dirs.kinds[Branches], "b"}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("nothing has panicked")
			}
		}()
		_, _ = s.borrow(at)
	}()
	of.vol = tree.Volume()
	l, err := s.borrow(at)
	if err != nil {
		t.Fatal(err)
	}
	l.let()
}

// What a volume has given may come to the table after the volume was given up. It must not stay there.
func TestNothingIsEnteredOfAVolumeThatWasGivenUp(t *testing.T) {
	tree := openTree(t)
	of := &countingShelf{vol: tree.Volume()}
	s := newShelf(of, tree)
	l, err := s.borrow(slot{s.dirs.kinds[Branches], "b"})
	if err != nil {
		t.Fatal(err)
	}
	d, _, err := tree.Mkdir(tree.Root(), "d", 0o755, nil)
	if err != nil {
		t.Fatal(err)
	}
	table, n := newNodeTable(), node{l.vol, d}
	for range 2 {
		if !table.ref(n) {
			t.Fatal("it is not entered")
		}
	}
	l.gone.Store(true)
	if table.ref(n) {
		t.Error("it is entered")
	}
	table.evict(table.of(l.vol))
	if table.len() != 0 || table.has(d.Num()) {
		t.Error("something is left")
	}
	if n, _, _ := table.forget(d.Num(), 2); n.Inode != nil {
		t.Error("what the kernel forgets afterwards is given back twice")
	}
	l.let()
	if of.lent.Load() != 0 {
		t.Error("the volume was not given back")
	}
}

// Before the nodes of a volume that was given up have left the table, they are stale already.
func TestNodesAreStaleAsSoonAsTheirVolumeIsGivenUp(t *testing.T) {
	tree := openTree(t)
	of := &countingShelf{vol: openTree(t).Volume()}
	s := newFilesystem(tree, Options{InPlace: true, Shelf: numberedShelf{of, tree}}, slog.New(slog.DiscardHandler))
	id := uint64(fuse.FUSE_ROOT_ID)
	for _, name := range []string{overlay.StoreName, string(Branches), "b"} {
		var out fuse.EntryOut
		if st := s.Lookup(nil, &fuse.InHeader{NodeId: id}, name, &out); !st.Ok() {
			t.Fatal(name, st)
		}
		id = out.NodeId
	}
	get := func() fuse.Status {
		var out fuse.AttrOut
		return s.GetAttr(nil, &fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: id}}, &out)
	}
	if st := get(); !st.Ok() {
		t.Fatal(st)
	}
	for _, l := range s.shelf.loans {
		l.gone.Store(true)
	}
	if st := get(); st != fuse.Status(unix.ESTALE) {
		t.Error(st)
	}
	s.Forget(id, 1)
	if of.lent.Load() != 0 {
		t.Error("the volume was not given back")
	}
}

// numberedShelf gives the root of its volumes a number of the tree.
type numberedShelf struct {
	*countingShelf
	tree *overlay.Tree
}

func (s numberedShelf) Branch(name string) (overlay.Volume, func(), error) {
	v, giveBack, err := s.countingShelf.Branch(name)
	return numberedRoot{v, &numbered{v.Root(), s.tree.NewNum()}}, giveBack, err
}

// numberedRoot is a volume of which there is only the root.
type numberedRoot struct {
	overlay.Volume
	root *numbered
}

type numbered struct {
	overlay.Inode
	num uint64
}

func (n *numbered) Num() uint64 { return n.num }

func (v numberedRoot) Root() overlay.Inode { return v.root }

func (v numberedRoot) GetAttr(n overlay.Inode, f overlay.File) (overlay.Attr, error) {
	return v.Volume.GetAttr(n.(*numbered).Inode, f)
}

// Cookies must mean the same when names come and go between two requests.
func TestCookiesOfTheShelfOutliveChanges(t *testing.T) {
	tree := openTree(t)
	of := &countingShelf{}
	for i := range 10 {
		of.names = append(of.names, fmt.Sprint(i))
	}
	of.names = append(of.names, "", ".", "..", "a/b", "a\x00b", string(make([]byte, 300)))
	v := newShelfVolume(of, tree)
	dir := v.kinds[Branches]
	read := func(off uint64, most int) (names []string, next uint64) {
		d, err := v.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Release()
		for len(names) < most {
			e, ok, err := d.Next(off)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			names, off = append(names, e.Name), e.Off
		}
		return names, off
	}
	first, off := read(0, 5)
	if !slices.Equal(first, []string{".", "..", "0", "1", "2"}) {
		t.Fatal(first)
	}
	of.names = []string{"0", "2", "4", "5", "6", "7", "8", "9", "aa"} // 1 and 3 went, aa came
	rest, _ := read(off, 100)
	if !slices.Equal(rest, []string{"4", "5", "6", "7", "8", "9", "aa"}) {
		t.Error(rest)
	}
	of.names = append(of.names, "1")
	if rest, _ = read(off, 100); !slices.Equal(rest, []string{"4", "5", "6", "7", "8", "9", "aa", "1"}) {
		t.Error(rest)
	}
	if rest, _ = read(off+1<<40, 100); len(rest) != 0 {
		t.Error(rest)
	}
}

func TestNothingOfAShelfDirectoryIsAFile(t *testing.T) {
	tree := openTree(t)
	v := newShelfVolume(&countingShelf{}, tree)
	if _, err := v.Open(v.Root(), unix.O_RDONLY, false, nil); err != unix.EISDIR {
		t.Error(err)
	}
	if _, err := v.Readlink(v.Root()); err != unix.EINVAL {
		t.Error(err)
	}
	if _, _, err := v.Lookup(v.kinds[Branches], string(Branches)); err != unix.ENOENT {
		t.Error(err)
	}
	if v.Root().Num() == fuse.FUSE_ROOT_ID || !v.Root().IsDir() {
		t.Error("the shelf has the number of the root")
	}
}
