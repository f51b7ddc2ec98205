package test

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/test/ops"
)

// branchWorld is a workspace with branches, and a model for every line.
type branchWorld struct {
	dir   string // holds the workspace
	moves bool   // operations move names: then what a merge comes to can't be told path by path
	often bool   // compare everything after every operation
	host  branchHost
	lines map[string]*line // by name; main is ""
	past  *past

	refuse func(o ops.Op, err error) bool // tells errors that main has and the model has not; may be nil
	done   func() error                   // gives back what dir is on; may be nil

	// Where main ignores paths, which no rollback and no merge changes, neither is made in main. Branches have all that main had at the checkpoint: with fresh, as that is
	// forked at once when it is made; otherwise because something is pinned all the time.
	ignores, fresh bool

	checkpoints map[int]*mark // active ones, by number
	last        int           // number of the newest
	forks       int           // numbers the branches
	turns       int           // has every line compared in its turn
	merges      int           // that changed something
	conflicts   int           // merges that were refused
	exact       int           // merges of which every path was foreseen
}

// line is main or a branch.
type line struct {
	name   string
	parent *line // nil for main
	base   *mark // the fork point; nil for main
	head   *mark // the checkpoint that the state comes from; nil where that is the fork point, or none
	undo   *mark // what undo would go back to
	tree   lineTree
	*model
}

// mark is a checkpoint of a line.
type mark struct {
	moment
	n      int
	line   *line
	parent *mark
}

func newBranchWorld(dir string, moves bool, open func(workspace string) (branchHost, error)) (*branchWorld, error) {
	w := &branchWorld{dir: dir, moves: moves, lines: map[string]*line{}, checkpoints: map[int]*mark{}}
	ws := filepath.Join(dir, "workspace")
	var err error
	if w.past, err = newPast(dir); err != nil {
		return nil, err
	}
	main := &line{}
	if main.model, err = w.past.newModel("main", ws); err != nil {
		return nil, err
	}
	if w.host, err = open(ws); err != nil {
		return w, err
	}
	return w, w.enter(main)
}

// enter begins with a line, which has a model.
func (w *branchWorld) enter(l *line) (err error) {
	if l.tree, err = w.host.Enter(l.name); err == nil {
		w.lines[l.name] = l
	}
	return err
}

// close ends everything.
func (w *branchWorld) close() error {
	var errs []error
	for _, l := range w.lines {
		errs = append(errs, l.model.close(), l.tree.Leave())
	}
	if w.host != nil {
		errs = append(errs, w.host.Close())
	}
	if w.done != nil {
		errs = append(errs, w.done())
	}
	return errors.Join(append(errs, treestate.Remove(w.dir))...)
}

// do executes one operation. What it is about may not be there, as a shrunk sequence may have lost it.
func (w *branchWorld) do(o ops.Op) error {
	l := w.lines[o.Branch]
	if l == nil {
		return nil
	}
	if err := w.execute(l, o); err != nil || !w.often {
		return err
	}
	return w.compareAll()
}

func (w *branchWorld) execute(l *line, o ops.Op) error {
	if w.ignores {
		switch {
		case o.Kind == ops.Merge, l.parent == nil && (o.Kind == ops.Rollback || o.Kind == ops.Undo):
			return nil
		case o.Kind == ops.Look:
			return w.look(w.checkpoints[o.N])
		case o.Kind == ops.Fork && w.fresh && w.checkpoints[o.N] != nil && w.checkpoints[o.N].line.parent == nil:
			if err := w.snapshot(w.checkpoints[o.N].line); err != nil {
				return err
			}
			o.N = w.last
		}
	}
	switch o.Kind {
	case ops.Snapshot:
		return w.snapshot(l)
	case ops.Rollback:
		return w.rollback(l, o)
	case ops.Undo:
		return w.undo(l)
	case ops.Drop, ops.Promote:
		return w.forget(o)
	case ops.Restart:
		return w.restart()
	case ops.GC:
		return errors.Join(w.host.GC(), w.compareAll())
	case ops.Compare:
		return w.compareLines(l)
	case ops.Fork:
		return w.fork(o)
	case ops.Merge:
		return w.merge(l, o)
	case ops.DropBranch:
		return w.dropBranch(l)
	case ops.Look:
		return errors.Join(w.look(w.checkpoints[o.N]), w.lookBetween(w.checkpoints[o.Handle], w.checkpoints[o.N]))
	}
	err := l.tree.Apply(o)
	if err != nil && l.parent == nil && w.refuse != nil && w.refuse(o, err) {
		return nil
	}
	return l.follows(o, err)
}

