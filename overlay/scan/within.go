package scan

import (
	"slices"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Two manifests are compared in what both are about: a path that one of them left out says nothing there.

// within gives the part of a manifest that is in a scope too, and for each of its entries the index of the one of m. With bare, directories are left out
// that are there only for what is tracked, and have nothing of that in them.
func (m *manifest) within(s scope, bare bool) (part *manifest, origin []int32) {
	if m.scope.whole() && s.whole() || m.scope.equal(s) && len(s.tracked) == 0 {
		return m, nil
	}
	idle := m.idle()
	part = &manifest{stamp: m.stamp, scope: m.scope.and(s), sought: m.sought, left: map[int32][]string{}}
	part.entries = make([]entry, 0, len(m.entries))
	moved := make([]int32, len(m.entries))
	firsts := map[int32]int32{}
	lanes := []*lane{s.lane()} // of the entries of part
	for i := range m.entries {
		e, k := m.entries[i], int32(len(part.entries))
		moved[i] = k
		if i > 0 {
			parent := moved[e.parent]
			if parent < 0 || bare && idle[i] {
				moved[i] = -1
				continue
			}
			sub, in := lanes[parent].enter(e.name, &e.stat)
			if !in {
				part.left[parent] = append(part.left[parent], e.name)
				moved[i] = -1
				continue
			}
			if e.isDir() && sub != nil && sub.ignored {
				e.flags |= flagWay
			}
			e.parent, lanes = parent, append(lanes, sub)
		}
		if _, ok := firsts[e.first]; !ok {
			firsts[e.first] = k
		}
		e.first = firsts[e.first]
		part.entries, origin = append(part.entries, e), append(origin, int32(i))
	}
	part.closeDirs()
	for i, names := range m.left {
		if k := moved[i]; k >= 0 {
			part.left[k] = append(part.left[k], names...)
			slices.Sort(part.left[k])
		}
	}
	return part, origin
}

// idle tells the directories that are there only for what is tracked, and have nothing of that in them.
func (m *manifest) idle() []bool {
	idle := make([]bool, len(m.entries))
	for i := len(m.entries) - 1; i > 0; i-- {
		idle[i] = m.entries[i].flags&flagWay != 0
		for k := int32(i) + 1; idle[i] && k < m.entries[i].end; k = m.entries[k].end {
			idle[i] = idle[k]
		}
	}
	return idle
}

// both gives the parts of two manifests that can be compared.
func both(a, b *manifest) (*manifest, *manifest) {
	x, _ := a.within(b.asked(), false)
	y, _ := b.within(a.asked(), false)
	return x, y
}

// asked gives the scope as it was asked for: of a tracked path with something else in its place it is known at least that there is no file, as long as the manifest
// is no checkpoint's.
func (m *manifest) asked() scope {
	if m.sought.whole() {
		return m.scope
	}
	return m.sought
}

// holding tells the directories that have something in or below them that is not in the scope, or that are ignored themselves: a rollback takes none of them away.
func (m *manifest) holding() []bool {
	holds := make([]bool, len(m.entries))
	up := func(i int32) {
		for ; i >= 0 && !holds[i]; i = m.entries[i].parent {
			holds[i] = true
		}
	}
	for i := range m.left {
		up(i)
	}
	for i := range m.entries {
		if m.entries[i].flags&flagWay != 0 {
			up(int32(i))
		}
	}
	return holds
}

// checkLeft refuses a rollback, before it touches anything, that needs the place of something that has no backup, as it is ignored.
func (p *plan) checkLeft() error {
	for i := range p.want.entries {
		e, k := &p.want.entries[i], p.at[i]
		if k >= 0 && p.holds[k] && !e.isDir() {
			return inTheWay(p.want.path(int32(i)), p.now.path(p.firstLeft(k)))
		}
		if k < 0 && i > 0 && p.at[e.parent] >= 0 {
			if _, is := slices.BinarySearch(p.now.left[p.at[e.parent]], e.name); is {
				return inTheWay(p.want.path(int32(i)), p.want.path(int32(i)))
			}
		}
	}
	return nil
}

// firstLeft gives the first directory of now at or below k that has something which is not in the scope.
func (p *plan) firstLeft(k int32) int32 {
	for i := k; i < p.now.entries[k].end; i++ {
		if len(p.now.left[i]) > 0 {
			return i
		}
	}
	return k
}

func inTheWay(path, what string) error {
	why := "what is there now is ignored, and would be lost"
	if what != path {
		why = "what is ignored in " + what + " would be lost"
	}
	return errs.New(errs.Rollback, "rollback", path, "it can't be put back: %s", why).WithHint("move that away and try again; nothing was changed")
}
