//go:build linux

package overlay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// Diff tells what changed from one checkpoint to another, or (to "") to now; from "" is the newest checkpoint. It answers
// from the log, so it costs what changed. With expand, what is below created directories is listed too. Errors:
// NOT_FOUND, ROLLBACK for a checkpoint that is not active.
func (w *Workspace) Diff(ctx context.Context, from, to string, expand bool) (Diff, error) {
	leave, err := w.enter("diff", true)
	if err != nil {
		return Diff{}, err
	}
	defer leave()
	var diff Diff
	err = w.inspect(func() error {
		d, head, err := w.newDiffer(ctx, "diff", from, to, expand)
		diff = head
		if err != nil {
			return err
		}
		defer d.close()
		found, err := d.run()
		if err != nil {
			return errs.Ensure("diff", diff.From, err)
		}
		for _, c := range found {
			diff.Changes = append(diff.Changes, c.Change)
		}
		return nil
	}, func() error { return nil })
	return diff, err
}

// inspect calls find and then use while nothing changes the tree. Where an ordinary user has shut a directory for themselves,
// find is called once more, with nobody there who could see that it is opened up for a moment.
func (w *Workspace) inspect(find, use func() error) error {
	w.tree.flushMapped()
	w.tree.mu.RLock()
	unlock := w.tree.mu.RUnlock
	defer func() { unlock() }()
	err := find()
	if errors.Is(err, unix.EACCES) && !w.tree.privileged {
		unlock()
		w.tree.lockToLook()
		unlock = w.tree.unlockLooked
		err = find()
	}
	if err != nil {
		return err
	}
	return use()
}

// Reconcile tells what changed since a checkpoint ("" is the newest) as lists of paths.
func (w *Workspace) Reconcile(ctx context.Context, id string) (ReconcileResult, error) {
	diff, err := w.Diff(ctx, id, "", false)
	if err != nil {
		return ReconcileResult{}, err
	}
	return diff.Reconcile(), nil
}

// differ compares two states of the tree.
type differ struct {
	ctx     context.Context
	more    func() ([]found, error) // what is not in the log; may be nil
	a, b    *view
	expand  bool
	deep    bool             // what is below a directory that moved is listed, too
	removed map[string]entry // by path in a
	added   map[string]entry // by path in b
	done    map[checkpoint.ID]bool
}

// entry is one name of a state.
type entry struct {
	slot checkpoint.Slot
	occ  checkpoint.Occupant
}

// found is a change, with what it takes to read both sides.
type found struct {
	Change
	old, new checkpoint.ID
	tracked  *trackedSides // of a tracked file
}

// newDiffer resolves the names of the states. The caller holds tree.mu.
func (w *Workspace) newDiffer(ctx context.Context, op, from, to string, expand bool) (*differ, Diff, error) {
	diff := Diff{Changes: []Change{}}
	a, err := w.target(op, from)
	if err != nil {
		return nil, diff, errs.Ensure(op, from, err)
	}
	diff.From, diff.To = a.ID, to
	foldA, err := w.store.Fold(a.Epoch, 0)
	if err != nil {
		return nil, diff, err
	}
	foldB, first := &checkpoint.Fold{}, a.Epoch
	var later *checkpoint.Checkpoint
	if to != "" {
		b, err := w.target(op, to)
		if err != nil {
			return nil, diff, errs.Ensure(op, to, err)
		}
		first, later = min(first, b.Epoch), &b
		if foldB, err = w.store.Fold(b.Epoch, 0); err != nil {
			return nil, diff, err
		}
	}
	d := w.tree.newDiffer(ctx, foldA, foldB, expand)
	rules := w.rulesSince(first)
	d.a.hide(rules, checkpoint.Checkpoint{})
	d.b.hide(rules, checkpoint.Checkpoint{})
	d.more = func() ([]found, error) { return w.diffTracked(a, later) }
	return d, diff, nil
}

// newDiffer compares two states. What changed between them is on record in one of the two, whichever is the older: where to find it the other has to
// be told.
func (t *Tree) newDiffer(ctx context.Context, a, b *checkpoint.Fold, expand bool) *differ {
	d := &differ{
		ctx: ctx, a: t.newView(a), b: t.newView(b), expand: expand,
		removed: map[string]entry{}, added: map[string]entry{}, done: map[checkpoint.ID]bool{},
	}
	d.a.other, d.b.other = d.b, d.a
	return d
}

