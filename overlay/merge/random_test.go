//go:build linux

package merge_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay/merge"
	"golang.org/x/sys/unix"
)

// step is a random change. It fails where the tree has not what it needs, which is as good: so any part of a script is one too.
type step struct {
	do   string
	a, b string
	n    int // makes contents and times unlike others
}

// tolerant gives up a step where a test would end.
type tolerant struct{ testing.TB }

type givenUp struct{}

func (tolerant) Fatal(...any)          { panic(givenUp{}) }
func (tolerant) Fatalf(string, ...any) { panic(givenUp{}) }

func (s *workspace) try(o step) {
	defer func() {
		if r := recover(); r != nil && r != (givenUp{}) {
			panic(r)
		}
	}()
	w := *s
	w.TB = tolerant{s.TB}
	w.step(o)
}

func (s *workspace) step(o step) {
	token := fmt.Sprintf("token%d\n", o.n)
	switch o.do {
	case "create":
		s.create(o.a, token)
	case "write":
		s.write(o.a, token)
	case "save":
		s.save(o.a, token)
	case "same":
		s.create(o.a, "alike\n")
	case "rm":
		s.rm(o.a)
	case "rmtree":
		s.rmtree(o.a)
	case "mkdir":
		s.mkdir(o.a)
	case "retype":
		s.rm(o.a)
		s.mkdir(o.a)
	case "symlink":
		s.symlink(token, o.a)
	case "chmod":
		s.chmod(o.a, 0o700|uint32(o.n%8))
	case "touch":
		s.touch(o.a, int64(o.n))
	case "xattr":
		s.setXattr(o.a, "user."+string(rune('a'+o.n%3)), fmt.Sprint(o.n))
	case "rename":
		s.apart(o)
		s.rename(o.a, o.b)
	case "swap":
		s.apart(o)
		s.swap(o.a, o.b)
	case "link":
		s.link(o.a, o.b)
	}
}

// apart gives up what the kernel would not let through to a filesystem: a directory moved into itself.
func (s *workspace) apart(o step) {
	if strings.HasPrefix(o.a, o.b+"/") || strings.HasPrefix(o.b, o.a+"/") {
		s.Fatal(unix.EINVAL)
	}
}

// rmtree removes what is in a directory, and then it.
func (s *workspace) rmtree(p string) {
	entries, _ := os.ReadDir(filepath.Join(s.dir, p))
	for _, e := range entries {
		if e.IsDir() {
			s.rmtree(path.Join(p, e.Name()))
		} else {
			s.rm(path.Join(p, e.Name()))
		}
	}
	s.rmdir(p)
}

var (
	plainSteps = []string{"create", "create", "write", "save", "same", "rm", "rmtree", "mkdir", "retype", "symlink", "chmod", "touch", "xattr"}
	allSteps   = append([]string{"rename", "rename", "rename", "swap", "link"}, plainSteps...)
	places     = []string{"", "d/", "e/", "d/d/", "e/d/"}
	names      = []string{"a", "b", "d", "e"}
)

var lastToken = 0

func randomSteps(r *rand.Rand, kinds []string, n int) []step {
	list := make([]step, n)
	for i := range list {
		at := func() string { return places[r.IntN(len(places))] + names[r.IntN(len(names))] }
		lastToken++
		list[i] = step{kinds[r.IntN(len(kinds))], at(), at(), lastToken}
	}
	return list
}

// script is a random case.
type script struct{ ours, theirs []step }

func (s script) String() string { return fmt.Sprintf("ours %v\ntheirs %v", s.ours, s.theirs) }

// play makes the edits on trees that are as they were at first.
func (x *trees) play(s script) {
	for _, w := range []*workspace{x.base, x.ours, x.theirs} {
		w.rollback(w.snap)
	}
	for _, o := range s.ours {
		x.ours.try(o)
	}
	for _, o := range s.theirs {
		x.theirs.try(o)
	}
}

