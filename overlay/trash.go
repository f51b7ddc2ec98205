//go:build linux

package overlay

import (
	"io"
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// The trash holds every inode that the log names and the live tree has no name for, each under its identity. It is a
// directory of the store, so moving something there is a rename.

func (t *Tree) inTrash(id checkpoint.ID) bool {
	var st unix.Stat_t
	return unix.Fstatat(t.trashFd, id.String(), &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Ino == id.Ino
}

// toTrash takes a name away from the live tree. The inode lives on in the trash, once, however many names it loses.
func (t *Tree) toTrash(dirfd int, name string, id checkpoint.ID, dir bool) error {
	t.trashMu.Lock()
	defer t.trashMu.Unlock()
	err := renameNoReplace(dirfd, name, t.trashFd, id.String())
	if err == unix.EACCES && dir {
		err = t.toTrashLifted(dirfd, name, id)
	}
	if err == nil {
		t.tier.saved.add(keptTrash, 0)
	}
	if err != unix.EEXIST {
		return err
	}
	if !t.inTrash(id) {
		t.log.Error("the trash holds something else under this identity", "id", id.String())
		return unix.EIO
	}
	return unix.Unlinkat(dirfd, name, 0)
}

// toTrashLifted moves a directory of ours that we may not write: its ".." changes, which takes that right. Its
// attributes are in the log already.
func (t *Tree) toTrashLifted(dirfd int, name string, id checkpoint.ID) error {
	fd, err := openDirAt(dirfd, name, id.Ino)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return t.lifted(fd, func() error { return renameNoReplace(dirfd, name, t.trashFd, id.String()) })
}

// lifted runs fn while the directory fd can be written by its owner, and gives the first failure as it is.
func (t *Tree) lifted(fd int, fn func() error) error {
	var st unix.Statx_t
	if err := statFd(fd, &st); err != nil {
		return err
	}
	if uint32(st.Mode)&0o700 == 0o700 {
		return unix.EACCES
	}
	t.stir()
	if err := chmodFd(fd, uint32(st.Mode)&0o7777|0o700); err != nil {
		return unix.EACCES
	}
	err := fn()
	if back := chmodFd(fd, uint32(st.Mode)&0o7777); err == nil {
		err = back
	}
	return err
}

// linkToTrash gives an inode that is about to be replaced a second name in the trash, and reports whether it made one.
func (t *Tree) linkToTrash(dirfd int, name string, id checkpoint.ID) (made bool, err error) {
	t.trashMu.Lock()
	defer t.trashMu.Unlock()
	err = unix.Linkat(dirfd, name, t.trashFd, id.String(), 0)
	if err == unix.EEXIST && t.inTrash(id) {
		return false, nil
	}
	return err == nil, err
}

// freeTrash deletes what the trash holds of an inode, if no record names it any more.
func (t *Tree) freeTrash(id checkpoint.ID) (freed bool, bytes int64, err error) {
	t.stir() // deleting one of several names changes an inode
	t.trashMu.Lock()
	defer t.trashMu.Unlock()
	var named bool
	err = t.store.View(func(tx *checkpoint.Tx) error { named, err = tx.Named(id); return err })
	if err != nil || named {
		return false, 0, err
	}
	var st unix.Statx_t
	if err := statAt(t.trashFd, id.String(), &st); err != nil {
		return false, 0, nil
	}
	if t.idOf(&st).Ino != id.Ino {
		return false, 0, nil
	}
	r := reaper{t: t, named: func(id checkpoint.ID) (named bool, err error) {
		err = t.store.View(func(tx *checkpoint.Tx) error { named, err = tx.Named(id); return err })
		return named, err
	}}
	bytes, err = r.remove(t.trashFd, id.String(), &st)
	return err == nil, bytes, err
}

// untrashed notes that an inode lost its name in the trash to another one.
func (t *Tree) untrashed(id checkpoint.ID) {
	t.nodesMu.Lock()
	defer t.nodesMu.Unlock()
	if n := t.nodes[id]; n != nil {
		n.trashed = false
	}
}

// reaper deletes trees of the store. What a record names is not deleted with the directory that it is in: it gets a
// place of its own in the trash. The caller holds trashMu, or Tree.mu alone.
type reaper struct {
	t     *Tree
	named func(checkpoint.ID) (bool, error)
}

// remove deletes a tree, whatever names its root, and gives how many bytes it freed. Directories that their owner may
// not change are lifted.
func (r *reaper) remove(dirfd int, name string, st *unix.Statx_t) (int64, error) {
	id := r.t.idOf(st)
	if !isDir(st) {
		var bytes int64
		if st.Nlink == 1 {
			bytes = int64(st.Blocks) * 512
		}
		if err := r.t.keepOpenAt(dirfd, name, st); err != nil {
			return 0, err
		}
		if err := unix.Unlinkat(dirfd, name, 0); err != nil {
			return 0, err
		}
		r.t.reaped(id, dirfd == r.t.trashFd, st.Nlink == 1)
		return bytes, nil
	}
	fd, err := openToEmpty(dirfd, name, st)
	if err != nil {
		return 0, err
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	bytes, err := r.empty(d)
	if err != nil {
		return bytes, err
	}
	r.t.reaped(id, true, true)
	return bytes, unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
}

func (r *reaper) empty(d *os.File) (int64, error) {
	var bytes int64
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			b, err := r.removeEntry(int(d.Fd()), name)
			bytes += b
			if err != nil {
				return bytes, err
			}
		}
		if err == io.EOF || err == nil && len(names) == 0 {
			return bytes, nil
		}
		if err != nil {
			return bytes, err
		}
	}
}

func (r *reaper) removeEntry(dirfd int, name string) (int64, error) {
	var st unix.Statx_t
	if err := statAt(dirfd, name, &st); err != nil {
		return 0, err
	}
	id := r.t.idOf(&st)
	named, err := r.named(id)
	if err != nil {
		return 0, err
	}
	if !named {
		return r.remove(dirfd, name, &st)
	}
	err = renameNoReplace(dirfd, name, r.t.trashFd, id.String())
	if err == unix.EACCES && isDir(&st) {
		err = r.t.toTrashLifted(dirfd, name, id)
	}
	if err == unix.EEXIST {
		return 0, unix.Unlinkat(dirfd, name, 0)
	}
	if err == nil {
		r.t.rescued(id)
	}
	return 0, err
}

// openToEmpty opens a directory so that its entries can be deleted.
func openToEmpty(dirfd int, name string, st *unix.Statx_t) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if uint32(st.Mode)&0o700 != 0o700 {
		fd, err := unix.Openat(dirfd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		defer unix.Close(fd)
		if err := chmodFd(fd, 0o700); err != nil {
			return -1, err
		}
	}
	return unix.Openat(dirfd, name, flags, 0)
}

// reaped notes that a name of an inode was deleted from the trash, or from a directory in there; last says that it was
// the last one.
func (t *Tree) reaped(id checkpoint.ID, inTrash, last bool) {
	t.nodesMu.Lock()
	defer t.nodesMu.Unlock()
	n := t.nodes[id]
	if n == nil {
		return
	}
	if inTrash {
		n.trashed = false
	}
	if last {
		t.nameless(n)
		n.dead = true
		delete(t.nodes, id)
	}
}

// rescued notes that an inode has no name any more but one of its own in the trash.
func (t *Tree) rescued(id checkpoint.ID) {
	t.nodesMu.Lock()
	defer t.nodesMu.Unlock()
	if n := t.nodes[id]; n != nil {
		n.trashed = true
		if n.dir {
			t.nameless(n)
		}
	}
}

// nameless takes all names from a node. The caller holds nodesMu.
func (t *Tree) nameless(n *Node) {
	n.pins++
	for n.parent != nil {
		t.removeName(n, n.parent, n.name)
	}
	n.pins--
}

// eachName calls fn for every name in a directory of the store.
func eachName(dirfd int, fn func(name string) error) error {
	fd, err := unix.Openat(dirfd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), "directory")
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			if err := fn(name); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
