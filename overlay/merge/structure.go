//go:build linux

package merge

import (
	"cmp"
	"slices"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// clash is nodes that can't all be as they were decided to be.
type clash struct {
	nodes    []*node
	conflict *Conflict
}

// settle decides on all nodes, and deals with conflicts as the policy says.
func (m *merger) settle() error {
	for _, n := range m.nodes {
		if err := m.decide(n); err != nil {
			return err
		}
	}
	var clashes []clash
	for _, n := range m.nodes {
		if n.conflict != nil {
			clashes = append(clashes, clash{[]*node{n}, n.conflict})
		}
	}
	for round := 0; ; round++ {
		if m.in.Policy == Ours || m.in.Policy == Theirs {
			if err := m.resolve(clashes); err != nil {
				return err
			}
		}
		for _, c := range clashes {
			m.plan.Conflicts = append(m.plan.Conflicts, *c.conflict)
		}
		if round > 0 && (len(clashes) == 0 || !m.plan.Clean()) {
			break
		}
		clashes = m.structure()
	}
	slices.SortStableFunc(m.plan.Conflicts, func(x, y Conflict) int {
		return cmp.Or(cmp.Compare(x.Path, y.Path), cmp.Compare(x.Other, y.Other), cmp.Compare(x.TheirsPath, y.TheirsPath))
	})
	return nil
}

// resolve makes the nodes that clash like one side. At least one of a clash was not so before: a side's own tree has no clashes.
func (m *merger) resolve(clashes []clash) error {
	at := inOurs
	if m.in.Policy == Theirs {
		at = inTheirs
	}
	for _, c := range clashes {
		progress := false
		for _, n := range c.nodes {
			forced, err := m.force(n, at)
			if err != nil {
				return err
			}
			progress = progress || forced
		}
		if !progress && !c.settled() {
			return errs.New(errs.Internal, "merge", c.conflict.Path, "the conflict can't be resolved to %s", m.in.Policy)
		}
		c.conflict.Resolved = m.in.Policy
	}
	return nil
}

// settled reports whether an earlier clash of the same round has dealt with this one too.
func (c clash) settled() bool {
	return slices.ContainsFunc(c.nodes, func(n *node) bool { return n.forced != 0 })
}

// force makes a node like that of a side, and with it the directory that it needs. With a directory that only one side has, all that the base had in it goes along: the
// deletion of a tree is undone, or done, as one.
func (m *merger) force(n *node, at int) (bool, error) {
	if n.forced != 0 {
		return false, nil
	}
	n.forced = at
	if err := m.decide(n); err != nil {
		return true, err
	}
	if dir := n.at.dir; n.alive && dir != nil && !dir.alive && dir.conflict == nil {
		if _, err := m.force(dir, at); err != nil {
			return true, err
		}
	}
	if !n.isDir() || n.v[inBase] == nil || (n.v[inOurs] == nil) == (n.v[inTheirs] == nil) {
		return true, nil
	}
	for _, c := range m.nodes {
		if b := c.v[inBase]; b != nil && b.parent == n {
			if _, err := m.force(c, at); err != nil {
				return true, err
			}
		}
	}
	return true, nil
}

// structure finds what keeps the nodes from being a tree.
func (m *merger) structure() []clash {
	list := m.orphans()
	list = append(list, m.collisions()...)
	return append(list, m.loops()...)
}

// placed reports whether it is decided that a node is somewhere.
func (n *node) placed() bool { return n.alive && n.conflict == nil }

// orphans finds nodes in a directory that is gone.
func (m *merger) orphans() []clash {
	var list []clash
	for _, n := range m.nodes {
		dir := n.at.dir
		if !n.placed() || dir == nil || dir.alive || dir.conflict != nil {
			continue
		}
		c := m.conflict(n, "one side deleted the directory, the other side has something in it", "place")
		c.Other = dir.any().path
		if len(c.Ours) == 0 {
			c.Ours = dir.kinds(inOurs)
		}
		if len(c.Theirs) == 0 {
			c.Theirs = dir.kinds(inTheirs)
		}
		list = append(list, clash{[]*node{dir, n}, c})
	}
	return list
}

// collisions finds names that more than one node is to have.
func (m *merger) collisions() []clash {
	var list []clash
	first := map[slot]*node{}
	for _, n := range m.nodes {
		if !n.placed() || n.at.dir == nil {
			continue
		}
		x, taken := first[n.at]
		if !taken {
			first[n.at] = n
			continue
		}
		c := m.conflict(x, "both sides gave this name to different things", "name")
		c.Other = n.any().path
		c.Ours, c.Theirs = append(c.Ours, n.kinds(inOurs)...), append(c.Theirs, n.kinds(inTheirs)...)
		list = append(list, clash{[]*node{x, n}, c})
	}
	return list
}

// loops finds directories that are in each other.
func (m *merger) loops() []clash {
	var list []clash
	seen := map[*node]bool{}
	for _, n := range m.nodes {
		var way []*node
		for d := n; d != nil && d.placed() && !seen[d]; d = d.at.dir {
			seen[d] = true
			way = append(way, d)
			if i := slices.Index(way, d.at.dir); i >= 0 {
				list = append(list, m.loop(way[i:]))
			}
		}
	}
	return list
}

func (m *merger) loop(way []*node) clash {
	c := m.conflict(way[0], "the sides moved directories into each other", "loop")
	for _, n := range way[1:] {
		if len(n.kinds(inOurs))+len(n.kinds(inTheirs)) > 0 {
			c.Other = n.any().path
			c.Ours, c.Theirs = append(c.Ours, n.kinds(inOurs)...), append(c.Theirs, n.kinds(inTheirs)...)
		}
	}
	return clash{way, c}
}
