package scan

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
)

// Diff tells what changed from one checkpoint to another, or (to "") to now; from "" is the newest checkpoint. With
// expand, what is below created directories is listed too. Errors: NOT_FOUND, ROLLBACK for a checkpoint that is not active.
func (w *Workspace) Diff(ctx context.Context, from, to string, expand bool) (overlay.Diff, error) {
	leave, err := w.enter(ctx, "diff")
	if err != nil {
		return overlay.Diff{}, err
	}
	defer leave()
	d, head, err := w.newDiffer(ctx, "diff", from, to)
	if err != nil {
		return head, err
	}
	d.expand = expand
	if err := d.run(); err != nil {
		return head, errs.Ensure("diff", head.From, err)
	}
	for _, f := range d.found {
		head.Changes = append(head.Changes, f.Change)
	}
	return head, nil
}

// Reconcile tells what changed since a checkpoint ("" is the newest) as lists of paths.
func (w *Workspace) Reconcile(ctx context.Context, id string) (overlay.ReconcileResult, error) {
	diff, err := w.Diff(ctx, id, "", false)
	if err != nil {
		return overlay.ReconcileResult{}, err
	}
	return diff.Reconcile(), nil
}

// differ compares two states of the tree.
type differ struct {
	ctx            context.Context
	w              *Workspace
	a, b           *manifest
	expand         bool
	flat           bool // by path and file alone, as git sees it: what is below a directory that moved is listed
	liveA, liveB   map[inode]int32
	removed, added []int32        // names that only one state has, of a and of b
	oldOf, newOf   map[int32]bool // those of a and of b that pair has matched
	found          []found
}

// found is a change, with the entries of both sides; -1 where there is none.
type found struct {
	overlay.Change
	old, new int32
}

// newDiffer gets the manifests of both states: that of now is made, without saving anything.
func (w *Workspace) newDiffer(ctx context.Context, op, from, to string) (*differ, overlay.Diff, error) {
	diff := overlay.Diff{Changes: []overlay.Change{}, To: to}
	c, err := w.target(op, from)
	if err != nil {
		return nil, diff, err
	}
	diff.From = c.ID
	d := &differ{ctx: ctx, w: w, oldOf: map[int32]bool{}, newOf: map[int32]bool{}}
	if d.a, err = w.manifest(c.ID); err != nil {
		return nil, diff, err
	}
	if to == "" {
		d.b, err = w.look(ctx, c.ID, d.a)
	} else if c, err = w.target(op, to); err == nil {
		d.b, err = w.manifest(c.ID)
	}
	if err != nil {
		return nil, diff, errs.Ensure(op, to, err)
	}
	d.a, d.b = both(d.a, d.b)
	return d, diff, nil
}

// look scans the tree without saving anything. id is a checkpoint whose manifest the caller has.
func (w *Workspace) look(ctx context.Context, id string, m *manifest) (*manifest, error) {
	base := m
	if c, ok := w.history.newest(); ok && c.ID != id {
		var err error
		if base, err = w.manifest(c.ID); err != nil {
			return nil, err
		}
	}
	now, _, err := w.scan(ctx, scanFor{base: base, also: m, scope: w.scope.with(m.scope.tracked)})
	return now, err
}

// run fills in found, sorted by path.
func (d *differ) run() error {
	if err := d.dirs(0, 0); err != nil {
		return err
	}
	if err := d.match(); err != nil {
		return err
	}
	d.onlyOne()
	slices.SortFunc(d.found, func(x, y found) int {
		return cmp.Or(strings.Compare(x.Path, y.Path), strings.Compare(x.OldPath, y.OldPath))
	})
	return nil
}

// dirs compares two directories with all that is in them.
func (d *differ) dirs(i, k int32) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	if i == 0 && k == 0 {
		if err := d.modified(0, 0); err != nil {
			return err
		}
	}
	olds, news := newCursor(d.a, i), newCursor(d.b, k)
	var failed error
	d.a.children(i, func(x int32) {
		y := news.find(d.a.entries[x].name)
		if failed != nil || y >= 0 && d.a.entries[x].kind() == d.b.entries[y].kind() {
			return
		}
		d.removed = append(d.removed, x)
	})
	news = newCursor(d.b, k)
	d.b.children(k, func(y int32) {
		x := olds.find(d.b.entries[y].name)
		switch {
		case failed != nil:
		case x < 0 || d.a.entries[x].kind() != d.b.entries[y].kind():
			d.added = append(d.added, y)
		default:
			if failed = d.modified(x, y); failed == nil && d.a.entries[x].isDir() {
				failed = d.dirs(x, y)
			}
		}
	})
	return failed
}

// modified notes in what two entries of one path differ, if they do.
func (d *differ) modified(x, y int32) error {
	what, err := d.compare(x, y)
	if err != nil || len(what) == 0 {
		return err
	}
	d.found = append(d.found, d.change(overlay.Modified, x, y, what))
	return nil
}

// change describes a change.
func (d *differ) change(kind overlay.ChangeKind, x, y int32, what []string) found {
	f := found{old: x, new: y, Change: overlay.Change{Kind: kind, What: what}}
	if x >= 0 {
		e := &d.a.entries[x]
		f.Path, f.Type, f.OldMode, f.OldSize = d.a.path(x), overlay.TypeName(e.mode), e.mode&modeShown, e.size
	}
	if y >= 0 {
		e := &d.b.entries[y]
		if kind == overlay.Renamed {
			f.OldPath = f.Path
		}
		f.Path, f.Type, f.Mode, f.Size = d.b.path(y), overlay.TypeName(e.mode), e.mode&modeShown, e.size
	}
	return f
}

