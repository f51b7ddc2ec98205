//go:build linux

package merge

import (
	"maps"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// filler lists what has to be done to files and attributes once every name is in its place.
type filler struct {
	m                          *merger
	copies, files, links, dirs []Op
}

// fill gives the ops: contents that are taken from ours first, as they are overwritten afterwards; links when what they lead to is
// there; directories last, as their modes may keep others out.
func (m *merger) fill() ([]Op, error) {
	groups, err := m.groupLinks()
	if err != nil {
		return nil, err
	}
	f := &filler{m: m}
	grouped := map[*node]bool{}
	for _, g := range groups {
		for _, n := range g.nodes {
			grouped[n] = true
		}
		if err := f.group(g); err != nil {
			return nil, err
		}
	}
	for _, n := range m.nodes {
		if !n.alive || grouped[n] {
			continue
		}
		if err := f.node(n); err != nil {
			return nil, err
		}
	}
	byPath := func(x, y Op) int { return strings.Compare(x.Path, y.Path) }
	for _, list := range [][]Op{f.copies, f.files, f.links, f.dirs} {
		slices.SortFunc(list, byPath)
	}
	slices.Reverse(f.dirs)
	return slices.Concat(f.copies, f.files, f.links, f.dirs), nil
}

// group makes names links of one inode.
func (f *filler) group(g *group) error {
	lead, err := g.carrier, error(nil)
	if lead != nil {
		err = f.node(lead)
	} else {
		lead = g.nodes[0]
		err = f.put(lead, true)
	}
	if err != nil {
		return err
	}
	for _, n := range g.nodes {
		if n == lead || g.carrier != nil && linkedIn(inOurs, n, lead) {
			continue
		}
		f.links = append(f.links, Op{
			Do: Link, Path: mergedPath(n), From: mergedPath(lead), Type: overlay.TypeName(n.mode), Replace: n.v[inOurs] != nil,
		})
	}
	return nil
}

// node makes a node what it is to be.
func (f *filler) node(n *node) error {
	switch {
	case n.isDir():
		return f.setAttr(n)
	case n.v[inOurs] == nil:
		return f.put(n, true)
	case n.content == inOurs:
		return f.setAttr(n)
	}
	return f.put(n, n.mode&unix.S_IFMT != unix.S_IFREG)
}

// put gives a node its content, in a new inode if fresh.
func (f *filler) put(n *node, fresh bool) error {
	op := Op{Do: Put, Path: mergedPath(n), Type: overlay.TypeName(n.mode), Replace: fresh && n.v[inOurs] != nil}
	if err := f.source(&op, n); err != nil {
		return err
	}
	var err error
	if fresh {
		op.Attrs, err = f.allAttrs(n)
	} else if op.Attrs, err = f.newAttrs(n); err == nil {
		op.Attrs.setMtime(n)
	}
	if op.Source == FromOurs {
		f.copies = append(f.copies, op)
	} else {
		f.files = append(f.files, op)
	}
	return err
}

// source fills in where a content comes from.
func (f *filler) source(op *Op, n *node) (err error) {
	if n.content == inText {
		op.Source, op.text, op.Size = FromMerge, n.text, n.text.size
		f.m.plan.Merged = append(f.m.plan.Merged, op.Path)
		return nil
	}
	v := n.of.v[n.content]
	op.Source, op.From = FromTheirs, v.path
	if n.content == inOurs {
		op.Source, op.From = FromOurs, mergedPath(n.of)
	}
	switch v.kind() {
	case unix.S_IFREG:
		op.Size = v.attr.Size
	case unix.S_IFLNK:
		op.Target, err = f.m.trees[n.content].readlink(v.path)
	case unix.S_IFCHR, unix.S_IFBLK:
		op.Rdev = v.attr.Rdev
	}
	return err
}

// setAttr changes the attributes of what keeps its content, if any has to change, and sets those of a new directory.
func (f *filler) setAttr(n *node) error {
	if n.v[inOurs] == nil {
		a, err := f.allAttrs(n)
		f.dirs = append(f.dirs, Op{Do: SetAttr, Path: mergedPath(n), Type: overlay.TypeName(n.mode), Attrs: a})
		return err
	}
	a, err := f.newAttrs(n)
	if err != nil {
		return err
	}
	if !n.isDir() && n.mtime != n.v[inOurs].attr.Mtime {
		a.setMtime(n)
	}
	if a.Mode == nil && a.UID == nil && a.GID == nil && a.Mtime == nil && len(a.Xattrs) == 0 {
		return nil
	}
	op := Op{Do: SetAttr, Path: mergedPath(n), Type: overlay.TypeName(n.mode), Attrs: a}
	if n.isDir() {
		f.dirs = append(f.dirs, op)
	} else {
		f.files = append(f.files, op)
	}
	return nil
}

func (a *Attrs) setMtime(n *node) {
	ns := n.mtime.Nano()
	a.Mtime = &ns
}

// newAttrs gives the attributes in which a node that ours has is to differ from it, without the mtime. Where the owner changes the
// mode is set too, as chown(2) may clear bits of it.
func (f *filler) newAttrs(n *node) (*Attrs, error) {
	a, was := &Attrs{}, n.v[inOurs].attr
	if n.uid != was.UID || n.gid != was.GID {
		a.UID, a.GID = &n.uid, &n.gid
	}
	perm := n.mode &^ unix.S_IFMT
	if n.mode != was.Mode || a.UID != nil && n.mode&unix.S_IFMT != unix.S_IFLNK {
		a.Mode = &perm
	}
	if n.xattrs == nil && n.content == inOurs && n.of == n {
		return a, nil
	}
	want, err := f.m.resultXattrs(n)
	if err != nil {
		return nil, err
	}
	have, err := f.m.xattrs(n.v[inOurs], inOurs)
	if err != nil {
		return nil, err
	}
	for _, name := range sorted(have) {
		if _, ok := want[name]; !ok {
			a.Xattrs = append(a.Xattrs, Xattr{Name: name, Remove: true})
		}
	}
	for _, name := range sorted(want) {
		if value, ok := have[name]; !ok || value != want[name] {
			a.Xattrs = append(a.Xattrs, Xattr{Name: name, Value: []byte(want[name])})
		}
	}
	return a, nil
}

// allAttrs gives the attributes of a new inode.
func (f *filler) allAttrs(n *node) (*Attrs, error) {
	a := &Attrs{UID: &n.uid, GID: &n.gid, All: true}
	if perm := n.mode &^ unix.S_IFMT; n.mode&unix.S_IFMT != unix.S_IFLNK {
		a.Mode = &perm
	}
	a.setMtime(n)
	want, err := f.m.resultXattrs(n)
	if err != nil {
		return nil, err
	}
	for _, name := range sorted(maps.Clone(want)) {
		a.Xattrs = append(a.Xattrs, Xattr{Name: name, Value: []byte(want[name])})
	}
	return a, nil
}
