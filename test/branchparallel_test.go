package test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
)

// worker works in a directory of its own at the top of the workspace: in main, or in branches of it, one after the other, each of which it merges. So
// it is known what main is in the end, whoever comes first.
type worker struct {
	h     *directHost
	top   string // the directory
	dir   string // of the model
	model *ops.DirFS
	*ops.Executor
	gen *ops.Generator
	c   seeded

	tree   lineTree
	merges int
}

func newWorker(h *directHost, base, top string, seed uint64) (*worker, error) {
	w := &worker{
		h: h, top: top, dir: filepath.Join(base, "model-"+top), c: seeded{rand.New(rand.NewPCG(seed, 5))},
		gen: &ops.Generator{Root: os.Getuid() == 0, NoHandles: true},
	}
	return w, w.follow(filepath.Join(h.dir, top))
}

// follow makes the model like a directory.
func (w *worker) follow(from string) (err error) {
	next := fmt.Sprintf("%s-%d", w.dir, w.c.Uint64())
	if err := treestate.Copy(from, next); err != nil {
		return err
	}
	if w.model != nil {
		err = errors.Join(w.model.Close(), treestate.Remove(w.dir))
	}
	w.dir = next
	if err == nil {
		w.model, err = ops.OpenDirFS(w.dir)
	}
	w.Executor = ops.NewExecutor(w.model)
	return err
}

// work makes n operations.
func (w *worker) work(n int) error {
	for range n {
		v, err := viewOf(w.dir)
		if err != nil {
			return err
		}
		o := w.gen.Next(w.c, v)
		want := ops.ErrnoName(w.Apply(o))
		if got := ops.ErrnoName(w.tree.Apply(w.below(o))); got != want {
			return fmt.Errorf("%v\nthe subject says %s, the plain directory %s", o, got, want)
		}
	}
	return nil
}

// below makes an operation one in the worker's directory.
func (w *worker) below(o ops.Op) ops.Op {
	o.Path = ops.Bytes(filepath.Join(w.top, string(o.Path)))
	if o.To != "" {
		o.To = ops.Bytes(filepath.Join(w.top, string(o.To)))
	}
	return o
}

// check proves that the worker's directory is what its model is, in a captured tree.
func (w *worker) check(s treestate.State) error {
	model, err := treestate.Capture(w.dir, treestate.Options{})
	if err != nil {
		return err
	}
	if diff := (treestate.Compare{Mtime: func(a, b treestate.Entry) bool { return a.IsDir() || sameKindOfMtime(a, b) }}).Diff(model, w.part(s)); len(diff) > 0 {
		return fmt.Errorf("%s is not what the same operations make of a plain directory:\n\t%s", w.top, strings.Join(diff, "\n\t"))
	}
	return nil
}

// part gives what a tree has in the worker's directory.
func (w *worker) part(s treestate.State) treestate.State {
	part := treestate.State{}
	cut := func(p string) string {
		if p == w.top {
			return "."
		}
		return strings.TrimPrefix(p, w.top+"/")
	}
	for p, e := range s {
		if p == w.top || strings.HasPrefix(p, w.top+"/") {
			e.Path, e.First = cut(p), cut(e.First)
			part[e.Path] = e
		}
	}
	return part
}

// inMain works in the live tree until the others have done.
func (w *worker) inMain(done <-chan struct{}) (err error) {
	if w.tree, err = w.h.Enter(""); err != nil {
		return err
	}
	var ids []string
	for {
		select {
		case <-done:
			return nil
		default:
		}
		if err := w.work(10); err != nil {
			return err
		}
		id, err := w.h.Snapshot("")
		if err != nil {
			return err
		}
		if ids = append(ids, id); len(ids) > 3 {
			i := w.c.IntN(len(ids))
			if err := w.h.Drop(ids[i]); err != nil {
				return err
			}
			ids = slices.Delete(ids, i, i+1)
		}
		if w.c.IntN(8) == 0 {
			if err := w.h.GC(); err != nil {
				return err
			}
		}
	}
}

