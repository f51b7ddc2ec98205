//go:build linux

package branch

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// newInode is what a directory is about to get.
type newInode struct {
	made
	owner *overlay.Caller
}

const defaultACL = "system.posix_acl_default"

// writableDir says why nothing can be changed in a directory under a name, or nil. The caller holds nameMu.
func (v *Volume) writableDir(dir *node, name string) error {
	switch {
	case !dir.IsDir():
		return unix.ENOTDIR
	case v.hidden(dir, name):
		return unix.EPERM
	case v.isDead(dir):
		return unix.ENOENT
	}
	return checkName(name)
}

// empty fails with EEXIST where a slot holds something.
func (v *Volume) empty(slot checkpoint.Slot) error {
	v.st.mu.RLock()
	defer v.st.mu.RUnlock()
	_, err := v.st.lookup(slot)
	switch err {
	case nil:
		return unix.EEXIST
	case unix.ENOENT:
		return nil
	}
	return err
}

// copyUpDir copies a directory up, which is about to get or to lose a name.
func (v *Volume) copyUpDir(dir *node) (inode, error) {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	return v.copyUp(dir, metadata)
}

// touch gives a directory that got or lost a name its new time. The name is committed, so that a failure can't undo it.
func (v *Volume) touch(dir inode) {
	if err := v.m.pool.touch(dir.pool); err != nil {
		v.m.log.Warn("a directory's time could not be set", "err", err)
	}
}

// bump gives an inode that got or lost a name its new change time.
func (v *Volume) bump(e inode) {
	if err := v.m.pool.bump(e.pool); err != nil {
		v.m.log.Warn("an inode's change time could not be set", "err", err)
	}
}

// create fills an empty slot. It gives the node with a reference for the kernel.
func (v *Volume) create(i overlay.Inode, name string, in newInode) (*node, overlay.Attr, error) {
	dir, err := v.own(i)
	if err != nil {
		return nil, overlay.Attr{}, err
	}
	v.nameMu.Lock()
	defer v.nameMu.Unlock()
	slot := checkpoint.Slot{Dir: dir.id, Name: name}
	if err := v.writableDir(dir, name); err != nil {
		return nil, overlay.Attr{}, err
	}
	if err := v.empty(slot); err != nil {
		return nil, overlay.Attr{}, err
	}
	up, err := v.copyUpDir(dir)
	if err != nil {
		return nil, overlay.Attr{}, err
	}
	e, err := v.make(dir, up, in)
	if err != nil {
		return nil, overlay.Attr{}, err
	}
	crash.Point("branch-made")
	h := checkpoint.LayerSlot{ID: checkpoint.ID{Ino: e.pool, Birth: bornHere}, Type: in.mode & unix.S_IFMT}
	err = v.m.store.Update(func(tx *checkpoint.Tx) error {
		if err := tx.PutLayerInode(v.layer, h.ID, e.record()); err != nil {
			return err
		}
		return tx.PutLayerSlot(v.layer, slot, h)
	})
	if err != nil {
		_ = v.m.pool.drop(e.pool)
		return nil, overlay.Attr{}, err
	}
	crash.Point("branch-made-recorded")
	v.m.pool.let(e.pool)
	v.st.mu.Lock()
	v.st.inodes[h.ID] = e
	v.fillSlot(slot, h)
	n := v.intern(dir, h, true)
	v.st.mu.Unlock()
	v.touch(up)
	a, err := v.attr(n)
	return n, a, err
}

// fillSlot notes that the live layer has a record of a slot. The caller holds state.mu.
func (v *Volume) fillSlot(slot checkpoint.Slot, h checkpoint.LayerSlot) {
	u := v.st.underOf(slot)
	if was, ok := v.st.slots[slot.Dir][slot.Name]; ok && was.layer == v.layer {
		u = was.under
	}
	v.st.put(slot, held{h, v.layer, u})
}

