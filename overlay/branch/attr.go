//go:build linux

package branch

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// nameMax is NAME_MAX of the filesystems that main is on.
const nameMax = 255

func checkName(name string) error {
	if len(name) > nameMax {
		return unix.ENAMETOOLONG
	}
	return nil
}

// hidden reports whether a name is the store's, which no tree shows.
func (v *Volume) hidden(dir *node, name string) bool {
	return dir == v.root && name == overlay.StoreName
}

// Lookup implements overlay.Volume.
func (v *Volume) Lookup(dir overlay.Inode, name string) (overlay.Inode, overlay.Attr, error) {
	d, err := v.own(dir)
	if err == nil {
		err = checkName(name)
	}
	if err == nil {
		err = v.enter()
	}
	if err != nil {
		return nil, overlay.Attr{}, err
	}
	defer v.leave()
	n, err := v.find(d, name, true)
	if err != nil {
		return nil, overlay.Attr{}, err
	}
	a, err := v.attr(n)
	if err != nil {
		v.Forget(n, 1)
		return nil, overlay.Attr{}, err
	}
	return n, a, nil
}

// find gives the node of what a directory has under a name, with a reference for the kernel or pinned.
func (v *Volume) find(dir *node, name string, lookup bool) (*node, error) {
	if v.hidden(dir, name) {
		return nil, unix.ENOENT
	}
	v.st.mu.RLock() // until the node is there: who takes names away turns nodes into orphans
	defer v.st.mu.RUnlock()
	if dir.orphan != nil {
		return nil, unix.ENOENT
	}
	if !dir.IsDir() {
		return nil, unix.ENOTDIR
	}
	h, err := v.st.lookup(checkpoint.Slot{Dir: dir.id, Name: name})
	if err != nil {
		return nil, err
	}
	return v.intern(dir, h, lookup), nil
}

// GetAttr implements overlay.Volume. An open file has no attributes of its own.
func (v *Volume) GetAttr(i overlay.Inode, _ overlay.File) (overlay.Attr, error) {
	n, err := v.own(i)
	if err == nil {
		err = v.enter()
	}
	if err != nil {
		return overlay.Attr{}, err
	}
	defer v.leave()
	return v.attr(n)
}

// attr gives the attributes of an inode.
func (v *Volume) attr(n *node) (a overlay.Attr, err error) {
	err = v.settled(n, func(e inode) (err error) { a, err = v.attrOf(n, e); return err })
	if err == unix.ENOENT {
		v.st.mu.RLock()
		if n.last != nil {
			a, err = *n.last, nil
		}
		v.st.mu.RUnlock()
	}
	a.Ino = v.ino(n.id)
	if v.isDead(n) {
		a.Nlink = 0
	}
	return a, err
}

func (v *Volume) attrOf(n *node, e inode) (overlay.Attr, error) { return v.st.attr(v.m.pool, n.id, e) }

// attr gives the attributes that an inode has in the state. The inode number is left to the volume.
func (s *state) attr(p *pool, id checkpoint.ID, e inode) (overlay.Attr, error) {
	if e.pool == 0 {
		return s.base.Attr(id)
	}
	a, err := p.stat(e.pool)
	if err != nil {
		return a, err
	}
	if e.owner.Set {
		a.UID, a.GID = e.owner.UID, e.owner.GID
	}
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		a.Nlink = 1
		return a, nil
	case unix.S_IFREG:
		if a.Blocks, err = s.blocks(p, id, e, a.Blocks); err != nil {
			return a, err
		}
	}
	a.Nlink = e.nlink
	return a, nil
}

// blocks gives the room that a content takes: programs take a file without any for one hole.
func (s *state) blocks(p *pool, id checkpoint.ID, e inode, own int64) (int64, error) {
	if e.data == e.pool {
		return own, nil
	}
	var a overlay.Attr
	var err error
	if e.data == 0 {
		a, err = s.base.Attr(id)
	} else {
		a, err = p.stat(e.data)
	}
	return a.Blocks, err
}

// Readlink implements overlay.Volume.
func (v *Volume) Readlink(i overlay.Inode) (target string, err error) {
	n, err := v.own(i)
	if err == nil {
		err = v.enter()
	}
	if err != nil {
		return "", err
	}
	defer v.leave()
	err = v.settled(n, func(e inode) (err error) { target, err = v.st.readlink(v.m.pool, n.id, e); return err })
	return target, err
}

func (s *state) readlink(p *pool, id checkpoint.ID, e inode) (string, error) {
	if e.pool == 0 {
		return s.base.Readlink(id)
	}
	return p.readlink(e.pool)
}

// SetAttr implements overlay.Volume.
func (v *Volume) SetAttr(i overlay.Inode, f overlay.File, in *overlay.SetAttr) (overlay.Attr, error) {
	n, err := v.own(i)
	if err == nil {
		err = v.enterToChange()
	}
	if err != nil {
		return overlay.Attr{}, err
	}
	defer v.leave()
	if err := v.setAttr(n, f, in); err != nil {
		return overlay.Attr{}, err
	}
	return v.attr(n)
}

