package test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
)

// maxBranches is how many branches a random life has at a time.
const maxBranches = 5

// movesVariant is the bit of a variant that says whether names are moved: a life without that has merges that can be foreseen path by path.
const movesVariant = 8

// rarely is one in how many operations is about branches.
const rarely = 8

// branchLife is random operations on main and on branches.
type branchLife struct {
	property
	openHost func(workspace string, variant uint32) (branchHost, error)
	ignores  bool // see branchWorld
}

// branchNext chooses an operation, one of so many being about branches.
func branchNext(c ops.Chooser, g *ops.Generator, w *branchWorld, rarely int) (ops.Op, error) {
	names := slices.Sorted(maps.Keys(w.lines))
	l := w.lines[names[c.Intn("line", len(names))]]
	var o ops.Op
	ok := false
	if c.Intn("branches", rarely) == 0 {
		o, ok = ofBranches(c, w, l)
	}
	if !ok {
		v, err := w.view(l)
		if err != nil {
			return o, err
		}
		o = g.Next(c, v)
	}
	o.Branch = l.name
	return o, nil
}

var policies = []string{overlay.ConflictReject, overlay.ConflictOurs, overlay.ConflictTheirs, overlay.ConflictMerge}

// ofBranches chooses an operation that lines without branches don't have.
func ofBranches(c ops.Chooser, w *branchWorld, l *line) (o ops.Op, ok bool) {
	numbers := slices.Sorted(maps.Keys(w.checkpoints))
	newest := func() int { return numbers[len(numbers)-1-c.Intn("checkpoint", len(numbers))] }
	switch k := c.Intn("branch kind", 16); {
	case k < 5 && len(numbers) > 0 && len(w.lines) <= maxBranches:
		return ops.Op{Kind: ops.Fork, Name: fmt.Sprintf("b%d", w.forks), N: newest()}, true
	case k < 10 && l.parent != nil:
		o = ops.Op{Kind: ops.Merge, Name: policies[c.Intn("policy", len(policies))]}
		switch c.Intn("how", 8) {
		case 6:
			o.Flags = ops.MergeDry
		case 7:
			o.Flags = ops.MergeAlone
		}
		return o, true
	case k < 11 && l.parent != nil:
		return ops.Op{Kind: ops.DropBranch}, true
	case k < 12 && l.parent != nil:
		return ops.Op{Kind: ops.Rollback, N: ops.ToForkPoint}, true
	case k < 13:
		return ops.Op{Kind: ops.Rollback, N: ops.ToDefault}, true
	case len(numbers) > 0:
		o = ops.Op{Kind: ops.Look, N: newest()}
		if from := newest(); from != o.N && w.checkpoints[from].line == w.checkpoints[o.N].line {
			o.Handle = from
		}
		return o, true
	}
	return o, false
}

func (p branchLife) newWorld(base string, variant uint32) (*branchWorld, error) {
	dir, err := os.MkdirTemp(base, "world-")
	if err != nil {
		return nil, err
	}
	open := func(ws string) (branchHost, error) { return p.openHost(ws, variant) }
	if !p.overlay {
		if err := p.newWorkspace(dir); err != nil {
			return nil, err
		}
		w, err := newBranchWorld(dir, variant&movesVariant == 0, open)
		if w != nil && p.ignores {
			w.ignores, w.fresh = true, isFresh(variant)
		}
		return w, err
	}
	merged, done, err := p.mountOverlay(dir)
	if err != nil {
		return nil, err
	}
	w, err := newBranchWorld(merged, variant&movesVariant == 0, open)
	if w != nil {
		w.refuse, w.done = refusedByOverlay, done
	}
	return w, err
}

