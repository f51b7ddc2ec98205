//go:build linux

package overlay

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// plan is what a rollback has to do. Making it changes nothing.
type plan struct {
	t       *Tree
	view    *view
	verify  func(strategy.Ref) error // proves that a preimage is what was saved
	slots   []*slotChange
	inodes  []*inodeRestore
	wanted  map[checkpoint.ID]int    // of an inode: +1 for each slot that gets it, -1 for each that loses it
	changes map[checkpoint.Slot]bool // the slots in slots
	linked  map[checkpoint.ID]bool   // what these hold that has several names
	remake  []checkpoint.ID          // directories that have to be made anew first; the plan is made again after that
}

// fitsOneCommit reports whether what has to be recorded is surely little enough for one transaction.
func (p *plan) fitsOneCommit() bool {
	hasXattrs := func(i *inodeRestore) bool { return i.hasX } // each may be of 64 KiB
	takesXattrs := func(c *slotChange) bool { return !p.t.canMoveDirs && c.held.Mode&unix.S_IFMT == unix.S_IFDIR }
	return len(p.remake) == 0 && len(p.slots)+len(p.inodes) <= oneCommit &&
		!slices.ContainsFunc(p.inodes, hasXattrs) && !slices.ContainsFunc(p.slots, takesXattrs)
}

// slotChange is a slot that holds something else than it did.
type slotChange struct {
	slot checkpoint.Slot
	dir  *Node
	held checkpoint.Occupant // now; zero is nothing
	want checkpoint.Occupant // at the checkpoint; zero is nothing
}

// inodeRestore is an inode whose attributes or content have to be put back.
type inodeRestore struct {
	id      checkpoint.ID
	node    *Node
	slot    checkpoint.Slot // where it was at the checkpoint
	attr    checkpoint.Attr
	xattrs  []checkpoint.Xattr
	hasX    bool
	content *checkpoint.Content
	size    int64              // bytes: that it holds now
	replace bool               // its content is put back by another inode in its slot
	dressed bool               // more of its attributes differs than the mtime
	now     checkpoint.Content // what it holds before it is restored in place, saved for the undo

	dir    *Node  // of the slot, if the content is replaced
	staged string // the other inode's name in the store's tmp directory, ready to be put in place
	share  bool   // that is the tier's own file
}

// integrity says that a preimage is not what it was.
func integrity(path, format string, args ...any) error {
	return errs.New(errs.Integrity, "rollback", path, format, args...).
		WithHint("nothing was changed; `hyperfs fsck` lists all damage, `hyperfs drop` gives a checkpoint up")
}

// makePlan finds out what differs from the view, and proves that every preimage is there and is what was saved.
func (t *Tree) makePlan(v *view) (*plan, error) { return t.makePlanWith(v, t.tier.verify) }

// makePlanWith is makePlan with another proof of a preimage, which many goroutines may ask for.
func (t *Tree) makePlanWith(v *view, verify func(strategy.Ref) error) (*plan, error) {
	p := &plan{t: t, view: v, verify: verify, wanted: map[checkpoint.ID]int{}, changes: map[checkpoint.Slot]bool{}, linked: map[checkpoint.ID]bool{}}
	if err := p.checkOutside(); err != nil {
		return nil, err
	}
	if err := p.planSlots(); err != nil {
		return nil, err
	}
	if err := p.planWanted(); err != nil {
		return nil, err
	}
	if err := p.takeOutLinks(); err != nil {
		return nil, err
	}
	if len(p.remake) > 0 {
		return p, p.verifyContents()
	}
	return p, p.planInodes()
}

// checkOutside refuses what was changed while nobody watched and has no preimage from before.
func (p *plan) checkOutside() error {
	for _, id := range sortedByPath(p.view.fold.Outside) {
		if omitted, err := p.view.omits(id, p.view.fold.Outside[id]); err != nil {
			return err
		} else if omitted {
			continue
		}
		saved, err := p.savedBefore(id, p.view.fold.Since[id])
		if err != nil {
			return err
		}
		if saved {
			continue
		}
		path, what := p.view.fold.Outside[id], "it was changed"
		if strings.HasPrefix(path, StoreName+"/") {
			path, what = p.pathOf(id), "the old one, which the store keeps, was changed"
		}
		return errs.New(errs.Integrity, "rollback", path, "%s while hyperfs was not running, and what it was before is not known", what).
			WithHint("`hyperfs drop` the checkpoint, or make a new one and go on from here")
	}
	return nil
}

