package test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/test/ops"
)

// world is a subject and a model that must always agree with it.
type world struct {
	dir    string // holds the workspace and the model
	sub    subject
	refuse func(o ops.Op, err error) bool // tells errors that the lower has and the model has not; may be nil
	done   func() error                   // gives back what dir is on; may be nil
	past   *past
	*model

	checkpoints map[int]*moment // active ones, by number
	last        int             // number of the newest
	undo        *moment         // what undo would go back to; nil if there was no rollback
	leaves      *leaving        // nil where nothing is ignored
}

// newWorld makes a world in dir around dir/workspace, which may have content. open makes the subject for it.
func newWorld(dir string, open func(workspace string) (subject, error)) (*world, error) {
	w := &world{dir: dir, checkpoints: map[int]*moment{}}
	var err error
	if w.past, err = newPast(dir); err != nil {
		return nil, err
	}
	if w.model, err = w.past.newModel("model", w.workspace()); err != nil {
		return nil, err
	}
	w.sub, err = open(w.workspace())
	if s, ok := w.sub.(ignorer); ok {
		w.leaves, w.freeNlink = s.leaves(), true
	}
	return w, err
}

func (w *world) workspace() string { return filepath.Join(w.dir, "workspace") }

// close ends the subject and gives everything back.
func (w *world) close() error {
	var errs []error
	errs = append(errs, w.model.close())
	if w.sub != nil {
		errs = append(errs, w.sub.Close())
	}
	if w.done != nil {
		errs = append(errs, w.done())
	}
	return errors.Join(append(errs, treestate.Remove(w.dir))...)
}

// do executes one operation on both sides. Its error says how they differ.
func (w *world) do(o ops.Op) error {
	switch o.Kind {
	case ops.Snapshot:
		return w.snapshot()
	case ops.Rollback:
		return w.rollback(o)
	case ops.StaleWrites:
		return w.staleWrites(o)
	case ops.Undo:
		return w.undoLast()
	case ops.Drop, ops.Promote:
		return w.forget(o)
	case ops.Restart:
		return w.restart()
	case ops.GC:
		return w.sub.GC()
	case ops.Compare:
		return w.compare()
	case ops.Explain:
		return w.explain(o)
	}
	return w.apply(o)
}

// apply executes an operation on the tree on both sides, and compares what became of it.
func (w *world) apply(o ops.Op) error {
	err := w.sub.Apply(o)
	if err != nil && w.refuse != nil && w.refuse(o, err) {
		return nil
	}
	return w.follows(o, err)
}

// capture gives the subject's state.
func (w *world) capture() (treestate.State, error) {
	s, err := w.sub.Capture()
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return s, nil
}

// save gives what a checkpoint made now must bring back, and compares.
func (w *world) save() (*moment, error) {
	w.past.thin(append(slices.Collect(maps.Values(w.checkpoints)), w.undo))
	s, err := w.capture()
	if err != nil {
		return nil, err
	}
	now, err := w.now(s)
	if err == nil && w.leaves != nil {
		now.rules = []*ignore.Rules{w.leaves.rules()}
		now.inodes, err = inodesOf(w.workspace())
	}
	return now, err
}

func (w *world) snapshot() error {
	id, err := w.sub.Snapshot()
	if err != nil {
		return err
	}
	s, err := w.save()
	if err != nil {
		return err
	}
	s.id = id
	w.last++
	w.checkpoints[w.last] = s
	return nil
}

func (w *world) rollback(o ops.Op) error {
	if err := w.closeHandles(); err != nil {
		return err
	}
	target := w.checkpoints[o.N]
	if target == nil {
		return nil // a shrunk sequence may have lost it
	}
	return w.rollbackTo(target, o.Flags != 0)
}

// rollbackTo rolls both sides back and proves that the subject did.
func (w *world) rollbackTo(target *moment, discard bool) error {
	before, err := w.save()
	if err != nil {
		return err
	}
	if before.id, err = w.sub.Rollback(target.id, discard); err != nil {
		return fmt.Errorf("rollback: %w", err)
	}
	if (before.id == "") != discard {
		return fmt.Errorf("rollback with discard %v gave the undo checkpoint %q", discard, before.id)
	}
	if discard {
		if err := w.syncActive(); err != nil {
			return err
		}
		return w.arrived(target, before)
	}
	w.undo = before
	return w.arrived(target, before)
}

// arrived proves that the subject is at s in every respect, and brings the model there. It was at before.
func (w *world) arrived(s, before *moment) error {
	if w.leaves != nil {
		return w.arrivedIgnoring(s, before)
	}
	now, err := w.capture()
	if err != nil {
		return err
	}
	if diff := (treestate.Compare{Holes: true, Nlink: true}).Diff(s.capture, now); len(diff) > 0 {
		return fmt.Errorf("what was rolled back to is not what was there:\n\t%s", strings.Join(diff, "\n\t"))
	}
	if err := w.become(s.model); err != nil {
		return err
	}
	return w.model.compare(now)
}

func (w *world) undoLast() error {
	if err := w.closeHandles(); err != nil || w.undo == nil {
		return err
	}
	before, err := w.save()
	if err != nil {
		return err
	}
	target := w.undo
	if before.id, err = w.sub.Undo(); err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	w.undo = before
	return w.arrived(target, before)
}