// random makes and executes n operations that depend on seed alone. It gives the operations up to a failure.
func (p branchLife) random(base string, seed uint64, n int) (list []ops.Op, w *branchWorld, err error) {
	c := seeded{rand.New(rand.NewPCG(seed, 0))}
	variant := uint32(c.IntN(2 * movesVariant))
	list = []ops.Op{{Kind: ops.Variant, Flags: variant}}
	if w, err = p.newWorld(base, variant); err != nil {
		return list, w, err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			return // locks may be held
		}
		err = errors.Join(err, w.close())
	}()
	g := p.gen()
	g.NoMoves = !w.moves
	for range n {
		o, err := branchNext(c, g, w, rarely)
		if err != nil {
			return list, w, err
		}
		list = append(list, o)
		if err := within(hangAfter, func() error { return w.do(o) }); err != nil {
			return list, w, fmt.Errorf("%v\n%w", o, err)
		}
	}
	return list, w, w.finish()
}

// again says how operations are made again.
type again struct {
	often bool // everything is compared after each of them, which tells the one that has done harm
	short bool // nothing is proven at the end
}

// execute makes operations again.
func (p branchLife) execute(base string, list []ops.Op, how again) error {
	return within(hangAfter, func() (err error) {
		variant := uint32(0)
		if len(list) > 0 && list[0].Kind == ops.Variant {
			variant, list = list[0].Flags, list[1:]
		}
		w, err := p.newWorld(base, variant)
		if err != nil {
			return err
		}
		w.often = how.often
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
				return
			}
			err = errors.Join(err, w.close())
		}()
		for _, o := range list {
			if err := w.do(o); err != nil {
				return fmt.Errorf("%v\n%w", o, err)
			}
		}
		if how.short {
			return nil
		}
		return w.finish()
	})
}

// minimise finds the operations of a failure that matter. It compares everything after each of them if that shows the failure earlier, or else as seldom
// as the failed life did, which takes much less time.
func (p branchLife) minimise(t *testing.T, base, log string, list []ops.Op) {
	early, late := p.execute(base, list, again{often: true}), p.execute(base, list, again{})
	var how again
	how.often = early != nil && (late == nil || failedAt(early) != failedAt(late))
	if !how.often {
		early = late
	}
	how.short = early != nil && strings.HasPrefix(failedAt(early), "{")
	minimise(t, log, func(list []ops.Op) error { return p.execute(base, list, how) })
}

// failedAt gives the operation that an error begins with.
func failedAt(err error) string {
	op, _, _ := strings.Cut(err.Error(), "\n")
	return op
}

// run lives lives of so many operations for a share of all steps.
func (p branchLife) run(t *testing.T, length int) {
	base := p.mount(t)
	if log := os.Getenv(envReplay); log != "" {
		list, err := readLog(log)
		if err == nil {
			err = p.execute(base, list, again{often: true})
		}
		if err != nil {
			t.Error(err)
			p.minimise(t, base, log, list)
		}
		return
	}
	seed := seed(t)
	merges, conflicts, exact := 0, 0, 0
	repeat(t, p.share, func() {
		for range max(steps(t, p.share)/length, 1) {
			seed++
			list, w, err := p.random(base, seed, length)
			if err != nil {
				log := p.logName()
				t.Errorf("seed %d: %v", seed, err)
				if err := saveLog(log, list); err != nil {
					t.Error(err)
				}
				p.minimise(t, base, log, list)
				return
			}
			merges, conflicts, exact = merges+w.merges, conflicts+w.conflicts, exact+w.exact
		}
	})
	t.Logf("%d merges, %d of them foreseen path by path, %d refused", merges, exact, conflicts)
	if !t.Failed() && !p.ignores && steps(t, p.share) >= 2000 && min(merges, conflicts, exact) == 0 {
		t.Error("a kind of merge was never made: this proves nothing of it")
	}
}

func TestDifferentialBranchesAreLikePlainDirectories(t *testing.T) {
	for _, l := range []lower{
		{name: "branches-tmpfs", share: share(9, 130), mount: func(t *testing.T) string { return testfs.Tmpfs(t, 1<<30) }, fill: seedTree},
		{name: "branches-ext4", share: share(4, 45), mount: func(t *testing.T) string { return testfs.Ext4(t, 512<<20) }, fill: seedTree},
		{name: "branches-overlayfs", share: share(4, 25), mount: func(t *testing.T) string { return testfs.Tmpfs(t, 1<<30) }, fill: seedTree, overlay: true},
	} {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			branchLife{property: property{lower: l, gen: inBranch}, openHost: openDirect}.run(t, share(250, 500))
		})
	}
}