func (d *differ) close() {
	d.a.close()
	d.b.close()
}

// run gives the changes, sorted by path.
func (d *differ) run() ([]found, error) {
	if err := d.compareSlots(); err != nil {
		return nil, err
	}
	list, err := d.match()
	if err != nil {
		return nil, err
	}
	more, err := d.modifiedInPlace()
	if err != nil {
		return nil, err
	}
	list = append(list, more...)
	elsewhere, err := d.outside()
	if err != nil {
		return nil, err
	}
	list = append(list, elsewhere...)
	if d.more != nil {
		tracked, err := d.more()
		if err != nil {
			return nil, err
		}
		list = append(list, tracked...)
	}
	slices.SortFunc(list, func(x, y found) int {
		return cmp.Or(strings.Compare(x.Path, y.Path), strings.Compare(x.OldPath, y.OldPath))
	})
	return list, nil
}

// compareSlots finds all names that lead to another inode in the two states.
func (d *differ) compareSlots() error {
	for _, fold := range []*checkpoint.Fold{d.a.fold, d.b.fold} {
		for slot := range fold.Slots {
			if err := d.ctx.Err(); err != nil {
				return err
			}
			if err := d.compareSlot(slot); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *differ) compareSlot(slot checkpoint.Slot) error {
	was, err := heldIn(d.a, slot)
	if err != nil {
		return err
	}
	is, err := heldIn(d.b, slot)
	if err != nil || was.ID == is.ID {
		return err
	}
	if !was.ID.IsZero() {
		if err := d.add(d.a, d.b, d.removed, entry{slot, was}); err != nil {
			return err
		}
	}
	if !is.ID.IsZero() {
		return d.add(d.b, d.a, d.added, entry{slot, is})
	}
	return nil
}

// heldIn gives what a slot held in a state; nothing where its directory was not part of it.
func heldIn(v *view, slot checkpoint.Slot) (checkpoint.Occupant, error) {
	alive, err := v.dirAlive(slot.Dir)
	if err != nil || !alive {
		return checkpoint.Occupant{}, err
	}
	o, err := v.lookup(slot)
	if err != nil || o.ID.IsZero() {
		return o, err
	}
	if ignored, err := v.ignores(slot, o.Mode); err != nil || ignored {
		return checkpoint.Occupant{}, err
	}
	return o, nil
}

// add notes a name that only the state v has, and what is below it if the other state does not have that directory.
func (d *differ) add(v, other *view, set map[string]entry, e entry) error {
	path, err := v.path(e.slot)
	if err != nil {
		return err
	}
	if _, ok := set[path]; ok {
		return nil
	}
	set[path] = e
	v.saw(e.occ.ID, e.slot)
	if e.occ.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	alive, err := other.dirAlive(e.occ.ID)
	if err != nil || alive && !d.deep {
		return err
	}
	return d.addBelow(v, other, set, e.occ.ID)
}

func (d *differ) addBelow(v, other *view, set map[string]entry, dir checkpoint.ID) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	entries, err := v.entries(dir)
	if err != nil {
		return err
	}
	for name, occ := range entries {
		if err := d.add(v, other, set, entry{checkpoint.Slot{Dir: dir, Name: name}, occ}); err != nil {
			return err
		}
	}
	return nil
}

// match pairs what was removed with what was added: first by path, then by identity.
func (d *differ) match() ([]found, error) {
	var list []found
	for path, was := range d.removed {
		is, ok := d.added[path]
		if !ok || was.occ.Mode&unix.S_IFMT != is.occ.Mode&unix.S_IFMT {
			continue
		}
		if moved, err := d.dirMoved(was.occ, is.occ); moved || err != nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		f, changed, err := d.compare(was, is, path, path)
		if err != nil {
			return nil, err
		}
		if changed {
			list = append(list, f)
		}
		delete(d.removed, path)
		delete(d.added, path)
	}
	byID := map[checkpoint.ID][]string{}
	for path, is := range d.added {
		byID[is.occ.ID] = append(byID[is.occ.ID], path)
	}
	for _, path := range sortedKeys(d.removed) {
		was := d.removed[path]
		paths := byID[was.occ.ID]
		if len(paths) == 0 {
			continue
		}
		slices.Sort(paths)
		to := paths[0]
		byID[was.occ.ID] = paths[1:]
		f, _, err := d.compare(was, d.added[to], path, to)
		if err != nil {
			return nil, err
		}
		f.Kind, f.OldPath = Renamed, path
		list = append(list, f)
		delete(d.removed, path)
		delete(d.added, to)
	}
	for path, was := range d.removed {
		list = append(list, found{old: was.occ.ID, Change: Change{
			Kind: Deleted, Path: path, Type: TypeName(was.occ.Mode), OldMode: was.occ.Mode, OldSize: was.occ.Size,
		}})
	}
	return append(list, d.created()...), nil
}

// dirMoved reports whether a name leads to another directory, and one of the two is elsewhere in the other state. What it has in it moved
// along and is not listed, so only the rename can tell of that.
func (d *differ) dirMoved(was, is checkpoint.Occupant) (bool, error) {
	if was.ID == is.ID || was.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, nil
	}
	if moved, err := d.b.dirAlive(was.ID); moved || err != nil {
		return moved, err
	}
	return d.a.dirAlive(is.ID)
}

