//go:build linux

package overlay

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// logTx is a transaction on the undo log that remembers what the nodes may be told once it is committed.
type logTx struct {
	*checkpoint.Tx
	marks []mark
	few   [8]mark // for marks
}

type mark struct {
	flag  *atomic.Uint64
	value uint64
}

func (l *logTx) mark(flag *atomic.Uint64, value uint64) {
	l.marks = append(l.marks, mark{flag, value})
}

// record commits what fn writes to the undo log. When it returns nil, the records are there. Saving a preimage and the commit may have taken long since the
// change was noted in the ledger, so it is noted again: what comes next is the change.
func (t *Tree) record(fn func(*logTx) error) error {
	var l logTx
	err := t.store.Update(func(tx *checkpoint.Tx) error {
		l.Tx = tx
		l.marks = l.few[:0]
		return fn(&l)
	})
	if err != nil {
		return t.logFailure(err)
	}
	for _, m := range l.marks {
		m.flag.Store(m.value)
	}
	t.ledger.note()
	return nil
}

// logFailure turns a failure of the store into what the program gets: a change that can't be recorded is not made.
func (t *Tree) logFailure(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	t.log.Error("the undo log can't be written", "err", err)
	return unix.EIO
}

// isNew reports whether n came to be in this epoch, so that no checkpoint knows it. See doc.go for the rule.
func (t *Tree) isNew(l *logTx, n *Node) (bool, error) {
	e := uint64(t.epoch)
	if n == t.root || n.oldIn.Load() == e {
		return false, nil
	}
	if n.newIn.Load() == e {
		return true, nil
	}
	t.nodesMu.RLock()
	id, parent, name, dead := n.id, n.parent, n.name, n.dead
	t.nodesMu.RUnlock()
	if parent == nil {
		return dead, nil // without a name no checkpoint has it; in the trash one may
	}
	isNew, err := t.isNewIn(l, n, id, parent, name)
	if err != nil {
		return false, err
	}
	if isNew {
		l.mark(&n.newIn, e)
	} else {
		l.mark(&n.oldIn, e)
	}
	return isNew, nil
}

// isNewIn is isNew for an inode of which one slot is known.
func (t *Tree) isNewIn(l *logTx, n *Node, id checkpoint.ID, parent *Node, name string) (bool, error) {
	if loose, err := t.loose(l, parent, name, n.dir); err != nil {
		return false, err
	} else if loose {
		return t.isNewIgnored(l, n, id)
	}
	covered, err := t.covered(l, parent, name)
	if err != nil || !covered {
		return false, err // the index, which is slower to ask, need not be
	}
	old, err := l.MarkedOld(t.epoch, id)
	return !old, err
}

// isNewAt is isNew for what a slot holds, which st describes, whether it has a node or not.
func (t *Tree) isNewAt(l *logTx, dir *Node, name string, st *unix.Statx_t) (bool, error) {
	id := t.idOf(st)
	if n := t.known(id); n != nil {
		return t.isNew(l, n)
	}
	if loose, err := t.loose(l, dir, name, isDir(st)); err != nil {
		return false, err
	} else if loose {
		named, err := l.Named(id)
		return !named && (isDir(st) || st.Nlink <= 1), err
	}
	covered, err := t.covered(l, dir, name)
	if err != nil || !covered {
		return false, err
	}
	old, err := l.MarkedOld(t.epoch, id)
	return !old, err
}

// covered reports whether this epoch needs no record of the slot any more.
func (t *Tree) covered(l *logTx, dir *Node, name string) (bool, error) {
	isNew, err := t.isNew(l, dir)
	if err != nil || isNew {
		return isNew, err
	}
	return l.HasSlot(t.epoch, checkpoint.Slot{Dir: t.identity(dir), Name: name})
}

// recordSlot notes what a slot holds before its first change in the epoch, and the attributes of its directory, whose
// modification time is about to change. The caller holds dir.mu.
func (t *Tree) recordSlot(l *logTx, dir *Node, name string, held checkpoint.Occupant) error {
	if covered, err := t.covered(l, dir, name); err != nil || covered {
		return err
	}
	if err := t.recordAttr(l, dir); err != nil {
		return err
	}
	if err := t.ensureLoc(l, dir); err != nil {
		return err
	}
	return l.PutSlot(t.epoch, checkpoint.Slot{Dir: t.identity(dir), Name: name}, held)
}

// recordAttr notes the attributes of an old inode before their first change in the epoch. The caller holds n.mu.
func (t *Tree) recordAttr(l *logTx, n *Node) error { return t.recordAttrOf(l, n, nil) }

