//go:build linux

package overlay

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"golang.org/x/sys/unix"
)

// side is one end of a rename.
type side struct {
	dir  *Node
	name string
	fd   int
	st   unix.Statx_t
	some bool // the slot holds something
}

func (t *Tree) sideOf(dir *Node, name string) (side, dirRef, error) {
	s := side{dir: dir, name: name}
	if err := t.writable(dir, name); err != nil {
		return s, dirRef{}, err
	}
	ref, err := t.openDirRef(dir)
	if err != nil {
		return s, ref, err
	}
	s.fd = ref.fd
	err = statAt(ref.fd, name, &s.st)
	s.some = err == nil
	if err == unix.ENOENT {
		err = nil
	}
	if err == nil && s.some && t.isForeign(&s.st) {
		err = unix.EXDEV
	}
	if err == nil && s.some {
		err = t.copyUp(dir, ref.fd, name, &s.st)
	}
	if err != nil {
		ref.done()
	}
	return s, ref, err
}

// Rename moves an inode from one slot to another. flags are those of renameat2(2): RENAME_NOREPLACE and
// RENAME_EXCHANGE.
func (t *Tree) Rename(oldDir *Node, oldName string, newDir *Node, newName string, flags uint32) error {
	if flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return unix.EINVAL
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	t.renameMu.Lock()
	defer t.renameMu.Unlock()
	oldDir.mu.Lock()
	defer oldDir.mu.Unlock()
	if newDir != oldDir {
		newDir.mu.Lock()
		defer newDir.mu.Unlock()
	}
	from, fromRef, err := t.sideOf(oldDir, oldName)
	if err != nil {
		return err
	}
	defer fromRef.done()
	to, toRef, err := t.sideOf(newDir, newName)
	if err != nil {
		return err
	}
	defer toRef.done()
	if !from.some {
		return unix.ENOENT
	}
	if err := t.mayRename(&from, &to, flags); err != nil {
		return err
	}
	if flags&unix.RENAME_EXCHANGE != 0 {
		return t.exchange(&from, &to, flags)
	}
	if to.some && flags&unix.RENAME_NOREPLACE != 0 {
		return unix.EEXIST
	}
	if to.some && from.st.Ino == to.st.Ino { // two names of one inode: rename(2) does nothing
		return nil
	}
	return t.renameOver(&from, &to, flags)
}