func sortedKeys(m map[string]entry) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// created lists what was added; without expand a new directory stands for all that is below it.
func (d *differ) created() []found {
	var list []found
	tops := map[string]int{}
	for _, path := range sortedKeys(d.added) {
		is := d.added[path]
		if !d.expand {
			if _, ok := tops[topOf(path, tops)]; ok {
				continue
			}
		}
		f := found{new: is.occ.ID, Change: Change{
			Kind: Created, Path: path, Type: TypeName(is.occ.Mode), Mode: is.occ.Mode, Size: is.occ.Size,
		}}
		if f.Type == "dir" && !d.expand {
			f.Tree = true
			tops[path] = len(list)
		}
		list = append(list, f)
	}
	return list
}

// topOf gives the created directory that path lies below, "" if there is none.
func topOf(path string, tops map[string]int) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '/' {
			if _, ok := tops[path[:i]]; ok {
				return path[:i]
			}
		}
	}
	return ""
}

// modifiedInPlace finds inodes that kept their name and changed.
func (d *differ) modifiedInPlace() ([]found, error) {
	var list []found
	for _, fold := range []*checkpoint.Fold{d.a.fold, d.b.fold} {
		for id := range fold.Attrs {
			if err := d.ctx.Err(); err != nil {
				return nil, err
			}
			f, changed, err := d.inPlace(id)
			if err != nil {
				return nil, err
			}
			if changed {
				list = append(list, f)
			}
		}
	}
	return list, nil
}

func (d *differ) inPlace(id checkpoint.ID) (f found, changed bool, err error) {
	if d.done[id] {
		return f, false, nil
	}
	d.done[id] = true
	if id == d.a.t.root.id {
		f, changed, err = d.compareInode(id, id, unix.S_IFDIR)
		f.Path = "."
		return f, changed, err
	}
	is, ok, err := d.keptSlot(id)
	if err != nil || !ok { // what has no name that it had before is told of by its names
		return f, false, err
	}
	a, err := d.a.attr(id)
	if err != nil {
		return f, false, err
	}
	if f, changed, err = d.compareInode(id, id, a.Mode&unix.S_IFMT); err != nil || !changed {
		return f, false, err
	}
	if f.Path, err = d.b.path(is); err != nil {
		return f, false, err
	}
	return f, true, nil
}

// keptSlot gives a slot that holds an inode in both states.
func (d *differ) keptSlot(id checkpoint.ID) (slot checkpoint.Slot, ok bool, err error) {
	candidates := append(slices.Clone(d.a.slots[id]), d.b.slots[id]...)
	for _, v := range []*view{d.a, d.b} {
		s, ok, err := v.slotOf(id)
		if err != nil {
			return s, false, err
		}
		if ok {
			candidates = append(candidates, s)
		}
	}
	if n, err := d.b.find(id); err != nil {
		return slot, false, err
	} else if n != nil {
		candidates = append(candidates, d.b.t.slotsOf(n)...)
	}
	for _, s := range candidates {
		if ok, err := d.keeps(s, id); err != nil || ok {
			return s, ok, err
		}
	}
	return slot, false, nil
}

// keeps reports whether a slot holds an inode in both states.
func (d *differ) keeps(s checkpoint.Slot, id checkpoint.ID) (bool, error) {
	for _, v := range []*view{d.a, d.b} {
		if o, err := heldIn(v, s); err != nil || o.ID != id {
			return false, err
		}
	}
	return true, nil
}

