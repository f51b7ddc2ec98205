package scan

import (
	"maps"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/internal/ignore"
)

// scope says what of a tree a manifest is about: all that no list of patterns ignores, and the files and symlinks at tracked paths. The zero value is the
// whole tree. It never changes.
type scope struct {
	rules   []*ignore.Rules // one list as of a scan, or those of two manifests that are compared
	tracked []string        // sorted; paths that the patterns ignore, of which it is known all the same what is there, or that nothing is
}

// whole reports whether nothing is left out.
func (s scope) whole() bool { return len(s.rules) == 0 }

func (s scope) equal(o scope) bool {
	return slices.EqualFunc(s.rules, o.rules, (*ignore.Rules).Equal) && slices.Equal(s.tracked, o.tracked)
}

// ignores reports whether a path is ignored, wherever it is tracked.
func (s scope) ignores(path string, isDir bool) bool {
	return slices.ContainsFunc(s.rules, func(r *ignore.Rules) bool { return r.Ignored(path, isDir) })
}

// has reports whether a file or symlink at a path is part of it.
func (s scope) has(path string) bool {
	_, tracked := slices.BinarySearch(s.tracked, path)
	return tracked || !s.ignores(path, false)
}

// and gives what both are about.
func (s scope) and(o scope) scope {
	if s.equal(o) {
		return s
	}
	both := scope{rules: slices.Clone(s.rules)}
	for _, r := range o.rules {
		if !slices.ContainsFunc(both.rules, r.Equal) {
			both.rules = append(both.rules, r)
		}
	}
	for _, p := range slices.Concat(s.tracked, o.tracked) {
		if s.has(p) && o.has(p) {
			both.tracked = append(both.tracked, p)
		}
	}
	both.normalise()
	return both
}

// with gives the scope with more tracked paths.
func (s scope) with(paths []string) scope {
	if s.whole() {
		return s
	}
	s.tracked = slices.Concat(s.tracked, paths)
	s.normalise()
	return s
}

// without gives the scope without some of its tracked paths.
func (s scope) without(paths map[string]bool) scope {
	if len(paths) > 0 {
		s.tracked = slices.DeleteFunc(slices.Clone(s.tracked), func(p string) bool { return paths[p] })
	}
	return s
}

// normalise sorts the tracked paths, and drops those that are not ignored: they are part of it anyhow. The slice is the caller's own.
func (s *scope) normalise() {
	slices.Sort(s.tracked)
	s.tracked = slices.DeleteFunc(slices.Compact(s.tracked), func(p string) bool { return !s.ignores(p, false) })
}

// lane is a directory of a scope on a walk through a tree. nil is one of the whole tree, of which nothing is left out.
type lane struct {
	s       *scope
	path    string // "" for the workspace itself
	ignored bool   // it is here only for what is tracked below it
	way     *way   // to what is tracked below it; nil if nothing is
}

// way leads from a directory to tracked paths.
type way struct {
	next map[string]*way
	end  bool // it is a tracked path
}

// lane gives that of the workspace itself.
func (s scope) lane() *lane {
	if s.whole() {
		return nil
	}
	top := &way{}
	for _, p := range s.tracked {
		at := top
		for name := range strings.SplitSeq(p, "/") {
			if at.next == nil {
				at.next = map[string]*way{}
			}
			if at.next[name] == nil {
				at.next[name] = &way{}
			}
			at = at.next[name]
		}
		at.end = true
	}
	return &lane{s: &s, way: top}
}

// ignores reports whether a name in the directory is ignored, wherever it is tracked.
func (l *lane) ignores(name string, st *stat) bool {
	if l == nil {
		return false
	}
	path, _ := l.below(name)
	return l.ignored || l.matches(path, st.isDir())
}

// names gives those that may be part of an ignored directory, sorted.
func (l *lane) names() []string {
	if l.way == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(l.way.next))
}

// below gives the path of a name in the directory, and the way there, nil if nothing is tracked at it or below it.
func (l *lane) below(name string) (path string, to *way) {
	path = name
	if l.path != "" {
		path = l.path + "/" + name
	}
	if l.way != nil {
		to = l.way.next[name]
	}
	return path, to
}

// enter says what becomes of a name in the directory that leads to what st describes. It is in the scope if in is true; of a directory, sub is its lane then.
// Temporary files of a rollback are always in.
func (l *lane) enter(name string, st *stat) (sub *lane, in bool) {
	if l == nil {
		return nil, true
	}
	path, next := l.below(name)
	if !l.ignored && !l.matches(path, st.isDir()) {
		if !st.isDir() {
			return nil, true
		}
		return &lane{s: l.s, path: path, way: next}, true
	}
	switch {
	case st.isDir():
		if next == nil || next.next == nil {
			return nil, false
		}
		return &lane{s: l.s, path: path, ignored: true, way: next}, true
	case next != nil && next.end && (st.isRegular() || st.kind() == modeSymlink):
		return nil, true
	}
	return nil, isTemp(name)
}

// matches reports whether a list ignores a path in a directory that none does.
func (l *lane) matches(path string, isDir bool) bool {
	for _, r := range l.s.rules {
		if r.Match(path, isDir) {
			return true
		}
	}
	return false
}

// each adds all tracked paths at and below one to a set.
func (w *way) each(path string, all map[string]bool) {
	if w.end {
		all[path] = true
	}
	for name, next := range w.next {
		next.each(path+"/"+name, all)
	}
}
