//go:build linux

package merge

import (
	"bytes"
	"maps"

	"github.com/hyperfs/hyperfs/internal/linemerge"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// inText, as a result's content, is a text merged of both sides.
const inText = 3

// result is what the merge makes of a node.
type result struct {
	conflict *Conflict // nothing else is valid then

	alive    bool
	at       slot
	content  int   // whose: a tree, or inText
	of       *node // whose version has the content: the node itself, or one that it is a new link of
	text     piece
	mode     uint32 // with the type
	uid, gid uint32
	mtime    unix.Timespec
	xattrs   map[string]string // nil: as the content's tree has them; never nil where that is inText
}

// merger makes the plan.
type merger struct {
	forest
	in    Input
	plan  *Plan
	spool *spool
}

// decide merges the versions of a node.
func (m *merger) decide(n *node) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	n.result = result{}
	b, o, t := n.v[inBase], n.v[inOurs], n.v[inTheirs]
	switch {
	case n.forced != 0:
		n.take(n.forced)
	case o == nil && t == nil:
	case b == nil && t == nil:
		n.take(inOurs)
	case b == nil && o == nil:
		n.take(inTheirs)
	case o == nil:
		m.deleted(n, inTheirs)
	case t == nil:
		m.deleted(n, inOurs)
	default:
		return m.both(n)
	}
	return nil
}

// take takes a node as a side has it.
func (n *node) take(at int) {
	v := n.v[at]
	if v == nil {
		n.result = result{}
		return
	}
	n.result = result{
		alive: true, at: v.slot(), content: at, of: n,
		mode: v.attr.Mode, uid: v.attr.UID, gid: v.attr.GID, mtime: v.attr.Mtime,
	}
}

// deleted decides on what only one side still has.
func (m *merger) deleted(n *node, at int) {
	if n.moved(at) || n.v[at].what != 0 {
		n.conflict = m.conflict(n, "one side deleted what the other side changed", "existence")
	}
}

// both merges what both sides have, property by property.
func (m *merger) both(n *node) error {
	b, o, t := n.v[inBase], n.v[inOurs], n.v[inTheirs]
	n.take(inOurs)
	var what []string
	if !n.mergePlace() {
		what = append(what, "name")
	}
	lines, ok, err := m.mergeContent(n)
	if err != nil {
		return err
	}
	if !ok {
		what = append(what, "content")
	}
	changedO, changedT := b == nil || o.what&mode != 0, b == nil || t.what&mode != 0
	if n.mode, ok = three(o.attr.Mode, t.attr.Mode, changedO, changedT); !ok {
		what = append(what, "mode")
	}
	changedO, changedT = b == nil || o.what&owner != 0, b == nil || t.what&owner != 0
	if !n.mergeOwner(changedO, changedT) {
		what = append(what, "owner")
	}
	n.mergeMtime()
	collide, err := m.mergeXattrs(n)
	if err != nil {
		return err
	}
	for _, name := range collide {
		what = append(what, "xattr "+name)
	}
	if len(what) > 0 {
		n.conflict = m.conflict(n, "both sides changed it, not in the same way", what...)
		n.conflict.Lines = lines
	}
	return nil
}

// three is the merge of one property. It fails where both sides changed it, not alike.
func three[T comparable](ours, theirs T, changedO, changedT bool) (T, bool) {
	switch {
	case !changedT:
		return ours, true
	case !changedO:
		return theirs, true
	}
	return ours, ours == theirs
}

func (n *node) mergePlace() (ok bool) {
	b, o, t := n.v[inBase], n.v[inOurs].slot(), n.v[inTheirs].slot()
	if b == nil {
		return true // both have created it there
	}
	n.at, ok = three(o, t, o != b.slot(), t != b.slot())
	return ok
}

// mergeOwner merges user and group, each by itself.
func (n *node) mergeOwner(changedO, changedT bool) bool {
	o, t := n.v[inOurs].attr, n.v[inTheirs].attr
	userO, userT, groupO, groupT := changedO, changedT, changedO, changedT
	if b := n.v[inBase]; b != nil {
		userO, groupO = userO && o.UID != b.attr.UID, groupO && o.GID != b.attr.GID
		userT, groupT = userT && t.UID != b.attr.UID, groupT && t.GID != b.attr.GID
	}
	var okUser, okGroup bool
	n.uid, okUser = three(o.UID, t.UID, userO, userT)
	n.gid, okGroup = three(o.GID, t.GID, groupO, groupT)
	return okUser && okGroup
}

// mergeMtime takes the mtime of the side that changed it, the newer one if both did.
func (n *node) mergeMtime() {
	o, t := n.v[inOurs].attr.Mtime, n.v[inTheirs].attr.Mtime
	b := n.v[inBase]
	switch {
	case b != nil && t == b.attr.Mtime:
		n.mtime = o
	case b != nil && o == b.attr.Mtime:
		n.mtime = t
	case t.Nano() > o.Nano():
		n.mtime = t
	default:
		n.mtime = o
	}
}

