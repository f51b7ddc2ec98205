//go:build linux

package overlay

import (
	"context"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// An edit is carried out by a rollback. The undo log is made to say that the edited state was there a moment ago, and was changed into what is live:
// first the current epoch gets the records that the edit's own changes would make, then an epoch follows whose records say what the
// edit wants, with a checkpoint before it. A rollback to this checkpoint makes the changes. The checkpoint is the edit's own, and disposed when that is done.

// createdByEdit is Checkpoint.CreatedBy of an edit's own checkpoint.
const createdByEdit = "edit"

// transient reports whether a checkpoint has served when it was rolled back to.
func transient(c *checkpoint.Checkpoint) bool {
	return c.CreatedBy == "rollback" || c.CreatedBy == createdByEdit
}

// commit makes the changes.
func (e *Editor) commit(ctx context.Context, since checkpoint.Checkpoint, o EditOptions) (RollbackResult, error) {
	start := time.Now()
	w, t := e.w, e.t
	leave, err := w.enter(o.Event, false)
	if err != nil {
		return RollbackResult{}, err
	}
	defer leave()
	if have, ok := w.find(since.ID); !ok || have.Status != checkpoint.Active || have.Epoch != since.Epoch {
		return RollbackResult{}, errs.New(errs.Busy, o.Event, since.ID, "the checkpoint was dropped or rolled back to meanwhile").WithHint("try again")
	}
	t.flushMapped()
	t.lockToLook()
	r, err := e.prepare(since, o)
	if err == nil {
		err = r.run()
	}
	t.reclassify()
	t.unlockLooked()
	if r != nil {
		r.notify()
		defer r.view.close()
	}
	if err != nil {
		return RollbackResult{}, errs.Ensure(o.Event, "", err)
	}
	res := r.result
	res.Checkpoint, res.Undo, res.Duration = since.ID, r.intent.Undo, time.Since(start)
	w.events.send(Event{Type: o.Event, Checkpoint: since.ID, Data: res})
	w.collectInBackground()
	return res, nil
}

// prepare makes everything ready, so that a rollback makes the changes. Until it returns nil, nothing is changed. The caller holds
// Tree.mu alone.
func (e *Editor) prepare(since checkpoint.Checkpoint, o EditOptions) (*restorer, error) {
	if err := e.check(since, o); err != nil {
		return nil, err
	}
	if err := e.protect(); err != nil {
		return nil, err
	}
	crash.Point("edit-protected")
	c, err := e.pretend(o)
	if err != nil {
		return nil, err
	}
	crash.Point("edit-pretended")
	r, err := e.w.prepare(c, RollbackOptions{})
	if err != nil {
		if e := e.w.forgetEdit(c.ID); e != nil {
			return nil, e
		}
	}
	return r, err
}

// check fails with BUSY where something that the changes depend on has changed since the checkpoint.
func (e *Editor) check(since checkpoint.Checkpoint, o EditOptions) error {
	fold, err := e.w.store.Fold(since.Epoch, 0)
	if err != nil {
		return err
	}
	busy := func(name string) error {
		return errs.New(errs.Busy, o.Event, name, "it was changed meanwhile").WithHint("try again")
	}
	for s := range fold.Slots {
		_, changes := e.slots[s]
		if changes || e.looked[s] || e.listed[s.Dir] {
			return busy(s.Name)
		}
	}
	touched := func(id checkpoint.ID) bool { return e.met[id] || e.inodes[id] != nil }
	for id, a := range fold.Attrs {
		if touched(id) {
			return busy(a.At.Name)
		}
	}
	return nil
}

// protect makes the records that anybody's changes to the same slots and inodes would make.
func (e *Editor) protect() error {
	for s := range e.slots {
		if err := e.protectSlot(s); err != nil {
			return err
		}
	}
	for id, i := range e.inodes {
		n := e.nodes[id]
		if n == nil {
			continue
		}
		if err := e.protectInode(n, i); err != nil {
			return err
		}
	}
	return nil
}

func (e *Editor) protectSlot(s checkpoint.Slot) error {
	dir := e.nodes[s.Dir]
	if dir == nil {
		return nil // of a new directory
	}
	dir.mu.Lock()
	defer dir.mu.Unlock()
	d, err := e.t.openDirRef(dir)
	if err != nil {
		return err
	}
	defer d.done()
	var st unix.Statx_t
	var held checkpoint.Occupant
	err = e.t.within(dir, d.fd, func() error { return statAt(d.fd, s.Name, &st) })
	switch {
	case err == nil:
		held = e.t.occupantOf(&st)
	case err != unix.ENOENT:
		return err
	}
	return e.t.record(func(l *logTx) error {
		if isDir(&st) && held.ID != e.slots[s].ID {
			if err := e.t.recordRemovedDir(l, dir, s.Name, &st, held.ID); err != nil {
				return err
			}
		}
		return e.t.recordSlot(l, dir, s.Name, held)
	})
}

func (e *Editor) protectInode(n *Node, i *edited) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := e.t.protectAttr(n); err != nil {
		return err
	}
	if i.hasX {
		if err := e.t.protectXattrsOf(n, true); err != nil {
			return err
		}
	}
	if i.content == "" {
		return nil
	}
	return e.t.protectContent(n)
}