// recordAttrOf is recordAttr for an inode whose attributes may be known already: st is nil, or what they are while n.mu is held.
func (t *Tree) recordAttrOf(l *logTx, n *Node, st *unix.Statx_t) error {
	if n.attrIn.Load() == uint64(t.epoch) {
		return nil
	}
	if isNew, err := t.isNew(l, n); err != nil || isNew {
		return err
	}
	id := t.identity(n)
	has, err := l.HasAttr(t.epoch, id)
	if err != nil {
		return err
	}
	if !has {
		if st == nil {
			st = new(unix.Statx_t)
			if err := t.statOpen(n, nil, st); err != nil {
				return err
			}
		}
		at, err := t.slotFor(l, n)
		if err != nil {
			return err
		}
		a := t.attrRecord(st, at)
		if t.hasDirect(n) {
			a.Ctime = 0 // a page that a mapping has dirtied already can change without a change of ctime
		}
		if err := l.PutAttr(t.epoch, id, a); err != nil {
			return err
		}
	}
	l.mark(&n.attrIn, uint64(t.epoch))
	return nil
}

// recordNames notes how many names an old inode has that is about to get or lose some. If it has and will have at most one, whoever wants to know can tell
// without that.
func (t *Tree) recordNames(l *logTx, st *unix.Statx_t, more int) error {
	if isDir(st) || st.Nlink <= 1 && more <= 0 {
		return nil
	}
	id, names := t.idOf(st), t.names(st)
	if max(int(names), int(names)+more) <= 1 {
		return nil
	}
	has, err := l.HasNames(t.epoch, id)
	if err != nil || has {
		return err
	}
	return l.PutNames(t.epoch, id, names)
}

// slotFor gives the slot of n, and sees to it that its directory can be found again. It is zero for the root and for
// what is in the trash.
func (t *Tree) slotFor(l *logTx, n *Node) (checkpoint.Slot, error) {
	parent, name, ok := t.slotOf(n)
	if !ok {
		return checkpoint.Slot{}, nil
	}
	return checkpoint.Slot{Dir: t.identity(parent), Name: name}, t.ensureLoc(l, parent)
}

// racyWindow is how coarse a filesystem's clock may be: two changes that lie closer together can have one ctime.
const racyWindow = 50 * time.Millisecond

func (t *Tree) attrRecord(st *unix.Statx_t, at checkpoint.Slot) checkpoint.Attr {
	a := checkpoint.Attr{
		At: at, Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid, Rdev: unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		Size: int64(st.Size), Mtime: nsOf(st.Mtime), Ctime: nsOf(st.Ctime), Nlink: st.Nlink,
	}
	if time.Since(time.Unix(0, a.Ctime)) < racyWindow {
		a.Ctime = 0
	}
	return a
}

// unchanged reports whether nothing at all has happened to an inode since its attribute record was made.
func unchanged(st *unix.Statx_t, a checkpoint.Attr) bool {
	return a.Ctime != 0 && a.Ctime == nsOf(st.Ctime)
}

// ensureLoc sees to it that the store can find a directory again: it and all its ancestors have a location.
func (t *Tree) ensureLoc(l *logTx, dir *Node) error {
	for n := dir; n != t.root && n.locIn.Load() != t.locGen+1; {
		t.nodesMu.RLock()
		id, parent, name := n.id, n.parent, n.name
		var parentID checkpoint.ID
		if parent != nil {
			parentID = parent.id
		}
		t.nodesMu.RUnlock()
		if parent == nil { // in the trash, where its identity is its name
			return nil
		}
		has, err := l.HasLoc(id)
		if err != nil {
			return err
		}
		if !has {
			if err := l.PutLoc(id, checkpoint.Loc{Slots: []checkpoint.Slot{{Dir: parentID, Name: name}}}); err != nil {
				return err
			}
		}
		l.mark(&n.locIn, t.locGen+1)
		n = parent
	}
	return nil
}

// maxLocs is how many places are noted for an inode. A file with several names may need more than two.
const maxLocs = 16

// recordMove notes that an inode is about to go from one slot to another, so that it can be found in either. Earlier
// notes stay behind it: whoever reads them proves what a slot holds.
func (t *Tree) recordMove(l *logTx, id checkpoint.ID, from *Node, fromName string, to *Node, toName string) error {
	if err := t.ensureLoc(l, to); err != nil {
		return err
	}
	if err := t.ensureLoc(l, from); err != nil {
		return err
	}
	return t.addLocs(l, id, checkpoint.Slot{Dir: t.identity(to), Name: toName}, checkpoint.Slot{Dir: t.identity(from), Name: fromName})
}

// addLocs puts slots in front of what is noted of an inode.
func (t *Tree) addLocs(l *logTx, id checkpoint.ID, slots ...checkpoint.Slot) error {
	old, _, err := l.Loc(id)
	if err != nil {
		return err
	}
	for _, s := range old.Slots {
		if len(slots) < maxLocs && !slices.Contains(slots, s) {
			slots = append(slots, s)
		}
	}
	return l.PutLoc(id, checkpoint.Loc{Slots: slots})
}