// mergeContent merges what is in a node that both sides have. n.content is ours before.
func (m *merger) mergeContent(n *node) (lines []linemerge.Conflict, ok bool, err error) {
	b, o, t := n.v[inBase], n.v[inOurs], n.v[inTheirs]
	switch {
	case n.isDir():
		return nil, true, nil
	case b != nil && t.what&content == 0:
		return nil, true, nil
	case b != nil && o.what&content == 0:
		n.content = inTheirs
		return nil, true, nil
	}
	same, err := m.sameContent(o, inOurs, t, inTheirs)
	if err != nil || same {
		return nil, true, err
	}
	if m.in.Policy != Text || b == nil || b.kind() != unix.S_IFREG || (o.what|t.what)&outside != 0 {
		return nil, false, nil
	}
	return m.mergeText(n)
}

// mergeText merges lines, if all three versions are text.
func (m *merger) mergeText(n *node) (lines []linemerge.Conflict, ok bool, err error) {
	var text [3][]byte
	for _, v := range n.v {
		if v.attr.Size > m.in.MaxText {
			return nil, false, nil
		}
	}
	for at, v := range n.v {
		if text[at], err = m.trees[at].read(v.path); err != nil {
			return nil, false, err
		}
		if bytes.IndexByte(text[at], 0) >= 0 {
			return nil, false, nil
		}
	}
	merged, lines := linemerge.Merge(text[inBase], text[inOurs], text[inTheirs])
	if len(lines) > 0 {
		return lines, false, nil
	}
	n.content = inText
	n.text, err = m.spool.add(merged)
	return nil, true, err
}

// mergeXattrs merges extended attributes, each by itself, and gives the names of those that collide.
func (m *merger) mergeXattrs(n *node) (collide []string, err error) {
	b, o, t := n.v[inBase], n.v[inOurs], n.v[inTheirs]
	if b != nil && (o.what|t.what)&xattr == 0 && n.content == inOurs {
		return nil, nil
	}
	x, err := m.xattrs(o, inOurs)
	if err != nil {
		return nil, err
	}
	if n.xattrs = x; b != nil && t.what&xattr == 0 {
		return nil, nil
	}
	y, err := m.xattrs(t, inTheirs)
	if err != nil {
		return nil, err
	}
	var old map[string]string
	if b != nil {
		if o.what&xattr == 0 {
			n.xattrs = y
			return nil, nil
		}
		if old, err = m.xattrs(b, inBase); err != nil {
			return nil, err
		}
	}
	n.xattrs, collide = threeMaps(old, x, y)
	return collide, nil
}

// threeMaps merges maps key by key, and gives the keys that collide, sorted.
func threeMaps(base, ours, theirs map[string]string) (merged map[string]string, collide []string) {
	type value struct {
		s  string
		ok bool
	}
	get := func(m map[string]string, k string) value { s, ok := m[k]; return value{s, ok} }
	keys := maps.Clone(ours)
	if keys == nil {
		keys = map[string]string{}
	}
	maps.Copy(keys, theirs)
	maps.Copy(keys, base)
	merged = map[string]string{}
	for _, k := range sorted(keys) {
		b, o, t := get(base, k), get(ours, k), get(theirs, k)
		v, ok := three(o, t, o != b, t != b)
		if !ok {
			collide = append(collide, k)
		}
		if v.ok {
			merged[k] = v.s
		}
	}
	return merged, collide
}

// conflict describes a node that both sides have to do with.
func (m *merger) conflict(n *node, why string, what ...string) *Conflict {
	c := &Conflict{
		Path: n.any().path, BasePath: n.path(inBase), OursPath: n.path(inOurs), TheirsPath: n.path(inTheirs),
		Type: overlay.TypeName(n.any().kind()), Ours: n.kinds(inOurs), Theirs: n.kinds(inTheirs), What: what, Why: why,
		OursAgent: m.in.Ours.Agent, TheirAgent: m.in.Theirs.Agent,
	}
	return c
}

// kinds tells what a side has done to a node.
func (n *node) kinds(at int) []Kind {
	v, list := n.v[at], []Kind{}
	switch {
	case v == nil && n.v[inBase] == nil:
		return list
	case v == nil:
		return append(list, Deleted)
	case n.v[inBase] == nil:
		return append(list, Created)
	}
	if n.moved(at) {
		list = append(list, Renamed)
	}
	for _, x := range []struct {
		bit  bits
		kind Kind
	}{{content, Modified}, {mode, ModeChanged}, {owner, OwnerChanged}, {xattr, XattrChanged}} {
		if v.what&x.bit != 0 {
			list = append(list, x.kind)
		}
	}
	return list
}