// mayRename fails with EROFS where strict mode stops it.
func (t *Tree) mayRename(from, to *side, flags uint32) error {
	if t.ignore == nil {
		return nil
	}
	is := isDir(&from.st)
	for _, s := range []*side{from, to} {
		if err := t.mayChange(s.dir, s.name, is, "rename"); err != nil {
			return err
		}
	}
	if flags&unix.RENAME_EXCHANGE == 0 || !to.some || isDir(&to.st) == is {
		return nil
	}
	for _, s := range []*side{from, to} { // a directory and something else: each slot gets the other type
		if err := t.mayChange(s.dir, s.name, !is, "rename"); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) exchange(from, to *side, flags uint32) error {
	if !to.some {
		return unix.ENOENT
	}
	fromID, toID := t.idOf(&from.st), t.idOf(&to.st)
	if t.protecting {
		err := t.record(func(l *logTx) error {
			for _, s := range [][2]*side{{from, to}, {to, from}} {
				isNew, err := t.isNewAt(l, s[0].dir, s[0].name, &s[0].st)
				if err != nil {
					return err
				}
				if err := t.recordMovedDir(l, isNew, s[0], s[1]); err != nil {
					return err
				}
				if err := t.recordMovedFile(l, isNew, s[0], s[1]); err != nil {
					return err
				}
				if err := t.recordExile(l, isNew, &s[0].st, s[1].dir, s[1].name); err != nil {
					return err
				}
			}
			if err := t.recordBothSlots(l, from, to, true); err != nil {
				return err
			}
			if err := t.recordMove(l, toID, to.dir, to.name, from.dir, from.name); err != nil {
				return err
			}
			return t.recordMove(l, fromID, from.dir, from.name, to.dir, to.name)
		})
		if err != nil {
			return err
		}
	}
	if err := unix.Renameat2(from.fd, from.name, to.fd, to.name, uint(flags)); err != nil {
		return err
	}
	if fromID != toID {
		t.moved(fromID, from.dir, from.name, to.dir, to.name, false, false)
		t.moved(toID, to.dir, to.name, from.dir, from.name, false, false)
	}
	t.movedDirs(from, to)
	return nil
}

// renameOver moves from to to, which may hold something. If that is old, it stays in the trash: a file by a link made
// before it is replaced, so that the new name never is without either of the two.
func (t *Tree) renameOver(from, to *side, flags uint32) error {
	keep, err := t.protectRename(from, to)
	if err != nil {
		return err
	}
	crash.Point("rename-recorded")
	toID := t.idOf(&to.st)
	switch {
	case keep && isDir(&to.st):
		err = t.replaceDir(from, to)
	case keep:
		err = t.replaceFile(from, to)
	default:
		if to.some {
			err = t.keepOpenAt(to.fd, to.name, &to.st)
		}
		if err == nil {
			err = unix.Renameat2(from.fd, from.name, to.fd, to.name, uint(flags))
		}
	}
	if err != nil {
		return err
	}
	if to.some {
		t.tookAway(toID, to.dir, to.name, &to.st, keep)
	}
	t.moved(t.idOf(&from.st), from.dir, from.name, to.dir, to.name, false, false)
	t.movedDirs(from, to)
	return nil
}

// protectRename records both slots and where the inode can be found, and reports whether what is replaced must be kept.
func (t *Tree) protectRename(from, to *side) (keep bool, err error) {
	if !t.protecting {
		return false, nil
	}
	if to.some && isDir(&to.st) {
		if !isDir(&from.st) {
			return false, unix.EISDIR
		}
		if err := emptyDir(to.fd, to.name); err == unix.ENOTEMPTY {
			return false, t.renameOverFull
		} else if err != nil {
			return false, err
		}
	} else if to.some && isDir(&from.st) {
		return false, unix.ENOTDIR
	}
	err = t.record(func(l *logTx) error {
		id := t.idOf(&from.st)
		isNew, err := t.isNewAt(l, from.dir, from.name, &from.st)
		if err != nil {
			return err
		}
		if to.some {
			if keep, err = t.keepsReplaced(l, to); err != nil {
				return err
			}
		}
		if err := t.recordBothSlots(l, from, to, false); err != nil {
			return err
		}
		if isNew && !isDir(&from.st) {
			return nil
		}
		if unseen, err := t.movesUnseen(l, isNew, from, to); err != nil || unseen {
			return err
		}
		if err := t.recordExile(l, isNew, &from.st, to.dir, to.name); err != nil {
			return err
		}
		if err := t.recordMovedDir(l, isNew, from, to); err != nil {
			return err
		}
		if err := t.recordMovedFile(l, isNew, from, to); err != nil {
			return err
		}
		return t.recordMove(l, id, from.dir, from.name, to.dir, to.name)
	})
	return keep && (t.canMoveDirs || !isDir(&to.st)), err
}

// recordMovedDir notes the attributes of an old directory that goes to another parent: that rewrites its "..", which
// changes its modification time on some filesystems (XFS).
func (t *Tree) recordMovedDir(l *logTx, isNew bool, from, to *side) error {
	if isNew || !isDir(&from.st) || from.dir == to.dir {
		return nil
	}
	id := t.idOf(&from.st)
	has, err := l.HasAttr(t.epoch, id)
	if err != nil || has {
		return err
	}
	at := checkpoint.Slot{Dir: t.identity(from.dir), Name: from.name}
	return l.PutAttr(t.epoch, id, t.attrRecord(&from.st, at))
}

// recordMovedFile notes the name that an old file gets in a new directory, of which there is no slot record: if it is one of
// several, it must not stay there when the directory goes. So it does where no slot record says that the file is old, as one of the two slots is
// ignored.
func (t *Tree) recordMovedFile(l *logTx, isNew bool, from, to *side) error {
	if isNew || isDir(&from.st) {
		return nil
	}
	unrecorded, err := t.isNew(l, to.dir)
	for _, s := range []*side{from, to} {
		if err == nil && !unrecorded {
			unrecorded, err = t.loose(l, s.dir, s.name, false)
		}
	}
	if err != nil || !unrecorded {
		return err
	}
	return l.MarkLinked(t.epoch, t.idOf(&from.st), checkpoint.Slot{Dir: t.identity(to.dir), Name: to.name})
}

// keepsReplaced reports whether what the target slot holds is old.
func (t *Tree) keepsReplaced(l *logTx, to *side) (bool, error) {
	id := t.idOf(&to.st)
	isNew, err := t.isNewAt(l, to.dir, to.name, &to.st)
	if err != nil || isNew {
		return false, err
	}
	if err := t.recordNames(l, &to.st, -1); err != nil {
		return false, err
	}
	if needed, err := t.isNeeded(l, to.dir, to.name, &to.st); err != nil || !needed || !isDir(&to.st) {
		return needed, err
	}
	return true, t.recordRemovedDir(l, to.dir, to.name, &to.st, id)
}

// recordBothSlots notes what both slots hold. In an exchange, the one gets what the other has.
func (t *Tree) recordBothSlots(l *logTx, from, to *side, exchange bool) error {
	var held checkpoint.Occupant
	if to.some {
		held = t.occupantOf(&to.st)
	}
	gets := uint32(0)
	if exchange {
		gets = held.Mode
	}
	if err := t.recordChange(l, from.dir, from.name, t.occupantOf(&from.st), gets); err != nil {
		return err
	}
	return t.recordChange(l, to.dir, to.name, held, uint32(from.st.Mode))
}

// replaceFile renames over an old file, which a link keeps in the trash. Where a filesystem or a policy allows no link, the
// two steps are not one for a crash, but still for everybody else.
func (t *Tree) replaceFile(from, to *side) error {
	id := t.idOf(&to.st)
	linked, err := t.linkToTrash(to.fd, to.name, id)
	if err != nil {
		if err := t.toTrash(to.fd, to.name, id, false); err != nil {
			return err
		}
		if err := renameNoReplace(from.fd, from.name, to.fd, to.name); err != nil {
			_ = renameNoReplace(t.trashFd, id.String(), to.fd, to.name)
			return err
		}
		return nil
	}
	crash.Point("rename-linked")
	if err := unix.Renameat(from.fd, from.name, to.fd, to.name); err != nil {
		if linked {
			_ = unix.Unlinkat(t.trashFd, id.String(), 0)
		}
		return err
	}
	return nil
}

// replaceDir renames over an old empty directory, which goes to the trash. The exchange makes the kernel check that
// no directory is moved below itself.
func (t *Tree) replaceDir(from, to *side) error {
	if err := unix.Renameat2(from.fd, from.name, to.fd, to.name, unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	if err := t.toTrash(from.fd, from.name, t.idOf(&to.st), true); err != nil {
		_ = unix.Renameat2(from.fd, from.name, to.fd, to.name, unix.RENAME_EXCHANGE)
		return err
	}
	return nil
}
