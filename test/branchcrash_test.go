package test

import (
	"cmp"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
)

// A life of main and branches depends on its seed alone. One is lived to its end first: it tells what each step leads to. The others are killed, and what
// is found then must be what was there before the step that was cut, or what that life had after it.

// envBranchVictim makes this test binary a victim: it is the directory of its life.
const envBranchVictim = "HYPERFS_TEST_BRANCH_VICTIM"

// branchVictimSteps is how long a victim works if nobody kills it.
const branchVictimSteps = 60

// stepRecord is what was there after a step.
type stepRecord struct {
	Op    ops.Op
	Lines map[string]lineRecord
	Marks map[int]markRecord
}

type lineRecord struct {
	State treestate.State
	Undo  treestate.State // nil where there is nothing to undo
}

type markRecord struct {
	ID    string
	Line  string
	State treestate.State
}

func recordName(dir string, step int) string {
	return filepath.Join(dir, fmt.Sprintf("after-%d", step))
}
func opName(dir string, step int) string { return filepath.Join(dir, fmt.Sprintf("op-%d", step)) }

func save(name string, v any) error {
	f, err := os.Create(name + "~")
	if err != nil {
		return err
	}
	if err := errors.Join(gob.NewEncoder(f).Encode(v), f.Close()); err != nil {
		return err
	}
	return os.Rename(name+"~", name)
}

func load(name string, v any) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return gob.NewDecoder(f).Decode(v)
}

// branchVictim lives a life until it is done or killed. It is a process of its own.
func branchVictim(dir string) error {
	seed, err := strconv.ParseUint(os.Getenv(envVictimSeed), 10, 64)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(os.Getenv(envVictimSteps))
	if err != nil {
		return err
	}
	open := func(ws string) (branchHost, error) { return openDirect(ws, uint32(seed%variants)) }
	if n == 0 { // only start, as after a kill
		h, err := open(filepath.Join(dir, "workspace"))
		if err != nil {
			return err
		}
		return h.Close()
	}
	w, err := newBranchWorld(dir, seed%2 == 0, open)
	if err != nil {
		return err
	}
	g := &ops.Generator{Root: os.Getuid() == 0, Checkpoints: true, Simple: true, NoMoves: !w.moves}
	c := seeded{rand.New(rand.NewPCG(seed, 2))}
	last := stepRecord{Lines: map[string]lineRecord{}, Marks: map[int]markRecord{}}
	for step := range n {
		o, err := branchNext(c, g, w, 2)
		if err != nil {
			return err
		}
		if err := save(opName(dir, step), o); err != nil {
			return err
		}
		if err := w.do(o); err != nil {
			return fmt.Errorf("step %d: %v\n%w", step, o, err)
		}
		last.Op = o
		if err := errors.Join(w.record(&last), save(recordName(dir, step), last)); err != nil {
			return err
		}
	}
	passes, err := json.Marshal(crash.Passes())
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "passes"), passes, 0o600), w.host.Close())
}

// record brings a record up to date.
func (w *branchWorld) record(r *stepRecord) error {
	lines := map[string]lineRecord{}
	for name, l := range w.lines {
		s, err := l.tree.Capture()
		if err != nil {
			return err
		}
		x := lineRecord{State: s}
		if l.undo != nil {
			x.Undo = l.undo.capture
		}
		lines[name] = x
	}
	r.Lines, r.Marks = lines, map[int]markRecord{}
	for n, m := range w.checkpoints {
		r.Marks[n] = markRecord{m.id, m.line.name, m.capture}
	}
	return nil
}