// compare tells in what an entry of a differs from one of b, both of one type.
func (d *differ) compare(x, y int32) (what []string, err error) {
	a, b := &d.a.entries[x], &d.b.entries[y]
	if (a.flags|b.flags)&flagWay != 0 {
		return nil, nil
	}
	same := sameData(a, b, false)
	if !same && a.isRegular() {
		if same, err = d.sameBytes(x, y); err != nil {
			return nil, err
		}
	}
	if !same {
		what = append(what, "content")
	}
	if a.mode != b.mode {
		what = append(what, "mode")
	}
	if a.uid != b.uid || a.gid != b.gid {
		what = append(what, "owner")
	}
	if !sameXattrs(a.xattrs, b.xattrs) {
		what = append(what, "xattr")
	}
	if !a.isDir() && a.mtime != b.mtime {
		what = append(what, "mtime")
	}
	return what, nil
}

// sameBytes compares what two files of one size hold, where the manifests alone don't tell.
func (d *differ) sameBytes(x, y int32) (bool, error) {
	a, b := &d.a.entries[x], &d.b.entries[y]
	if a.size != b.size || (a.flags|b.flags)&flagClosed != 0 || a.ref.Name == "" || b.ref.Name == "" {
		return false, nil // of a live file whose content no manifest has, the scan has found out as much
	}
	sums := [2]strategy.Ref{a.ref, b.ref}
	for i := range sums {
		var err error
		if sums[i], err = d.w.backups.Sum(sums[i]); err != nil {
			return false, errs.New(errs.Integrity, "compare", d.a.path(x), "%w", err)
		}
	}
	return sums[0].Sum == sums[1].Sum, nil
}

// match pairs what was removed with what was added: an inode that has another name was renamed.
func (d *differ) match() error {
	if len(d.removed) > 0 && len(d.added) > 0 {
		d.liveA, d.liveB = dirInodes(d.a), dirInodes(d.b)
	}
	for more := true; more && len(d.removed) > 0 && len(d.added) > 0; {
		d.spread()
		n, err := d.pair()
		if err != nil {
			return err
		}
		more = n > 0
	}
	d.liveA, d.liveB = nil, nil // what is left has no counterpart
	d.spread()
	return nil
}

// spread adds to the lists what is below directories that only one state has.
func (d *differ) spread() {
	d.removed = spread(d.a, d.removed, d.oldOf, d.b, d.liveB, d.flat)
	d.added = spread(d.b, d.added, d.newOf, d.a, d.liveA, d.flat)
}

// spread gives list with what is below its directories, each name once, in the order of paths, but for what pair has matched. A directory that the other state
// has elsewhere is left for pair.
func spread(m *manifest, list []int32, matched map[int32]bool, other *manifest, alive map[inode]int32, flat bool) []int32 {
	seen := map[int32]bool{}
	var all []int32
	var add func(i int32)
	add = func(i int32) {
		if seen[i] {
			return
		}
		seen[i] = true
		e := &m.entries[i]
		if !matched[i] && e.flags&flagWay == 0 {
			all = append(all, i)
		}
		if !e.isDir() || matched[i] && !flat {
			return
		}
		if k, ok := alive[e.inode()]; ok && !flat && e.flags&flagWay == 0 && e.sameInode(&other.entries[k].stat) {
			return
		}
		m.children(i, add)
	}
	for _, i := range list {
		add(i)
	}
	slices.Sort(all)
	return all
}

func dirInodes(m *manifest) map[inode]int32 {
	all := map[inode]int32{}
	for i := range m.entries {
		if m.entries[i].isDir() && m.entries[i].flags&flagWay == 0 {
			all[m.entries[i].inode()] = int32(i)
		}
	}
	return all
}

// pair takes out of the lists what has the same inode, compares it, and gives how many pairs there were.
func (d *differ) pair() (int, error) {
	byInode := map[inode][]int32{}
	for _, y := range d.added {
		byInode[d.b.entries[y].inode()] = append(byInode[d.b.entries[y].inode()], y)
	}
	gone := map[int32]int32{}
	for _, x := range d.removed {
		a := &d.a.entries[x]
		list := byInode[a.inode()]
		if len(list) == 0 || !a.sameInode(&d.b.entries[list[0]].stat) {
			continue
		}
		y := list[0]
		byInode[a.inode()] = list[1:]
		gone[x] = y
		d.oldOf[x], d.newOf[y] = true, true
		what, err := d.compare(x, y)
		if err != nil {
			return 0, err
		}
		d.found = append(d.found, d.change(overlay.Renamed, x, y, what))
	}
	d.removed = slices.DeleteFunc(d.removed, func(i int32) bool { return d.oldOf[i] })
	d.added = slices.DeleteFunc(d.added, func(i int32) bool { return d.newOf[i] })
	if d.flat {
		return 0, nil
	}
	for x, y := range gone {
		if !d.a.entries[x].isDir() {
			continue
		}
		if err := d.dirs(x, y); err != nil {
			return 0, err
		}
	}
	return len(gone), nil
}

// onlyOne lists what has no counterpart. Without expand a new directory stands for all that is below it.
func (d *differ) onlyOne() {
	for _, x := range d.removed {
		d.found = append(d.found, d.change(overlay.Deleted, x, -1, nil))
	}
	tops := map[int32]bool{}
	for _, y := range d.added {
		f := d.change(overlay.Created, -1, y, nil)
		if p := d.b.entries[y].parent; !d.expand && p >= 0 && tops[p] {
			if d.b.entries[y].isDir() {
				tops[y] = true
			}
			continue
		}
		if f.Type == "dir" && !d.expand {
			f.Tree, tops[y] = true, true
		}
		d.found = append(d.found, f)
	}
}
