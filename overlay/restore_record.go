//go:build linux

package overlay

import (
	"os"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// recorder takes records: a transaction, or a batch.
type recorder interface {
	PutSlot(checkpoint.Epoch, checkpoint.Slot, checkpoint.Occupant) error
	PutAttr(checkpoint.Epoch, checkpoint.ID, checkpoint.Attr) error
	PutContent(checkpoint.Epoch, checkpoint.ID, checkpoint.Content) error
	PutXattrs(checkpoint.Epoch, checkpoint.ID, []checkpoint.Xattr) error
	PutNames(checkpoint.Epoch, checkpoint.ID, uint32) error
	PutLoc(checkpoint.ID, checkpoint.Loc) error
}

// recordInBatch is recordAll for any number of records.
func (r *restorer) recordInBatch() error {
	b := r.w.store.NewBatch()
	defer b.Cancel()
	if err := r.recordAll(b); err != nil {
		return err
	}
	return b.Flush()
}

// recordAll writes what the undo of this rollback needs, before anything is changed.
func (r *restorer) recordAll(b recorder) error {
	r.recorded = map[checkpoint.ID]bool{}
	r.view.reread() // the epoch has begun since, with contents of files that somebody has open
	for _, c := range r.plan.slots {
		if err := r.recordSlot(b, c.slot, c.held); err != nil {
			return err
		}
		for _, o := range []checkpoint.Occupant{c.held, c.want} {
			if err := r.recordMovedDir(b, o); err != nil {
				return err
			}
		}
		if err := r.recordDirXattrs(b, c.held); err != nil {
			return err
		}
		if err := r.recordPlace(b, c); err != nil {
			return err
		}
	}
	for _, i := range r.plan.inodes {
		if err := r.recordInode(b, i); err != nil {
			return err
		}
	}
	if err := r.recordNames(b); err != nil {
		return err
	}
	return r.recordContents(b)
}

// recordNames notes how many names the inodes have that are about to get or lose some; see Tree.recordNames.
func (r *restorer) recordNames(b recorder) error {
	for id, more := range r.plan.wanted {
		if id.IsZero() || more == 0 || more < 0 && !r.plan.linked[id] {
			continue
		}
		var st unix.Statx_t
		if err := r.view.stat(id, &st); err == unix.ENOENT {
			continue // a directory that is going to be made anew
		} else if err != nil {
			return err
		}
		names := r.t.names(&st)
		if isDir(&st) || max(int(names), int(names)+more) <= 1 {
			continue
		}
		has := false
		err := r.view.read(func(tx *checkpoint.Tx) (err error) { has, err = tx.HasNames(r.intent.Epoch, id); return err })
		if err != nil {
			return err
		}
		if has {
			continue
		}
		if err := b.PutNames(r.intent.Epoch, id, names); err != nil {
			return err
		}
	}
	return nil
}

// recordMovedDir notes the attributes of a directory that is about to be moved, which may change its modification time.
func (r *restorer) recordMovedDir(b recorder, o checkpoint.Occupant) error {
	if o.ID.IsZero() || o.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	r.dirsMoved = true
	return r.recordAttr(b, o.ID)
}

// recordPlace notes where an inode is about to be put, before the places where it may be until then.
func (r *restorer) recordPlace(b recorder, c *slotChange) error {
	if c.want.ID.IsZero() {
		return nil
	}
	slots := []checkpoint.Slot{c.slot}
	n, err := r.view.find(c.want.ID)
	if err != nil {
		return err
	}
	noted, err := r.view.noted(c.want.ID)
	if err != nil {
		return err
	}
	if n != nil {
		noted = append(r.t.slotsOf(n), noted...)
	}
	for _, s := range noted {
		if len(slots) < maxLocs && !slices.Contains(slots, s) {
			slots = append(slots, s)
		}
	}
	return b.PutLoc(c.want.ID, checkpoint.Loc{Slots: slots})
}

// recordDirXattrs notes the xattrs of a directory that is about to go, where it may have to be removed, and made anew by the undo.
func (r *restorer) recordDirXattrs(b recorder, held checkpoint.Occupant) error {
	if r.t.canMoveDirs || held.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	n, err := r.view.find(held.ID)
	if err != nil || n == nil {
		return err
	}
	return r.recordXattrs(b, held.ID, n)
}

func (r *restorer) recordSlot(b recorder, s checkpoint.Slot, held checkpoint.Occupant) error {
	if r.resumed {
		has := false
		err := r.view.read(func(tx *checkpoint.Tx) (err error) { has, err = tx.HasSlot(r.intent.Epoch, s); return err })
		if err != nil || has {
			return err
		}
	}
	if err := b.PutSlot(r.intent.Epoch, s, held); err != nil {
		return err
	}
	return r.recordAttr(b, s.Dir)
}

func (r *restorer) recordAttr(b recorder, id checkpoint.ID) error {
	if r.recorded[id] {
		return nil
	}
	r.recorded[id] = true
	has := false
	err := r.view.read(func(tx *checkpoint.Tx) (err error) { has, err = tx.HasAttr(r.intent.Epoch, id); return err })
	if err != nil || has {
		return err
	}
	var st unix.Statx_t
	if err := r.view.stat(id, &st); err != nil {
		return err
	}
	n, err := r.view.find(id)
	if err != nil {
		return err
	}
	var at checkpoint.Slot
	if slots := r.t.slotsOf(n); len(slots) > 0 {
		at = slots[0]
	}
	return b.PutAttr(r.intent.Epoch, id, r.t.attrRecord(&st, at))
}

func (r *restorer) recordInode(b recorder, i *inodeRestore) error {
	if err := r.recordAttr(b, i.id); err != nil {
		return err
	}
	if i.hasX {
		if err := r.recordXattrs(b, i.id, i.node); err != nil {
			return err
		}
	}
	if i.content == nil || !i.replace {
		return nil
	}
	var st unix.Statx_t
	if err := r.view.statNode(i.node, &st); err != nil {
		return err
	}
	if r.plan.changes[i.slot] {
		return nil // the record says what the slot holds now, which is not this inode
	}
	return r.recordSlot(b, i.slot, r.t.occupantOf(&st))
}

func (r *restorer) recordXattrs(b recorder, id checkpoint.ID, n *Node) error {
	has := false
	err := r.view.read(func(tx *checkpoint.Tx) (err error) { has, err = tx.HasXattrs(r.intent.Epoch, id); return err })
	if err != nil || has {
		return err
	}
	xs, err := r.t.readXattrs(n)
	if err != nil {
		return err
	}
	return b.PutXattrs(r.intent.Epoch, id, xs)
}

// recordContents saves what is about to be overwritten in place.
func (r *restorer) recordContents(b recorder) error {
	var list []*inodeRestore
	for _, i := range r.plan.inodes {
		if i.content == nil || i.replace {
			continue
		}
		has := false
		err := r.view.read(func(tx *checkpoint.Tx) (err error) { has, err = tx.HasContent(r.intent.Epoch, i.id); return err })
		if err != nil {
			return err
		}
		if !has {
			list = append(list, i)
		}
	}
	if err := r.apart()(list, r.saveNow); err != nil { // nothing was changed, so it is not failed
		return err
	}
	for _, i := range list {
		if err := b.PutContent(r.intent.Epoch, i.id, i.now); err != nil {
			return err
		}
	}
	return nil
}

// saveNow saves the content that an inode has. Many goroutines may call it, each for another inode.
func (r *restorer) saveNow(i *inodeRestore) error {
	f, err := r.t.openFile(i.node)
	if err != nil {
		return err
	}
	defer f.Close()
	i.now, err = r.saveOverwritten(f, i)
	return err
}

// saveOverwritten saves of f what restoring it is going to change: where it was kept block by block, those blocks and what is cut off.
func (r *restorer) saveOverwritten(f *os.File, i *inodeRestore) (checkpoint.Content, error) {
	if i.content.Whole() {
		return r.t.save(int(f.Fd()), i.size, i.id)
	}
	chain, err := r.t.tier.openBlocks(*i.content)
	if err != nil {
		return checkpoint.Content{}, err
	}
	defer chain.Close()
	spans := []span{{chain.Size(), toEnd}}
	for _, e := range chain.Saved() {
		spans = append(spans, span{e.From, e.To})
	}
	b, err := r.t.newPreimage(i.id, f, i.size, spans...)
	if err != nil {
		return checkpoint.Content{}, err
	}
	return checkpoint.Content{Parts: []strategy.Ref{b.ref}}, nil
}
