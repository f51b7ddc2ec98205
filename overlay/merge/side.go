//go:build linux

package merge

import (
	"cmp"
	"path"
	"slices"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// bits tell in what a version differs from that of the base.
type bits uint8

const (
	content bits = 1 << iota
	mode
	owner
	xattr
	outside // nobody watched: what the base has of it may not be what it was
)

func bitsOf(what []string) (b bits) {
	for _, w := range what {
		switch w {
		case "mode":
			b |= mode
		case "owner":
			b |= owner
		case "xattr":
			b |= xattr
		case "mtime": // compared where it matters; it never makes a conflict
		case "outside":
			b |= content | mode | owner | xattr | outside
		default:
			b |= content
		}
	}
	return b
}

// side tells where things of the base are in one of the trees, and the other way round.
type side struct {
	name       string // for errors
	base, tree *tree
	created    map[string]bool   // by path in the tree
	gone       map[string]bool   // by path in the base
	to         map[string]string // from a path in the base to one in the tree, where a change says so
	from       map[string]string // and back
	what       map[string]bits   // by path in the tree
	dirs       map[string]bool   // of created, gone and to: which are directories
}

// newSide takes in a diff.
func newSide(name string, base, t *tree, changes []overlay.Change) (*side, error) {
	s := &side{
		name: name, base: base, tree: t, created: map[string]bool{}, gone: map[string]bool{},
		to: map[string]string{}, from: map[string]string{}, what: map[string]bits{}, dirs: map[string]bool{},
	}
	changes = slices.Clone(changes)
	slices.SortStableFunc(changes, func(x, y overlay.Change) int { return cmp.Compare(x.Path, y.Path) })
	for _, c := range changes {
		s.add(c)
	}
	for _, c := range changes { // parents first, and when all renames are known
		if c.Kind != overlay.Modified || retyped(c) {
			continue
		}
		if err := s.modified(c); err != nil {
			return nil, err
		}
	}
	return s, s.explain()
}

// retyped reports whether a modified path is another thing than it was.
func retyped(c overlay.Change) bool { return c.OldType != "" && c.OldType != c.Type }

func (s *side) add(c overlay.Change) {
	switch {
	case c.Kind == overlay.Created:
		s.created[c.Path] = true
		s.dirs[c.Path] = s.dirs[c.Path] || c.Type == "dir"
	case c.Kind == overlay.Deleted:
		s.gone[c.Path] = true
		s.dirs[c.Path] = s.dirs[c.Path] || c.Type == "dir"
	case c.Kind == overlay.Renamed:
		s.pair(c.OldPath, c.Path)
		s.what[c.Path] |= bitsOf(c.What)
		s.dirs[c.OldPath] = s.dirs[c.OldPath] || c.Type == "dir"
	case retyped(c):
		s.gone[c.Path], s.created[c.Path] = true, true
		s.dirs[c.Path] = true
	}
}

func (s *side) pair(old, now string) { s.to[old], s.from[now] = now, old }

// modified finds out what in the base a modified path was. It may be another inode than the base has there, if a file was
// replaced: then it counts as that file. So where the file that directories' renames lead to is accounted for, it is the path.
func (s *side) modified(c overlay.Change) error {
	s.what[c.Path] |= bitsOf(c.What)
	if s.created[c.Path] {
		return nil // another name of something old, see addLinks
	}
	old, ok := s.back(c.Path)
	if ok {
		now, taken := s.to[old]
		ok = !s.gone[old] && (!taken || now == c.Path)
	}
	if ok && old != c.Path {
		attr, there, err := s.base.stat(old)
		if err != nil {
			return err
		}
		ok = there && overlay.TypeName(attr.Mode) == c.Type
	}
	if !ok {
		old = c.Path
	}
	s.pair(old, c.Path)
	return nil
}

// forward gives where something of the base is in the tree.
func (s *side) forward(p string) (string, bool) {
	if to, ok := s.to[p]; ok {
		return to, true
	}
	if p == "." {
		return p, true
	}
	if s.gone[p] {
		return "", false
	}
	dir, ok := s.forward(path.Dir(p))
	if !ok {
		return "", false
	}
	return join(dir, path.Base(p)), true
}

// back gives what a path of the tree was in the base; it was nothing if it or a directory above it was created.
func (s *side) back(p string) (string, bool) {
	if from, ok := s.from[p]; ok {
		return from, true
	}
	if p == "." {
		return p, true
	}
	if s.created[p] {
		return "", false
	}
	dir, ok := s.back(path.Dir(p))
	if !ok {
		return "", false
	}
	return join(dir, path.Base(p)), true
}

// explain proves, for all directories where names changed, that the diff leads from the names of the base to those of the tree.
// What was replaced by something alike, so that the diff has nothing to say of it, is paired by its path.
func (s *side) explain() error {
	was, is := map[string]uint32{}, map[string]uint32{} // without an explanation, with their types
	for _, d := range s.touchedDirs() {
		if err := s.explainDir(d, was, is); err != nil {
			return err
		}
	}
	for p := range s.created {
		if !s.dirs[p] {
			continue
		}
		if err := s.explainCreated(p, is); err != nil {
			return err
		}
	}
	for p, old := range was {
		if now, ok := is[p]; ok && sameType(old, now) {
			s.pair(p, p)
			delete(was, p)
			delete(is, p)
		}
	}
	for _, p := range append(sorted(was), sorted(is)...) {
		return s.unexplained(p)
	}
	return nil
}

func (s *side) unexplained(p string) error {
	return errs.New(errs.Integrity, "merge", p, "the changes of %s since the fork point do not explain it", s.name)
}

func sameType(a, b uint32) bool {
	return a&unix.S_IFMT == 0 || b&unix.S_IFMT == 0 || (a^b)&unix.S_IFMT == 0
}

// touchedDirs gives the directories of the base in which a name came, went or changed, and those that have moved.
func (s *side) touchedDirs() []string {
	set := map[string]bool{}
	for p := range s.gone {
		set[path.Dir(p)] = true
		if s.dirs[p] {
			set[p] = true
		}
	}
	for old, now := range s.to {
		if old == now {
			continue
		}
		set[path.Dir(old)] = true
		s.addDirOf(set, now)
		if s.dirs[old] {
			set[old] = true
		}
	}
	for p := range s.created {
		s.addDirOf(set, p)
	}
	list := make([]string, 0, len(set))
	for p := range set {
		list = append(list, p)
	}
	slices.Sort(list)
	return list
}

func (s *side) addDirOf(set map[string]bool, p string) {
	if d, ok := s.back(path.Dir(p)); ok {
		set[d] = true
	}
}

// explainDir compares a directory of the base with what has become of it.
func (s *side) explainDir(dir string, was, is map[string]uint32) error {
	attr, ok, err := s.base.stat(dir)
	if err != nil {
		return err
	}
	if !ok {
		return s.unexplained(dir)
	}
	if attr.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil // of what was retyped, only one side is a directory
	}
	old, err := s.base.list(dir)
	if err != nil {
		return err
	}
	now, alive := s.forward(dir)
	names, err := s.namesIn(now, alive)
	if err != nil {
		return err
	}
	stayed := map[string]bool{}
	for _, e := range old {
		switch p := join(dir, e.Name); {
		case s.accounted(p):
		case s.stayed(join(now, e.Name), e.Type, names[e.Name]):
			stayed[e.Name] = true
		default:
			was[p] = e.Type
		}
	}
	for name, e := range names {
		if p := join(now, name); !s.listed(p) && !stayed[name] {
			is[p] = e.Type
		}
	}
	return nil
}