func (v *Volume) setAttr(n *node, f overlay.File, in *overlay.SetAttr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if in.Valid&overlay.SetSize != 0 {
		of, ok := f.(*file)
		if err := v.truncate(n, in.Size, ok && of.write); err != nil {
			return err
		}
	}
	e, err := v.copyUp(n, metadata)
	if err != nil {
		return err
	}
	if in.Valid&(overlay.SetUID|overlay.SetGID) != 0 {
		if err := v.chown(n, e, in); err != nil {
			return err
		}
	}
	return v.m.pool.apply(e.pool, in)
}

// chown changes the owner. One that only the record has can stay or be given up, and nobody gets it: no more than what main allows. The caller holds n.mu.
func (v *Volume) chown(n *node, e inode, in *overlay.SetAttr) error {
	want := e.owner
	uid, gid := -1, -1
	if in.Valid&overlay.SetUID != 0 {
		uid, want.UID = int(in.UID), in.UID
	}
	if in.Valid&overlay.SetGID != 0 {
		gid, want.GID = int(in.GID), in.GID
	}
	switch {
	case !e.owner.Set:
		return v.m.pool.setOwner(e.pool, uid, gid)
	case want == e.owner:
		return v.m.pool.setOwner(e.pool, -1, -1)
	}
	if err := v.m.pool.setOwner(e.pool, int(want.UID), int(want.GID)); err != nil {
		return err
	}
	e.owner = checkpoint.LayerOwner{}
	return v.recordInode(n, e)
}

// truncate sets the size. stamp says that the modification time changes also where the size does not: so it is with ftruncate(2) and with O_TRUNC,
// but not with truncate(2). The caller holds n.mu.
func (v *Volume) truncate(n *node, size int64, stamp bool) error {
	switch {
	case n.IsDir():
		return unix.EISDIR
	case !n.isRegular() || size < 0:
		return unix.EINVAL
	}
	before, err := v.attr(n)
	if err != nil {
		return err
	}
	what := whole
	if size == 0 {
		what = nothing
	}
	e, err := v.copyUp(n, what)
	if err != nil {
		return err
	}
	if err := ignoringEINTR(func() error { return unix.Truncate(v.m.pool.path(e.pool), size) }); err != nil {
		if err != unix.EACCES {
			return err
		}
		if err := v.m.pool.lifted(e.pool, func() error { return unix.Truncate(v.m.pool.path(e.pool), size) }); err != nil {
			return err
		}
	}
	if stamp || before.Size != size { // what was copied up as empty does not change any more
		return v.m.pool.touch(e.pool)
	}
	return nil
}

func ignoringEINTR(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}

// apply changes all but the size and the owner of an inode.
func (p *pool) apply(n uint64, in *overlay.SetAttr) error {
	if in.Valid&overlay.SetMode != 0 {
		if err := p.chmod(n, in.Mode); err != nil {
			return err
		}
	}
	if in.Valid&overlay.SetKillPriv != 0 {
		if err := p.killPriv(n); err != nil {
			return err
		}
	}
	if in.Valid&(overlay.SetAtime|overlay.SetMtime|overlay.SetAtimeNow|overlay.SetMtimeNow) != 0 {
		return p.changeTimes(n, in)
	}
	return nil
}

// chmod is what a program asked for, so it is refused for a symlink.
func (p *pool) chmod(n uint64, mode uint32) error {
	a, err := p.stat(n)
	if err != nil {
		return err
	}
	if a.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.EOPNOTSUPP
	}
	return p.setMode(n, mode)
}

func (p *pool) killPriv(n uint64) error {
	a, err := p.stat(n)
	if err != nil {
		return err
	}
	keep := a.Mode &^ unix.S_ISUID
	if a.Mode&unix.S_IXGRP != 0 {
		keep &^= unix.S_ISGID
	}
	if keep == a.Mode {
		return nil
	}
	return p.setMode(n, keep)
}

func (p *pool) changeTimes(n uint64, in *overlay.SetAttr) error {
	atime, mtime := unix.Timespec{Nsec: unix.UTIME_OMIT}, unix.Timespec{Nsec: unix.UTIME_OMIT}
	switch {
	case in.Valid&overlay.SetAtimeNow != 0:
		atime.Nsec = unix.UTIME_NOW
	case in.Valid&overlay.SetAtime != 0:
		atime = in.Atime
	}
	switch {
	case in.Valid&overlay.SetMtimeNow != 0:
		mtime.Nsec = unix.UTIME_NOW
	case in.Valid&overlay.SetMtime != 0:
		mtime = in.Mtime
	}
	return p.setTimes(n, atime, mtime)
}