// newBranchLife makes the directory of a life.
func newBranchLife(t *testing.T) string {
	t.Helper()
	dir := memory(t)
	ws := filepath.Join(dir, "workspace")
	if err := os.MkdirAll(filepath.Join(ws, "d", "e"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"a", "b", "d/c", "d/e/f", "d/g"} {
		if err := os.WriteFile(filepath.Join(ws, name), ops.Data(uint64(i), int64(i*3000)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func startBranchVictim(t *testing.T, dir string, seed uint64, steps int, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envBranchVictim+"="+dir, envVictimSteps+"="+strconv.Itoa(steps), envVictimSeed+"="+strconv.FormatUint(seed, 10))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// wholeLife lives a life to its end, and gives how often it passed each point.
func wholeLife(t *testing.T, seed uint64) (dir string, passes map[string]int) {
	t.Helper()
	dir = newBranchLife(t)
	if ended(t, startBranchVictim(t, dir, seed, branchVictimSteps, crash.EnvTrace+"=1")) {
		t.Fatal("the victim was killed by somebody else")
	}
	data, err := os.ReadFile(filepath.Join(dir, "passes"))
	if err == nil {
		err = json.Unmarshal(data, &passes)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir, passes
}

func TestCrashOfBranchesAtEveryPointLosesNothing(t *testing.T) {
	t.Parallel()
	first := seed(t)
	repeat(t, 30, func() {
		killed, wanted := 0, kills(t, 25)
		for range 4 { // not every life passes every point as often as it is to die there
			if killed < wanted && !t.Failed() {
				first++
				killed += killBranchesEverywhere(t, first, min(wanted-killed, wanted/2+1))
			}
		}
		enough(t, killed, wanted)
	})
}

// killBranchesEverywhere kills about n lives of one seed, at all points that they pass, and gives how many died.
func killBranchesEverywhere(t *testing.T, seed uint64, n int) (killed int) {
	whole, passes := wholeLife(t, seed)
	r := rand.New(rand.NewPCG(seed, 3))
	points := slices.Sorted(maps.Keys(passes))
	r.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	slices.SortStableFunc(points, func(a, b string) int { return cmp.Compare(ofMain(a), ofMain(b)) })
	for i := range n {
		point := points[i%len(points)]
		at := fmt.Sprintf("%s:%d", point, 1+r.IntN(passes[point]))
		t.Run(fmt.Sprintf("%d at %s", seed, at), func(t *testing.T) {
			dir := newBranchLife(t)
			if !ended(t, startBranchVictim(t, dir, seed, branchVictimSteps, crash.EnvAt+"="+at)) {
				return // work in the background does not pass every point equally often
			}
			killed++
			again := []string{"", "rollback-put:1", "rollback-applied:1", "branch-freed:1", "gc-dropped:1", "journal-appended:1", "epoch-begun:1"}[i%7]
			if again != "" {
				ended(t, startBranchVictim(t, dir, seed, 0, crash.EnvAt+"="+again))
			}
			proveBranches(t, whole, dir, seed)
		})
		if t.Failed() {
			break
		}
	}
	return killed
}

// ofMain is 0 for the points of branches and merges, which come first, and 1 for the others.
func ofMain(point string) int {
	for _, of := range []string{"branch-", "merge-", "edit-", "layers-", "journal-"} {
		if strings.HasPrefix(point, of) {
			return 0
		}
	}
	return 1
}

func TestCrashOfBranchesAtRandomLosesNothing(t *testing.T) {
	t.Parallel()
	first := seed(t)
	repeat(t, 30, func() {
		killed, wanted := 0, kills(t, 17)
		for killed < wanted && !t.Failed() {
			first++
			seed := first
			r := rand.New(rand.NewPCG(seed, 4))
			whole, _ := wholeLife(t, seed)
			for i := range 12 {
				t.Run(fmt.Sprintf("%d %d", seed, i), func(t *testing.T) {
					dir := newBranchLife(t)
					cmd := startBranchVictim(t, dir, seed, branchVictimSteps)
					step := r.IntN(branchVictimSteps)
					waitForStep(t, dir, step)
					time.Sleep(time.Duration(r.IntN(8000)) * time.Microsecond)
					_ = cmd.Process.Kill()
					if ended(t, cmd) {
						killed++
						proveBranches(t, whole, dir, seed)
					}
				})
			}
		}
		enough(t, killed, wanted)
	})
}

// waitForStep returns when a step has begun.
func waitForStep(t *testing.T, dir string, step int) {
	t.Helper()
	err := within(hangAfter, func() error {
		for !exists(opName(dir, step)) {
			time.Sleep(200 * time.Microsecond)
		}
		return nil
	})
	if err != nil {
		t.Fatal("the victim does nothing")
	}
}

// branchWreck is what a kill left.
type branchWreck struct {
	op            ops.Op
	before, after stepRecord // the cut step; after is of the whole life
	uncut         stepRecord // before it, in the whole life
	host          branchHost
	lines         map[string]lineTree
}

// proveBranches checks everything that must hold after a kill, and that what is changed from then on is protected.
func proveBranches(t *testing.T, whole, dir string, seed uint64) {
	t.Helper()
	k := 0
	for exists(recordName(dir, k)) {
		k++
	}
	if k == 0 || !exists(opName(dir, k)) {
		return // killed between steps, or before there was anything
	}
	w := &branchWreck{lines: map[string]lineTree{}}
	err := errors.Join(load(opName(dir, k), &w.op), load(recordName(dir, k-1), &w.before), load(recordName(whole, k), &w.after), load(recordName(whole, k-1), &w.uncut))
	if err != nil {
		t.Fatal(err)
	}
	if w.op.String() != w.after.Op.String() {
		t.Fatalf("the lives are not alike: %v, %v", w.op, w.after.Op)
	}
	t.Logf("killed in step %d: %v", k, w.op)
	if w.host, err = openDirect(filepath.Join(dir, "workspace"), uint32(seed%variants)); err != nil {
		t.Fatalf("open after the kill: %v", err)
	}
	err = within(hangAfter, func() error { return errors.Join(w.check(), w.leave(), w.host.Close()) })
	if err != nil {
		t.Fatal(err)
	}
}

func (w *branchWreck) leave() (err error) {
	for _, l := range w.lines {
		err = errors.Join(err, l.Leave())
	}
	clear(w.lines)
	return err
}

func (w *branchWreck) enter() error {
	names, err := w.host.Branches()
	if err != nil {
		return err
	}
	for _, name := range append(names, "") {
		if w.lines[name], err = w.host.Enter(name); err != nil {
			return fmt.Errorf("enter %q: %w", name, err)
		}
	}
	return nil
}

func (w *branchWreck) check() error {
	if err := w.host.Check(); err != nil {
		return err
	}
	if err := w.enter(); err != nil {
		return err
	}
	for _, step := range []func() error{w.checkBranches, w.checkLines, w.checkMarks, w.checkUndo, w.checkProtected} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// checkBranches proves that those are there that were, or that the step led to. A merge that is cut may have ended fewer branches than it was to.
func (w *branchWreck) checkBranches() error {
	for name := range w.before.Lines {
		if _, stays := w.after.Lines[name]; stays && w.lines[name] == nil {
			return fmt.Errorf("the branch %q is lost", name)
		}
	}
	for name := range w.lines {
		_, was := w.before.Lines[name]
		if _, is := w.after.Lines[name]; !was && !is {
			return fmt.Errorf("there is a branch %q", name)
		}
	}
	return nil
}

// changes gives the line whose tree the step changes.
func (w *branchWreck) changes() string {
	if w.op.Kind != ops.Merge {
		return w.op.Branch
	}
	for name, l := range w.after.Lines {
		if b, ok := w.uncut.Lines[name]; ok && len(treestate.Diff(b.State, l.State)) > 0 {
			return name
		}
	}
	return "none"
}

// sameKind compares states of two lives.
func sameKind(a, b treestate.State) []string {
	return treestate.Compare{Mtime: sameKindOfMtime}.Diff(a, b)
}

// isStep reports whether an operation is made as a whole or not at all.
func isStep(o ops.Op) bool {
	switch o.Kind {
	case ops.Snapshot, ops.Rollback, ops.Undo, ops.Drop, ops.Promote, ops.Restart, ops.GC, ops.Compare, ops.Fork, ops.Merge, ops.DropBranch, ops.Look:
		return true
	}
	return false
}

// checkLines proves that every line is what it was, and that the one that the step was about is that or what the step led to.
func (w *branchWreck) checkLines() error {
	for name, l := range w.lines {
		now, err := l.Capture()
		if err != nil {
			return fmt.Errorf("capture %q: %w", name, err)
		}
		was, ok := w.before.Lines[name]
		if !ok { // just forked
			if diff := sameKind(w.after.Lines[name].State, now); len(diff) > 0 {
				return fmt.Errorf("the new branch %q is not what was forked:\n\t%s", name, strings.Join(diff, "\n\t"))
			}
			continue
		}
		diff := treestate.Diff(was.State, now)
		if name == w.changes() && !isStep(w.op) {
			diff = w.besides(diff, was.State, now)
		}
		if len(diff) == 0 {
			continue
		}
		if is, ok := w.after.Lines[name]; ok && name == w.changes() && isStep(w.op) {
			other := sameKind(is.State, now)
			if len(other) == 0 {
				continue
			}
			return fmt.Errorf("%q is neither what it was:\n\t%s\n    nor what %v leads to:\n\t%s", name,
				strings.Join(diff, "\n\t"), w.op, strings.Join(other, "\n\t"))
		}
		return fmt.Errorf("%q is not what it was:\n\t%s", name, strings.Join(diff, "\n\t"))
	}
	return nil
}

// besides leaves out of the differences what the operation that was cut is about: its paths, what is below and above them, and their other names.
func (w *branchWreck) besides(diff []string, was, now treestate.State) []string {
	about := map[string]bool{}
	for _, s := range []treestate.State{was, now} {
		first := map[string]bool{}
		for p, e := range s {
			for _, q := range []string{string(w.op.Path), string(w.op.To)} {
				if q != "" && (p == q || strings.HasPrefix(p, q+"/") || p == "." || strings.HasPrefix(q, p+"/")) {
					about[p], first[e.First] = true, true
				}
			}
		}
		for p, e := range s {
			about[p] = about[p] || first[e.First]
		}
	}
	return slices.DeleteFunc(diff, func(line string) bool {
		for p := range about {
			if strings.HasPrefix(line, fmt.Sprintf("%q: ", p)) {
				return true
			}
		}
		return false
	})
}

// checkMarks proves that every checkpoint that was not about to go shows what it was.
func (w *branchWreck) checkMarks() error {
	active, err := w.host.Active()
	if err != nil {
		return err
	}
	for n, m := range w.before.Marks {
		if _, stays := w.after.Marks[n]; !stays && !slices.Contains(active, m.ID) {
			continue
		}
		s, err := w.host.View(m.ID)
		if err != nil {
			return fmt.Errorf("look at checkpoint %d: %w", n, err)
		}
		if diff := treestate.Diff(m.State, s); len(diff) > 0 {
			return fmt.Errorf("checkpoint %d of %q is not what it was:\n\t%s", n, m.Line, strings.Join(diff, "\n\t"))
		}
	}
	list, err := w.host.(*directHost).ws.List(overlay.ListOptions{})
	for _, c := range list {
		if c.CreatedBy == "edit" {
			return fmt.Errorf("the checkpoint of a merge's own is left: %+v", c)
		}
	}
	return err
}

// checkUndo proves that what could be undone can be, and that a rollback or merge that was made can be.
func (w *branchWreck) checkUndo() error {
	for name, l := range w.lines {
		was, ok := w.before.Lines[name]
		if !ok {
			continue
		}
		now, err := l.Capture()
		if err != nil {
			return err
		}
		want := was.Undo
		if name == w.changes() && (w.op.Kind == ops.Rollback || w.op.Kind == ops.Undo || w.op.Kind == ops.Merge) {
			if len(treestate.Diff(was.State, now)) == 0 || w.op.Kind == ops.Rollback && w.op.Flags != 0 {
				continue // whether the step was made can't be seen, or it was not to be undone
			}
			want = was.State
		}
		if want == nil {
			continue
		}
		for _, want := range []treestate.State{want, now} {
			if _, err := w.host.Undo(name); err != nil {
				return fmt.Errorf("undo in %q after the kill: %w", name, err)
			}
			if err := treeIs(l, want); err != nil {
				return fmt.Errorf("undo in %q after the kill: %w", name, err)
			}
		}
	}
	return nil
}

func treeIs(l lineTree, want treestate.State) error {
	now, err := l.Capture()
	if err != nil {
		return err
	}
	if diff := treestate.Diff(want, now); len(diff) > 0 {
		return fmt.Errorf("it is not what it was:\n\t%s", strings.Join(diff, "\n\t"))
	}
	return nil
}

// checkProtected changes everything in every line, and rolls back: nothing else may change, and all comes back.
func (w *branchWreck) checkProtected() error {
	states, ids := map[string]treestate.State{}, map[string]string{}
	for name, l := range w.lines {
		var err error
		if states[name], err = l.Capture(); err != nil {
			return err
		}
		if ids[name], err = w.host.Snapshot(name); err != nil {
			return err
		}
	}
	for name, l := range w.lines {
		changeAll(l, states[name])
		for other, o := range w.lines {
			if other != name {
				if err := treeIs(o, states[other]); err != nil {
					return fmt.Errorf("%q was changed, and so was %q: %w", name, other, err)
				}
			}
		}
		if err := w.checkMarks(); err != nil {
			return fmt.Errorf("%q was changed after the kill: %w", name, err)
		}
		if _, err := w.host.Rollback(name, ids[name], false); err != nil {
			return err
		}
		if err := treeIs(l, states[name]); err != nil {
			return fmt.Errorf("changes of %q after the kill were rolled back: %w", name, err)
		}
	}
	for _, step := range []func() error{w.host.GC, w.leave, w.host.Restart, w.host.Check, w.enter} {
		if err := step(); err != nil {
			return err
		}
	}
	for name, l := range w.lines {
		if err := treeIs(l, states[name]); err != nil {
			return fmt.Errorf("%q after a restart: %w", name, err)
		}
	}
	return w.checkMarks()
}

// changeAll changes all that is in a tree, as far as it can be.
func changeAll(l lineTree, s treestate.State) {
	for i, p := range s.Paths() {
		path := ops.Bytes(p)
		if s[p].IsRegular() {
			_ = l.Apply(ops.Op{Kind: ops.Write, Path: path, Len: 50, Off: 1, Seed: uint64(i)})
		}
		_ = l.Apply(ops.Op{Kind: ops.Chmod, Path: path, Mode: 0o711})
		_ = l.Apply(ops.Op{Kind: ops.SetXattr, Path: path, Name: "user.after", Value: "x"})
	}
	for i, p := range s.Paths() {
		if p != "." && !strings.Contains(p, "/") && i%2 == 0 {
			_ = l.Apply(ops.Op{Kind: ops.RemoveAll, Path: ops.Bytes(p)})
		}
	}
	_ = l.Apply(ops.Op{Kind: ops.Create, Path: "after", Mode: 0o600, Len: 10})
}
