//go:build linux

package branch

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Diff tells what changed in a branch from one of its checkpoints to another, or (to "") to now; from "" is the checkpoint that the live state
// comes from, or else the fork point, which can be named by its ID too. With expand, what is below created directories is listed too. Errors: NOT_FOUND,
// ROLLBACK for a checkpoint that is not active.
func (m *Manager) Diff(ctx context.Context, name, from, to string, expand bool) (overlay.Diff, error) {
	diff := overlay.Diff{Changes: []overlay.Change{}}
	err := m.compare(ctx, "diff", name, from, to, func(d *differ) error {
		d.expand = expand
		found, err := d.run()
		diff.From, diff.To = d.from, to
		for _, c := range found {
			diff.Changes = append(diff.Changes, c.Change)
		}
		return err
	})
	return diff, err
}

// diffSince tells what changed in a branch from the state that another one was forked from to a checkpoint, with what is below created directories.
func (m *Manager) diffSince(ctx context.Context, name string, child checkpoint.Branch, to string) ([]overlay.Change, error) {
	const op = "diff"
	v, leave, err := m.enterBranch(op, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	m.mu.Lock()
	b := *m.branches[v.key.branch]
	z, err := m.target(op, &b, to)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	d, err := m.newDiffer(ctx, b.Epoch, target{id: child.ForkPoint, layer: child.Fork}, z)
	if err != nil {
		return nil, errs.Ensure(op, name, err)
	}
	defer d.close()
	d.expand = true
	found, err := d.run()
	changes := []overlay.Change{}
	for _, c := range found {
		changes = append(changes, c.Change)
	}
	return changes, errs.Ensure(op, name, err)
}

// compare calls fn with two states of a branch, which do not change meanwhile.
func (m *Manager) compare(ctx context.Context, op, name, from, to string, fn func(*differ) error) error {
	v, leave, err := m.enterBranch(op, name)
	if err != nil {
		return err
	}
	defer leave()
	if to == "" {
		v.flushMapped()
		v.mu.Lock()
		defer v.mu.Unlock()
	}
	m.mu.Lock()
	b := *m.branches[v.key.branch]
	a, err := m.target(op, &b, from)
	z := target{layer: b.Layer}
	if err == nil && to != "" {
		z, err = m.target(op, &b, to)
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	d, err := m.newDiffer(ctx, b.Epoch, a, z)
	if err != nil {
		return errs.Ensure(op, name, err)
	}
	defer d.close()
	return errs.Ensure(op, name, fn(d))
}

// differ compares two states of a branch.
type differ struct {
	ctx     context.Context
	from    string
	a, b    *view
	expand  bool
	deep    bool                            // what is below a directory that moved is listed, too
	removed map[string]checkpoint.LayerSlot // by path in a
	added   map[string]checkpoint.LayerSlot // by path in b
	done    map[checkpoint.ID]bool
}

// found is a change, with what it takes to read both sides.
type found struct {
	overlay.Change
	old, new checkpoint.ID
}

func (m *Manager) newDiffer(ctx context.Context, epoch checkpoint.Epoch, from, to target) (*differ, error) {
	a, err := m.loadState(epoch, from.layer)
	if err != nil {
		return nil, err
	}
	b, err := m.loadState(epoch, to.layer)
	if err != nil {
		a.base.Close()
		return nil, err
	}
	d := &differ{
		ctx: ctx, from: from.id,
		removed: map[string]checkpoint.LayerSlot{}, added: map[string]checkpoint.LayerSlot{}, done: map[checkpoint.ID]bool{},
	}
	p := newPlaces(a.base)
	d.a, d.b = newView(a, m.pool, p), newView(b, m.pool, p)
	if err := d.want(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// want says whose names in main's state will be asked for.
func (d *differ) want() error {
	for id := range d.changedInodes() {
		if err := d.a.places.want(id); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) close() {
	d.a.base.Close()
	d.b.base.Close()
}

// changedInodes gives the inodes whose records differ.
func (d *differ) changedInodes() map[checkpoint.ID]bool {
	ids := map[checkpoint.ID]bool{}
	for _, m := range []map[checkpoint.ID]inode{d.a.inodes, d.b.inodes} {
		for id := range m {
			if d.a.inodes[id] != d.b.inodes[id] {
				ids[id] = true
			}
		}
	}
	return ids
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
	slices.SortFunc(list, func(x, y found) int {
		return cmp.Or(strings.Compare(x.Path, y.Path), strings.Compare(x.OldPath, y.OldPath))
	})
	return list, nil
}

// compareSlots finds all names that lead to another inode in the two states.
func (d *differ) compareSlots() error {
	for _, s := range []*view{d.a, d.b} {
		for dir, names := range s.slots {
			for name := range names {
				if err := d.ctx.Err(); err != nil {
					return err
				}
				if err := d.compareSlot(checkpoint.Slot{Dir: dir, Name: name}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (d *differ) compareSlot(slot checkpoint.Slot) error {
	if x, ok := d.a.slots[slot.Dir][slot.Name]; ok && x == d.b.slots[slot.Dir][slot.Name] {
		aliveA, errA := d.a.dirAlive(slot.Dir)
		aliveB, errB := d.b.dirAlive(slot.Dir)
		if err := cmp.Or(errA, errB); err != nil || aliveA == aliveB {
			return err
		}
	}
	was, err := d.a.holds(slot)
	if err != nil {
		return err
	}
	is, err := d.b.holds(slot)
	if err != nil || was.ID == is.ID {
		return err
	}
	if !was.ID.IsZero() {
		if err := d.add(d.a, d.b, d.removed, slot, was); err != nil {
			return err
		}
	}
	if !is.ID.IsZero() {
		return d.add(d.b, d.a, d.added, slot, is)
	}
	return nil
}

// add notes a name that only the state v has, and what is below it if the other state does not have that directory.
func (d *differ) add(v, other *view, set map[string]checkpoint.LayerSlot, slot checkpoint.Slot, h checkpoint.LayerSlot) error {
	path, err := v.path(slot)
	if err != nil {
		return err
	}
	if _, ok := set[path]; ok {
		return nil
	}
	set[path] = h
	if h.Type != unix.S_IFDIR {
		return nil
	}
	alive, err := other.dirAlive(h.ID)
	if err != nil || alive && !d.deep {
		return err
	}
	entries, err := v.entries(h.ID)
	if err != nil {
		return err
	}
	for name, below := range entries {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		if err := d.add(v, other, set, checkpoint.Slot{Dir: h.ID, Name: name}, below); err != nil {
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
		if !ok || was.Type != is.Type {
			continue
		}
		if moved, err := d.hasMoved(was, is); err != nil {
			return nil, err
		} else if moved {
			continue
		}
		f, changed, err := d.compareNames(was, is, path)
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
	for _, path := range slices.Sorted(maps.Keys(d.added)) {
		id := d.added[path].ID
		byID[id] = append(byID[id], path)
	}
	for _, path := range slices.Sorted(maps.Keys(d.removed)) {
		was := d.removed[path]
		paths := byID[was.ID]
		if len(paths) == 0 {
			f, err := d.lost(path, was)
			if err != nil {
				return nil, err
			}
			list = append(list, f)
			continue
		}
		byID[was.ID] = paths[1:]
		f, _, err := d.compareNames(was, d.added[paths[0]], paths[0])
		if err != nil {
			return nil, err
		}
		f.Kind, f.OldPath = overlay.Renamed, path
		list = append(list, f)
		delete(d.added, paths[0])
	}
	return d.created(list)
}

// hasMoved reports whether one of two directories is in the other state too, elsewhere: what is below it is not told, so that it must be told as
// renamed.
func (d *differ) hasMoved(was, is checkpoint.LayerSlot) (bool, error) {
	if was.Type != unix.S_IFDIR {
		return false, nil
	}
	moved, err := d.b.dirAlive(was.ID)
	if err != nil || moved {
		return moved, err
	}
	return d.a.dirAlive(is.ID)
}

func (d *differ) lost(path string, was checkpoint.LayerSlot) (found, error) {
	a, err := d.a.attrOf(was.ID)
	return found{old: was.ID, Change: overlay.Change{
		Kind: overlay.Deleted, Path: path, Type: overlay.TypeName(was.Type), OldMode: a.Mode, OldSize: sizeOf(&a),
	}}, err
}

// created lists what was added; without expand a new directory stands for all that is below it.
func (d *differ) created(list []found) ([]found, error) {
	top := ""
	for _, path := range slices.SortedFunc(maps.Keys(d.added), byParts) {
		if !d.expand && top != "" && strings.HasPrefix(path, top) {
			continue
		}
		is := d.added[path]
		a, err := d.b.attrOf(is.ID)
		if err != nil {
			return nil, err
		}
		f := found{new: is.ID, Change: overlay.Change{
			Kind: overlay.Created, Path: path, Type: overlay.TypeName(is.Type), Mode: a.Mode, Size: sizeOf(&a),
		}}
		if is.Type == unix.S_IFDIR && !d.expand {
			f.Tree, top = true, path+"/"
		}
		list = append(list, f)
	}
	return list, nil
}

// byParts sorts paths so that what is below a directory follows it at once.
func byParts(a, b string) int {
	return strings.Compare(strings.ReplaceAll(a, "/", "\x00"), strings.ReplaceAll(b, "/", "\x00"))
}

// modifiedInPlace finds inodes that kept their name and changed.
func (d *differ) modifiedInPlace() ([]found, error) {
	var list []found
	for id := range d.changedInodes() {
		if err := d.ctx.Err(); err != nil {
			return nil, err
		}
		if d.done[id] {
			continue
		}
		f, changed, err := d.inPlace(id)
		if err != nil {
			return nil, err
		}
		if changed {
			list = append(list, f)
		}
	}
	return list, nil
}

func (d *differ) inPlace(id checkpoint.ID) (f found, changed bool, err error) {
	path := "."
	kind := uint32(unix.S_IFDIR)
	if id != d.a.base.Root() {
		slot, ok, err := d.b.slotWhere(id, func(s checkpoint.Slot) (bool, error) {
			was, err := d.a.holds(s)
			return was.ID == id, err
		})
		if err != nil || !ok { // what has no name that it had before is told of by its names
			return f, false, err
		}
		if path, err = d.b.path(slot); err != nil {
			return f, false, err
		}
		h, err := d.b.lookup(slot)
		if err != nil {
			return f, false, err
		}
		kind = h.Type
	}
	f, changed, err = d.compareInode(id, id, kind)
	f.Path = path
	return f, changed, err
}

func (d *differ) compareNames(was, is checkpoint.LayerSlot, path string) (found, bool, error) {
	if was.ID == is.ID { // of two inodes, each may have another name that it keeps
		d.done[is.ID] = true
	}
	f, changed, err := d.compareInode(was.ID, is.ID, is.Type)
	f.Path = path
	return f, changed, err
}

// compareInode tells in what an inode of a differs from one of b, both of one type.
func (d *differ) compareInode(oldID, newID checkpoint.ID, kind uint32) (found, bool, error) {
	f := found{old: oldID, new: newID}
	a, err := d.a.attrOf(oldID)
	if err != nil {
		return f, false, err
	}
	b, err := d.b.attrOf(newID)
	if err != nil {
		return f, false, err
	}
	f.Change = overlay.Change{
		Kind: overlay.Modified, Type: overlay.TypeName(kind), OldMode: a.Mode, Mode: b.Mode, OldSize: sizeOf(&a), Size: sizeOf(&b),
	}
	content, err := d.contentDiffers(oldID, newID, &a, &b)
	if err != nil {
		return f, false, err
	}
	xattrs, err := d.xattrsDiffer(oldID, newID)
	if err != nil {
		return f, false, err
	}
	for _, w := range []struct {
		what    string
		differs bool
	}{
		{"content", content},
		{"mode", a.Mode != b.Mode},
		{"owner", a.UID != b.UID || a.GID != b.GID},
		{"xattr", xattrs},
		{"mtime", kind != unix.S_IFDIR && a.Mtime != b.Mtime},
	} {
		if w.differs {
			f.What = append(f.What, w.what)
		}
	}
	return f, len(f.What) > 0, nil
}

// sizeOf is Change.Size: that of a directory is the filesystem's affair.
func sizeOf(a *overlay.Attr) int64 {
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK:
		return a.Size
	}
	return 0
}

func (d *differ) contentDiffers(oldID, newID checkpoint.ID, a, b *overlay.Attr) (bool, error) {
	ea, eb := d.a.inodes[oldID], d.b.inodes[newID]
	switch b.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if oldID == newID && ea.data == eb.data {
			return false, nil
		}
		if a.Size != b.Size {
			return true, nil
		}
		same, err := d.sameContent(oldID, newID, b.Size)
		return !same, err
	case unix.S_IFLNK:
		if oldID == newID {
			return false, nil
		}
		x, err := d.a.readlink(d.a.p, oldID, ea)
		if err != nil {
			return false, err
		}
		y, err := d.b.readlink(d.b.p, newID, eb)
		return x != y, err
	case unix.S_IFCHR, unix.S_IFBLK:
		return a.Rdev != b.Rdev, nil
	}
	return false, nil
}

// compareBuffer is how much is compared at once, in bytes.
const compareBuffer = 64 << 10

// sameContent compares two contents of a size.
func (d *differ) sameContent(oldID, newID checkpoint.ID, size int64) (bool, error) {
	x, err := d.a.openID(oldID)
	if err != nil {
		return false, err
	}
	defer x.release()
	y, err := d.b.openID(newID)
	if err != nil {
		return false, err
	}
	defer y.release()
	room := min(compareBuffer, size+1) // one more, to see the end
	bufX, bufY := make([]byte, room), make([]byte, room)
	for off := int64(0); ; {
		if err := d.ctx.Err(); err != nil {
			return false, err
		}
		n, err := readFull(x, bufX, off)
		if err != nil {
			return false, err
		}
		k, err := readFull(y, bufY, off)
		if err != nil {
			return false, err
		}
		if n != k || !bytes.Equal(bufX[:n], bufY[:n]) {
			return false, nil
		}
		if n < len(bufX) {
			return true, nil
		}
		off += int64(n)
	}
}

// readFull reads until p is full or the content ends.
func readFull(c *content, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		k, err := c.readAt(p[n:], off+int64(n))
		if err != nil || k == 0 {
			return n, err
		}
		n += k
	}
	return n, nil
}

func (v *view) openID(id checkpoint.ID) (*content, error) {
	return v.open(v.p, &node{id: id}, v.inodes[id], false)
}

func (d *differ) xattrsDiffer(oldID, newID checkpoint.ID) (bool, error) {
	ea, eb := d.a.inodes[oldID], d.b.inodes[newID]
	if oldID == newID && ea.pool == eb.pool {
		return false, nil
	}
	x, err := d.a.xattrs(d.a.p, oldID, ea)
	if err != nil {
		return false, err
	}
	y, err := d.b.xattrs(d.b.p, newID, eb)
	return !sameXattrs(x, y), err
}

func sameXattrs(a, b []checkpoint.Xattr) bool {
	have := map[string]string{}
	for _, x := range a {
		have[x.Name] = string(x.Value)
	}
	return len(a) == len(b) && !slices.ContainsFunc(b, func(x checkpoint.Xattr) bool {
		v, ok := have[x.Name]
		return !ok || v != string(x.Value)
	})
}
