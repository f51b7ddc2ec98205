package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/test/ops"
	"golang.org/x/sys/unix"
)

// world is a subject and a plain directory that must always agree with it. The kernel is the model: an operation is right
// if it does what the same operation does to the plain directory.
type world struct {
	dir    string // holds the workspace and the model's live tree
	spares string // holds the model's copies
	sub    subject
	refuse func(o ops.Op, err error) bool // tells errors that the lower has and the model has not; may be nil
	done   func() error                   // gives back what dir is on; may be nil
	model  *ops.DirFS
	*ops.Executor

	checkpoints map[int]*savedState // active ones, by number
	last        int                 // number of the newest
	undo        *savedState         // what undo would go back to; nil if there was no rollback
	mapped      map[int]bool        // handles that have a mapping
	copies      int                 // numbers the model's copies
	leaves      *leaving            // nil where nothing is ignored
}

// savedState is what a checkpoint must bring back.
type savedState struct {
	id      string
	capture treestate.State // of the subject
	copy    string          // of the model

	rules  []*ignore.Rules   // in use since then
	inodes map[string]uint64 // of the subject; only where something is ignored
	undo   bool              // it is what a rollback can be undone to
}

// newWorld makes a world in dir around dir/workspace, which may have content. open makes the subject for it.
func newWorld(dir string, open func(workspace string) (subject, error)) (*world, error) {
	w := &world{dir: dir, checkpoints: map[int]*savedState{}, mapped: map[int]bool{}}
	if err := w.makeSpares(); err != nil {
		return nil, err
	}
	if err := treestate.Copy(w.workspace(), w.live()); err != nil {
		return nil, err
	}
	if err := w.openModel(); err != nil {
		return nil, err
	}
	var err error
	w.sub, err = open(w.workspace())
	if s, ok := w.sub.(*ignoringSubject); ok {
		w.leaves = s.leaving
	}
	return w, err
}

func (w *world) workspace() string { return filepath.Join(w.dir, "workspace") }
func (w *world) live() string      { return filepath.Join(w.dir, "model") }

// makeSpares chooses where the model's copies go. Memory is much faster, if its filesystem takes everything that is
// in a tree.
func (w *world) makeSpares() (err error) {
	if w.spares, err = os.MkdirTemp("/dev/shm", "hyperfs-test-"); err == nil {
		if unix.Setxattr(w.spares, "user.probe", nil, 0) == nil {
			return nil
		}
		_ = os.Remove(w.spares)
	}
	w.spares = filepath.Join(w.dir, "copies")
	return os.Mkdir(w.spares, 0o700)
}

func (w *world) openModel() error {
	var err error
	if w.model, err = ops.OpenDirFS(w.live()); err == nil {
		w.Executor = ops.NewExecutor(w.model)
	}
	return err
}

// close ends the subject and gives everything back.
func (w *world) close() error {
	var errs []error
	errs = append(errs, w.CloseHandles(), w.model.Close())
	if w.sub != nil {
		errs = append(errs, w.sub.Close())
	}
	if w.done != nil {
		errs = append(errs, w.done())
	}
	return errors.Join(append(errs, treestate.Remove(w.dir), treestate.Remove(w.spares))...)
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
	}
	return w.apply(o)
}

// apply executes an operation on the tree on both sides, and compares what became of it.
func (w *world) apply(o ops.Op) error {
	err := w.sub.Apply(o)
	if err != nil && w.refuse != nil && w.refuse(o, err) {
		return nil
	}
	got, want := ops.ErrnoName(err), ops.ErrnoName(w.Executor.Apply(o))
	if o.Kind == ops.HMap && want == "ok" {
		w.mapped[o.Handle] = true
	}
	if o.Kind == ops.HClose {
		delete(w.mapped, o.Handle)
	}
	if want != got {
		return fmt.Errorf("the subject says %s, the plain directory %s", got, want)
	}
	return nil
}

// capture gives the subject's state.
func (w *world) capture() (treestate.State, error) {
	s, err := w.sub.Capture()
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return s, nil
}

// save gives what a checkpoint made now must bring back.
func (w *world) save(id string) (*savedState, error) {
	s := &savedState{id: id, copy: w.nextCopy()}
	var err error
	if s.capture, err = w.capture(); err != nil {
		return nil, err
	}
	if w.leaves != nil {
		s.rules = []*ignore.Rules{w.leaves.rules()}
		if s.inodes, err = inodesOf(w.workspace()); err != nil {
			return nil, err
		}
	}
	return s, treestate.Copy(w.live(), s.copy)
}

// nextCopy gives a name for a copy of the model.
func (w *world) nextCopy() string {
	w.copies++
	return filepath.Join(w.spares, strconv.Itoa(w.copies))
}

func (w *world) discard(s *savedState) error {
	if s == nil {
		return nil
	}
	return treestate.Remove(s.copy)
}