// make makes an inode in the pool, which has its owner and mode then as the kernel would have given them in the directory. No record
// names it yet.
func (v *Volume) make(dir *node, up inode, in newInode) (inode, error) {
	p := v.m.pool
	num, err := v.m.reserve()
	if err != nil {
		return inode{}, err
	}
	e := inode{pool: num, data: num, layer: v.layer, nlink: 1}
	parent, err := v.attrOf(dir, up)
	if err == nil {
		e.owner, err = v.makeAs(num, up.pool, &parent, in)
	}
	if err != nil {
		_ = p.drop(num)
		return inode{}, err
	}
	return e, nil
}

// makeAs gives what give does.
func (v *Volume) makeAs(num, dir uint64, parent *overlay.Attr, in newInode) (owner checkpoint.LayerOwner, err error) {
	p := v.m.pool
	isDir, isLink := in.mode&unix.S_IFMT == unix.S_IFDIR, in.mode&unix.S_IFMT == unix.S_IFLNK
	if isDir && parent.Mode&unix.S_ISGID != 0 {
		in.mode |= unix.S_ISGID
	}
	_, err = unix.Lgetxattr(p.path(dir), defaultACL, nil)
	inherits := err == nil && !isLink
	if inherits { // the ACL takes the place of the umask
		err = p.createIn(dir, num, in.made)
	} else {
		err = p.create(num, in.made)
	}
	if err == nil {
		owner, err = p.giveTo(num, parent, in.owner)
	}
	if err != nil || isLink {
		return owner, err
	}
	if inherits {
		a, err := p.stat(num)
		if err != nil {
			return owner, err
		}
		return owner, p.setMode(num, a.Mode&0o777|in.mode&0o7000) // chown may have taken bits away
	}
	mode := in.mode
	if in.owner != nil {
		mode &^= in.owner.Umask & 0o777
	}
	return owner, p.setMode(num, mode)
}

// giveTo makes the caller the owner; the group is the directory's where that has set-group-ID. An ordinary user's daemon serves only that user.
func (p *pool) giveTo(num uint64, parent *overlay.Attr, c *overlay.Caller) (checkpoint.LayerOwner, error) {
	a, err := p.stat(num)
	if err != nil {
		return checkpoint.LayerOwner{}, err
	}
	uid, gid := a.UID, a.GID
	if c != nil && p.root {
		uid, gid = c.UID, c.GID
	}
	if parent.Mode&unix.S_ISGID != 0 {
		gid = parent.GID
	}
	return p.give(num, uid, gid)
}

// Mknod implements overlay.Volume.
func (v *Volume) Mknod(dir overlay.Inode, name string, mode, rdev uint32, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	return v.createInode(dir, name, newInode{made{mode: mode, rdev: uint64(rdev)}, c})
}

// Mkdir implements overlay.Volume.
func (v *Volume) Mkdir(dir overlay.Inode, name string, mode uint32, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	return v.createInode(dir, name, newInode{made{mode: mode&(unix.S_ISVTX|0o777) | unix.S_IFDIR}, c})
}

// Symlink implements overlay.Volume.
func (v *Volume) Symlink(dir overlay.Inode, name, target string, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	return v.createInode(dir, name, newInode{made{mode: unix.S_IFLNK | 0o777, target: target}, c})
}

func (v *Volume) createInode(dir overlay.Inode, name string, in newInode) (overlay.Inode, overlay.Attr, error) {
	if err := v.enterToChange(); err != nil {
		return nil, overlay.Attr{}, err
	}
	defer v.leave()
	if in.mode&unix.S_IFMT == 0 {
		in.mode |= unix.S_IFREG
	}
	n, a, err := v.create(dir, name, in)
	if err != nil {
		return nil, overlay.Attr{}, err
	}
	return n, a, nil
}

// Create implements overlay.Volume.
func (v *Volume) Create(dir overlay.Inode, name string, flags int, mode uint32, _ bool, c *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	if err := v.enterToChange(); err != nil {
		return nil, nil, overlay.Attr{}, err
	}
	defer v.leave()
	n, a, err := v.create(dir, name, newInode{made{mode: mode&^unix.S_IFMT | unix.S_IFREG}, c})
	if err != nil {
		return nil, nil, overlay.Attr{}, err
	}
	f, err := v.newFile(n, flags&unix.O_ACCMODE != unix.O_RDONLY)
	if err != nil {
		v.Forget(n, 1)
		return nil, nil, overlay.Attr{}, err
	}
	return n, f, a, nil
}

