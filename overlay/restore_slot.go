//go:build linux

package overlay

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// touch notes that an inode changes how many names it has.
func (r *restorer) touch(id checkpoint.ID) {
	if n := r.t.known(id); n != nil && !n.dir {
		r.t.pin(n)
		r.view.pinned = append(r.view.pinned, n)
		r.touched = append(r.touched, n)
	}
}

func (r *restorer) forget(dir *Node, name string) {
	r.entries = append(r.entries, link{dir, name})
	r.touched = append(r.touched, dir)
}

// inDir runs fn with a directory open, and once more with its mode lifted where its owner may not write to it.
func (r *restorer) inDir(n *Node, fn func(fd int) error) error {
	d, err := r.t.openDirRef(n)
	if err != nil {
		return err
	}
	defer d.done()
	err = fn(d.fd)
	if err != unix.EACCES {
		return err
	}
	if err := r.lift(n, d.fd); err != nil {
		return unix.EACCES
	}
	return fn(d.fd)
}

// lift lets the owner of a directory change it. Its mode comes back with its attributes, or at the end.
func (r *restorer) lift(n *Node, fd int) error {
	var st unix.Statx_t
	if err := statFd(fd, &st); err != nil {
		return err
	}
	id := r.t.identity(n)
	if _, ok := r.lifted[id]; !ok {
		r.lifted[id] = uint32(st.Mode) & 0o7777
	}
	return chmodFd(fd, uint32(st.Mode)&0o7777|0o700)
}

// lower gives directories their mode back whose attributes were not restored.
func (r *restorer) lower() error {
	r.t.stir()
	for id, mode := range r.lifted {
		if r.restored[id] {
			continue
		}
		n, err := r.view.find(id)
		if err != nil || n == nil {
			return err
		}
		d, err := r.t.openDirRef(n)
		if err != nil {
			return err
		}
		err = chmodFd(d.fd, mode)
		d.done()
		if err != nil {
			return err
		}
	}
	return nil
}

// moveAside empties a slot: what it holds goes to the trash, where the undo finds it, or whoever wants it. A directory that can't be moved is removed: what
// it held was moved before, and what it was like is recorded.
func (r *restorer) moveAside(c *slotChange) error {
	if c.held.ID.IsZero() {
		return nil
	}
	r.t.stir()
	dir := c.held.Mode&unix.S_IFMT == unix.S_IFDIR
	removed := false
	var st unix.Statx_t
	err := r.inDir(c.dir, func(fd int) error {
		if err := statAt(fd, c.slot.Name, &st); err != nil || r.t.idOf(&st) != c.held.ID {
			if err == unix.ENOENT {
				return nil
			}
			return err
		}
		err := r.t.toTrash(fd, c.slot.Name, c.held.ID, dir)
		if removed = err == unix.EXDEV && dir && !r.t.canMoveDirs; removed {
			err = unix.Unlinkat(fd, c.slot.Name, unix.AT_REMOVEDIR)
		}
		return err
	})
	if err != nil {
		return err
	}
	r.touch(c.held.ID)
	if removed {
		r.t.tookAway(c.held.ID, c.dir, c.slot.Name, &st, false)
		r.view.lost(c.held.ID)
		delete(r.lifted, c.held.ID)
	} else {
		r.t.moved(c.held.ID, c.dir, c.slot.Name, nil, "", true, false)
	}
	r.forget(c.dir, c.slot.Name)
	if c.want.ID.IsZero() {
		r.result.Removed++
	}
	return nil
}

// put fills a slot with what it held. left counts the slots that still want each inode: the last one gets the name from the
// trash, the others a link.
func (r *restorer) put(c *slotChange, left map[checkpoint.ID]int) error {
	r.t.stir()
	id := c.want.ID
	if id.IsZero() {
		return nil
	}
	left[id]--
	err := r.inDir(c.dir, func(fd int) error { return r.putAt(fd, c, left[id] == 0) })
	if err != nil {
		return err
	}
	r.touch(id)
	r.t.moved(id, nil, "", c.dir, c.slot.Name, false, false)
	r.forget(c.dir, c.slot.Name)
	r.result.Restored++
	return nil
}

func (r *restorer) putAt(fd int, c *slotChange, last bool) error {
	id := c.want.ID
	var st unix.Statx_t
	if err := statAt(fd, c.slot.Name, &st); err == nil && r.t.idOf(&st) == id {
		return nil
	}
	if r.t.inTrash(id) {
		if !last {
			return unix.Linkat(r.t.trashFd, id.String(), fd, c.slot.Name, 0)
		}
		if err := r.outOfTrash(fd, c); err != nil {
			return err
		}
		r.t.untrashed(id)
		return nil
	}
	n, err := r.view.find(id)
	if err != nil {
		return err
	}
	if n == nil || n.dir {
		return unix.ENOENT
	}
	from, err := r.t.reach(n)
	if err != nil {
		return err
	}
	defer from.done()
	return unix.Linkat(unix.AT_FDCWD, procPath(from.fd), fd, c.slot.Name, unix.AT_SYMLINK_FOLLOW)
}

func (r *restorer) outOfTrash(fd int, c *slotChange) error {
	name := c.want.ID.String()
	err := renameNoReplace(r.t.trashFd, name, fd, c.slot.Name)
	if err == unix.EEXIST { // another link of it stands there since the last attempt
		return unix.Unlinkat(r.t.trashFd, name, 0)
	}
	if err != unix.EACCES || c.want.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}
	dir, err := openDirAt(r.t.trashFd, name, c.want.ID.Ino)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return r.t.lifted(dir, func() error { return renameNoReplace(r.t.trashFd, name, fd, c.slot.Name) })
}
