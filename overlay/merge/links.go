//go:build linux

package merge

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// addLinks adds the further names of the inodes that have nodes. A diff names an inode that was changed under several names
// once, and a name that was linked says nothing of the others.
func (f *forest) addLinks() error {
	for i := 0; i < len(f.nodes); i++ { // it grows
		for at, v := range f.nodes[i].v {
			if v == nil || !v.linked() {
				continue
			}
			paths, err := f.namesOf(at, v)
			if err != nil {
				return err
			}
			for _, p := range paths {
				if _, err := f.nodeAt(at, p); err != nil {
					return err
				}
			}
		}
	}
	for _, p := range sorted(f.byBase) {
		if err := f.compareLinked(f.byBase[p]); err != nil {
			return err
		}
	}
	return nil
}

// linked reports whether an inode has several names.
func (v *version) linked() bool { return v.kind() != unix.S_IFDIR && v.attr.Nlink > 1 }

// namesOf gives paths of an inode that may have no node yet.
func (f *forest) namesOf(at int, v *version) ([]string, error) {
	if f.known[at][v.attr.Ino] >= int(v.attr.Nlink) {
		return nil, nil
	}
	if f.names[at] == nil {
		f.names[at] = map[uint64][]string{}
		if err := f.trees[at].walkLinked(f.trees[at].vol.Root(), ".", f.names[at]); err != nil {
			return nil, err
		}
	}
	return f.names[at][v.attr.Ino], nil
}

// walkLinked notes all names of inodes that have several.
func (t *tree) walkLinked(dir overlay.Inode, p string, names map[uint64][]string) error {
	d, err := t.vol.OpenDir(dir)
	if err != nil {
		return err
	}
	defer d.Release()
	for off := uint64(0); ; {
		e, ok, err := d.Next(off)
		if err != nil || !ok {
			return err
		}
		off = e.Off
		if e.Name == "." || e.Name == ".." || p == "." && e.Name == overlay.StoreName {
			continue
		}
		if err := t.walkName(dir, join(p, e.Name), e.Name, names); err != nil {
			return err
		}
	}
}

func (t *tree) walkName(dir overlay.Inode, p, name string, names map[uint64][]string) error {
	n, a, err := t.vol.Lookup(dir, name)
	if err != nil {
		return err
	}
	defer t.vol.Forget(n, 1)
	if n.IsDir() {
		return t.walkLinked(n, p, names)
	}
	if a.Nlink > 1 {
		names[a.Ino] = append(names[a.Ino], p)
	}
	return nil
}

// compareLinked finds out what the diffs do not say of a file with several names.
func (f *forest) compareLinked(n *node) error {
	for at := inOurs; at <= inTheirs; at++ {
		b, v := n.v[inBase], n.v[at]
		if v == nil || v.listed || !v.linked() && !b.linked() {
			continue
		}
		if err := f.compare(n, at); err != nil {
			return err
		}
	}
	return nil
}

// linkedIn reports whether two nodes are the same inode in a tree.
func linkedIn(at int, x, y *node) bool {
	vx, vy := x.v[at], y.v[at]
	return vx != nil && vy != nil && vx.linked() && vx.attr.Ino == vy.attr.Ino
}

// wantsLink merges whether two names are those of one inode.
func wantsLink(x, y *node) bool {
	var is, known [3]bool
	for at := range is {
		is[at], known[at] = linkedIn(at, x, y), x.v[at] != nil && y.v[at] != nil
	}
	switch {
	case x.forced != 0 && x.forced == y.forced:
		return is[x.forced]
	case !known[inBase]:
		return is[inOurs] || is[inTheirs]
	case !known[inOurs] || !known[inTheirs]:
		return is[inOurs] || is[inTheirs]
	}
	merged, _ := three(is[inOurs], is[inTheirs], is[inOurs] != is[inBase], is[inTheirs] != is[inBase])
	return merged
}

// group is the names that one inode is to have.
type group struct {
	nodes   []*node // sorted by path in the merged tree
	carrier *node   // whose inode in ours becomes this one; nil if it must be a new one
}

