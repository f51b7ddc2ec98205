package scan

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"pgregory.net/rapid"
)

// ignoreLists are lists of patterns of the names that the test uses: by name, by type, by path, and with exceptions. "old" is never there.
var ignoreLists = [][]string{{"c/"}, {"d", "b/", "!/a/b/"}, {"/a/b/", "c/*", "!c/a", "/d"}, {"old"}, {"*", "!*/", "!a", "!b"}, nil}

// maybeTracked are paths that the test has tracked at times.
var maybeTracked = []string{"c/a", "c/b/a", "a/b/c", "d", "b/d", "a/d/d"}

// TestRandomIgnoredPathsAreLeft compares, after a rollback, what is protected with what was there at the checkpoint, and what is ignored with what was there
// before the rollback.
func TestRandomIgnoredPathsAreLeft(t *testing.T) {
	amount(t)
	base := testfs.Tmpfs(t, 256<<20)
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(base, "")
		if err != nil {
			r.Fatal(err)
		}
		x := &ignoring{T: r, dir: dir, states: map[string]*ignoringState{}}
		x.patterns = rapid.SampledFrom(ignoreLists).Draw(r, "patterns")
		x.open()
		defer func() { x.must(errors.Join(x.w.Close(), treestate.Remove(dir))) }()
		r.Repeat(map[string]func(*rapid.T){
			"write": x.write, "write again": x.write, "mkdir": x.mkdir, "remove": x.remove, "rename": x.rename, "link": x.link, "chmod": x.chmod, "symlink": x.symlink,
			"snapshot": x.snapshot, "rollback": x.rollback, "rollback again": x.rollback, "undo": x.undo, "diff": x.diff, "track": x.track, "reopen": x.reopen, "collect": x.collect,
		})
		if problems, err := x.w.Fsck(context.Background(), true); err != nil || len(problems) > 0 {
			r.Fatal(problems, err)
		}
	})
}

// amount has rapid do what takes a few seconds, unless the flags say something else, and always the same with CI=true.
func amount(t *testing.T) {
	set := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { set[f.Name] = true })
	values := map[string]string{"rapid.checks": "25", "rapid.steps": "50", "rapid.nofailfile": "true"}
	if os.Getenv("CI") == "true" {
		values["rapid.seed"] = "1"
	}
	for name, value := range values {
		if set[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
}

// ignoring is a workspace that ignores something, and what is known of it.
type ignoring struct {
	*rapid.T
	dir      string
	w        *Workspace
	patterns []string
	tracked  []string
	states   map[string]*ignoringState // by checkpoint
	undoes   string                    // the undo checkpoint
}

// ignoringState is what a checkpoint must bring back.
type ignoringState struct {
	tree    treestate.State
	rules   *ignore.Rules
	tracked []string
	live    bool // it is there now: where a directory is in the place of a tracked file, it is known that there is no such file
}

func (x *ignoring) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

func (x *ignoring) open() {
	w, err := Open(overlay.Config{Workspace: x.dir, Ignore: x.patterns})
	x.must(err)
	x.w = w
}

func (x *ignoring) path(p string) string { return filepath.Join(x.dir, p) }

// any gives a path of up to three names, which need not be there.
func (x *ignoring) any(label string) string {
	names := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 3).Draw(x.T, label)
	return strings.Join(names, "/")
}

// there gives a path that is there; "" if none is.
func (x *ignoring) there(label string) string {
	var all []string
	x.must(filepath.WalkDir(x.dir, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(x.dir, p)
		if rel == overlay.StoreName {
			return fs.SkipDir
		}
		if rel != "." {
			all = append(all, rel)
		}
		return err
	}))
	if len(all) == 0 {
		return ""
	}
	return rapid.SampledFrom(all).Draw(x.T, label)
}

func (x *ignoring) write(t *rapid.T) {
	text := strings.Repeat("x", rapid.IntRange(0, 3).Draw(t, "length")) + rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "text")
	p := x.path(x.any("path"))
	_ = os.MkdirAll(filepath.Dir(p), 0o755)
	_ = os.WriteFile(p, []byte(text), 0o644)
}

