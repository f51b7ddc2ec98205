//go:build linux

package overlay

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// Side is one of two states that are compared. It does not change meanwhile, and names inodes as the other side does.
type Side interface {
	Root() checkpoint.ID

	// Lookup gives what dir has under name, or ENOENT. Of a directory that is not in the state it may say anything.
	Lookup(dir checkpoint.ID, name string) (StateEntry, error)
	List(dir checkpoint.ID) ([]DirEntry, error)
	Attr(id checkpoint.ID) (Attr, error)
	Xattrs(id checkpoint.ID) ([]checkpoint.Xattr, error)
	Readlink(id checkpoint.ID) (string, error)
	Open(id checkpoint.ID) (SideFile, error)

	// Places gives slots that an inode may be in. Of what is in the state, one is right: that of a directory, or some name of something else.
	Places(id checkpoint.ID) ([]checkpoint.Slot, error)

	// Unknown reports whether it is not known what the inode was like: it was changed while nobody watched.
	Unknown(id checkpoint.ID) bool
}

// SideFile is the content of a regular file. ReadAt gives 0 bytes at the end.
type SideFile interface {
	ReadAt(p []byte, off int64) (int, error)
	Close()
}

// Comparison is two states, and where they can differ. It costs what that is.
type Comparison struct {
	A, B   Side
	Slots  map[checkpoint.Slot]struct{} // that may hold something else
	Inodes map[checkpoint.ID]struct{}   // that may have been changed under a name that they kept

	// SameContent and SameXattrs tell of an inode that both have whether it is the same, if that is known without reading all of it.
	SameContent func(ctx context.Context, id checkpoint.ID) (same, known bool, err error)
	SameXattrs  func(id checkpoint.ID) (known bool)

	Ignored func(path string, isDir bool) bool // paths of both sides that are no part of them, but for what is below another one; may be nil
	more    []found                            // what differs in tracked files, which are no part of the sides
}

// Changes gives what differs, sorted by path. With expand, what is below created directories is listed too.
func (c *Comparison) Changes(ctx context.Context, expand bool) ([]Change, error) {
	d := newDiffer(ctx, c)
	d.expand = expand
	found, err := d.run()
	changes := make([]Change, len(found))
	for i, f := range found {
		changes[i] = f.Change
	}
	return changes, err
}

// differ is one comparison under way.
type differ struct {
	*Comparison
	ctx     context.Context
	a, b    *names
	expand  bool
	deep    bool                     // what is below a directory that moved is listed, too
	removed map[string]StateEntry    // by path in a
	added   map[string]StateEntry    // by path in b
	told    map[string]checkpoint.ID // what was in added
}

// found is a change, with what it takes to read both sides.
type found struct {
	Change
	old, new checkpoint.ID
	tracked  *trackedSides // of a tracked file: both sides, instead of old and new
}

func newDiffer(ctx context.Context, c *Comparison) *differ {
	return &differ{
		Comparison: c, ctx: ctx, a: newNames(c.A, c), b: newNames(c.B, c),
		removed: map[string]StateEntry{}, added: map[string]StateEntry{}, told: map[string]checkpoint.ID{},
	}
}

// run gives the changes, sorted by path.
func (d *differ) run() ([]found, error) {
	for slot := range d.Slots {
		if err := d.compareSlot(slot); err != nil {
			return nil, err
		}
	}
	for path, is := range d.added {
		d.told[path] = is.ID
	}
	list, err := d.match()
	if err != nil {
		return nil, err
	}
	for id := range d.Inodes {
		if list, err = d.inPlace(list, id); err != nil {
			return nil, err
		}
	}
	list = append(list, d.more...)
	slices.SortFunc(list, func(x, y found) int {
		return cmp.Or(strings.Compare(x.Path, y.Path), strings.Compare(x.OldPath, y.OldPath))
	})
	return list, nil
}

// compareSlot notes a slot that leads to another inode.
func (d *differ) compareSlot(slot checkpoint.Slot) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	was, err := d.a.held(slot)
	if err != nil {
		return err
	}
	is, err := d.b.held(slot)
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

// add notes a name that only one state has, and what is below it if the other state does not have that directory.
func (d *differ) add(v, other *names, set map[string]StateEntry, slot checkpoint.Slot, e StateEntry) error {
	path, err := v.path(slot)
	if err != nil {
		return err
	}
	return d.addPath(v, other, set, path, e)
}

func (d *differ) addPath(v, other *names, set map[string]StateEntry, path string, e StateEntry) error {
	if _, ok := set[path]; ok {
		return nil
	}
	set[path] = e
	if e.Type != unix.S_IFDIR {
		return nil
	}
	alive, err := other.dirAlive(e.ID)
	if err != nil || alive && !d.deep {
		return err
	}
	if err := d.ctx.Err(); err != nil {
		return err
	}
	return v.each(e.ID, path, func(path string, below StateEntry) error { return d.addPath(v, other, set, path, below) })
}

// match pairs what was removed with what was added: first by path, then by identity.
func (d *differ) match() ([]found, error) {
	var list []found
	for path, was := range d.removed {
		is, ok := d.added[path]
		if !ok || was.Type != is.Type {
			continue
		}
		if moved, err := d.dirMoved(was, is); err != nil {
			return nil, err
		} else if moved {
			continue
		}
		f, changed, err := d.compareInode(was.ID, is.ID)
		if err != nil {
			return nil, err
		}
		if f.Path = path; changed {
			list = append(list, f)
		}
		delete(d.removed, path)
		delete(d.added, path)
	}
	list, err := d.matchByInode(list)
	if err != nil {
		return nil, err
	}
	return d.created(list)
}

