package test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
	"golang.org/x/sys/unix"
)

// ignoreLists are lists of patterns of names that a Generator uses: by name, by type, by path, and with exceptions.
var ignoreLists = [][]string{
	{"c/"},
	{"d", "b/", "!/a/b/"},
	{"/a/b/", "c/*", "!c/a", "/d"},
	{"*", "!*/", "!a", "!b", "!c", "old-*/", "!old-0/"},
}

// TestDifferentialIgnoredPathsAreLeft compares, after a rollback, what is protected with what was there, and what is ignored with what was there before it.
func TestDifferentialIgnoredPathsAreLeft(t *testing.T) {
	lowers := []lower{
		{name: "ignored", share: 5, mount: func(t *testing.T) string { return t.TempDir() }, fill: seedTree},
		{name: "ignored-tmpfs", share: 4, mount: func(t *testing.T) string { return testfs.Tmpfs(t, 1<<30) }, tier: "pure-manifest", fill: seedTree},
		{name: "ignored-overlayfs", share: 3, mount: func(t *testing.T) string { return testfs.Tmpfs(t, 1<<30) }, fill: seedTree, overlay: true},
	}
	for _, l := range lowers {
		t.Run(l.name, func(t *testing.T) {
			gen := func() *ops.Generator {
				g := everything()
				g.Explain = false // what a diff must tell here is checked by itself, see checkIgnoringDiff
				g.NoStaleWrites = true
				return g
			}
			property{lower: l, gen: gen, open: openIgnoring(l.tier)}.run(t)
		})
	}
}

// openIgnoring makes a workspace that ignores something.
func openIgnoring(tier string) func(ws string, variant uint32) (subject, error) {
	return func(ws string, variant uint32) (subject, error) {
		s := &ignoringSubject{leaving: &leaving{lists: [][]string{ignoreLists[variant&3]}}}
		if variant&4 != 0 {
			s.lists = append(s.lists, ignoreLists[(variant+1)&3], nil)
		}
		s.treeSubject = &treeSubject{dir: ws, o: treeOptions{Options: treefs.Options{Direct: variant&1 != 0}, Tier: tier, Ignore: s.lists[0]}}
		return s, s.open()
	}
}

// ignoringSubject has another list of patterns after each restart, if there are several.
type ignoringSubject struct {
	*treeSubject
	*leaving
}

func (s *ignoringSubject) Restart() error {
	s.now = (s.now + 1) % len(s.lists)
	s.o.Ignore = s.lists[s.now]
	return s.treeSubject.Restart()
}

// changed gives what differs by path from a checkpoint, as the subject says.
func (s *ignoringSubject) changed(id string) ([]overlay.Change, error) {
	d, err := s.ws.Diff(context.Background(), id, "", true)
	return d.Changes, err
}

// ignorer is a subject that ignores something.
type ignorer interface {
	leaves() *leaving
	changed(id string) ([]overlay.Change, error)
}

func (l *leaving) leaves() *leaving { return l }

// leaving is what a world knows of ignored paths.
type leaving struct {
	lists [][]string
	now   int // in lists: that in use
}

// rules gives those in use.
func (l *leaving) rules() *ignore.Rules {
	r, err := ignore.Compile(l.lists[l.now])
	if err != nil {
		panic(err)
	}
	return r
}

// ignoredBy reports whether one of several lists ignores a path of a state.
func ignoredBy(rules []*ignore.Rules, path string, isDir bool) bool {
	return path != "." && slices.ContainsFunc(rules, func(r *ignore.Rules) bool { return r.Ignored(path, isDir) })
}

// protectedPart gives what none of the lists ignores.
func protectedPart(s treestate.State, rules []*ignore.Rules) treestate.State {
	part, first := treestate.State{}, map[string]string{}
	for _, p := range s.Paths() {
		if e := s[p]; !ignoredBy(rules, p, e.IsDir()) {
			if _, ok := first[e.First]; !ok {
				first[e.First] = p
			}
			e.First = first[e.First]
			part[p] = e
		}
	}
	return part
}

// inodesOf gives the inode of every path.
func inodesOf(dir string) (map[string]uint64, error) {
	all := map[string]uint64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || rel == overlay.StoreName {
			return filepath.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		all[rel] = st.Ino
		return nil
	})
	return all, err
}

// arrivedIgnoring is arrived for a world with ignored paths: before is what was there, with the inodes at that time.
func (w *world) arrivedIgnoring(s, before *moment) error {
	now, err := w.capture()
	if err != nil {
		return err
	}
	diff := treestate.Compare{Holes: true}.Diff(protectedPart(s.capture, s.rules), protectedPart(now, s.rules))
	if len(diff) > 0 {
		return fmt.Errorf("what was rolled back to, but for what is ignored, is not what was there:\n\t%s", strings.Join(diff, "\n\t"))
	}
	inodes, err := inodesOf(w.workspace())
	if err != nil {
		return err
	}
	before.arriveAt(inodes)
	if lost := lostIgnored(s, before, now, inodes); len(lost) > 0 {
		return fmt.Errorf("the rollback did not leave what is ignored as it was:\n\t%s", strings.Join(lost, "\n\t"))
	}
	model, err := treestate.Capture(w.workspace(), treestate.Options{Contents: &w.past.contents})
	if err != nil {
		return err
	}
	if err := w.become(model); err != nil {
		return err
	}
	s.capture, s.model, s.rules, s.inodes = now, model, []*ignore.Rules{w.leaves.rules()}, inodes // from now on it stands for what is there
	return w.model.compare(now)
}

