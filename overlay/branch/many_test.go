//go:build linux

package branch_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/overlay/branch"
)

// idleMax is what a branch of 10 changed files may take in memory while nobody uses it, in bytes.
const idleMax = 20 << 10

func TestAThousandIdleBranchesCostLittleAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const many = 1000
	files := map[string]string{}
	for i := range 10 {
		files[fmt.Sprintf("d%d/f%d", i%3, i)] = "main's"
	}
	s := newSpace(t, files)
	s.close()
	s.idle = 50 * time.Millisecond
	s.open()
	before := heap()
	for i := range many {
		name := fmt.Sprint("branch ", i)
		s.fork(name, "")
		v, err := s.m.Volume(name)
		s.ok(err)
		for path := range files {
			s.writeOnce(v, path)
		}
		v.Close()
	}
	for s.state.Users() > 0 {
		time.Sleep(s.idle)
	}
	if each := (heap() - before) / many; each > idleMax {
		t.Errorf("an idle branch takes %d bytes, want no more than %d", each, idleMax)
	} else {
		t.Logf("an idle branch takes %d bytes", each)
	}
	start := time.Now()
	list := s.m.Branches(branch.Filter{})
	if len(list) != many {
		t.Fatalf("%d branches are listed", len(list))
	}
	t.Logf("listing them takes %v", time.Since(start))
	start = time.Now()
	for _, b := range list {
		s.ok(s.m.Drop(context.Background(), b.Name))
	}
	_, err := s.m.GC(context.Background())
	s.ok(err)
	t.Logf("dropping them takes %v", time.Since(start))
	if n := s.poolSize(); n != 0 {
		t.Errorf("%d inodes are left in the pool", n)
	}
}

// heap gives the bytes in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// writeOnce changes a file and gives all references back.
func (s *space) writeOnce(v *branch.Volume, path string) {
	s.Helper()
	dir, _, err := v.Lookup(v.Root(), path[:2])
	s.ok(err)
	n, _, err := v.Lookup(dir, path[3:])
	s.ok(err)
	f, err := v.Open(n, 1, false, nil)
	s.ok(err)
	_, err = f.WriteAt([]byte("changed"), 0)
	s.ok(err)
	f.Release()
	v.Forget(n, 1)
	v.Forget(dir, 1)
}

func TestAnIdleBranchIsLoadedAgainWhenItIsUsed(t *testing.T) {
	s := newSpace(t, map[string]string{"d1/f": "main's"})
	s.close()
	s.idle = 5 * time.Millisecond
	s.open()
	s.fork("x", "")
	v, err := s.m.Volume("x")
	s.ok(err)
	s.writeOnce(v, "d1/f")
	root := v.Root()
	for range 3 {
		for s.state.Users() > 0 {
			time.Sleep(s.idle)
		}
		if v.Root() != root {
			t.Error("the root is another one")
		}
		x := s.capture("x")
		if e := x["d1/f"]; e.Size != 7 {
			t.Errorf("the file has %d bytes", e.Size)
		}
	}
	v.Close()
}

func TestABranchThatNobodyHasOpenIsCheckpointedAndRolledBack(t *testing.T) {
	s := newSpace(t, map[string]string{"d1/f": "main's"})
	s.fork("x", "")
	s.tree("x").write("d1/f", "changed")
	s.close()
	s.idle = 5 * time.Millisecond
	s.open()
	s.rollback("x", mainPoint)
	for s.state.Users() > 0 {
		time.Sleep(s.idle)
	}
	s.snapshot("x")
	for s.state.Users() > 0 {
		time.Sleep(s.idle)
	}
	s.tree("x").has("d1/f", "main's")
}

func BenchmarkFork(b *testing.B) {
	s := newSpace(b, nil)
	i := 0
	for b.Loop() {
		i++
		s.fork(fmt.Sprint(i), "")
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s := newSpace(b, nil)
	s.fork("x", "")
	for b.Loop() {
		s.snapshot("x")
	}
}

// deep makes a nest of branches, with a change in each, and gives the innermost.
func (s *space) deep(depth int) tree {
	s.Helper()
	from := ""
	for i := range depth {
		name := fmt.Sprint("nest ", i)
		s.fork(name, from)
		s.tree(name).write("changed", name)
		from = s.snapshot(name)
	}
	return s.tree(fmt.Sprint("nest ", depth-1))
}

func benchDepths(b *testing.B, fn func(b *testing.B, t tree)) {
	for _, depth := range []int{1, 30} {
		b.Run(fmt.Sprint("depth ", depth), func(b *testing.B) {
			s := newSpace(b, map[string]string{"dir/f": "some bytes of content"})
			t := s.deep(depth)
			b.ResetTimer()
			fn(b, t)
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	benchDepths(b, func(b *testing.B, t tree) {
		dir := t.node("dir")
		for b.Loop() {
			n, _, err := t.Lookup(dir, "f")
			t.ok(err)
			t.Forget(n, 1)
		}
	})
}

func BenchmarkReadUnchanged(b *testing.B) {
	benchDepths(b, func(b *testing.B, t tree) {
		n := t.node("dir/f")
		buf := make([]byte, 100)
		for b.Loop() {
			f, err := t.Open(n, 0, false, nil)
			t.ok(err)
			_, err = f.ReadAt(buf, 0)
			t.ok(err)
			f.Release()
		}
	})
}

func BenchmarkCreate(b *testing.B) {
	benchDepths(b, func(b *testing.B, t tree) {
		dir := t.node("dir")
		i := 0
		for b.Loop() {
			i++
			n, f, _, err := t.Create(dir, fmt.Sprint("new", i), 1, 0o644, false, nil)
			t.ok(err)
			f.Release()
			t.Forget(n, 1)
		}
	})
}
