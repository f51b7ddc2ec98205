package fs

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"

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
