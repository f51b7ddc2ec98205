//go:build linux

package merge

import (
	"cmp"
	"context"
	"maps"
	"path"
	"slices"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// The three trees.
const (
	inBase = iota
	inOurs
	inTheirs
)

// node is one name of one thing, wherever it is in each tree.
type node struct {
	v    [3]*version
	same *node // it has turned out to be that one

	forced int // a side that it has to be like, 0 for none
	result
}

// version is what one tree has of a node.
type version struct {
	path   string
	parent *node // nil of the root
	name   string
	attr   overlay.Attr
	what   bits // in what it differs from the base
	listed bool // the diff says so

	xattrs map[string]string // nil until asked for
}

func (v *version) kind() uint32 { return v.attr.Mode & unix.S_IFMT }

// find gives the node that a node has turned out to be.
func (n *node) find() *node {
	for n.same != nil {
		n = n.same
	}
	return n
}

// any gives a version, ours first.
func (n *node) any() *version {
	return cmp.Or(n.v[inOurs], n.v[inTheirs], n.v[inBase])
}

func (n *node) isDir() bool { return n.any().kind() == unix.S_IFDIR }

// slot is a name in a directory.
type slot struct {
	dir  *node
	name string
}

func (v *version) slot() slot {
	if v.parent == nil {
		return slot{}
	}
	return slot{v.parent.find(), v.name}
}

// moved reports whether a side has a node elsewhere than the base.
func (n *node) moved(at int) bool { return n.v[at].slot() != n.v[inBase].slot() }

// forest is all nodes that have to do with a change, and the directories above them.
type forest struct {
	ctx    context.Context // ends the work early
	trees  [3]*tree
	sides  [3]*side // none for the base
	byBase map[string]*node
	fresh  [3]map[string]*node    // created ones, by path
	nodes  []*node                // in the order in which they were found
	names  [3]map[uint64][]string // paths by inode number, of what has several; filled by walk
	known  [3]map[uint64]int      // how many names of an inode have a node
}

// grow makes the nodes.
func (f *forest) grow() error {
	for at := inOurs; at <= inTheirs; at++ {
		s := f.sides[at]
		for _, p := range sorted(s.gone) {
			if _, err := f.baseNode(p); err != nil {
				return err
			}
		}
		for _, p := range sorted(s.to) {
			if _, err := f.baseNode(p); err != nil {
				return err
			}
		}
		for _, p := range sorted(s.created) {
			if _, err := f.freshNode(at, p); err != nil {
				return err
			}
		}
	}
	if err := f.addLinks(); err != nil {
		return err
	}
	f.unifyCreated()
	if err := f.unifyMoved(); err != nil {
		return err
	}
	f.nodes = slices.DeleteFunc(f.nodes, func(n *node) bool { return n.same != nil })
	slices.SortFunc(f.nodes, func(x, y *node) int {
		for at := range x.v {
			if c := cmp.Compare(x.path(at), y.path(at)); c != 0 {
				return c
			}
		}
		return 0
	})
	return nil
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// path gives where a node is in a tree, "" if it is not there.
func (n *node) path(at int) string {
	if n.v[at] == nil {
		return ""
	}
	return n.v[at].path
}

// baseNode gives the node of something that the base has.
func (f *forest) baseNode(p string) (*node, error) {
	if n, ok := f.byBase[p]; ok {
		return n, nil
	}
	n := &node{}
	f.byBase[p] = n
	f.nodes = append(f.nodes, n)
	if err := f.load(n, inBase, p); err != nil {
		return nil, err
	}
	for at := inOurs; at <= inTheirs; at++ {
		to, ok := f.sides[at].forward(p)
		if !ok {
			continue
		}
		if err := f.load(n, at, to); err != nil {
			return nil, err
		}
		if n.v[at].kind() != n.v[inBase].kind() {
			return nil, f.sides[at].unexplained(to)
		}
	}
	return n, nil
}

// freshNode gives the node of something that a side has created.
func (f *forest) freshNode(at int, p string) (*node, error) {
	if n, ok := f.fresh[at][p]; ok {
		return n, nil
	}
	n := &node{}
	f.fresh[at][p] = n
	f.nodes = append(f.nodes, n)
	return n, f.load(n, at, p)
}

// nodeAt gives the node of a path of a tree.
func (f *forest) nodeAt(at int, p string) (*node, error) {
	if at == inBase {
		return f.baseNode(p)
	}
	if old, ok := f.sides[at].back(p); ok {
		return f.baseNode(old)
	}
	return f.freshNode(at, p)
}

// load gives a node its version in a tree.
func (f *forest) load(n *node, at int, p string) error {
	if err := f.ctx.Err(); err != nil {
		return err
	}
	attr, ok, err := f.trees[at].stat(p)
	if err != nil {
		return err
	}
	if !ok {
		return f.sides[max(at, inOurs)].unexplained(p)
	}
	v := &version{path: p, attr: attr}
	n.v[at] = v
	f.known[at][attr.Ino]++
	if at != inBase {
		v.what, v.listed = f.sides[at].what[p]
	}
	if p == "." {
		return nil
	}
	v.name = path.Base(p)
	v.parent, err = f.nodeAt(at, path.Dir(p))
	return err
}

// unifyCreated makes one node of what both sides have created under the same name.
func (f *forest) unifyCreated() {
	ours := map[slot]*node{}
	for _, n := range f.fresh[inOurs] {
		ours[n.v[inOurs].slot()] = n
	}
	for _, p := range sorted(f.fresh[inTheirs]) { // parents first
		t := f.fresh[inTheirs][p]
		o, ok := ours[t.v[inTheirs].slot()]
		if ok && o.v[inOurs].kind() == t.v[inTheirs].kind() {
			o.v[inTheirs], t.same = t.v[inTheirs], o
		}
	}
}

// unifyMoved finds what one side has moved, and the other has copied to the same place and deleted.
func (f *forest) unifyMoved() error {
	for at := inOurs; at <= inTheirs; at++ {
		created := map[slot]*node{}
		for _, p := range sorted(f.fresh[at]) {
			if n := f.fresh[at][p]; n.same == nil && n.v[other(at)] == nil && !n.isDir() {
				created[n.v[at].slot()] = n
			}
		}
		for _, p := range sorted(f.byBase) {
			n := f.byBase[p]
			if n.v[at] != nil || n.v[other(at)] == nil || n.isDir() || !n.moved(other(at)) {
				continue
			}
			c, ok := created[n.v[other(at)].slot()]
			if !ok || c.v[at].kind() != n.v[inBase].kind() {
				continue
			}
			n.v[at], c.same = c.v[at], n
			if err := f.compare(n, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func other(at int) int { return inOurs + inTheirs - at }

// compare finds out in what a version differs from the base, where the diff does not tell.
func (f *forest) compare(n *node, at int) error {
	b, v := n.v[inBase], n.v[at]
	v.what = 0
	if b.attr.Mode != v.attr.Mode {
		v.what |= mode
	}
	if b.attr.UID != v.attr.UID || b.attr.GID != v.attr.GID {
		v.what |= owner
	}
	same, err := f.sameContent(b, inBase, v, at)
	if err != nil {
		return err
	}
	if !same {
		v.what |= content
	}
	x, err := f.xattrs(b, inBase)
	if err != nil {
		return err
	}
	y, err := f.xattrs(v, at)
	if err == nil && !maps.Equal(x, y) {
		v.what |= xattr
	}
	return err
}

// sameContent compares what is in two versions of one type.
func (f *forest) sameContent(x *version, inX int, y *version, inY int) (bool, error) {
	switch x.kind() {
	case unix.S_IFREG:
		if x.attr.Size != y.attr.Size {
			return false, nil
		}
		return sameFile(f.trees[inX], x.path, f.trees[inY], y.path)
	case unix.S_IFLNK:
		tx, err := f.trees[inX].readlink(x.path)
		if err != nil {
			return false, err
		}
		ty, err := f.trees[inY].readlink(y.path)
		return tx == ty, err
	case unix.S_IFCHR, unix.S_IFBLK:
		return x.attr.Rdev == y.attr.Rdev, nil
	}
	return true, nil
}

// xattrs gives the extended attributes of a version.
func (f *forest) xattrs(v *version, at int) (map[string]string, error) {
	if v.xattrs == nil {
		all, err := f.trees[at].xattrs(v.path)
		if err != nil {
			return nil, err
		}
		if v.xattrs = all; all == nil {
			v.xattrs = map[string]string{}
		}
	}
	return v.xattrs, nil
}
