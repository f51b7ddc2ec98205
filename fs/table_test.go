package fs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

func openTree(t *testing.T) *overlay.Tree {
	t.Helper()
	w, err := overlay.Open(overlay.Config{Workspace: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w.Tree()
}

// A node that is forgotten while it is looked up again must stay, with the count that the kernel has.
func TestForgetAndLookupOfOneNodeAtTheSameTime(t *testing.T) {
	tree := openTree(t)
	d, _, err := tree.Mkdir(tree.Root(), "d", 0o755, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := node{newVolume(tree.Volume(), true), d}
	table := newNodeTable()
	table.ref(n)
	const rounds = 10_000
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range rounds {
				again, _, err := tree.Lookup(tree.Root(), "d")
				if err != nil || again != d {
					t.Error("the node changed:", err)
					return
				}
				table.ref(n)
				if n, refs, _ := table.forget(d.Num(), 1); n.Inode != nil {
					n.vol.Forget(n.Inode, refs)
				}
			}
		})
	}
	wg.Wait()
	if got, _ := table.use(d.Num()); got != n {
		t.Fatal("the node is gone")
	}
	if _, refs, gone := table.forget(d.Num(), 5); refs != 1 || !gone {
		t.Fatalf("%d references were left", refs)
	}
	if table.len() != 0 {
		t.Fatal("the table is not empty")
	}
}

func TestHandlesAreNumberedAnew(t *testing.T) {
	table := newHandleTable()
	if table.get(0) != nil || table.remove(0) != nil || table.get(99) != nil {
		t.Fatal("an empty table has handles")
	}
	a, b := &openFile{}, &openFile{}
	x, y := table.add(a), table.add(b)
	if x == 0 || x == y || table.get(x) != a || table.get(y) != b {
		t.Fatal(x, y)
	}
	if table.remove(x) != a || table.remove(x) != nil || table.get(x) != nil {
		t.Fatal("a handle is there after its removal")
	}
	if table.add(a) != x {
		t.Fatal("numbers are not used again")
	}
	if len(table.drain()) != 2 || table.get(x) != nil {
		t.Fatal("drain has left something")
	}
}

func TestListingsAreBoundedAndDropped(t *testing.T) {
	tree := openTree(t)
	v := newVolume(tree.Volume(), true)
	ls := newListings()
	var first *overlay.Node
	for i := range 2 * maxListings {
		n, _, err := tree.Mkdir(tree.Root(), fmt.Sprint(i), 0o755, nil)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = n
		}
		l, err := ls.take(node{v, n})
		if err != nil {
			t.Fatal(err)
		}
		ls.put(l)
	}
	if ls.lru.Len() != maxListings || ls.byNum[first.Num()] != nil {
		t.Fatalf("%d are kept", ls.lru.Len())
	}
	last := ls.lru.Front().Value.(*listing).Inode()
	l, err := ls.take(node{v, last})
	if err != nil {
		t.Fatal(err)
	}
	ls.invalidate(last)
	ls.put(l) // what it shows may be no more
	if ls.byNum[last.Num()] != nil {
		t.Fatal("a listing from before an invalidation is kept")
	}
	ls.drain()
	if ls.lru.Len() != 0 {
		t.Fatal("drain has left something")
	}
}

// TestWhatWasJustListedIsNotLookedUpAgain reads the start of a directory once more, as rm does.
func TestWhatWasJustListedIsNotLookedUpAgain(t *testing.T) {
	tree := openTree(t)
	s := newFilesystem(tree, Options{InPlace: true}, slog.New(slog.DiscardHandler))
	t.Cleanup(s.OnUnmount)
	const files = 10
	for i := range files {
		if _, _, err := tree.Mkdir(tree.Root(), fmt.Sprint(i), 0o755, nil); err != nil {
			t.Fatal(err)
		}
	}
	// list reads from a cookie on, as much as fits into a reply. It gives how many entries the kernel is told of, and looks up.
	list := func(from uint64, size int) (known, told int, next uint64) {
		t.Helper()
		out := fuse.NewDirEntryList(make([]byte, size), from)
		if st := s.ReadDirPlus(nil, &fuse.ReadIn{InHeader: fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, Offset: from, Size: uint32(size)}, out); !st.Ok() {
			t.Fatal(st)
		}
		for _, e := range plusEntries(out.Bytes()) {
			switch {
			case e.name == "." || e.name == "..":
			case e.node == 0:
				known++
			default:
				told++
			}
		}
		return known, told, out.Offset
	}
	want := func(what string, known, told, wantKnown, wantTold int) {
		t.Helper()
		if known != wantKnown || told != wantTold {
			t.Errorf("%s: %d entries are known and %d are told of, want %d and %d", what, known, told, wantKnown, wantTold)
		}
	}
	const all, half = 8 << 10, 1 << 10
	known, first, next := list(0, half)
	if first == 0 || first == files {
		t.Fatalf("%d entries are in the first reply", first)
	}
	want("at first", known, first, 0, first)
	known, told, _ := list(0, all)
	want("again, and further", known, told, first, files-first)
	known, told, _ = list(0, all)
	want("all of it again", known, told, files, 0)
	known, told, _ = list(next, all)
	want("from the middle", known, told, 0, files-first)
	known, told, _ = list(0, all)
	want("from the start after that", known, told, 0, files)
	s.listings.invalidate(tree.Root())
	known, told, _ = list(0, all)
	want("after an invalidation", known, told, 0, files)
	s.invalidated.Add(1)
	known, told, _ = list(0, all)
	want("after one of something else", known, told, 0, files)
	s.listings.lru.Front().Value.(*listing).known.when = time.Now().Add(-2 * knownLong)
	known, told, end := list(0, all)
	want("after a while", known, told, 0, files)
	if known, told, _ = list(end, all); known+told != 0 || s.listings.lru.Len() != 0 {
		t.Errorf("%d entries are behind the end, and %d listings are kept", known+told, s.listings.lru.Len())
	}
	known, told, _ = list(0, all)
	want("after the end", known, told, 0, files)
}