func (w *world) snapshot() error {
	id, err := w.sub.Snapshot()
	if err != nil {
		return err
	}
	s, err := w.save(id)
	if err != nil {
		return err
	}
	w.last++
	w.checkpoints[w.last] = s
	return w.compareTo(s.capture)
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
func (w *world) rollbackTo(target *savedState, discard bool) error {
	before, err := w.save("")
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
		if err := errors.Join(w.discard(before), w.syncActive()); err != nil {
			return err
		}
		return w.arrived(target, before)
	}
	err = w.discard(w.undo)
	w.undo, before.undo = before, true
	return errors.Join(err, w.arrived(target, before))
}

// arrived proves that the subject is at s in every respect, and brings the model there. It was at before.
func (w *world) arrived(s, before *savedState) error {
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
	if err := w.model.Close(); err != nil {
		return err
	}
	if err := treestate.Remove(w.live()); err != nil {
		return err
	}
	if err := treestate.Copy(s.copy, w.live()); err != nil {
		return err
	}
	if err := w.openModel(); err != nil {
		return err
	}
	return w.compareTo(now)
}

func (w *world) undoLast() error {
	if err := w.closeHandles(); err != nil || w.undo == nil {
		return err
	}
	before, err := w.save("")
	if err != nil {
		return err
	}
	target := w.undo
	if before.id, err = w.sub.Undo(); err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	w.undo, before.undo = before, true
	return errors.Join(w.arrived(target, before), w.discard(target))
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
	if err := w.CloseHandles(); err != nil {
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
	w.mapped = map[int]bool{}
	if err := w.sub.CloseHandles(); err != nil {
		return err
	}
	return w.afterStaleWrites(target, o.Flags == 0)
}

// afterStaleWrites goes back once more: what was written has no counterpart in the model.
func (w *world) afterStaleWrites(target *savedState, undo bool) error {
	if undo {
		target = w.undo
	}
	now, err := w.capture()
	if err != nil {
		return err
	}
	before := &savedState{capture: now, copy: w.nextCopy()}
	if err := treestate.Copy(w.workspace(), before.copy); err != nil {
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
	err = w.discard(w.undo)
	w.undo = before
	return err
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
	return errors.Join(w.discard(s), w.allActive(), w.compare())
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
			err = errors.Join(err, w.discard(s))
		}
	}
	if w.undo != nil && !slices.Contains(active, w.undo.id) {
		err = errors.Join(err, w.discard(w.undo))
		w.undo = nil
	}
	return err
}

func (w *world) closeHandles() error {
	w.mapped = map[int]bool{}
	return errors.Join(w.CloseHandles(), w.sub.CloseHandles())
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
	return w.compareTo(now)
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

// compareTo proves that a capture of the subject is what the model is now.
func (w *world) compareTo(now treestate.State) error {
	model, err := treestate.Capture(w.live(), treestate.Options{})
	if err != nil {
		return err
	}
	// Holes can't be compared: XFS allocates ahead, in files of the same history not by the same amount.
	// What is ignored can have a name in a new directory that a rollback has put aside, which counts until it is collected.
	c := treestate.Compare{Mtime: sameKindOfMtime, Nlink: w.leaves == nil}
	if diff := c.Diff(model, now); len(diff) > 0 {
		return fmt.Errorf("the live tree is not what the same operations make of a plain directory:\n\t%s", strings.Join(diff, "\n\t"))
	}
	return nil
}

// sameKindOfMtime compares mtimes that operations set. Those that came about are different on both sides.
func sameKindOfMtime(a, b treestate.Entry) bool {
	if a.Mtime < ops.ExplicitEnd || b.Mtime < ops.ExplicitEnd {
		return a.Mtime == b.Mtime
	}
	return true
}

// view lists what exists, for a generator.
func (w *world) view() (ops.View, error) {
	v, err := viewOf(w.live())
	if err != nil {
		return v, err
	}
	v.CanUndo, v.Handles = w.undo != nil, w.Handles()
	slices.Sort(v.Handles)
	for _, h := range v.Handles {
		if w.mapped[h] {
			v.Mapped = append(v.Mapped, h)
		}
	}
	for n := range w.checkpoints {
		v.Checkpoints = append(v.Checkpoints, n)
	}
	slices.Sort(v.Checkpoints)
	return v, nil
}

// viewOf lists what exists below dir.
func viewOf(dir string) (ops.View, error) {
	var v ops.View
	s, err := treestate.Capture(dir, treestate.Options{NoHash: true})
	if err != nil {
		return v, err
	}
	for _, p := range s.Paths() {
		e := s[p]
		switch {
		case p == ".":
		case e.IsDir():
			v.Dirs = append(v.Dirs, p)
		case e.IsRegular():
			v.Files = append(v.Files, p)
		default:
			v.Others = append(v.Others, p)
		}
	}
	return v, nil
}