// savedBefore reports whether all of a file was saved before an epoch in which it was found changed: what is saved in the same epoch or later has that change in it. With the content, the xattrs
// are saved too, if there are any.
func (p *plan) savedBefore(id checkpoint.ID, found checkpoint.Epoch) (bool, error) {
	if in, whole := p.view.fold.WholeIn[id]; !whole || in >= found {
		return false, nil
	}
	if in, ok := p.view.fold.XattrsIn[id]; ok {
		return in < found, nil
	}
	n, err := p.view.find(id)
	if err != nil || n == nil {
		return n == nil, err
	}
	ref, err := p.t.reach(n)
	if err != nil {
		return false, err
	}
	defer ref.done()
	has, err := hasXattrs(func(b []byte) (int, error) { return unix.Listxattr(procPath(ref.fd), b) })
	return !has, err
}

func (p *plan) planSlots() error {
	for slot, want := range p.view.fold.Slots {
		alive, err := p.view.dirAlive(slot.Dir)
		if err != nil {
			return err
		}
		if !alive {
			if err := p.planSlotElsewhere(slot, want); err != nil {
				return err
			}
			continue
		}
		if err := p.planSlot(slot, want); err != nil {
			return err
		}
	}
	return nil
}

// planSlotElsewhere is planSlot for a directory that is no part of the state.
func (p *plan) planSlotElsewhere(slot checkpoint.Slot, want checkpoint.Occupant) error {
	put, err := p.view.putByRollback(slot)
	if err != nil {
		return err
	}
	if !put {
		return p.takeOutDead(slot)
	}
	if dir, err := p.view.find(slot.Dir); err != nil || dir == nil {
		return err
	}
	return p.planSlot(slot, want)
}

func (p *plan) planSlot(slot checkpoint.Slot, want checkpoint.Occupant) error {
	dir, err := p.view.find(slot.Dir)
	if err != nil {
		return err
	}
	if dir == nil {
		return p.missingDir(slot.Dir)
	}
	st, err := p.view.live(slot)
	if err != nil {
		return err
	}
	if ignored, err := p.view.ignores(slot, want.Mode); err != nil {
		return err
	} else if ignored && !want.ID.IsZero() {
		want = checkpoint.Occupant{}
	}
	c := &slotChange{slot: slot, dir: dir, want: want}
	if st != nil {
		if ignored, err := p.view.ignores(slot, uint32(st.Mode)); err != nil || ignored && want.ID.IsZero() {
			return err
		}
		c.held = p.t.occupantOf(st)
		p.linked[c.held.ID] = st.Nlink > 1
	}
	if c.held.ID != want.ID && !p.isReplacement(c.held.ID, want.ID) {
		p.change(c)
	}
	return nil
}

// isReplacement reports, when a rollback is resumed, whether it has put the one inode in the place of the other.
func (p *plan) isReplacement(held, want checkpoint.ID) bool {
	with, ok := p.view.replaced[want]
	return ok && with == held
}

// missingDir notes a directory that was removed and could not be kept; its attributes are in the log.
func (p *plan) missingDir(id checkpoint.ID) error {
	if a, ok := p.view.fold.Attrs[id]; !ok || p.t.canMoveDirs || a.Mode&unix.S_IFMT != unix.S_IFDIR {
		return integrity(p.pathOf(id), "the old directory is missing")
	}
	for _, have := range p.remake {
		if have == id {
			return nil
		}
	}
	p.remake = append(p.remake, id)
	return nil
}

// planWanted finds everything that has to be put back. What sits where it must not stay, in a directory that the
// checkpoint did not have, is taken out of there.
func (p *plan) planWanted() error {
	seen := map[checkpoint.ID]bool{}
	for _, c := range p.slots {
		if c.want.ID.IsZero() || seen[c.want.ID] {
			continue
		}
		seen[c.want.ID] = true
		n, err := p.view.find(c.want.ID)
		if err != nil {
			return err
		}
		if n == nil && c.want.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := p.missingDir(c.want.ID); err != nil {
				return err
			}
			continue
		}
		if n == nil {
			return integrity(p.slotPath(c.slot), "the old file is missing")
		}
		if err := p.checkKept(c, n); err != nil {
			return err
		}
		if err := p.takeOut(n, c.want.ID); err != nil {
			return err
		}
	}
	return nil
}