// Tmpfile implements overlay.Volume. The inode has no record until Link gives it a name.
func (v *Volume) Tmpfile(i overlay.Inode, flags int, mode uint32, _ bool, c *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	fail := func(err error) (overlay.Inode, overlay.File, overlay.Attr, error) {
		return nil, nil, overlay.Attr{}, err
	}
	dir, err := v.own(i)
	if err == nil {
		err = v.enterToChange()
	}
	if err != nil {
		return fail(err)
	}
	defer v.leave()
	n, err := v.makeTmpfile(dir, newInode{made{mode: mode&^unix.S_IFMT | unix.S_IFREG}, c})
	if err != nil {
		return fail(err)
	}
	f, err := v.newFile(n, flags&unix.O_ACCMODE != unix.O_RDONLY)
	if err != nil {
		v.Forget(n, 1)
		return fail(err)
	}
	a, err := v.attr(n)
	return n, f, a, err
}

func (v *Volume) makeTmpfile(dir *node, in newInode) (*node, error) {
	v.nameMu.Lock()
	defer v.nameMu.Unlock()
	if err := v.writableDir(dir, ""); err != nil {
		return nil, err
	}
	up, err := v.copyUpDir(dir) // it decides on the owner and the ACL
	if err != nil {
		return nil, err
	}
	e, err := v.make(dir, up, in)
	if err != nil {
		return nil, err
	}
	e.layer, e.nlink = private, 0
	n := &node{num: v.m.cfg.NewNum(), id: checkpoint.ID{Ino: e.pool, Birth: bornHere}, kind: unix.S_IFREG, orphan: &e, tmp: true, lookups: 1}
	v.nodesMu.Lock()
	v.orphans[n] = struct{}{}
	v.nodesMu.Unlock()
	return n, nil
}

// Link implements overlay.Volume.
func (v *Volume) Link(i, to overlay.Inode, name string) (overlay.Attr, error) {
	n, err := v.own(i)
	if err != nil {
		return overlay.Attr{}, err
	}
	dir, err := v.own(to)
	if err == nil {
		err = v.enterToChange()
	}
	if err != nil {
		return overlay.Attr{}, err
	}
	defer v.leave()
	if err := v.link(n, dir, name); err != nil {
		return overlay.Attr{}, err
	}
	return v.attr(n)
}

func (v *Volume) link(n, dir *node, name string) error {
	v.nameMu.Lock()
	defer v.nameMu.Unlock()
	slot := checkpoint.Slot{Dir: dir.id, Name: name}
	if err := v.writableDir(dir, name); err != nil {
		return err
	}
	if n.IsDir() {
		return unix.EPERM
	}
	if err := v.empty(slot); err != nil {
		return err
	}
	up, err := v.copyUpDir(dir)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if v.isDead(n) && !n.tmp {
		return unix.ENOENT
	}
	e, err := v.copyUp(n, metadata)
	if err != nil {
		return err
	}
	e.nlink++
	e.layer = v.layer
	h := checkpoint.LayerSlot{ID: n.id, Type: n.kind}
	err = v.m.store.Update(func(tx *checkpoint.Tx) error {
		if err := tx.PutLayerInode(v.layer, n.id, e.record()); err != nil {
			return err
		}
		return tx.PutLayerSlot(v.layer, slot, h)
	})
	if err != nil {
		return err
	}
	v.m.pool.let(e.pool)
	v.st.mu.Lock()
	v.nodesMu.Lock()
	v.st.inodes[n.id] = e
	v.fillSlot(slot, h)
	if n.orphan != nil {
		n.orphan, n.tmp = nil, false
		delete(v.orphans, n)
		v.nodes[n.id] = n
	}
	n.lookups++
	v.nodesMu.Unlock()
	v.st.mu.Unlock()
	v.bump(e)
	v.touch(up)
	return nil
}