// inBranches works in rounds branches.
func (w *worker) inBranches(rounds int) error {
	for i := range rounds {
		if err := w.inBranch(fmt.Sprintf("%s-%d", w.top, i)); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return nil
}

func (w *worker) inBranch(name string) error {
	id, err := w.h.Snapshot("")
	if err == nil {
		err = w.h.Fork(name, id)
	}
	if errs.CodeOf(err) == errs.Rollback || errs.CodeOf(err) == errs.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if w.tree, err = w.h.Enter(name); err != nil {
		return err
	}
	start, err := w.tree.Capture()
	if err != nil {
		return err
	}
	if err := errors.Join(w.check(start), w.live(name)); err != nil {
		return err
	}
	end, err := w.tree.Capture()
	if err != nil {
		return err
	}
	if diff := timeless(w.others(start), w.others(end)); len(diff) > 0 {
		return fmt.Errorf("what others do is seen in the branch %s:\n\t%s", name, strings.Join(diff, "\n\t"))
	}
	if err := errors.Join(w.check(end), w.merge(name)); err != nil {
		return err
	}
	return errors.Join(w.tree.Leave(), w.h.Drop(id))
}

// others gives what a tree has elsewhere than in the worker's directory.
func (w *worker) others(s treestate.State) treestate.State {
	s = maps.Clone(s)
	maps.DeleteFunc(s, func(p string, _ treestate.Entry) bool { return p == w.top || strings.HasPrefix(p, w.top+"/") })
	return s
}

// live works in a branch, with a rollback and its undo.
func (w *worker) live(name string) error {
	if err := w.work(8); err != nil {
		return err
	}
	id, err := w.h.Snapshot(name)
	if err != nil {
		return err
	}
	want, err := w.tree.Capture()
	if err != nil {
		return err
	}
	kept := filepath.Join(filepath.Dir(w.dir), "kept-"+name)
	if err := treestate.Copy(w.dir, kept); err != nil {
		return err
	}
	if err := w.work(8); err != nil {
		return err
	}
	changed, err := w.tree.Capture()
	if err != nil {
		return err
	}
	if _, err := w.h.Rollback(name, id, false); err != nil {
		return err
	}
	if err := treeIs(w.tree, want); err != nil {
		return fmt.Errorf("rollback: %w", err)
	}
	if w.c.IntN(2) == 0 {
		if _, err := w.h.Undo(name); err != nil {
			return err
		}
		return treeIs(w.tree, changed)
	}
	return errors.Join(w.follow(kept), w.work(4))
}

// merge merges a branch into main, which is busy at times.
func (w *worker) merge(name string) error {
	for range 200 {
		r, err := w.h.Merge(name, overlay.MergeOptions{})
		if errs.CodeOf(err) == errs.Busy {
			continue
		}
		if err == nil && r.Merged {
			w.merges++
		}
		return err
	}
	return errors.New("main is always busy")
}

func TestBranchesInParallelDoNotSeeEachOther(t *testing.T) {
	const workers, rounds = 4, 4
	dir := memory(t)
	ws := filepath.Join(dir, "workspace")
	for i := range workers + 1 {
		if err := os.MkdirAll(filepath.Join(ws, fmt.Sprint("w", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	first := seed(t)
	repeat(t, 10, func() {
		first++
		host, err := openDirect(ws, uint32(first%variants))
		if err != nil {
			t.Fatal(err)
		}
		h := host.(*directHost)
		all := make([]*worker, workers+1)
		for i := range all {
			if all[i], err = newWorker(h, dir, fmt.Sprint("w", i), first+uint64(i)<<32); err != nil {
				t.Fatal(err)
			}
		}
		parallelWorkers(t, all, rounds)
		tree, err := h.Enter("")
		if err != nil {
			t.Fatal(err)
		}
		now, err := tree.Capture()
		if err != nil {
			t.Fatal(err)
		}
		merges := 0
		for _, w := range all {
			if err := w.check(now); err != nil {
				t.Error(err)
			}
			merges += w.merges
		}
		if merges < workers*rounds && !t.Failed() {
			t.Errorf("%d merges were made, want %d", merges, workers*rounds)
		}
		if err := errors.Join(h.Check(), tree.Leave(), h.Close()); err != nil {
			t.Error(err)
		}
	})
}

// parallelWorkers has the first work in main while the others work in branches.
func parallelWorkers(t *testing.T, all []*worker, rounds int) {
	done := make(chan struct{})
	var branches, main sync.WaitGroup
	for _, w := range all[1:] {
		branches.Go(func() {
			if err := w.inBranches(rounds); err != nil {
				t.Errorf("%s: %v", w.top, err)
			}
		})
	}
	main.Go(func() {
		if err := all[0].inMain(done); err != nil {
			t.Errorf("main: %v", err)
		}
	})
	err := within(2*hangAfter, func() error { branches.Wait(); close(done); main.Wait(); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := all[0].tree.Leave(); err != nil {
		t.Error(err)
	}
}