// saved gives what a checkpoint of a line made now must bring back, and compares.
func (w *branchWorld) saved(l *line) (*mark, error) {
	var kept []*moment
	for _, m := range w.checkpoints {
		kept = append(kept, &m.moment)
	}
	for _, l := range w.lines {
		for _, m := range []*mark{l.base, l.undo} {
			if m != nil {
				kept = append(kept, &m.moment)
			}
		}
	}
	w.past.thin(kept)
	s, err := l.tree.Capture()
	if err != nil {
		return nil, err
	}
	now, err := l.now(s)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", l.name, err)
	}
	return &mark{moment: *now, line: l, parent: l.head}, nil
}

// add makes a mark one that can be chosen.
func (w *branchWorld) add(m *mark, id string) {
	w.last++
	m.id, m.n = id, w.last
	w.checkpoints[m.n] = m
}

func (w *branchWorld) snapshot(l *line) error {
	id, err := w.host.Snapshot(l.name)
	if err != nil {
		return err
	}
	m, err := w.saved(l)
	if err != nil {
		return err
	}
	w.add(m, id)
	l.head = m
	return nil
}

// target gives where a rollback goes, and the ID to name it by.
func (w *branchWorld) target(l *line, n int) (*mark, string) {
	switch n {
	case ops.ToForkPoint:
		if l.base == nil {
			return nil, ""
		}
		return l.base, l.base.id
	case ops.ToDefault:
		return w.defaultOf(l), ""
	}
	if m := w.checkpoints[n]; m != nil && m.line == l {
		return m, m.id
	}
	return nil, ""
}

// defaultOf gives what the state of a line comes from: the nearest checkpoint that is still active, or the fork point. In main, if there is none,
// it is the newest one.
func (w *branchWorld) defaultOf(l *line) *mark {
	for m := l.head; m != nil; m = m.parent {
		if w.checkpoints[m.n] == m {
			return m
		}
	}
	if l.base != nil {
		return l.base
	}
	var newest *mark
	for _, m := range w.checkpoints {
		if m.line == l && (newest == nil || m.n > newest.n) {
			newest = m
		}
	}
	return newest
}

func (w *branchWorld) rollback(l *line, o ops.Op) error {
	if err := l.closeHandles(); err != nil {
		return err
	}
	target, id := w.target(l, o.N)
	if target == nil {
		return nil
	}
	before, err := w.saved(l)
	if err != nil {
		return err
	}
	if before.id, err = w.host.Rollback(l.name, id, o.Flags != 0); err != nil {
		return fmt.Errorf("rollback: %w", err)
	}
	l.undo = before
	if (before.id == "") != (o.Flags != 0) {
		return fmt.Errorf("rollback with discard %v gave the undo checkpoint %q", o.Flags != 0, before.id)
	}
	if before.id == "" {
		l.undo = nil
	}
	if l.head = target; target == l.base {
		l.head = nil
	}
	return w.arrived(l, target)
}

// arrived proves that a line is at m in every respect, and brings its model there.
func (w *branchWorld) arrived(l *line, m *mark) error {
	now, err := l.tree.Capture()
	if err != nil {
		return err
	}
	if diff := (treestate.Compare{Nlink: true}).Diff(m.capture, now); len(diff) > 0 {
		return fmt.Errorf("what was rolled back to is not what was there:\n\t%s", strings.Join(diff, "\n\t"))
	}
	if err := l.become(m.model); err != nil {
		return err
	}
	return w.compareTo(l, now)
}

func (w *branchWorld) undo(l *line) error {
	if err := l.closeHandles(); err != nil || l.undo == nil {
		return err
	}
	before, err := w.saved(l)
	if err != nil {
		return err
	}
	target := l.undo
	if before.id, err = w.host.Undo(l.name); err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	l.undo, l.head = before, target.parent
	return w.arrived(l, target)
}

// forget drops or promotes a checkpoint: the others stay, and what was forked from it.
func (w *branchWorld) forget(o ops.Op) (err error) {
	m := w.checkpoints[o.N]
	if m == nil {
		return nil
	}
	if o.Kind == ops.Drop {
		err = w.host.Drop(m.id)
	} else {
		err = w.host.Promote(m.id)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.Kind, err)
	}
	delete(w.checkpoints, o.N)
	if _, err := w.host.Rollback(m.line.name, m.id, false); err == nil {
		return errors.New("a checkpoint that is not active was rolled back to")
	}
	return w.allActive()
}

