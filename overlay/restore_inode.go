//go:build linux

package overlay

import (
	"os"
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"golang.org/x/sys/unix"
)

// restoreInodes puts contents and attributes back, those of directories last.
func (r *restorer) restoreInodes() error {
	var replaced, inPlace, dirs []*inodeRestore
	for _, i := range r.plan.inodes {
		r.result.Modified++
		r.restored[i.id] = true
		r.touched = append(r.touched, i.node)
		switch {
		case i.node.dir:
			dirs = append(dirs, i)
		case i.content != nil && i.replace:
			replaced = append(replaced, i)
		default:
			inPlace = append(inPlace, i)
		}
	}
	if err := r.eachInode(inTurn, replaced, r.replaceInode); err != nil {
		return err
	}
	if err := r.eachInode(r.apart(), inPlace, r.restoreInode); err != nil {
		return err
	}
	return r.eachInode(inTurn, dirs, r.restoreInode)
}

// eachFunc calls fn for each of a list.
type eachFunc func(list []*inodeRestore, fn func(*inodeRestore) error) error

// apart is for work that changes nothing but the one inode.
func (r *restorer) apart() eachFunc {
	if r.t.mayLift {
		return inTurn // two that lift the mode of one directory would mistake the lifted one for its own
	}
	return inParallel
}