// groupLinks finds the groups of more than one name, and of one name that must let go of the others.
func (m *merger) groupLinks() ([]*group, error) {
	var linked []*node
	for _, n := range m.nodes {
		if n.alive && slices.ContainsFunc(n.v[:], func(v *version) bool { return v != nil && v.linked() }) {
			linked = append(linked, n)
		}
	}
	slices.SortFunc(linked, func(x, y *node) int { return cmp.Compare(mergedPath(x), mergedPath(y)) })
	for _, n := range linked {
		n.follow(linked)
	}
	var groups []*group
	for _, n := range linked {
		g, err := m.groupFor(n, groups)
		if err != nil {
			return nil, err
		}
		if g == nil {
			g = &group{}
			groups = append(groups, g)
		}
		g.nodes = append(g.nodes, n)
	}
	chooseCarriers(groups)
	return groups, nil
}

// mergedPath gives where a node is in the merged tree.
func mergedPath(n *node) string {
	if n.at.dir == nil {
		return "."
	}
	return join(mergedPath(n.at.dir), n.at.name)
}

// follow makes a name that one side has linked to an old file the same as that file is now: what the other side did to the file
// is not lost in its new name.
func (n *node) follow(linked []*node) {
	for at := inOurs; at <= inTheirs; at++ {
		if n.v[at] == nil || n.changedBy(other(at)) {
			continue
		}
		for _, x := range linked {
			if x != n && linkedIn(at, x, n) && !linkedIn(inBase, x, n) && x.v[inBase] != nil && x.v[at].what&content == 0 {
				place := n.at
				n.result = x.result
				n.at = place
				return
			}
		}
	}
}

// changedBy reports whether a side has a part in what a node is.
func (n *node) changedBy(at int) bool {
	if n.v[inBase] == nil {
		return n.v[at] != nil
	}
	return n.v[at] == nil || n.v[at].what != 0
}

func (m *merger) groupFor(n *node, groups []*group) (*group, error) {
	for _, g := range groups {
		fits := true
		for _, x := range g.nodes {
			fits = fits && wantsLink(x, n)
		}
		if !fits {
			continue
		}
		same, err := m.sameResult(g.nodes[0], n)
		if err != nil || same {
			return g, err
		}
	}
	return nil, nil
}

// sameResult reports whether two nodes are to be alike.
func (m *merger) sameResult(x, y *node) (bool, error) {
	if x.mode != y.mode || x.uid != y.uid || x.gid != y.gid {
		return false, nil
	}
	ax, err := m.resultXattrs(x)
	if err != nil {
		return false, err
	}
	ay, err := m.resultXattrs(y)
	if err != nil || !maps.Equal(ax, ay) {
		return false, err
	}
	if x.content == inText || y.content == inText {
		return x.content == y.content && x.text.sum == y.text.sum, nil
	}
	return m.sameContent(x.of.v[x.content], x.content, y.of.v[y.content], y.content)
}

// resultXattrs gives the extended attributes that a node is to have.
func (m *merger) resultXattrs(n *node) (map[string]string, error) {
	if n.xattrs != nil {
		return n.xattrs, nil
	}
	return m.xattrs(n.of.v[n.content], n.content)
}

// chooseCarriers gives every inode of ours to one of the groups that have names of it: to one for which its content need not
// change, if there is such a one.
func chooseCarriers(groups []*group) {
	taken := map[uint64]bool{}
	for _, keeps := range []bool{true, false} {
		for _, g := range groups {
			if g.carrier != nil || (g.nodes[0].content == inOurs) != keeps {
				continue
			}
			for _, n := range g.nodes {
				if v := n.v[inOurs]; v != nil && !taken[v.attr.Ino] && g.mayCarry(v, keeps) {
					g.carrier, taken[v.attr.Ino] = n, true
					break
				}
			}
		}
	}
}

// mayCarry reports whether an inode of ours can become the group's: to keep its content it must be the one that has it.
func (g *group) mayCarry(v *version, keeps bool) bool {
	if !keeps {
		return v.kind() == unix.S_IFREG
	}
	return v.attr.Ino == g.nodes[0].of.v[inOurs].attr.Ino
}