// dirMoved reports whether a name leads to another directory, and one of the two is elsewhere in the other state. What it has in it moved
// along and is not listed, so only the rename can tell of that.
func (d *differ) dirMoved(was, is StateEntry) (bool, error) {
	if was.ID == is.ID || was.Type != unix.S_IFDIR {
		return false, nil
	}
	if moved, err := d.b.dirAlive(was.ID); moved || err != nil {
		return moved, err
	}
	return d.a.dirAlive(is.ID)
}

// matchByInode adds to the list what was renamed, and what was deleted.
func (d *differ) matchByInode(list []found) ([]found, error) {
	added := map[checkpoint.ID][]string{}
	for _, path := range slices.Sorted(maps.Keys(d.added)) {
		id := d.added[path].ID
		added[id] = append(added[id], path)
	}
	for _, path := range slices.Sorted(maps.Keys(d.removed)) {
		was := d.removed[path]
		paths := added[was.ID]
		if len(paths) == 0 {
			f, err := d.deleted(path, was)
			if err != nil {
				return nil, err
			}
			list = append(list, f)
			continue
		}
		added[was.ID] = paths[1:]
		f, _, err := d.compareInode(was.ID, was.ID)
		if err != nil {
			return nil, err
		}
		f.Kind, f.OldPath, f.Path = Renamed, path, paths[0]
		list = append(list, f)
		delete(d.added, paths[0])
	}
	return list, nil
}

func (d *differ) deleted(path string, was StateEntry) (found, error) {
	a, err := d.A.Attr(was.ID)
	return found{old: was.ID, Change: Change{
		Kind: Deleted, Path: path, Type: TypeName(was.Type), OldMode: a.Mode, OldSize: sizeOf(&a),
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
		a, err := d.B.Attr(is.ID)
		if err != nil {
			return nil, err
		}
		f := found{new: is.ID, Change: Change{Kind: Created, Path: path, Type: TypeName(is.Type), Mode: a.Mode, Size: sizeOf(&a)}}
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

// inPlace adds to the list an inode that changed, once for every name that it kept.
func (d *differ) inPlace(list []found, id checkpoint.ID) ([]found, error) {
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	paths, err := d.keptPaths(id)
	if err != nil || len(paths) == 0 { // what has no name that it had before is told of by its names
		return list, err
	}
	f, changed, err := d.compareInode(id, id)
	if err != nil || !changed {
		return list, err
	}
	for _, f.Path = range paths {
		list = append(list, f)
	}
	return list, nil
}

// keptPaths gives the paths in b of all slots that hold an inode in both states, but for those that have been told of.
func (d *differ) keptPaths(id checkpoint.ID) ([]string, error) {
	if id == d.B.Root() {
		return []string{"."}, nil
	}
	slots, err := d.a.slotsOf(d.ctx, id)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, s := range slots {
		if ok, err := d.b.holds(s, id); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		path, err := d.b.path(s)
		if err != nil {
			return nil, err
		}
		if d.told[path] != id {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// compareInode tells in what an inode of a differs from one of b, both of one type.
func (d *differ) compareInode(oldID, newID checkpoint.ID) (found, bool, error) {
	f := found{old: oldID, new: newID}
	a, err := d.A.Attr(oldID)
	if err != nil {
		return f, false, err
	}
	b, err := d.B.Attr(newID)
	if err != nil {
		return f, false, err
	}
	f.Change = Change{
		Kind: Modified, Type: TypeName(b.Mode), OldMode: a.Mode, Mode: b.Mode, OldSize: sizeOf(&a), Size: sizeOf(&b),
	}
	if d.A.Unknown(oldID) || d.B.Unknown(newID) {
		f.What = []string{whatOutside}
		return f, true, nil
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
		{"mtime", a.Mode&unix.S_IFMT != unix.S_IFDIR && a.Mtime != b.Mtime},
	} {
		if w.differs {
			f.What = append(f.What, w.what)
		}
	}
	return f, len(f.What) > 0, nil
}

// whatOutside is in Change.What of what was changed while nobody watched.
const whatOutside = "outside"

// sizeOf is Change.Size: that of a directory is the filesystem's affair.
func sizeOf(a *Attr) int64 {
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK:
		return a.Size
	}
	return 0
}

func (d *differ) contentDiffers(oldID, newID checkpoint.ID, a, b *Attr) (bool, error) {
	switch b.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return d.bytesDiffer(oldID, newID, a, b)
	case unix.S_IFLNK:
		if oldID == newID { // the target of a symlink never changes
			return false, nil
		}
		x, err := d.A.Readlink(oldID)
		if err != nil {
			return false, err
		}
		y, err := d.B.Readlink(newID)
		return x != y, err
	case unix.S_IFCHR, unix.S_IFBLK:
		return a.Rdev != b.Rdev, nil
	}
	return false, nil
}

func (d *differ) bytesDiffer(oldID, newID checkpoint.ID, a, b *Attr) (bool, error) {
	if a.Size != b.Size {
		return true, nil
	}
	if oldID == newID {
		if same, known, err := d.SameContent(d.ctx, oldID); known || err != nil {
			return !same, err
		}
	}
	x, err := d.A.Open(oldID)
	if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := d.B.Open(newID)
	if err != nil {
		return false, err
	}
	defer y.Close()
	same, err := sameRange(d.ctx, x, y, 0, a.Size)
	return !same, err
}

func (d *differ) xattrsDiffer(oldID, newID checkpoint.ID) (bool, error) {
	if oldID == newID && d.SameXattrs(oldID) {
		return false, nil
	}
	x, err := d.A.Xattrs(oldID)
	if err != nil {
		return false, err
	}
	y, err := d.B.Xattrs(newID)
	return !sameXattrs(x, y), err
}