// plusEntry is an entry of a READDIRPLUS reply.
type plusEntry struct {
	node uint64
	name string
}

// plusEntries takes a reply apart: see struct fuse_direntplus in linux/fuse.h.
func plusEntries(b []byte) (all []plusEntry) {
	const attributes = int(unsafe.Sizeof(fuse.EntryOut{}))
	for len(b) > 0 {
		size := int(binary.NativeEndian.Uint32(b[attributes+16:]))
		name := b[attributes+24:][:size]
		all = append(all, plusEntry{binary.NativeEndian.Uint64(b), string(name)})
		b = b[(attributes+24+size+7)&^7:]
	}
	return all
}

func TestErrnosReachTheKernelUnchanged(t *testing.T) {
	for _, c := range []struct {
		err  error
		want fuse.Status
	}{
		{nil, fuse.OK},
		{syscall.ENOTEMPTY, fuse.Status(syscall.ENOTEMPTY)},
		{syscall.ESTALE, fuse.Status(syscall.ESTALE)},
		{fmt.Errorf("save: %w", syscall.ENOSPC), fuse.Status(syscall.ENOSPC)},
		{errs.Wrap(errs.Integrity, "read", "f", syscall.EIO), fuse.EIO},
		{errs.New(errs.Capacity, "save", "f", "no tier has room"), fuse.Status(syscall.ENOSPC)},
		{io.ErrUnexpectedEOF, fuse.EIO},
		{errors.New("something"), fuse.EIO},
		{syscall.ENOSYS, fuse.Status(syscall.EOPNOTSUPP)},
	} {
		if got := status(c.err); got != c.want {
			t.Errorf("%v: got %v, want %v", c.err, got, c.want)
		}
	}
}

func TestTheSecondStaleOpenIsNoEntry(t *testing.T) {
	var s staleOpens
	for _, c := range []struct {
		pid  uint32
		err  error
		want syscall.Errno
	}{
		{7, syscall.ESTALE, syscall.ESTALE},
		{7, syscall.ESTALE, syscall.ENOENT},
		{7, syscall.ESTALE, syscall.ESTALE},
		{8, syscall.ESTALE, syscall.ESTALE},
		{8, syscall.EACCES, syscall.EACCES},
	} {
		if got := s.status(c.pid, c.err); got != fuse.Status(c.want) {
			t.Errorf("thread %d: got %v, want %v", c.pid, got, c.want)
		}
	}
}

func TestMountinfoIsUnderstood(t *testing.T) {
	const info = `22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 22 0:40 / /a\040b\134\012c rw shared:1 master:2 - fuse.hyperfs hyperfs rw,user_id=0
31 22 0:41 / /twice rw - fuse.hyperfs hyperfs rw
32 22 0:42 / /twice rw - tmpfs tmpfs rw
33 22 0:43 / /broken
`
	for path, want := range map[string]string{
		"/": "ext4", "/a b\\\nc": mountType, "/twice": "tmpfs", "/broken": "", "/none": "",
	} {
		if got := topMount(info, path).kind; got != want {
			t.Errorf("%q: got %q, want %q", path, got, want)
		}
	}
	if got := topMount(info, "/twice").device; got != "0:42" {
		t.Error(got)
	}
}

func TestEveryOperationHasAName(t *testing.T) {
	seen := map[string]bool{}
	for i, name := range append(opNames[:], eventNames[:]...) {
		if name == "" || seen[name] {
			t.Errorf("operation %d is called %q", i, name)
		}
		seen[name] = true
	}
	var m meter
	m.done(opRename, clock(), fuse.OK)
	m.done(opRename, clock(), fuse.EIO)
	m.note(eventEcho)
	if c := m.counts(); len(c) != 2 || c["rename"] != 2 || c["watch_event"] != 1 || m.ops[opRename].errors.Load() != 1 {
		t.Error(c)
	}
}

func TestMeteringAllocatesNothing(t *testing.T) {
	var m meter
	if n := testing.AllocsPerRun(1000, func() { m.done(opRename, clock(), fuse.EIO) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkMetering(b *testing.B) {
	var m meter
	for b.Loop() {
		m.done(opLookup, clock(), fuse.OK)
	}
}