// staleWrites keeps the subject's handles over a rollback and writes through them. That may change the live tree, but
// nothing that a checkpoint holds.
func (w *world) staleWrites(o ops.Op) error {
	target := w.checkpoints[o.N]
	if target == nil {
		return nil
	}
	handles := w.Handles()
	slices.Sort(handles)
	for _, h := range handles { // what a mapping holds gets its mtime only when it is written back
		if err := w.sub.Apply(ops.Op{Kind: ops.HFsync, Handle: h}); err != nil {
			return err
		}
	}
	if err := w.model.CloseHandles(); err != nil {
		return err
	}
	if err := w.rollbackTo(target, false); err != nil {
		return err
	}
	for i, h := range handles {
		seed := o.Seed + uint64(i)
		_ = w.sub.Apply(ops.Op{Kind: ops.HMapWrite, Handle: h, Off: 1, Len: 50, Seed: seed})
		_ = w.sub.Apply(ops.Op{Kind: ops.HWrite, Handle: h, Off: 3, Len: 100, Seed: seed})
		_ = w.sub.Apply(ops.Op{Kind: ops.HTruncate, Handle: h, Len: 40})
		_ = w.sub.Apply(ops.Op{Kind: ops.HAppend, Handle: h, Len: 100, Seed: seed})
	}
	if err := w.sub.CloseHandles(); err != nil {
		return err
	}
	return w.afterStaleWrites(target, o.Flags == 0)
}

// afterStaleWrites goes back once more: what was written has no counterpart in the model.
func (w *world) afterStaleWrites(target *moment, undo bool) error {
	if undo {
		target = w.undo
	}
	now, err := w.capture()
	if err != nil {
		return err
	}
	before := &moment{capture: now}
	if before.model, err = treestate.Capture(w.workspace(), treestate.Options{Contents: &w.past.contents}); err != nil {
		return err
	}
	if undo {
		before.id, err = w.sub.Undo()
	} else {
		before.id, err = w.sub.Rollback(target.id, false)
	}
	if err != nil {
		return err
	}
	if err := w.arrived(target, before); err != nil {
		return fmt.Errorf("after writes through handles from before the rollback: %w", err)
	}
	w.undo = before
	return nil
}

// forget drops or promotes a checkpoint: the others stay.
func (w *world) forget(o ops.Op) error {
	s := w.checkpoints[o.N]
	if s == nil {
		return nil
	}
	var err error
	if o.Kind == ops.Drop {
		err = w.sub.Drop(s.id)
	} else {
		err = w.sub.Promote(s.id)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.Kind, err)
	}
	delete(w.checkpoints, o.N)
	if _, err := w.sub.Rollback(s.id, false); err == nil {
		return errors.New("a checkpoint that is not active was rolled back to")
	}
	return errors.Join(w.allActive(), w.compare())
}

// allActive proves that every checkpoint that should be active is.
func (w *world) allActive() error {
	active, err := w.sub.Active()
	if err != nil {
		return err
	}
	for n, s := range w.checkpoints {
		if !slices.Contains(active, s.id) {
			return fmt.Errorf("checkpoint %d is not active any more", n)
		}
	}
	return nil
}

// syncActive forgets the checkpoints that a rollback with discard took along.
func (w *world) syncActive() error {
	active, err := w.sub.Active()
	if err != nil {
		return err
	}
	for n, s := range w.checkpoints {
		if !slices.Contains(active, s.id) {
			delete(w.checkpoints, n)
		}
	}
	if w.undo != nil && !slices.Contains(active, w.undo.id) {
		w.undo = nil
	}
	return nil
}

func (w *world) closeHandles() error {
	return errors.Join(w.model.CloseHandles(), w.sub.CloseHandles())
}

func (w *world) restart() error {
	if err := w.closeHandles(); err != nil {
		return err
	}
	before, err := w.capture()
	if err != nil {
		return err
	}
	if err := w.sub.Restart(); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	if w.leaves != nil {
		w.addRules()
	}
	after, err := w.capture()
	if err != nil {
		return err
	}
	if diff := treestate.Diff(before, after); len(diff) > 0 {
		return fmt.Errorf("the restart changed the tree:\n\t%s", strings.Join(diff, "\n\t"))
	}
	return errors.Join(w.allActive(), w.sub.Check(true))
}

// compare proves that both sides are the same now.
func (w *world) compare() error {
	now, err := w.capture()
	if err != nil {
		return err
	}
	if s := w.checkpoints[w.last]; w.leaves != nil && s != nil {
		if err := w.checkIgnoringDiff(s, now); err != nil {
			return err
		}
	}
	return w.model.compare(now)
}

// addRules notes for all states that may be wanted back what is ignored from now on.
func (w *world) addRules() {
	for _, s := range w.checkpoints {
		s.rules = append(s.rules, w.leaves.rules())
	}
	if w.undo != nil {
		w.undo.rules = append(w.undo.rules, w.leaves.rules())
	}
}

// view lists what exists, for a generator.
func (w *world) view() (ops.View, error) {
	v, err := w.model.view()
	v.CanUndo = w.undo != nil
	v.Checkpoints = slices.Sorted(maps.Keys(w.checkpoints))
	return v, err
}