// eachInode calls fn for each of a list in the given way, and says which file an error is about.
func (r *restorer) eachInode(each eachFunc, list []*inodeRestore, fn func(*inodeRestore) error) error {
	var mu sync.Mutex // failed is not for many goroutines
	return each(list, func(i *inodeRestore) error {
		err := fn(i)
		if err == nil {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		return r.failed(i.slot, err)
	})
}

// restoreInode puts back what is restored in place. Many goroutines may call it, each for another inode.
func (r *restorer) restoreInode(i *inodeRestore) error {
	r.t.stir()
	if i.content != nil {
		if err := r.restoreInPlace(i); err != nil {
			return err
		}
	}
	ref, err := r.t.reach(i.node)
	if err != nil {
		return err
	}
	defer ref.done()
	i.node.defACL.Store(0)
	i.node.xattrIn.Store(0)
	defer crash.Point("rollback-inode")
	return r.restoreAttr(ref.fd, i)
}

func (r *restorer) restoreAttr(fd int, i *inodeRestore) error {
	if err := applyOwnerAndMode(fd, i.attr); err != nil {
		return err
	}
	if i.hasX {
		if err := applyXattrs(procPath(fd), i.xattrs); err != nil {
			return err
		}
		if err := applyOwnerAndMode(fd, i.attr); err != nil { // an ACL changes the mode
			return err
		}
	}
	return setMtime(fd, i.attr.Mtime)
}

// stageAll makes everything ready that replaces an inode. Nothing in the workspace is changed by that, so it can be done in parallel.
func (r *restorer) stageAll() error {
	r.oldestPin, r.pinned = r.w.oldestPin() // nothing can be pinned until the rollback is done
	var list []*inodeRestore
	for _, i := range r.plan.inodes {
		if i.content == nil || !i.replace {
			continue
		}
		var err error
		if i.dir, err = r.view.find(i.slot.Dir); err != nil {
			return r.failed(i.slot, err)
		}
		list = append(list, i)
	}
	if err := r.eachInode(r.apart(), list, r.stage); err != nil || len(list) == 0 {
		return err
	}
	return r.recordStaged(list)
}

// recordStaged notes what will stand in whose place. The preimages may be gone when all of it does: whoever finishes this rollback
// after a death must not take it away again.
func (r *restorer) recordStaged(list []*inodeRestore) error {
	b := r.w.store.NewBatch()
	defer b.Cancel()
	for _, i := range list {
		var st unix.Statx_t
		if err := statAt(r.t.tmpFd, i.staged, &st); err != nil {
			return r.failed(i.slot, err)
		}
		if err := b.PutReplaced(r.intent.Epoch, i.id, r.t.idOf(&st)); err != nil {
			return err
		}
	}
	return b.Flush()
}

// stage makes another inode with the old content: no content is copied where the tier can give its own file away. Many goroutines
// may call it.
func (r *restorer) stage(i *inodeRestore) error {
	xs := i.xattrs
	if !i.hasX {
		var err error
		if xs, err = r.xattrsNow(i.dir, i); err != nil {
			return err
		}
	}
	name := r.t.tempName()
	// A preimage without a checksum is recognised by its mtime, which the workspace's file gets another one of; RAM is another
	// filesystem, and may fail to free it.
	i.share = len(i.content.Parts) == 0 && i.content.Ref.HasSum && !i.content.Ref.Tier.Volatile() && !r.neededElsewhere(i)
	if err := r.t.tier.materializeContent(*i.content, r.t.tmpFd, name, i.share); err != nil {
		return err
	}
	if err := r.dress(name, i, xs); err != nil {
		_ = unix.Unlinkat(r.t.tmpFd, name, 0)
		return err
	}
	i.staged = name
	return nil
}

// replaceInode puts what was staged in the place of the inode that was written to, which goes to the trash for the undo.
func (r *restorer) replaceInode(i *inodeRestore) error {
	r.t.stir()
	err := r.inDir(i.dir, func(fd int) error {
		if _, err := r.t.linkToTrash(fd, i.slot.Name, i.id); err != nil {
			if err := r.t.toTrash(fd, i.slot.Name, i.id, false); err != nil {
				return err
			}
		}
		return unix.Renameat(r.t.tmpFd, i.staged, fd, i.slot.Name)
	})
	if err != nil {
		return err
	}
	r.replaced++
	if i.share {
		r.shared = append(r.shared, i)
	}
	r.t.moved(i.id, i.dir, i.slot.Name, nil, "", true, false)
	r.forget(i.dir, i.slot.Name)
	crash.Point("rollback-inode")
	return nil
}

// xattrsNow gives the extended attributes of a regular file that is in its slot, without opening it where that can be.
func (r *restorer) xattrsNow(dir *Node, i *inodeRestore) ([]checkpoint.Xattr, error) {
	d, err := r.t.openDirRef(dir)
	if err != nil {
		return nil, err
	}
	defer d.done()
	xs, err := xattrsOf(procPath(d.fd) + "/" + i.slot.Name)
	if err == unix.EACCES {
		return r.t.readXattrs(i.node)
	}
	return xs, err
}

// dress gives a staged file the attributes of the one that it stands in for.
func (r *restorer) dress(name string, i *inodeRestore, xs []checkpoint.Xattr) error {
	if len(xs) == 0 {
		return r.dressPlainly(name, i.attr)
	}
	fd, err := unix.Openat(r.t.tmpFd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	i.hasX, i.xattrs = true, xs
	return r.restoreAttr(fd, i)
}

// dressPlainly is dress for a file without extended attributes, which need not be opened.
func (r *restorer) dressPlainly(name string, a checkpoint.Attr) error {
	tmp := r.t.tmpFd
	if err := applyXattrs(procPath(tmp)+"/"+name, nil); err != nil {
		return err
	}
	var st unix.Statx_t
	if err := statAt(tmp, name, &st); err != nil {
		return err
	}
	if st.Uid != a.UID || st.Gid != a.GID {
		if err := unix.Fchownat(tmp, name, int(a.UID), int(a.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if err := unix.Fchmodat(tmp, name, a.Mode&0o7777, 0); err != nil {
		return err
	}
	return unix.UtimesNanoAt(tmp, name, mtimeOnly(a.Mtime), unix.AT_SYMLINK_NOFOLLOW)
}

// neededElsewhere reports whether another checkpoint, a pin or an open state may want the preimage again. What an earlier rollback could be undone
// by is given up by this one.
func (r *restorer) neededElsewhere(i *inodeRestore) bool {
	saved := r.view.fold.Saved[i.id]
	if r.pinned && r.oldestPin <= saved {
		return true
	}
	r.w.list.RLock()
	defer r.w.list.RUnlock()
	for id, c := range r.w.checkpoints {
		if id != r.intent.Target && c.CreatedBy != "rollback" && c.Status == checkpoint.Active && c.Epoch <= saved {
			return true
		}
	}
	return false
}

// restoreInPlace writes the content back into the inode: it has several names, or somebody has it open, or it was kept block by block.
func (r *restorer) restoreInPlace(i *inodeRestore) error {
	fd, err := r.openForRestore(i.node)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "restored")
	defer f.Close()
	defer crash.Point("content-restored")
	return r.t.tier.restoreContent(*i.content, f)
}

func (r *restorer) openForRestore(n *Node) (int, error) {
	fd, err := r.t.openNode(n, unix.O_RDWR|unix.O_NONBLOCK)
	if err != unix.EACCES && err != unix.EPERM {
		return fd, err
	}
	ref, err := r.t.reach(n)
	if err != nil {
		return -1, err
	}
	defer ref.done()
	if err := chmodFd(ref.fd, 0o600); err != nil {
		return -1, err
	}
	return unix.Open(procPath(ref.fd), unix.O_RDWR|unix.O_CLOEXEC, 0) // its mode comes back with its attributes
}

// forgetShared deletes the records of preimages whose files are in the workspace now. No checkpoint needs them any more.
func (r *restorer) forgetShared(b interface {
	DeleteContent(checkpoint.Epoch, checkpoint.ID) error
}) error {
	for _, s := range r.shared {
		if err := b.DeleteContent(r.view.fold.Saved[s.id], s.id); err != nil {
			return err
		}
	}
	return nil
}

// forgetManyShared is forgetShared for any number of them.
func (r *restorer) forgetManyShared() error {
	b := r.w.store.NewBatch()
	defer b.Cancel()
	if err := r.forgetShared(b); err != nil {
		return err
	}
	return b.Flush()
}

// removeShared takes the tier's name away from files that are in the workspace now: a write there must not reach a preimage. Their
// records are gone.
func (r *restorer) removeShared() error {
	return inParallel(r.shared, func(s *inodeRestore) error { return r.t.tier.remove(s.content.Ref) })
}

// restoreDirTimes puts the modification times of directories back that only the rollback itself has changed: by replacing
// a file in them, or by moving them.
func (r *restorer) restoreDirTimes() error {
	if !r.dirsMoved && r.replaced == 0 && !r.resumed {
		return nil
	}
	own, err := r.w.store.Fold(r.intent.Epoch, r.intent.Epoch+1)
	if err != nil {
		return err
	}
	for id, a := range own.Attrs {
		if r.restored[id] || a.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		r.t.stir()
		n, err := r.view.find(id)
		if err != nil {
			return err
		}
		if n == nil {
			continue
		}
		d, err := r.t.openDirRef(n)
		if err != nil {
			return err
		}
		err = setMtime(d.fd, a.Mtime)
		d.done()
		if err != nil {
			return err
		}
	}
	return nil
}

func applyOwnerAndMode(fd int, a checkpoint.Attr) error {
	var st unix.Statx_t
	if err := statFd(fd, &st); err != nil {
		return err
	}
	if st.Uid != a.UID || st.Gid != a.GID {
		if err := unix.Fchownat(fd, "", int(a.UID), int(a.GID), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
		if err := statFd(fd, &st); err != nil {
			return err
		}
	}
	if a.Mode&unix.S_IFMT == unix.S_IFLNK || uint32(st.Mode)&0o7777 == a.Mode&0o7777 {
		return nil
	}
	return chmodFd(fd, a.Mode&0o7777)
}