// protectAttr makes the attributes of n safe. The caller holds n.mu.
func (t *Tree) protectAttr(n *Node) error {
	if !t.protecting || n.attrIn.Load() == uint64(t.epoch) || n.newIn.Load() == uint64(t.epoch) {
		return nil
	}
	return t.record(func(l *logTx) error { return t.recordAttr(l, n) })
}

// protectXattrs makes the xattrs of n safe, if it has any. The caller holds n.mu.
func (t *Tree) protectXattrs(n *Node) error { return t.protectXattrsOf(n, false) }

// protectXattrsOf does it also, with always, if there are none: because there will be.
func (t *Tree) protectXattrsOf(n *Node, always bool) error {
	if !t.protecting || n.newIn.Load() == uint64(t.epoch) || t.xattrsSafe(n, always) {
		return nil
	}
	xs, err := t.readXattrs(n)
	if err != nil {
		return err
	}
	return t.record(func(l *logTx) error {
		isNew, err := t.isNew(l, n)
		if err != nil || isNew {
			return err
		}
		return t.recordXattrs(l, n, nil, xs, always)
	})
}

// xattrsSafe reports whether nothing has to be recorded of the xattrs of n before they change or, with always, before it is given any.
func (t *Tree) xattrsSafe(n *Node, always bool) bool {
	in, e := n.xattrIn.Load(), uint64(t.epoch)
	return in == e || in == e|noXattrs && !always
}

// protectReached makes the attributes safe of n, which ref refers to and, if st.Mask is set, st describes; with xattrs these too, and with always if there
// are none. The caller holds n.mu.
func (t *Tree) protectReached(n *Node, ref dirRef, st *unix.Statx_t, xattrs, always bool) error {
	e := uint64(t.epoch)
	xattrs = xattrs && !t.xattrsSafe(n, always)
	if !t.protecting || n.newIn.Load() == e || n.attrIn.Load() == e && !xattrs {
		return nil
	}
	var xs []checkpoint.Xattr
	var now *unix.Statx_t
	if st.Mask != 0 {
		now = new(unix.Statx_t)
		*now = *st
	}
	if xattrs {
		var err error
		if xs, err = ref.xattrs(); err != nil {
			return err
		}
	}
	return t.record(func(l *logTx) error {
		if isNew, err := t.isNew(l, n); err != nil || isNew {
			return err
		}
		if xattrs {
			if err := t.recordXattrs(l, n, now, xs, always); err != nil {
				return err
			}
		}
		return t.recordAttrOf(l, n, now)
	})
}

// recordXattrs notes what xattrs an old inode has, if it has any or with always, and its attributes: st may be nil. The caller
// holds n.mu.
func (t *Tree) recordXattrs(l *logTx, n *Node, st *unix.Statx_t, xs []checkpoint.Xattr, always bool) error {
	id := t.identity(n)
	has, err := l.HasXattrs(t.epoch, id)
	if err != nil {
		return err
	}
	if !has && (always || len(xs) > 0) {
		if err := t.recordAttrOf(l, n, st); err != nil {
			return err
		}
		if err := l.PutXattrs(t.epoch, id, xs); err != nil {
			return err
		}
		has = true
	}
	if has {
		l.mark(&n.xattrIn, uint64(t.epoch))
	} else {
		l.mark(&n.xattrIn, uint64(t.epoch)|noXattrs)
	}
	return nil
}

// protectContent makes the whole content of a regular file safe, with its attributes. The caller holds n.mu.
func (t *Tree) protectContent(n *Node) error { return t.protectSpan(n, allBytes, notOpened) }

// opened is a file that is open already, so that it need not be opened once more to save it.
type opened struct {
	fd       int
	readable bool
	st       *unix.Statx_t // what it is like now, or nil
}

var notOpened = opened{}

// needsContent reports whether this epoch may still want the content of a file.
func (t *Tree) needsContent(n *Node) bool {
	e := uint64(t.epoch)
	return t.protecting && n.regular && n.contentIn.Load() != e && n.newIn.Load() != e
}

// forSaving gives the file open for reading, and stated. The caller calls done.
func (t *Tree) forSaving(n *Node, by opened) (_ opened, done func(), err error) {
	done = func() {}
	if !by.readable {
		fd, err := t.openForSave(n)
		if err != nil {
			return by, done, err
		}
		by.fd, by.readable = fd, true
		done = func() { _ = unix.Close(fd) }
	}
	if by.st == nil {
		by.st = new(unix.Statx_t)
		if err := statFd(by.fd, by.st); err != nil {
			done()
			return by, done, err
		}
	}
	return by, done, nil
}

