//go:build linux

package overlay

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Effect is what a rollback, an undo or a merge has done to a name, or to the inode that it means. No program has asked for it, so the kernel has
// told none that watches files.
type Effect struct {
	Dir  Inode
	Path string // of Dir, from the root of its volume; "" is the root itself
	Name string

	Was, Is uint32 // types, the S_IFMT bits of a mode: of what the name has lost, and of what it has got; 0 is nothing
	Gone    Inode  // what the name has lost, if it is known, no directory, and has no name any more

	// Of what the name means, as it did before.
	Inode   Inode
	Content bool // it has other content
	Attr    bool // it has another mode, owner, mtime, number of names, or other xattrs
}

// Teller is a Notifier that can tell programs which watch files. The Inodes of Effects are good for the call only.
type Teller interface {
	Notifier

	// Removed is InvalEntry for a name of something that is no directory and has no name any more.
	Removed(dir Inode, name string, gone Inode)

	// Tell calls forget, which makes the kernel forget all that has changed, and then tells of it. It may take a moment.
	Tell(effects []Effect, forget func())
}

// effects tells what the rollback has done. The caller holds no lock, and the workspace's admin alone.
func (r *restorer) effects() []Effect {
	l := effectList{t: r.t, paths: map[*Node]string{r.t.root: ""}, told: map[*Node]bool{}, moved: map[*Node]bool{}, added: map[link]bool{}}
	for _, c := range slices.Concat(r.plan.slots, r.tracked) {
		had := r.t.known(c.held.ID)
		l.moved[had] = true
		l.added[link{c.dir, c.slot.Name}] = c.want.Mode != 0
		l.changed(c.dir, c.slot.Name, c.held.Mode&unix.S_IFMT, c.want.Mode&unix.S_IFMT, had)
	}
	for _, i := range r.plan.inodes {
		switch {
		case i.replace:
			l.changed(i.dir, i.slot.Name, unix.S_IFREG, unix.S_IFREG, i.node)
		case !i.node.dir:
			l.inode(i.node, i.content != nil, i.dressed || i.content == nil)
		case i.dressed: // if it is only the mtime of a directory, its names tell
			l.inode(i.node, false, true)
		}
		l.told[i.node] = true
	}
	for _, n := range r.touched {
		if !n.dir && !l.told[n] {
			l.told[n] = true
			l.inode(n, false, true)
		}
	}
	return l.all
}

// effectList collects Effects.
type effectList struct {
	t     *Tree
	paths map[*Node]string // of directories
	told  map[*Node]bool   // inodes that need not be told of again
	moved map[*Node]bool   // inodes that had another name
	added map[link]bool    // names that mean something else now
	all   []Effect
}

// changed adds a name that means something else. had is what it meant, if that is known.
func (l *effectList) changed(dir *Node, name string, was, is uint32, had *Node) {
	path, ok := l.path(dir)
	if !ok {
		return
	}
	e := Effect{Dir: dir, Path: path, Name: name, Was: was, Is: is}
	if had != nil && !had.dir && len(l.t.namesOf(had)) == 0 {
		e.Gone = had
	}
	l.all = append(l.all, e)
}

// inode adds what has changed of an inode, for each of its names. One that has come back is not watched by its name yet.
func (l *effectList) inode(n *Node, content, attr bool) {
	for _, at := range l.t.namesOf(n) {
		if l.added[at] && !l.moved[n] {
			continue
		}
		if path, ok := l.path(at.parent); ok {
			l.all = append(l.all, Effect{Dir: at.parent, Path: path, Name: at.name, Inode: n, Content: content, Attr: attr})
		}
	}
}

// namesOf gives the names of a node that are known. The root has none.
func (t *Tree) namesOf(n *Node) []link {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	if n.parent == nil {
		return nil
	}
	return append([]link{{n.parent, n.name}}, n.links...)
}

// path gives the path of a directory; ok is false of one that is not in the tree.
func (l *effectList) path(dir *Node) (path string, ok bool) {
	if p, ok := l.paths[dir]; ok {
		return p, true
	}
	var parts []string
	l.t.nodesMu.RLock()
	for n := dir; n != l.t.root && n != nil; n = n.parent {
		ok = n.parent == l.t.root
		parts = append(parts, n.name)
	}
	l.t.nodesMu.RUnlock()
	if !ok {
		return "", false
	}
	slices.Reverse(parts)
	path = strings.Join(parts, "/")
	l.paths[dir] = path
	return path, true
}