// checkKept proves that an old file that was put aside is as it was.
func (p *plan) checkKept(c *slotChange, n *Node) error {
	if c.want.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	var st unix.Statx_t
	if err := p.view.statNode(n, &st); err != nil {
		return integrity(p.slotPath(c.slot), "the old file can't be examined: %w", err)
	}
	if _, saved := p.view.fold.Contents[c.want.ID]; saved {
		return nil
	}
	if int64(st.Size) != c.want.Size {
		return integrity(p.slotPath(c.slot), "the old file has %d bytes and should have %d", st.Size, c.want.Size)
	}
	if _, touched := p.view.fold.Attrs[c.want.ID]; !touched && nsOf(st.Mtime) != c.want.Mtime {
		return integrity(p.slotPath(c.slot), "the old file was changed behind hyperfs")
	}
	return nil
}

// takeOutLinks frees old inodes from names that they were given since, in directories that the checkpoint did not have.
func (p *plan) takeOutLinks() error {
	for id, slots := range p.view.fold.Linked {
		noted, err := p.view.noted(id)
		if err != nil {
			return err
		}
		for _, s := range append(noted, slots...) {
			alive, err := p.view.dirAlive(s.Dir)
			if err != nil {
				return err
			}
			if alive {
				continue
			}
			if err := p.takeOutLink(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeOutDead takes out of a directory that the checkpoint did not have what can't go to the trash with it: the names of files that have several; and
// all that the log speaks of where the directory itself may be one that can't be moved. Of such a one, which was there before, it speaks of all.
func (p *plan) takeOutDead(s checkpoint.Slot) error {
	if p.t.canMoveDirs {
		return p.takeOutLink(s)
	}
	dir, err := p.view.find(s.Dir)
	if err != nil || dir == nil || !p.t.isLive(dir) {
		return err
	}
	st, err := p.view.live(s)
	if err != nil || st == nil {
		return err
	}
	if left, err := p.view.leaves(s, uint32(st.Mode)); err != nil || left {
		return err
	}
	return p.takeOutIf(s, func(*unix.Statx_t) bool { return true })
}

// takeOutLink empties a slot of a directory that the checkpoint did not have, if that holds one of several names of a file: with the
// directory, it would go to the trash and be counted there.
func (p *plan) takeOutLink(s checkpoint.Slot) error {
	if left, err := p.view.leaves(s, unix.S_IFREG); err != nil || left {
		return err
	}
	return p.takeOutIf(s, func(st *unix.Statx_t) bool { return !isDir(st) && st.Nlink > 1 })
}

// takeOutIf plans to empty a slot if it holds something for which that is to be.
func (p *plan) takeOutIf(s checkpoint.Slot, is func(st *unix.Statx_t) bool) error {
	if p.changes[s] {
		return nil
	}
	dir, err := p.view.find(s.Dir)
	if err != nil || dir == nil || !dir.dir {
		return err
	}
	st, err := p.view.live(s)
	if err != nil || st == nil || !is(st) {
		return err
	}
	held := p.t.occupantOf(st)
	p.linked[held.ID] = st.Nlink > 1
	p.change(&slotChange{slot: s, dir: dir, held: held})
	return nil
}

// change adds a slot to the plan, once.
func (p *plan) change(c *slotChange) {
	if p.changes[c.slot] {
		return
	}
	p.changes[c.slot] = true
	p.view.saw(c.held.ID, c.slot)
	p.wanted[c.held.ID]--
	p.wanted[c.want.ID]++
	p.slots = append(p.slots, c)
}

// takeOut plans to take an inode out of directories that the checkpoint did not have.
func (p *plan) takeOut(n *Node, id checkpoint.ID) error {
	for _, s := range p.t.slotsOf(n) {
		belongs, err := p.view.had(s, n.format())
		if err == nil && !belongs { // else the slot may be one of those that change
			belongs, err = p.staysIgnored(n, id, s)
		}
		if err == nil && !belongs {
			err = p.takeOutIf(s, func(st *unix.Statx_t) bool { return p.t.idOf(st) == id })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// staysIgnored reports whether an inode that is wanted elsewhere keeps its name in an ignored slot. What was moved there is taken back; a further name of
// a file stays.
func (p *plan) staysIgnored(n *Node, id checkpoint.ID, s checkpoint.Slot) (bool, error) {
	if left, err := p.view.leaves(s, n.format()); err != nil || !left || n.dir {
		return false, err
	}
	if p.t.inTrash(id) {
		return true, nil
	}
	var st unix.Statx_t
	if err := p.view.statNode(n, &st); err != nil {
		return false, err
	}
	return st.Nlink > 1 && !slices.Contains(p.view.fold.Linked[id], s), nil
}

func (p *plan) planInodes() error {
	for id, a := range p.view.fold.Attrs {
		slot, ok, err := p.slotInState(id)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		r := &inodeRestore{id: id, slot: slot, attr: a}
		if err := p.planInode(r); err != nil {
			return err
		}
	}
	return p.verifyRestored()
}

// verifyRestored proves that every preimage that is wanted is what was saved.
func (p *plan) verifyRestored() error {
	var mu sync.Mutex // slotPath is not for many goroutines
	return inParallel(p.inodes, func(r *inodeRestore) error {
		if r.content == nil {
			return nil
		}
		err := p.t.tier.verifyContent(*r.content, r.size, p.verify)
		if err == nil {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		return integrity(p.slotPath(r.slot), "its preimage can't be used: %w", err)
	})
}

// slotInState gives where an inode was; the root is in no slot. A file with names that nobody knows of counts as part of
// the state: it is better restored once too often.
func (p *plan) slotInState(id checkpoint.ID) (checkpoint.Slot, bool, error) {
	if id == p.t.root.id {
		return checkpoint.Slot{}, true, nil
	}
	slot, ok, err := p.view.slotOf(id)
	if err != nil || ok {
		return slot, ok, err
	}
	n, err := p.view.find(id)
	if err != nil || n == nil || n.dir {
		return slot, false, err
	}
	var st unix.Statx_t
	if err := p.view.statNode(n, &st); err != nil {
		return slot, false, nil
	}
	known := len(p.t.slotsOf(n))
	if p.t.inTrash(id) {
		known++
	}
	return slot, int(st.Nlink) > known, nil
}

func (p *plan) planInode(r *inodeRestore) error {
	n, err := p.view.find(r.id)
	if err != nil {
		return err
	}
	if n == nil {
		return integrity(p.slotPath(r.slot), "it is missing")
	}
	r.node = n
	var st unix.Statx_t
	if err := p.view.statNode(n, &st); err != nil {
		return integrity(p.slotPath(r.slot), "it can't be examined: %w", err)
	}
	if done := r.slot.Name != "" && p.replacedAlready(r); done || unchanged(&st, r.attr) {
		return nil
	}
	r.xattrs, r.hasX = p.view.fold.Xattrs[r.id]
	r.dressed = r.hasX || uint32(st.Mode)&0o7777 != r.attr.Mode&0o7777 || st.Uid != r.attr.UID || st.Gid != r.attr.GID
	if c, ok := p.view.fold.Contents[r.id]; ok {
		r.content = &c
		r.size = int64(st.Size)
		r.replace = c.Whole() && !cheapInPlace(c.Ref) && r.slot.Name != "" && !p.t.mayBeOpen(n) && p.namesAfter(r.id, &st) == 1 && p.mayReplace(r)
	}
	if same, err := p.mayRestore(r, &st); err != nil || same {
		return err
	}
	p.inodes = append(p.inodes, r)
	return nil
}

// cheapInPlace reports whether a content is better written back into its inode than put into a new one. From RAM it has to be copied in
// any case, and for a small file making another one costs more than keeping what it holds now for the undo.
func cheapInPlace(ref strategy.Ref) bool {
	return (ref.Tier.Volatile() || ref.Tier == strategy.Hot) && ref.Size <= replaceMin
}

// namesAfter gives how many names an inode will have when all slots hold what they should. While the collector takes its name in the
// trash away, it may be one too many: then the inode itself is restored, which is as good.
func (p *plan) namesAfter(id checkpoint.ID, st *unix.Statx_t) int {
	names := int(st.Nlink) + p.wanted[id]
	if p.t.inTrash(id) {
		names--
	}
	return names
}

// replacedAlready reports, when a rollback is resumed, whether another inode has taken over already.
func (p *plan) replacedAlready(r *inodeRestore) bool {
	if _, ok := p.view.replaced[r.id]; !ok {
		return false
	}
	st, err := p.view.live(r.slot)
	return err == nil && st != nil && p.isReplacement(p.t.idOf(st), r.id)
}

func (p *plan) verifyContents() error {
	for id, c := range p.view.fold.Contents {
		for _, ref := range c.Refs() {
			if err := p.verify(ref); err != nil {
				return integrity(p.pathOf(id), "its preimage can't be used: %w", err)
			}
		}
	}
	return nil
}

func (p *plan) slotPath(s checkpoint.Slot) string {
	path, err := p.view.path(s)
	if err != nil {
		return s.Name
	}
	return path
}

func (p *plan) pathOf(id checkpoint.ID) string {
	slot, ok, err := p.view.slotOf(id)
	if err != nil || !ok {
		return fmt.Sprintf("(inode %d)", id.Ino)
	}
	return p.slotPath(slot)
}