// outside lists what was changed while nobody watched, as far as nothing more is known of it.
func (d *differ) outside() ([]found, error) {
	var list []found
	for _, id := range sortedByPath(d.a.fold.Outside) {
		_, later := d.b.fold.Outside[id]
		if d.done[id] || later {
			continue
		}
		if omitted, err := d.a.omits(id, d.a.fold.Outside[id]); err != nil {
			return nil, err
		} else if omitted {
			continue
		}
		f := found{old: id, new: id, Change: Change{Kind: Modified, Path: d.a.fold.Outside[id], What: []string{"outside"}}}
		var st unix.Statx_t
		if d.b.stat(id, &st) == nil {
			f.Type, f.Mode, f.OldMode = TypeName(uint32(st.Mode)), uint32(st.Mode), uint32(st.Mode)
			f.Size, f.OldSize = int64(st.Size), int64(st.Size)
		}
		list = append(list, f)
	}
	return list, nil
}

// compare compares what two names lead to.
func (d *differ) compare(was, is entry, oldPath, path string) (found, bool, error) {
	if was.occ.ID == is.occ.ID { // of two inodes, each may have another name that it keeps
		d.done[is.occ.ID] = true
	}
	f, changed, err := d.compareInode(was.occ.ID, is.occ.ID, is.occ.Mode&unix.S_IFMT)
	f.Path = path
	if oldPath != path {
		f.OldPath = oldPath
	}
	return f, changed, err
}

// compareInode tells in what an inode of a differs from one of b, both of one type.
func (d *differ) compareInode(oldID, newID checkpoint.ID, kind uint32) (found, bool, error) {
	a, err := d.a.attr(oldID)
	if err != nil {
		return found{}, false, err
	}
	b, err := d.b.attr(newID)
	if err != nil {
		return found{}, false, err
	}
	f := found{old: oldID, new: newID, Change: Change{
		Kind: Modified, Type: TypeName(kind), OldMode: a.Mode, Mode: b.Mode, OldSize: a.Size, Size: b.Size,
	}}
	content, err := d.contentDiffers(oldID, newID, a, b, kind)
	if err != nil {
		return f, false, err
	}
	if content {
		f.What = append(f.What, "content")
	}
	if a.Mode != b.Mode {
		f.What = append(f.What, "mode")
	}
	if a.UID != b.UID || a.GID != b.GID {
		f.What = append(f.What, "owner")
	}
	x, err := d.xattrsDiffer(oldID, newID)
	if err != nil {
		return f, false, err
	}
	if x {
		f.What = append(f.What, "xattr")
	}
	if kind != unix.S_IFDIR && a.Mtime != b.Mtime {
		f.What = append(f.What, "mtime")
	}
	return f, len(f.What) > 0, nil
}

func (d *differ) contentDiffers(oldID, newID checkpoint.ID, a, b checkpoint.Attr, kind uint32) (bool, error) {
	switch kind {
	case unix.S_IFREG:
		_, savedA := d.a.fold.Contents[oldID]
		_, savedB := d.b.fold.Contents[newID]
		if oldID == newID && !savedA && !savedB {
			return false, nil
		}
		if a.Size != b.Size {
			return true, nil
		}
		if oldID == newID {
			if differ, known, err := d.blocksDiffer(oldID); known {
				return differ, err
			}
		}
		same, err := sameContent(d.a, oldID, d.b, newID)
		return !same, err
	case unix.S_IFLNK:
		if oldID == newID {
			return false, nil
		}
		x, err := d.a.readlink(oldID)
		if err != nil {
			return false, err
		}
		y, err := d.b.readlink(newID)
		return x != y, err
	case unix.S_IFCHR, unix.S_IFBLK:
		return a.Rdev != b.Rdev, nil
	}
	return false, nil
}

func (d *differ) xattrsDiffer(oldID, newID checkpoint.ID) (bool, error) {
	_, touchedA := d.a.fold.Xattrs[oldID]
	_, touchedB := d.b.fold.Xattrs[newID]
	if oldID == newID && !touchedA && !touchedB {
		return false, nil
	}
	x, err := d.a.xattrs(oldID)
	if err != nil {
		return false, err
	}
	y, err := d.b.xattrs(newID)
	return !sameXattrs(x, y), err
}