func (x *ignoring) mkdir(*rapid.T)  { _ = os.MkdirAll(x.path(x.any("path")), 0o755) }
func (x *ignoring) remove(*rapid.T) { x.onThere(func(p string) { x.must(os.RemoveAll(p)) }) }
func (x *ignoring) rename(*rapid.T) {
	x.onThere(func(p string) { _ = os.Rename(p, x.path(x.any("to"))) })
}
func (x *ignoring) link(*rapid.T) {
	x.onThere(func(p string) { _ = os.Link(p, x.path(x.any("to"))) })
}

func (x *ignoring) chmod(t *rapid.T) {
	x.onThere(func(p string) {
		if st, err := os.Lstat(p); err == nil && st.Mode()&fs.ModeSymlink == 0 {
			x.must(os.Chmod(p, rapid.SampledFrom([]fs.FileMode{0o755, 0o700, 0o500}).Draw(t, "mode")))
		}
	})
}

func (x *ignoring) symlink(*rapid.T) { _ = os.Symlink("a", x.path(x.any("path"))) }

func (x *ignoring) onThere(fn func(p string)) {
	if p := x.there("what"); p != "" {
		fn(x.path(p))
	}
}

func (x *ignoring) now() *ignoringState {
	s, err := treestate.Capture(x.dir, treestate.Options{Holes: true})
	x.must(err)
	rules, err := ignore.Compile(x.patterns)
	x.must(err)
	return &ignoringState{tree: s, rules: rules, tracked: x.tracked}
}

func (x *ignoring) snapshot(*rapid.T) {
	s := x.now()
	c, err := x.w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	x.must(err)
	x.states[c.ID] = s
}

func (x *ignoring) reopen(t *rapid.T) {
	x.must(x.w.Close())
	if rapid.Bool().Draw(t, "others") {
		x.patterns = rapid.SampledFrom(ignoreLists).Draw(t, "patterns")
	}
	x.open()
}

func (x *ignoring) collect(*rapid.T) {
	_, err := x.w.GC(context.Background())
	x.must(err)
}

// track has a path tracked, if no checkpoint is there for which what is there now would count: that is tested by itself.
func (x *ignoring) track(t *rapid.T) {
	if len(x.states) > 0 {
		return
	}
	all, err := x.w.Track(context.Background(), []string{rapid.SampledFrom(maybeTracked).Draw(t, "path")})
	x.must(err)
	x.tracked = all
}

func (x *ignoring) some(t *rapid.T) (string, *ignoringState) {
	list, err := x.w.List(overlay.ListOptions{})
	x.must(err)
	var ids []string
	for _, c := range list {
		if x.states[c.ID] != nil && c.ID != x.undoes {
			ids = append(ids, c.ID)
		}
	}
	if len(ids) == 0 {
		return "", nil
	}
	id := rapid.SampledFrom(ids).Draw(t, "checkpoint")
	return id, x.states[id]
}

// knows reports whether a state, with what there is now, tells what is at a path: a file or, if isDir, a directory.
func (s *ignoringState) knows(p string, isDir bool) bool {
	return p == "." || !s.rules.Ignored(p, isDir) || !isDir && slices.Contains(s.tracked, p) && (s.live || !s.tree[p].IsDir())
}

// part gives what is protected in two states, of one of them.
func (s *ignoringState) part(o *ignoringState) treestate.State {
	part, first := treestate.State{}, map[string]string{}
	for _, p := range s.tree.Paths() {
		e := s.tree[p]
		if !s.knows(p, e.IsDir()) || !o.knows(p, e.IsDir()) {
			continue
		}
		if _, ok := first[e.First]; !ok {
			first[e.First] = p
		}
		e.First = first[e.First]
		part[p] = e
	}
	return part
}

// left gives what is there, but is not protected in both states; a directory above such a thing is in holding.
func (s *ignoringState) left(o *ignoringState) (left treestate.State, holding map[string]bool) {
	left, holding = treestate.State{}, map[string]bool{}
	part := s.part(o)
	for p, e := range s.tree {
		if _, ok := part[p]; ok {
			continue
		}
		left[p] = e
		for p != "." {
			p = filepath.Dir(p)
			holding[p] = true
		}
	}
	return left, holding
}