// allActive proves that exactly the branches and checkpoints that should be active are.
func (w *branchWorld) allActive() error {
	active, err := w.host.Active()
	if err != nil {
		return err
	}
	var want []string
	for _, m := range w.checkpoints {
		want = append(want, m.id)
	}
	for _, l := range w.lines {
		if l.undo != nil {
			want = append(want, l.undo.id)
		}
	}
	slices.Sort(want)
	slices.Sort(active)
	if !slices.Equal(want, active) {
		return fmt.Errorf("the active checkpoints are %v, should be %v", active, want)
	}
	names, err := w.host.Branches()
	slices.Sort(names)
	if have := slices.DeleteFunc(slices.Sorted(maps.Keys(w.lines)), func(s string) bool { return s == "" }); !slices.Equal(have, names) {
		return fmt.Errorf("the branches are %v, should be %v", names, have)
	}
	return err
}

func (l *line) closeHandles() error {
	return errors.Join(l.model.CloseHandles(), l.tree.CloseHandles())
}

func (w *branchWorld) restart() error {
	before := map[string]treestate.State{}
	for name, l := range w.lines {
		if err := l.closeHandles(); err != nil {
			return err
		}
		var err error
		if before[name], err = l.tree.Capture(); err != nil {
			return err
		}
	}
	for _, l := range w.lines {
		if err := l.tree.Leave(); err != nil {
			return err
		}
	}
	if err := w.host.Restart(); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	for name, l := range w.lines {
		var err error
		if l.tree, err = w.host.Enter(name); err != nil {
			return fmt.Errorf("restart: %w", err)
		}
		if err := w.isStill(l, before[name], "the restart"); err != nil {
			return err
		}
	}
	return errors.Join(w.allActive(), w.host.Check())
}

// isStill proves that something has not changed a line in any respect.
func (w *branchWorld) isStill(l *line, want treestate.State, what string) error {
	now, err := l.tree.Capture()
	if err != nil {
		return err
	}
	if diff := treestate.Diff(want, now); len(diff) > 0 {
		return fmt.Errorf("%s changed %q:\n\t%s", what, l.name, strings.Join(diff, "\n\t"))
	}
	return nil
}

// compareAll proves that every line is what its model is.
func (w *branchWorld) compareAll() error {
	for _, name := range slices.Sorted(maps.Keys(w.lines)) {
		if err := w.compare(w.lines[name]); err != nil {
			return err
		}
	}
	return nil
}

// compareLines proves it of some lines, and of one of the others, which comes in its turn.
func (w *branchWorld) compareLines(some ...*line) error {
	names := slices.Sorted(maps.Keys(w.lines))
	w.turns++
	next := w.lines[names[w.turns%len(names)]]
	if !slices.Contains(some, next) {
		some = append(some, next)
	}
	for _, l := range some {
		if err := w.compare(l); err != nil {
			return err
		}
	}
	return nil
}

func (w *branchWorld) compare(l *line) error {
	now, err := l.tree.Capture()
	if err != nil {
		return fmt.Errorf("capture %q: %w", l.name, err)
	}
	return w.compareTo(l, now)
}

func (w *branchWorld) compareTo(l *line, now treestate.State) error {
	if err := l.model.compare(now); err != nil {
		return fmt.Errorf("%q: %w", l.name, err)
	}
	return nil
}

// look proves that a checkpoint shows what was there.
func (w *branchWorld) look(m *mark) error {
	if m == nil || w.fresh && m.line.parent == nil {
		return nil
	}
	s, err := w.host.View(m.id)
	if err != nil {
		return fmt.Errorf("look at a checkpoint: %w", err)
	}
	if diff := (treestate.Compare{Nlink: true}).Diff(m.capture, s); len(diff) > 0 {
		return fmt.Errorf("a checkpoint does not show what was there: %d of %q\n\t%s", m.n, m.line.name, strings.Join(diff, "\n\t"))
	}
	return nil
}

// lookBetween proves that a diff explains what differs between two checkpoints of a line.
func (w *branchWorld) lookBetween(from, to *mark) error {
	if from == nil || to == nil || from.line != to.line {
		return nil
	}
	changes, err := w.host.Explain(from.id, to.id)
	if err != nil {
		return fmt.Errorf("diff from checkpoint %d to %d of %q: %w", from.n, to.n, to.line.name, err)
	}
	told := map[string]bool{}
	for _, c := range changes {
		told[c.Path], told[c.OldPath] = true, true
	}
	for p, e := range to.capture { // a diff may name any of the names of an inode
		told[e.First] = told[e.First] || told[p]
	}
	for p, a := range from.capture {
		b, ok := to.capture[p]
		if ok && !a.IsDir() && !alike(a, b) && !told[p] && !told[b.First] && !below(told, p) {
			return fmt.Errorf("the diff from checkpoint %d to %d of %q does not tell of %v: %v", from.n, to.n, to.line.name,
				treestate.Diff(treestate.State{p: a}, treestate.State{p: b}), changes)
		}
	}
	return nil
}