// shrink leaves out steps as long as a script still fails.
func shrink(s script, fails func(script) string) (script, string) {
	why := fails(s)
	for again := true; again; {
		again = false
		for _, side := range []*[]step{&s.ours, &s.theirs} {
			for i := len(*side) - 1; i >= 0; i-- {
				all := *side
				*side = slices.Delete(slices.Clone(all), i, i+1)
				if now := fails(s); now != "" {
					why, again = now, true
				} else {
					*side = all
				}
			}
		}
	}
	return s, why
}

// randomMerges calls check, which tells what is wrong, with random trees and edits. It reports how many merges were clean.
func randomMerges(t *testing.T, kinds []string, check func(x *trees) (wrong string, clean bool)) {
	seed := uint64(1)
	if os.Getenv("CI") != "true" {
		seed = uint64(time.Now().UnixNano())
	}
	if s := os.Getenv("MERGE_SEED"); s != "" {
		_, _ = fmt.Sscan(s, &seed)
	}
	bases, each := 6, 15
	if s := os.Getenv("MERGE_ROUNDS"); s != "" {
		_, _ = fmt.Sscan(s, &bases)
	}
	r := rand.New(rand.NewPCG(seed, 0))
	clean := 0
	for range bases {
		first := append([]step{{"mkdir", "d", "", 0}, {"mkdir", "e", "", 0}, {"mkdir", "d/d", "", 0}, {"mkdir", "e/d", "", 0}}, randomSteps(r, kinds, 40)...)
		x := newTrees(t, func(w *workspace) {
			for _, o := range first {
				w.try(o)
			}
		})
		x.base.snap = x.base.snapshot()
		for range each {
			s := script{randomSteps(r, kinds, 1+r.IntN(20)), randomSteps(r, kinds, 1+r.IntN(20))}
			isClean := false
			fails := func(s script) string {
				x.play(s)
				wrong, ok := check(x)
				isClean = ok
				return wrong
			}
			if fails(s) != "" {
				s, wrong := shrink(s, fails)
				x.play(s)
				t.Fatalf("seed %d: %s\nours %s\ntheirs %s\nbase %q\n%s", seed, wrong, text(x.ours.diff()), text(x.theirs.diff()), listing(x.base.state(), x.base.dir), s)
			}
			if isClean {
				clean++
			}
		}
	}
	t.Logf("%d of %d merges were clean", clean, bases*each)
	if clean < bases*each/10 || clean > bases*each*95/100 {
		t.Errorf("that does not say much")
	}
}

// merged plans and carries out a merge into one of the workspaces, and gives what came of it; nil where there are conflicts. The workspace
// is then as before.
func (x *trees) merged(base, into, from *workspace) (treestate.State, error) {
	p, err := merge.Make(into.Context(), merge.Input{
		Base:   base.volume(),
		Ours:   merge.Side{Volume: into.volume(), Changes: into.diff()},
		Theirs: merge.Side{Volume: from.volume(), Changes: from.diff()},
	})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if !p.Clean() {
		return nil, nil
	}
	before, undo := into.state(), into.snapshot()
	if err := merge.Apply(into.Context(), p, into.volume(), from.volume()); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, text(p))
	}
	result := into.state()
	into.rollback(undo)
	if d := treestate.Diff(before, into.state()); len(d) > 0 {
		return nil, fmt.Errorf("not taken back: %v", d)
	}
	return result, into.w.Drop(into.Context(), undo)
}

// withoutDirTimes leaves out what a merge does not keep.
func withoutDirTimes(s treestate.State) treestate.State {
	s = maps.Clone(s)
	for p, e := range s {
		if e.Mode&unix.S_IFMT == unix.S_IFDIR {
			e.Mtime = 0
			s[p] = e
		}
	}
	return s
}

func sameTrees(want, got treestate.State) string {
	d := treestate.Diff(withoutDirTimes(want), withoutDirTimes(got))
	return strings.Join(d, "\n")
}