func (x *ignoring) rollback(t *rapid.T) {
	id, want := x.some(t)
	if want == nil {
		return
	}
	before := x.now()
	r, err := x.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	x.arrived(want, before, r.Undo, err)
}

func (x *ignoring) undo(*rapid.T) {
	if x.undoes == "" {
		return
	}
	want, before := x.states[x.undoes], x.now()
	r, err := x.w.Undo(context.Background())
	x.arrived(want, before, r.Undo, err)
}

// arrived proves that a rollback has done what it should: all that was protected at both times is what it was, and all else is what it is.
func (x *ignoring) arrived(want, before *ignoringState, undo string, err error) {
	now := x.now()
	before.live, now.live = true, true
	defer func() { before.live = false }()
	left, holding := before.left(want)
	if errs.CodeOf(err) == errs.Rollback {
		x.same("refused", treestate.Compare{Holes: true, Nlink: true}, before.tree, now.tree)
		for p, e := range want.part(before) {
			_, is := left[p]
			if is || !e.IsDir() && holding[p] || x.isBehind(left, p) {
				return
			}
		}
		x.Fatalf("the rollback was refused for no reason: %v", err)
	}
	x.must(err)
	x.states[undo], x.undoes = before, undo
	wanted, is := want.part(before), now.part(want)
	for p, e := range is {
		if _, ok := wanted[p]; !ok && e.IsDir() && holding[p] {
			delete(is, p)
		}
	}
	x.same("protected", treestate.Compare{Holes: true}, wanted, is)
	isLeft, _ := now.left(want)
	for p, e := range left {
		got, ok := isLeft[p]
		if e.Nlink > 1 && !e.IsDir() { // another name of it may be protected
			got.Mode, got.Mtime = e.Mode, e.Mtime
		}
		if e.First, got.First = "", ""; !ok || len((treestate.Compare{Holes: true}).Diff(treestate.State{p: e}, treestate.State{p: got})) > 0 {
			x.Fatalf("%q was left out, but is not what it was: %+v, was %+v", p, got, e)
		}
		delete(isLeft, p)
	}
	for p, e := range isLeft {
		if !e.IsDir() || !slices.ContainsFunc(want.tracked, func(q string) bool { return strings.HasPrefix(q, p+"/") }) {
			x.Fatalf("%q is ignored, and was not there: %+v", p, e)
		}
	}
}

// isBehind reports whether something that is no directory is on the way to a path.
func (x *ignoring) isBehind(left treestate.State, p string) bool {
	for p = filepath.Dir(p); p != "."; p = filepath.Dir(p) {
		if e, ok := left[p]; ok && !e.IsDir() {
			return true
		}
	}
	return false
}

func (x *ignoring) same(what string, c treestate.Compare, want, is treestate.State) {
	x.Helper()
	if diff := c.Diff(want, is); len(diff) > 0 {
		x.Fatalf("%s: not what it should be:\n\t%s", what, strings.Join(diff, "\n\t"))
	}
}

// diff proves that a diff names everything protected that differs, and nothing that is ignored.
func (x *ignoring) diff(t *rapid.T) {
	id, from := x.some(t)
	if from == nil {
		return
	}
	now := x.now()
	d, err := x.w.Diff(context.Background(), id, "", true)
	x.must(err)
	now.live = true
	was, is := from.part(now), now.part(from)
	named := map[string]bool{}
	for _, c := range d.Changes {
		_, before := was[c.Path]
		_, after := is[c.Path]
		if c.OldPath != "" {
			_, old := was[c.OldPath]
			named[c.OldPath], before = true, old && after
		}
		if named[c.Path] = true; !before && !after {
			x.Fatalf("the diff lists %+v, which is not protected", c)
		}
	}
	renamed := func(p string) bool {
		for ; p != "."; p = filepath.Dir(p) {
			if named[p] {
				return true
			}
		}
		return false
	}
	for _, p := range slices.Concat(was.Paths(), is.Paths()) {
		a, before := was[p]
		b, after := is[p]
		if same := before && after && a.Mode == b.Mode && a.Sum == b.Sum && a.Target == b.Target; !same && !renamed(p) {
			x.Fatalf("the diff does not list %q: %s", p, fmt.Sprint(a, b))
		}
	}
}