// below reports whether one of the paths is above p.
func below(paths map[string]bool, p string) bool {
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if paths[dir] {
			return true
		}
	}
	return false
}

func (w *branchWorld) fork(o ops.Op) error {
	m := w.checkpoints[o.N]
	if m == nil || w.lines[o.Name] != nil {
		return nil
	}
	if err := w.host.Fork(o.Name, m.id); err != nil {
		return fmt.Errorf("fork: %w", err)
	}
	w.forks++
	l := &line{name: o.Name, parent: m.line, base: &mark{moment: m.moment, line: m.line}}
	var err error
	if l.model, err = w.past.newModelAt(fmt.Sprintf("%s-%d", o.Name, w.forks), m.model); err != nil {
		return err
	}
	if err := w.enter(l); err != nil {
		return err
	}
	now, err := l.tree.Capture()
	if err != nil {
		return err
	}
	if diff := (treestate.Compare{Nlink: true}).Diff(m.capture, now); len(diff) > 0 {
		return fmt.Errorf("the fork is not what the checkpoint was:\n\t%s", strings.Join(diff, "\n\t"))
	}
	return w.compareTo(l, now)
}

// children gives what was forked from a line, in order.
func (w *branchWorld) children(l *line) (list []*line) {
	for _, name := range slices.Sorted(maps.Keys(w.lines)) {
		if w.lines[name].parent == l {
			list = append(list, w.lines[name])
		}
	}
	return list
}

func (w *branchWorld) dropBranch(l *line) error {
	if l.parent == nil {
		return nil
	}
	err := w.host.DropBranch(l.name)
	if len(w.children(l)) > 0 {
		return errors.Join(mustBeBusy(err), w.compareLines(l))
	}
	if err != nil {
		return fmt.Errorf("drop the branch: %w", err)
	}
	return errors.Join(w.gone(l), w.allActive(), w.compareLines(l.parent))
}

// gone forgets a branch that has ended, with what is open in it.
func (w *branchWorld) gone(l *line) error {
	for n, m := range w.checkpoints {
		if m.line == l {
			delete(w.checkpoints, n)
		}
	}
	delete(w.lines, l.name)
	_ = l.tree.CloseHandles() // they are stale
	return errors.Join(l.model.close(), l.tree.Leave())
}

// view lists what exists in a line, for a generator.
func (w *branchWorld) view(l *line) (ops.View, error) {
	v, err := l.model.view()
	v.CanUndo = l.undo != nil
	for n, m := range w.checkpoints {
		if m.line == l {
			v.Checkpoints = append(v.Checkpoints, n)
		}
	}
	slices.Sort(v.Checkpoints)
	return v, err
}

// atTheEnd is to about how many checkpoints a sequence goes back at its end; it looks at twice as many.
const atTheEnd = 5

// finish goes through what a sequence has left: it compares, looks at checkpoints, rolls back to some of them, and has the store checked, also when no
// branch is left.
func (w *branchWorld) finish() error {
	for _, l := range w.lines {
		if err := l.closeHandles(); err != nil {
			return err
		}
	}
	if err := errors.Join(w.compareAll(), w.allActive(), w.host.Check()); err != nil {
		return err
	}
	numbers := slices.Sorted(maps.Keys(w.checkpoints))
	every := 1 + len(numbers)/atTheEnd/2
	if w.often {
		every = 1
	}
	for i := 0; i < len(numbers); i += every {
		n := numbers[i]
		if err := w.do(ops.Op{Kind: ops.Look, N: n}); err != nil {
			return fmt.Errorf("look at checkpoint %d at the end: %w", n, err)
		}
		if !w.often && i%(2*every) != 0 {
			continue
		}
		if err := w.do(ops.Op{Kind: ops.Rollback, Branch: w.checkpoints[n].line.name, N: n}); err != nil {
			return fmt.Errorf("rollback to checkpoint %d at the end: %w", n, err)
		}
	}
	for len(w.lines) > 1 {
		for _, l := range w.lines {
			if l.parent == nil || len(w.children(l)) > 0 {
				continue
			}
			if err := w.do(ops.Op{Kind: ops.DropBranch, Branch: l.name}); err != nil {
				return fmt.Errorf("drop %q at the end: %w", l.name, err)
			}
		}
	}
	return errors.Join(w.host.GC(), w.host.Check(), w.compareAll())
}