func TestMergingWithAnUnchangedSideGivesTheOther(t *testing.T) {
	randomMerges(t, allSteps, func(x *trees) (string, bool) {
		got, err := x.merged(x.base, x.base, x.theirs)
		if err != nil {
			return err.Error(), false
		}
		if got == nil {
			return "there are conflicts", false
		}
		if d := sameTrees(x.theirs.state(), got); d != "" {
			return d, false
		}
		before := x.ours.state()
		if got, err = x.merged(x.base, x.ours, x.base); err != nil {
			return err.Error(), false
		}
		// Clean is counted by whether the sides' own merge is, so that the rest of the report means something.
		both, err := x.merged(x.base, x.ours, x.theirs)
		if err != nil {
			return err.Error(), false
		}
		return sameTrees(before, got), both != nil
	})
}

func TestMergingEitherWayGivesTheSame(t *testing.T) {
	randomMerges(t, allSteps, func(x *trees) (string, bool) {
		one, err := x.merged(x.base, x.ours, x.theirs)
		if err != nil {
			return err.Error(), false
		}
		two, err := x.merged(x.base, x.theirs, x.ours)
		if err != nil {
			return err.Error(), false
		}
		if (one == nil) != (two == nil) {
			return fmt.Sprintf("conflicts only one way: %v, %v", one == nil, two == nil), false
		}
		return sameTrees(one, two), one != nil
	})
}

// tokens gives the contents and link targets of a tree, and how many names each has.
func tokens(s treestate.State) map[string]int {
	set := map[string]int{}
	for _, e := range s {
		switch e.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			set[string(e.Sum[:])]++
		case unix.S_IFLNK:
			set[e.Target]++
		}
	}
	return set
}

func TestMergeLosesNothingThatOneSideMade(t *testing.T) {
	kinds := slices.DeleteFunc(slices.Clone(allSteps), func(k string) bool { return k == "same" }) // every content is one file's
	randomMerges(t, kinds, func(x *trees) (string, bool) {
		result, err := x.merged(x.base, x.ours, x.theirs)
		if err != nil || result == nil {
			return errorText(err), false
		}
		b, o, th, got := tokens(x.base.state()), tokens(x.ours.state()), tokens(x.theirs.state()), tokens(result)
		for k := range o {
			if b[k] == 0 && got[k] == 0 {
				return fmt.Sprintf("%q of ours is lost", k), true
			}
			if b[k] == 1 && th[k] > 0 && got[k] == 0 { // of several names, each side may have deleted another one
				return fmt.Sprintf("%q, which both have, is lost", k), true
			}
		}
		for k := range th {
			if b[k] == 0 && got[k] == 0 {
				return fmt.Sprintf("%q of theirs is lost", k), true
			}
		}
		for k := range got {
			if o[k]+th[k] == 0 {
				return fmt.Sprintf("%q is from nowhere", k), true
			}
		}
		return "", true
	})
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestPoliciesOursAndTheirsAlwaysGiveATree(t *testing.T) {
	randomMerges(t, allSteps, func(x *trees) (string, bool) {
		clean := false
		for _, policy := range []merge.Policy{merge.Reject, merge.Ours, merge.Theirs, merge.Text} {
			p, err := x.make(policy)
			if err != nil {
				return err.Error(), false
			}
			defer p.Close()
			if policy == merge.Reject {
				clean = p.Clean()
				continue
			}
			if !p.Clean() && policy != merge.Text {
				return fmt.Sprintf("%s leaves conflicts: %s", policy, text(p.Conflicts)), false
			}
			if !p.Clean() {
				continue
			}
			undo := x.ours.snapshot()
			err = merge.Apply(x.ours.Context(), p, x.ours.volume(), x.theirs.volume())
			x.ours.rollback(undo)
			if err != nil {
				return fmt.Sprintf("%s: %v\n%s", policy, err, text(p)), clean
			}
		}
		return "", clean
	})
}