// saveWhole saves the content of a file, which is open, if this epoch has nothing of it yet. All that has to be recorded is one commit: where a
// small file is written to for the first time, that is what takes longest. If the epoch has blocks of it, it gives their content record instead.
func (t *Tree) saveWhole(n *Node, by opened) (blocks *checkpoint.Content, err error) {
	var saved *strategy.Ref
	err = t.record(func(l *logTx) error {
		isNew, err := t.isNew(l, n)
		if err != nil || isNew {
			return err
		}
		id := t.identity(n)
		c, has, err := l.Content(t.epoch, id)
		switch {
		case err != nil:
			return err
		case has && c.Whole():
			l.mark(&n.contentIn, uint64(t.epoch))
			return nil
		case has:
			blocks = &c
			return nil
		}
		if err := t.recordXattrsFd(l, n, by.fd, by.st); err != nil { // a write takes capabilities away
			return err
		}
		if err := t.recordAttrOf(l, n, by.st); err != nil {
			return err
		}
		if c, err = t.save(by.fd, int64(by.st.Size), id); err != nil {
			return err
		}
		saved = &c.Ref
		crash.Point("content-saved")
		l.mark(&n.contentIn, uint64(t.epoch))
		return l.PutContent(t.epoch, id, c)
	})
	if err != nil && saved != nil {
		_ = t.tier.remove(*saved)
	}
	if saved != nil {
		crash.Point("content-recorded")
	}
	return blocks, err
}

// recordContent names what was saved of n in the log. The caller holds n.mu.
func (t *Tree) recordContent(n *Node, c checkpoint.Content, marks func(*logTx)) error {
	return t.record(func(l *logTx) error {
		if err := t.recordAttr(l, n); err != nil {
			return err
		}
		if marks != nil {
			marks(l)
		}
		return l.PutContent(t.epoch, t.identity(n), c)
	})
}

// preimageName gives a name that no other preimage has or had since the tree was opened.
func (t *Tree) preimageName(id checkpoint.ID) string {
	return fmt.Sprintf("%x-%s-%x", uint64(t.epoch), id, t.tempNum.Add(1))
}

// recordXattrsFd notes the xattrs of a file that is open as fd, if it has any.
func (t *Tree) recordXattrsFd(l *logTx, n *Node, fd int, st *unix.Statx_t) error {
	if t.xattrsSafe(n, false) {
		return nil
	}
	xs, err := xattrsFd(fd)
	if err != nil {
		return err
	}
	if len(xs) == 0 {
		l.mark(&n.xattrIn, uint64(t.epoch)|noXattrs)
		return nil
	}
	return t.recordXattrs(l, n, st, xs, false)
}

// save puts the content of what is open as fd, and has size bytes, away whole.
func (t *Tree) save(fd int, size int64, id checkpoint.ID) (checkpoint.Content, error) {
	ref, err := t.tier.save(fd, size, func() string { return t.preimageName(id) })
	if err != nil {
		t.log.Error("a preimage can't be saved", "err", err)
		return checkpoint.Content{}, plainErrno(err)
	}
	return checkpoint.Content{Ref: ref}, nil
}

// openFile is openForSave for a file that is read as such.
func (t *Tree) openFile(n *Node) (*os.File, error) {
	fd, err := t.openForSave(n)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "live"), nil
}

// openForSave opens a file for reading, also where its mode does not let its owner. The caller closes the descriptor.
func (t *Tree) openForSave(n *Node) (int, error) {
	fd, err := t.openNode(n, unix.O_RDONLY|unix.O_NONBLOCK)
	if err == unix.ESTALE {
		fd, err = t.reopenHandle(n, unix.O_RDONLY)
	}
	if err == unix.EACCES {
		fd, err = t.openLifted(n, unix.O_RDONLY, 0o400)
	}
	return fd, err
}

// openLifted opens a file of ours that we may not open so, by lifting its mode for that moment by the bits that it takes. The attribute record is made first, so that
// rollback knows the mode if the daemon dies meanwhile. The caller closes the descriptor.
func (t *Tree) openLifted(n *Node, flags int, bits uint32) (int, error) {
	if err := t.protectAttr(n); err != nil {
		return -1, err
	}
	ref, err := t.reach(n)
	if err != nil {
		return -1, err
	}
	defer ref.done()
	var st unix.Statx_t
	if err := statFd(ref.fd, &st); err != nil {
		return -1, err
	}
	if err := chmodFd(ref.fd, uint32(st.Mode)&0o7777|bits); err != nil {
		return -1, unix.EACCES
	}
	fd, err := unix.Open(procPath(ref.fd), flags&openMask|unix.O_CLOEXEC, 0)
	if cerr := chmodFd(ref.fd, uint32(st.Mode)&0o7777); cerr != nil && err == nil {
		_ = unix.Close(fd)
		return -1, cerr
	}
	return fd, err
}

// plainErrno gives the errno in err's chain, EIO where there is none.
func plainErrno(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return unix.EIO
}