// pretend writes the epoch that says what the edit wants, and the checkpoint before it.
func (e *Editor) pretend(o EditOptions) (checkpoint.Checkpoint, error) {
	w := e.w
	if err := e.writePretended(e.t.epoch + 1); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	crash.Point("edit-written")
	w.list.RLock()
	at := time.Now()
	c := checkpoint.Checkpoint{
		ID: w.Reserve(), Parent: w.head, Branch: "main", CreatedBy: createdByEdit, CreatedAt: at, UpdatedAt: at,
		Message: o.Message, Status: checkpoint.RollingBack, Tier: string(w.tiers.Kind()), Session: w.session,
	}
	w.list.RUnlock()
	err := w.beginEpoch(func(tx *checkpoint.Tx, epoch checkpoint.Epoch) error {
		w.list.Lock()
		defer w.list.Unlock()
		w.seq++
		c.Epoch, c.Seq = epoch, w.seq
		w.checkpoints[c.ID] = &c
		return tx.PutCheckpoint(c)
	}, func() {
		w.list.Lock()
		defer w.list.Unlock()
		delete(w.checkpoints, c.ID)
	})
	return c, err
}

// writePretended puts what is staged where a rollback finds it, and writes the records of the epoch. It has not begun yet: if the
// daemon dies here, they are dropped at the next start.
func (e *Editor) writePretended(epoch checkpoint.Epoch) error {
	for id, name := range e.staged {
		if err := renameNoReplace(e.t.tmpFd, name, e.t.trashFd, id.String()); err != nil {
			return err
		}
		delete(e.staged, id) // the collector has it now
		crash.Point("edit-staged")
	}
	b := e.w.store.NewBatch()
	defer b.Cancel()
	for s, occ := range e.slots {
		if err := b.PutSlot(epoch, s, occ); err != nil {
			return err
		}
		if err := e.pretendTouched(b, epoch, s.Dir); err != nil {
			return err
		}
	}
	for id, i := range e.inodes {
		if err := e.pretendInode(b, epoch, id, i); err != nil {
			return err
		}
	}
	return b.Flush()
}

// pretendTouched has a directory whose entries change get a new mtime.
func (e *Editor) pretendTouched(b recorder, epoch checkpoint.Epoch, id checkpoint.ID) error {
	n := e.nodes[id]
	if n == nil || e.inodes[id] != nil {
		return nil
	}
	var st unix.Statx_t
	if err := e.t.stat(n, &st); err != nil {
		return err
	}
	a := e.t.attrRecord(&st, e.t.knownSlot(n))
	a.Mtime, a.Ctime = time.Now().UnixNano(), 0
	return b.PutAttr(epoch, id, a)
}

// knownSlot gives a slot of a node; zero for the root.
func (t *Tree) knownSlot(n *Node) checkpoint.Slot {
	parent, name, ok := t.slotOf(n)
	if !ok {
		return checkpoint.Slot{}
	}
	return checkpoint.Slot{Dir: t.identity(parent), Name: name}
}

func (e *Editor) pretendInode(b recorder, epoch checkpoint.Epoch, id checkpoint.ID, i *edited) error {
	if i.content != "" {
		c, err := e.saveStaged(id, i)
		if err != nil {
			return err
		}
		if err := b.PutContent(epoch, id, c); err != nil {
			return err
		}
	}
	if i.hasX {
		if err := b.PutXattrs(epoch, id, i.xattrs); err != nil {
			return err
		}
	}
	return b.PutAttr(epoch, id, i.attr)
}

// saveStaged makes a preimage of what the inode is to hold.
func (e *Editor) saveStaged(id checkpoint.ID, i *edited) (checkpoint.Content, error) {
	fd, err := unix.Openat(e.t.tmpFd, i.content, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return checkpoint.Content{}, err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := statFd(fd, &st); err != nil {
		return checkpoint.Content{}, err
	}
	i.attr.Size = int64(st.Size)
	return e.t.save(fd, int64(st.Size), id)
}

// forgetEdit takes an edit's own checkpoint away that was not rolled back to: nothing was changed. What its epoch says stands
// behind the records of the one before, which the same slots and inodes have. Another epoch begins, in which it says nothing. The caller
// holds tree.mu alone.
func (w *Workspace) forgetEdit(id string) error {
	w.list.Lock()
	delete(w.checkpoints, id)
	w.list.Unlock()
	err := w.beginEpoch(func(tx *checkpoint.Tx, _ checkpoint.Epoch) error { return tx.DeleteCheckpoint(id) }, func() {})
	if err != nil {
		return err
	}
	return w.setProtecting()
}

// forgetEdits does so after a death of the daemon, when no rollback to one is under way.
func (w *Workspace) forgetEdits() error {
	for _, c := range w.all(func(c *checkpoint.Checkpoint) bool {
		return c.CreatedBy == createdByEdit && c.Status == checkpoint.RollingBack
	}) {
		if err := w.forgetEdit(c.ID); err != nil {
			return err
		}
	}
	return nil
}
