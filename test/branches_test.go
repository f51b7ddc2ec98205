package test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
	"golang.org/x/sys/unix"
)

func TestDifferentialBranchIsLikeAPlainDirectory(t *testing.T) {
	for _, l := range []lower{
		{name: "temp", share: share(4, 35), mount: func(t *testing.T) string { return t.TempDir() }, fill: seedTree},
		{name: "xfs", share: share(2, 15), mount: func(t *testing.T) string { return testfs.XFS(t, 512<<20) }, fill: seedTree},
	} {
		t.Run(l.name, func(t *testing.T) {
			property{lower: l, gen: inBranch, open: openBranch}.run(t)
		})
	}
}

func inBranch() *ops.Generator {
	g := everything()
	g.NoStaleWrites, g.FewLarge, g.Entries = true, true, 30 // small trees are compared fast
	return g
}

// openBranch makes a branch of a workspace that stays as it is.
func openBranch(ws string, variant uint32) (subject, error) {
	f, err := newForest(ws, filepath.Join(filepath.Dir(ws), "store"))
	if err != nil {
		return nil, err
	}
	s, err := f.fork("b", "", treefs.Options{KeepNames: variant&1 != 0})
	if err != nil {
		return nil, err
	}
	s.last = true
	return s, nil
}

// groveSteps is how many operations the branches of one grove live through together.
const groveSteps = 400