// arriveAt notes what a rollback from here has done, after which there are these inodes.
func (s *moment) arriveAt(inodes map[string]uint64) {
	s.changed, s.taken = map[string]bool{}, map[uint64]bool{}
	for p, inode := range s.inodes {
		if inodes[p] != inode {
			s.changed[p], s.taken[inode] = true, true
		}
	}
	for p := range inodes {
		if _, was := s.inodes[p]; !was {
			s.changed[p] = true
		}
	}
}

// lostIgnored says what a rollback from before to s, after which there is now, has done to ignored paths. What belongs to the protected state may move, and
// takes along what is in it.
func lostIgnored(s, before *moment, now treestate.State, inodes map[string]uint64) (lost []string) {
	wanted := map[uint64]bool{}
	for p := range protectedPart(s.capture, s.rules) {
		wanted[s.inodes[p]] = true
	}
	gone := map[string]bool{} // before, at the top of what may go elsewhere
	for _, p := range before.capture.Paths() {
		e := before.capture[p]
		if p == "." || !ignoredBy(s.rules, p, e.IsDir()) {
			continue
		}
		parent := filepath.Dir(p)
		_, taken := protectedPart(s.capture, s.rules)[p]
		if gone[parent] || taken || wanted[before.inodes[p]] || inodes[parent] != before.inodes[parent] {
			gone[p] = true
			continue
		}
		if s.changed[p] || s.taken[before.inodes[p]] {
			gone[p] = true
			continue
		}
		is, ok := now[p]
		switch {
		case !ok || inodes[p] != before.inodes[p]:
			lost = append(lost, fmt.Sprintf("%q is not there any more", p))
		case e.IsRegular() && e.Nlink == 1 && (is.Sum != e.Sum || is.Mode != e.Mode || is.Mtime != e.Mtime):
			lost = append(lost, fmt.Sprintf("%q was changed", p))
		}
	}
	return lost
}

// checkIgnoringDiff proves that a diff from a checkpoint names everything protected that differs, and nothing that is ignored.
func (w *world) checkIgnoringDiff(s *moment, now treestate.State) error {
	sub, ok := w.sub.(ignorer)
	if !ok {
		return nil
	}
	changes, err := sub.changed(s.id)
	if err != nil {
		return fmt.Errorf("diff: %w", err)
	}
	was, is := protectedPart(s.capture, s.rules), protectedPart(now, s.rules)
	named := map[string]bool{}
	for _, c := range changes {
		_, before := was[c.Path]
		_, after := is[c.Path]
		if c.Kind == overlay.Renamed {
			_, before = was[c.OldPath]
			named[c.OldPath] = true
			before = before && after
		}
		if !before && !after {
			return fmt.Errorf("the diff lists %+v, which is ignored", c)
		}
		named[c.Path] = true
	}
	for _, p := range slices.Concat(was.Paths(), is.Paths()) {
		a, inA := was[p]
		b, inB := is[p]
		if inA && inB && a.Mode == b.Mode && a.Sum == b.Sum && a.UID == b.UID && a.GID == b.GID || isBelow(named, p) {
			continue
		}
		return fmt.Errorf("the diff does not list %q: there before %v, now %v", p, inA, inB)
	}
	return nil
}

// isBelow reports whether a path, or a directory above it but the top, is in a set.
func isBelow(set map[string]bool, path string) bool {
	for !set[path] {
		up := filepath.Dir(path)
		if up == "." {
			return false
		}
		path = up
	}
	return true
}

// TestTheIgnoringModelFindsDefects makes sure that what arrivedIgnoring compares tells a loss from none.
func TestTheIgnoringModelFindsDefects(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"c/x", "p"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	look := func() (treestate.State, map[string]uint64) {
		s, err := treestate.Capture(dir, treestate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		inodes, err := inodesOf(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s, inodes
	}
	rules, err := ignore.Compile([]string{"c/"})
	if err != nil {
		t.Fatal(err)
	}
	s := &moment{rules: []*ignore.Rules{rules}}
	s.capture, s.inodes = look()
	if part := protectedPart(s.capture, s.rules); len(part) != 2 {
		t.Fatal(part)
	}
	now, inodes := look()
	if lost := lostIgnored(s, s, now, inodes); len(lost) > 0 {
		t.Error(lost)
	}
	if err := os.WriteFile(filepath.Join(dir, "c/x"), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	now, inodes = look()
	if lost := lostIgnored(s, s, now, inodes); len(lost) != 1 {
		t.Error("a change:", lost)
	}
	if err := os.RemoveAll(filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	now, inodes = look()
	if lost := lostIgnored(s, s, now, inodes); len(lost) != 1 {
		t.Error("a removal:", lost)
	}
}
