//go:build linux

package branch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/treefs"
	"golang.org/x/sys/unix"
)

// TestManyUseABranchAtOnce while it is checkpointed and rolled back, other branches come and go, and all is collected. A checkpoint stays what
// it was.
func TestManyUseABranchAtOnce(t *testing.T) {
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("d%d/f%d", i%4, i)] = strings.Repeat("m", 10_000)
	}
	s := newSpace(t, files)
	s.close()
	s.idle = 5 * time.Millisecond
	s.open()
	s.fork("x", "")
	stop := make(chan struct{})
	var all sync.WaitGroup
	run := func(fn func(r *rand.Rand)) {
		seed := rand.Uint64()
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for {
				select {
				case <-stop:
					return
				default:
					fn(r)
				}
			}
		})
	}
	for range 4 {
		run(func(r *rand.Rand) { s.useOnce(r) })
	}
	run(func(r *rand.Rand) {
		c, err := s.m.Snapshot(context.Background(), "x", overlay.SnapshotOptions{})
		if err != nil {
			t.Errorf("snapshot: %v", err)
		}
		at, err := s.m.At(c.ID)
		s.ok(err)
		defer at.Close()
		before, err := treefs.NewVolume(at, treefs.Options{}).Capture()
		s.ok(err)
		for i := range 3 {
			if _, err := s.m.Rollback(context.Background(), "x", c.ID, overlay.RollbackOptions{Discard: i == 1}); err != nil {
				t.Errorf("rollback: %v", err)
			}
		}
		if _, err := s.m.Diff(context.Background(), "x", "", "", true); err != nil {
			t.Errorf("diff: %v", err)
		}
		after, err := treefs.NewVolume(at, treefs.Options{}).Capture()
		s.ok(err)
		s.same(before, after)
		if err := s.m.DropCheckpoint(context.Background(), c.ID); err != nil {
			t.Errorf("drop: %v", err)
		}
	})
	n := 0
	run(func(r *rand.Rand) {
		n++
		name := fmt.Sprint("y", n)
		s.fork(name, "")
		v, err := s.m.Volume(name)
		s.ok(err)
		tree{s, v}.write("d1/new", "y")
		v.Close()
		if err := s.m.Drop(context.Background(), name); err != nil {
			t.Errorf("drop: %v", err)
		}
		if _, err := s.m.GC(context.Background()); err != nil {
			t.Errorf("gc: %v", err)
		}
	})
	time.Sleep(2 * time.Second)
	close(stop)
	all.Wait()
	s.capture("x")
	s.sound()
}

// useOnce does something to a file of x, which may be gone meanwhile.
func (s *space) useOnce(r *rand.Rand) {
	v, err := s.m.Volume("x")
	if err != nil {
		s.Errorf("open: %v", err)
		return
	}
	defer v.Close()
	dir, _, err := v.Lookup(v.Root(), fmt.Sprint("d", r.IntN(4)))
	if err != nil {
		return
	}
	defer v.Forget(dir, 1)
	name := fmt.Sprint("f", r.IntN(20))
	switch r.IntN(6) {
	case 0:
		_ = v.Unlink(dir, name)
	case 1:
		_ = v.Rename(dir, name, dir, fmt.Sprint("f", r.IntN(20)), 0)
	case 2:
		n, f, _, err := v.Create(dir, name, unix.O_RDWR, 0o644, false, nil)
		if err == nil {
			s.writeLetter(f, r)
			f.Release()
			v.Forget(n, 1)
		}
	default:
		n, _, err := v.Lookup(dir, name)
		if err != nil {
			return
		}
		defer v.Forget(n, 1)
		f, err := v.Open(n, unix.O_RDWR, false, nil)
		if err != nil {
			return
		}
		defer f.Release()
		if r.IntN(2) == 0 {
			s.writeLetter(f, r)
			return
		}
		if _, err := f.ReadAt(make([]byte, 10_000), 0); err != nil {
			s.Errorf("read: %v", err)
		}
	}
}

func (s *space) writeLetter(f overlay.File, r *rand.Rand) {
	p := []byte(strings.Repeat(string(rune('a'+r.IntN(26))), 10_000))
	if n, err := f.WriteAt(p, 0); err != nil || n != len(p) {
		s.Errorf("write: %d, %v", n, err)
	}
}
