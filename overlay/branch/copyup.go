//go:build linux

package branch

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// copied says how much of an inode a change needs in the live layer.
type copied int

const (
	metadata copied = iota // the content may stay below
	nothing                // the content is about to be cut to nothing
	whole
)

// copyUp makes sure that an inode is in the live layer, with an inode record of its own, so that it can be changed there. The pool inode
// comes first, then the record that names it, then what it replaces goes. The caller holds n.mu.
func (v *Volume) copyUp(n *node, what copied) (inode, error) {
	e := v.entry(n)
	if v.isLive(e) && (what == metadata || !n.isRegular() || e.data == e.pool) {
		return e, nil
	}
	next, err := v.copyInode(n, e, what)
	if err != nil {
		return e, err
	}
	crash.Point("branch-copied")
	if err := v.recordInode(n, next); err != nil {
		_ = v.m.pool.drop(next.pool)
		return e, err
	}
	crash.Point("branch-copy-recorded")
	if v.isLive(e) {
		v.m.discard(e.pool)
	}
	n.contentMu.Lock()
	defer n.contentMu.Unlock()
	if n.content == nil || next.data == n.content.pool {
		return next, nil
	}
	c, err := v.openContent(n, next, n.writers > 0)
	if err != nil {
		return next, err
	}
	n.content.release()
	n.content = c
	return next, nil
}

// recordInode makes an inode record say where an inode is, or notes it where the inode has no name. The caller holds n.mu.
func (v *Volume) recordInode(n *node, next inode) error {
	if v.isDead(n) { // nobody can give it a name but Link, which takes n.mu
		v.st.mu.Lock()
		defer v.st.mu.Unlock()
		next.layer = private
		n.orphan = &next
		return nil
	}
	err := v.m.store.Update(func(tx *checkpoint.Tx) error { return tx.PutLayerInode(v.layer, n.id, next.record()) })
	if err != nil {
		return err
	}
	v.st.mu.Lock()
	v.st.inodes[n.id] = next
	v.st.mu.Unlock()
	v.m.pool.let(next.pool)
	return nil
}

func (i inode) record() checkpoint.LayerInode {
	return checkpoint.LayerInode{Pool: i.pool, MetaOnly: i.data != i.pool, Nlink: i.nlink, Owner: i.owner}
}

// copyInode makes a pool inode like the one that e stands for.
func (v *Volume) copyInode(n *node, e inode, what copied) (inode, error) {
	p := v.m.pool
	a, err := v.attr(n)
	if err != nil {
		return e, err
	}
	xs, err := v.xattrs(n, e)
	if err != nil {
		return e, err
	}
	m := made{mode: a.Mode, rdev: a.Rdev}
	if n.kind == unix.S_IFLNK {
		if m.target, err = v.st.readlink(p, n.id, e); err != nil {
			return e, err
		}
	}
	num, err := v.m.reserve()
	if err != nil {
		return e, err
	}
	next := inode{pool: num, data: num, layer: v.layer, nlink: a.Nlink}
	if n.isRegular() && what == metadata && a.Size > 0 {
		next.data = e.data
	}
	if err = p.create(num, m); err == nil {
		err = v.fill(n, e, next, &a, what)
	}
	if err == nil { // before describe, as a change of the owner takes set-user-ID and capabilities away
		next.owner, err = p.give(num, a.UID, a.GID)
	}
	if err == nil {
		err = p.describe(num, &a, xs)
	}
	if err != nil {
		_ = p.drop(num)
	}
	return next, err
}

// fill gives the copy of a regular file its size, and its content if it is to have one.
func (v *Volume) fill(n *node, e, next inode, a *overlay.Attr, what copied) error {
	if !n.isRegular() || what == nothing || a.Size == 0 {
		return nil
	}
	fd, err := v.m.pool.open(next.pool, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if next.data != next.pool {
		return unix.Ftruncate(fd, a.Size)
	}
	c, err := v.acquire(n, e)
	if err != nil {
		return err
	}
	defer c.release()
	return c.cloneTo(fd)
}

// acquire gives the content of a regular file, open or not.
func (v *Volume) acquire(n *node, e inode) (*content, error) {
	n.contentMu.Lock()
	defer n.contentMu.Unlock()
	if n.content != nil {
		return n.content.acquire(), nil
	}
	return v.openContent(n, e, false)
}

// xattrs gives all extended attributes of an inode.
func (v *Volume) xattrs(n *node, e inode) ([]checkpoint.Xattr, error) {
	xs, err := v.st.xattrs(v.m.pool, n.id, e)
	if err == unix.ENOENT && v.isDead(n) {
		return nil, nil // its pool inode went with a layer; see node.last
	}
	return xs, err
}

func (s *state) xattrs(p *pool, id checkpoint.ID, e inode) ([]checkpoint.Xattr, error) {
	if e.pool == 0 {
		return s.base.Xattrs(id)
	}
	return p.xattrs(e.pool)
}