// accounted reports whether the diff says what became of a path of the base.
func (s *side) accounted(p string) bool {
	_, ok := s.to[p]
	return ok || s.gone[p]
}

// listed reports whether the diff says where a path of the tree comes from.
func (s *side) listed(p string) bool {
	_, ok := s.from[p]
	return ok || s.created[p]
}

// stayed reports whether something of a type can be what the tree has under the same name.
func (s *side) stayed(p string, kind uint32, e *overlay.DirEntry) bool {
	return e != nil && !s.listed(p) && sameType(e.Type, kind)
}

// namesIn lists a directory of the tree, which has no names where it is gone.
func (s *side) namesIn(dir string, alive bool) (map[string]*overlay.DirEntry, error) {
	if !alive {
		return nil, nil
	}
	entries, err := s.tree.list(dir)
	if isMissing(err) {
		return nil, s.unexplained(dir)
	}
	if err != nil {
		return nil, err
	}
	names := make(map[string]*overlay.DirEntry, len(entries))
	for i := range entries {
		names[entries[i].Name] = &entries[i]
	}
	return names, nil
}

// explainCreated looks for names in a new directory that are not new.
func (s *side) explainCreated(dir string, is map[string]uint32) error {
	attr, ok, err := s.tree.stat(dir)
	if err != nil {
		return err
	}
	if !ok {
		return s.unexplained(dir)
	}
	if attr.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	entries, err := s.tree.list(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if p := join(dir, e.Name); !s.listed(p) {
			is[p] = e.Type
		}
	}
	return nil
}