// TestDifferentialBranchesWithoutTheRaceDetector makes most of the steps of these tests: who makes one operation after the other races with little.
func TestDifferentialBranchesWithoutTheRaceDetector(t *testing.T) {
	if !raceEnabled || os.Getenv(envReplay) != "" {
		t.Skip("the tests themselves make all their steps")
	}
	t.Parallel()
	bin, err := unchecked.path()
	if err != nil {
		t.Fatal(err)
	}
	const tests = "^TestDifferential(BranchIsLikeAPlainDirectory|(Nested)?Branches(OfIgnoredPaths)?AreLikePlainDirectories)$"
	out, err := exec.Command(bin, "-test.v", "-test.timeout=0", "-test.run", tests, fmt.Sprintf("-test.short=%v", testing.Short())).CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s", out)
}

// TestDifferentialBranchesOfIgnoredPathsAreLikePlainDirectories: what main ignores is in branches like everything else, and stays there what it was, whatever becomes
// of it in main.
func TestDifferentialBranchesOfIgnoredPathsAreLikePlainDirectories(t *testing.T) {
	t.Parallel()
	l := lower{name: "branches-ignored", share: share(4, 60), mount: func(t *testing.T) string { return testfs.Tmpfs(t, 1<<30) }, fill: seedTree}
	branchLife{property: property{lower: l, gen: inBranch}, openHost: openIgnoringDirect, ignores: true}.run(t, share(250, 500))
}

// isFresh is branchWorld.fresh of a variant.
func isFresh(variant uint32) bool { return variant&1 != 0 }

// openIgnoringDirect is openDirect with ignored paths. Where nothing is pinned before the first fork, and what is protected is of another time than what is ignored, all
// is ignored: a file with names of both kinds would be two.
func openIgnoringDirect(ws string, variant uint32) (branchHost, error) {
	o := treeOptions{Options: treefs.Options{KeepNames: variant&2 != 0}, Large: variant&4 != 0, Ignore: []string{"*"}}
	if !isFresh(variant) {
		o.Ignore = ignoreLists[variant>>1&3]
	}
	h, err := newDirectHost(ws, o)
	if err != nil || isFresh(variant) {
		return h, err
	}
	id, err := h.Snapshot("")
	if err == nil {
		err = h.ws.Pin(id, "the test", func(*checkpoint.Tx, checkpoint.Checkpoint) error { return nil })
	}
	if err == nil {
		err = h.Drop(id)
	}
	return h, err
}

// openDirect opens main and branches without FUSE.
func openDirect(ws string, variant uint32) (branchHost, error) {
	o := treeOptions{Options: treefs.Options{KeepNames: variant&1 != 0}, Large: variant&4 != 0}
	if variant&2 != 0 {
		o.Tier += " hot"
	}
	return newDirectHost(ws, o)
}

func TestDifferentialBranchesInTheMountAreLikePlainDirectories(t *testing.T) {
	needMount(t)
	l := lower{name: "branches-mount", share: 2, mount: func(t *testing.T) string { return testfs.Tmpfs(t, 1<<30) }, fill: seedTree}
	gen := func() *ops.Generator {
		g := inBranch()
		g.NoShift = true
		return g
	}
	branchLife{property: property{lower: l, gen: gen}, openHost: func(ws string, variant uint32) (branchHost, error) {
		var o mountOptions
		o.flags = append(o.flags, opensFlags(variant)...)
		if variant&4 != 0 {
			o.flags = append(o.flags, "--large-min", strconv.Itoa(lowLargeMin), "--block-size", strconv.Itoa(lowBlockSize))
		}
		return newMountHost(ws, o)
	}}.run(t, 150)
}