func TestDifferentialNestedBranchesAreLikePlainDirectories(t *testing.T) {
	base := memory(t)
	seed := seed(t)
	part := share(5, 55)
	repeat(t, part, func() {
		for range max(steps(t, part)/groveSteps, 1) {
			seed++
			if err := growGrove(base, seed); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	})
}

// grove is branches of one workspace, nested, each with a plain directory that must always agree with it.
type grove struct {
	dir      string
	f        *forest
	c        seeded
	worlds   map[string]*world
	parents  map[string]string
	made     int
	workedOn string // the branch of the last operation
}

func growGrove(base string, seed uint64) (err error) {
	dir, err := os.MkdirTemp(base, "grove-")
	if err != nil {
		return err
	}
	g := &grove{dir: dir, c: seeded{rand.New(rand.NewPCG(seed, 1))}, worlds: map[string]*world{}, parents: map[string]string{}}
	main := filepath.Join(dir, "main")
	if err := os.Mkdir(main, 0o755); err != nil {
		return err
	}
	if err := seedTree(main); err != nil {
		return err
	}
	if g.f, err = newForest(main, filepath.Join(dir, "store")); err != nil {
		return err
	}
	before, err := treestate.Capture(main, treestate.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	for i := range groveSteps {
		if err := within(hangAfter, g.step); err != nil {
			return fmt.Errorf("step %d, %s: %w", i, g.workedOn, err)
		}
	}
	if err := g.compareAll(); err != nil {
		return err
	}
	after, err := treestate.Capture(main, treestate.Options{})
	if diff := treestate.Diff(before, after); err == nil && len(diff) > 0 {
		err = fmt.Errorf("main has changed:\n\t%s", strings.Join(diff, "\n\t"))
	}
	return errors.Join(err, g.f.check())
}

func (g *grove) close() error {
	var errs []error
	for _, w := range g.worlds {
		errs = append(errs, w.close())
	}
	return errors.Join(append(errs, g.f.close(), treestate.Remove(g.dir))...)
}

// names gives the branches in order, so that a seed always does the same.
func (g *grove) names() []string { return slices.Sorted(maps.Keys(g.worlds)) }

func (g *grove) step() error {
	switch k := g.c.IntN(100); {
	case len(g.worlds) == 0 || k < 2 && len(g.worlds) < 8:
		main := filepath.Join(g.dir, "main")
		return g.fork("", "", func(ws string) error { return treestate.Copy(main, ws) })
	case k < 8 && len(g.worlds) < 8:
		return g.forkSome()
	case k < 10:
		return g.drop()
	case k < 11:
		return g.restart()
	case k < 14:
		return g.compareDiff()
	}
	g.workedOn = pickOne(g.c, g.names())
	w := g.worlds[g.workedOn]
	v, err := w.view()
	if err != nil {
		return err
	}
	gen := inBranch()
	gen.NoHandles = true // a restart in one branch is one of all
	o := gen.Next(g.c, v)
	if o.Kind == ops.Restart {
		return g.restart()
	}
	if err := w.do(o); err != nil {
		return fmt.Errorf("%v: %w", o, err)
	}
	return nil
}

func pickOne[T any](c seeded, from []T) T { return from[c.IntN(len(from))] }

// fork makes a branch of a checkpoint of one of them, or of main; fill makes a directory what that has.
func (g *grove) fork(from, parent string, fill func(dir string) error) error {
	g.made++
	name := fmt.Sprintf("branch %d", g.made)
	g.workedOn = name
	dir := filepath.Join(g.dir, fmt.Sprint(g.made))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := fill(filepath.Join(dir, "workspace")); err != nil {
		return err
	}
	w, err := newWorld(dir, func(string) (subject, error) {
		return g.f.fork(name, from, treefs.Options{KeepNames: g.made%2 == 0})
	})
	if err != nil {
		return err
	}
	g.worlds[name], g.parents[name] = w, parent
	return w.compare()
}

// forkSome forks from any checkpoint of any branch.
func (g *grove) forkSome() error {
	parent := pickOne(g.c, g.names())
	w := g.worlds[parent]
	if len(w.checkpoints) == 0 {
		if err := w.snapshot(); err != nil {
			return err
		}
	}
	s := w.checkpoints[pickOne(g.c, slices.Sorted(maps.Keys(w.checkpoints)))]
	return g.fork(s.id, parent, func(ws string) error { return s.model.Make(ws, w.past.contents.Fill) })
}

// drop ends a branch; one that others were forked from is refused.
func (g *grove) drop() error {
	name := pickOne(g.c, g.names())
	g.workedOn = name
	hasChildren := slices.Contains(slices.Collect(maps.Values(g.parents)), name)
	err := g.f.m.Drop(context.Background(), name)
	if hasChildren {
		if errs.CodeOf(err) != errs.Busy {
			return fmt.Errorf("dropping a branch with children gave %v", err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	w := g.worlds[name]
	delete(g.worlds, name)
	delete(g.parents, name)
	if _, err := w.sub.Capture(); !errors.Is(err, unix.ESTALE) {
		return fmt.Errorf("a capture of a dropped branch gave %v", err)
	}
	return errors.Join(w.close(), g.compareAll())
}

func (g *grove) restart() error {
	if err := g.f.restart(); err != nil {
		return err
	}
	return errors.Join(g.compareAll(), g.f.check())
}

func (g *grove) compareAll() error {
	for _, name := range g.names() {
		w := g.worlds[name]
		if err := errors.Join(w.compare(), w.allActive()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// compareDiff proves that a diff tells all that is different from a checkpoint, and nothing else.
func (g *grove) compareDiff() error {
	name := pickOne(g.c, g.names())
	g.workedOn = name
	w := g.worlds[name]
	if len(w.checkpoints) == 0 {
		return nil
	}
	s := w.checkpoints[pickOne(g.c, slices.Sorted(maps.Keys(w.checkpoints)))]
	diff, err := g.f.m.Diff(context.Background(), name, s.id, "", true)
	if err != nil {
		return fmt.Errorf("diff: %w", err)
	}
	now, err := w.capture()
	if err != nil {
		return err
	}
	if problems := explains(s.capture, now, diff); len(problems) > 0 {
		return fmt.Errorf("the diff from %s is not what happened:\n\t%s\n%v", s.id, strings.Join(problems, "\n\t"), diff.Changes)
	}
	return nil
}

// explains says in what a diff does not lead from one state to the other.
func explains(from, to treestate.State, diff overlay.Diff) (problems []string) {
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	gone, moved, told := map[string]bool{}, map[string]string{}, map[string]bool{}
	reached := treestate.State{}
	changed := map[string]bool{} // inodes, by the first of their names: a change is told of one name
	for _, c := range diff.Changes {
		if c.Kind != overlay.Deleted {
			told[c.Path], changed[to[c.Path].First] = true, true
		}
		switch c.Kind {
		case overlay.Deleted:
			gone[c.Path] = true
		case overlay.Renamed:
			moved[c.OldPath] = c.Path
		case overlay.Created:
			reached[c.Path] = to[c.Path]
		}
	}
	for path, e := range from {
		if gone[path] {
			continue
		}
		now := path
		for top := path; top != "."; top = filepath.Dir(top) {
			if to, ok := moved[top]; ok {
				now = to + strings.TrimPrefix(path, top)
				break
			}
		}
		if told[now] || changed[to[now].First] {
			e = to[now]
		}
		reached[now] = e
	}
	for path, e := range reached {
		n, ok := to[path]
		if !ok {
			say("%q is not there", path)
			continue
		}
		if e.IsDir() && n.IsDir() {
			e.Mtime = n.Mtime // it is not told
		}
		e.Path, e.First = n.Path, n.First
		if d := treestate.Diff(treestate.State{path: e}, treestate.State{path: n}); len(d) > 0 {
			say("not told: %s", strings.Join(d, "; "))
		}
	}
	for path := range to {
		if _, ok := reached[path]; !ok {
			say("%q is there, which is not told", path)
		}
	}
	for _, c := range diff.Changes {
		if c.Kind == overlay.Modified && from[c.Path].Path != "" && len(treestate.Diff(treestate.State{c.Path: from[c.Path]}, treestate.State{c.Path: to[c.Path]})) == 0 && len(moved) == 0 {
			say("%q is told to be modified in %v, but is not", c.Path, c.What)
		}
	}
	return problems
}

// What a branch had that has ended may still be there when the daemon ends: then the next one gives it up while it opens the store.
func TestAWorkspaceWhoseBranchesWereMergedOpensAgain(t *testing.T) {
	t.Parallel()
	ctx, cfg := context.Background(), overlay.Config{Workspace: newWorkspace(t)}
	for _, merge := range []bool{true, false} {
		w, err := branch.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if merge {
			if _, err = w.Fork(ctx, overlay.ForkOptions{Name: "b"}); err == nil {
				_, err = w.Merge(ctx, "b", overlay.MergeOptions{})
			}
		} else if pins := w.Pins(); len(pins) > 0 {
			t.Errorf("main keeps %v for branches that are gone", pins)
		}
		if err = errors.Join(err, w.Close()); err != nil {
			t.Error(err)
		}
	}
}
