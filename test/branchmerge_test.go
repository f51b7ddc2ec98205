package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
)

func mustBeBusy(err error) error {
	if errs.CodeOf(err) != errs.Busy {
		return fmt.Errorf("a branch that others were forked from must be refused as busy: %w", err)
	}
	return nil
}

// merge merges a branch into its parent: first it only asks what would be done.
func (w *branchWorld) merge(l *line, o ops.Op) error {
	p := l.parent
	if p == nil {
		return nil
	}
	if err := p.closeHandles(); err != nil {
		return err
	}
	how := overlay.MergeOptions{OnConflict: o.Name, DryRun: true, Exclusive: o.Flags&ops.MergeAlone != 0}
	if w.isHeld(l, how.Exclusive) {
		_, err := w.host.Merge(l.name, how)
		return errors.Join(mustBeBusy(err), w.compareLines(l))
	}
	t := three{base: l.base.capture}
	var err error
	if t.theirs, err = l.tree.Capture(); err != nil {
		return err
	}
	before, err := w.saved(p)
	if err != nil {
		return err
	}
	t.ours = before.capture
	dry, err := w.host.Merge(l.name, how)
	if err != nil {
		return fmt.Errorf("dry run: %w", err)
	}
	if o.Flags&ops.MergeDry != 0 {
		return w.unmerged(l, t)
	}
	how.DryRun = false
	done, err := w.host.Merge(l.name, how)
	if e := sameAnnounced(dry, done); e != nil && (err == nil || errs.CodeOf(err) == errs.BranchConflict) {
		return e
	}
	if clean := !slices.ContainsFunc(dry.Conflicts, func(c overlay.MergeConflict) bool { return c.Resolved == "" }); !clean {
		w.conflicts++
		if errs.CodeOf(err) != errs.BranchConflict {
			return fmt.Errorf("a merge with conflicts must be refused: %w", err)
		}
		if want, sure := t.foresee(o.Name); !w.moves && sure && want != nil {
			return fmt.Errorf("a merge was refused that has no conflict: %v", dry.Conflicts)
		}
		return w.unmerged(l, t)
	}
	if err != nil {
		return fmt.Errorf("merge: %w", err)
	}
	return w.merged(l, t, before, done)
}

// isHeld reports whether a branch can't be merged because of what was forked from it, or from one that would be dropped.
func (w *branchWorld) isHeld(l *line, exclusive bool) bool {
	if len(w.children(l)) > 0 {
		return true
	}
	return exclusive && slices.ContainsFunc(w.children(l.parent), func(s *line) bool { return len(w.children(s)) > 0 })
}

// unmerged proves that nothing has changed anything.
func (w *branchWorld) unmerged(l *line, t three) error {
	const what = "a merge that was not made"
	return errors.Join(w.isStill(l, t.theirs, what), w.isStill(l.parent, t.ours, what), w.allActive())
}

// sameAnnounced proves that a merge did what its dry run said.
func sameAnnounced(dry, done overlay.MergeResult) error {
	var texts [2]string
	for i, r := range []overlay.MergeResult{dry, done} {
		text, err := json.Marshal([]any{r.Steps, r.Conflicts})
		if err != nil {
			return err
		}
		texts[i] = string(text)
	}
	if texts[0] != texts[1] {
		return fmt.Errorf("a merge is not what its dry run said:\n\t%s\n\t%s", texts[0], texts[1])
	}
	return nil
}

// merged proves that a merge is right, and brings the models there.
func (w *branchWorld) merged(l *line, t three, before *mark, r overlay.MergeResult) error {
	p := l.parent
	now, err := p.tree.Capture()
	if err != nil {
		return err
	}
	if err := t.check(now, r); err != nil {
		return fmt.Errorf("%w\n\tconflicts: %v\n\tsteps: %v", err, r.Conflicts, r.Steps)
	}
	if !w.moves {
		if err := w.checkExactly(t, now, r); err != nil {
			return err
		}
	}
	if r.Checkpoint == "" {
		if err := w.isStill(p, t.ours, "a merge of nothing"); err != nil {
			return err
		}
	} else {
		w.merges++
		if err := w.advance(p, before, r); err != nil {
			return err
		}
	}
	ended := []*line{l}
	if len(r.Dropped) > 0 {
		for _, s := range w.children(p) {
			if s != l && slices.Contains(r.Dropped, s.name) {
				ended = append(ended, s)
			}
		}
	}
	for _, l := range ended {
		err = errors.Join(err, w.gone(l))
	}
	return errors.Join(err, w.allActive(), w.compareLines())
}

// advance follows a merge: the parent has got a checkpoint and an undo checkpoint of what it was before.
func (w *branchWorld) advance(p *line, before *mark, r overlay.MergeResult) error {
	undo := &mark{moment: before.moment, line: p, parent: before}
	undo.id = r.Undo
	dir := p.next()
	if err := p.tree.Copy(dir); err != nil {
		return err
	}
	w.add(before, r.Checkpoint)
	p.head, p.undo = before, undo
	return p.follow(dir)
}

// three are the trees of a merge.
type three struct{ base, ours, theirs treestate.State }

// timeless compares but for the mtimes of directories, which a merge changes as any program would.
func timeless(a, b treestate.State) []string {
	return treestate.Compare{Mtime: func(x, y treestate.Entry) bool { return x.IsDir() || x.Mtime == y.Mtime }}.Diff(a, b)
}

// check proves what must hold of every merge, whatever was moved.
func (t three) check(now treestate.State, r overlay.MergeResult) error {
	if len(timeless(t.base, t.ours)) == 0 {
		if diff := timeless(t.theirs, now); len(diff) > 0 {
			return fmt.Errorf("only the branch had changed, and the merge is something else:\n\t%s", strings.Join(diff, "\n\t"))
		}
	}
	if len(timeless(t.base, t.theirs)) == 0 {
		if diff := timeless(t.ours, now); len(diff) > 0 {
			return fmt.Errorf("the branch had changed nothing, and the merge did:\n\t%s", strings.Join(diff, "\n\t"))
		}
	}
	linked := map[string]bool{} // inodes that a changed name leads to, by the first of their names
	for p, n := range now {
		linked[n.First] = linked[n.First] || !t.keeps(p)
	}
	for p, b := range t.base {
		if b.IsDir() || !t.keeps(p) {
			continue
		}
		if n := now[p]; !alike(b, n) && !linked[n.First] {
			return fmt.Errorf("%q was changed, which no side has changed: %+v, was %+v", p, n, b)
		}
	}
	if len(r.Conflicts) == 0 {
		if err := errors.Join(namesKept(t.base, t.theirs, t.ours, now), namesKept(t.base, t.ours, t.theirs, now)); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(r.Steps, func(s overlay.MergeStep) bool { return s.Source == "merge" }) {
		return nil
	}
	ours, theirs := len(r.Conflicts) == 0, len(r.Conflicts) == 0
	for _, c := range r.Conflicts {
		ours, theirs = ours || c.Resolved == overlay.ConflictOurs, theirs || c.Resolved == overlay.ConflictTheirs
	}
	if ours {
		if err := contentKept(t.base, t.ours, now, "the parent"); err != nil {
			return err
		}
	}
	if theirs {
		return contentKept(t.base, t.theirs, now, "the branch")
	}
	return nil
}

// keeps reports whether no side has changed what a name leads to.
func (t three) keeps(p string) bool {
	b, ok := t.base[p]
	return ok && alike(b, t.ours[p]) && alike(b, t.theirs[p])
}

// alike compares in all but hard links.
func alike(a, b treestate.Entry) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.Size == b.Size && a.Mtime == b.Mtime && a.Rdev == b.Rdev &&
		a.Sum == b.Sum && a.Target == b.Target && maps.Equal(a.Xattrs, b.Xattrs)
}

// contentKept proves that everything that a side has written is there.
func contentKept(base, side, now treestate.State, who string) error {
	old, have := sums(base), sums(now)
	for p, e := range side {
		if e.IsRegular() && e.Size > 0 && !old[e.Sum] && !have[e.Sum] {
			return fmt.Errorf("what %s wrote to %q is lost", who, p)
		}
	}
	return nil
}

// namesKept proves that what one side has given another name, and the other has left alone, has that name, wherever that is: directories may have moved.
// What took another file's place counts as that file's content, which the other side may have given a name too.
func namesKept(base, side, other, now treestate.State) error {
	before, after := only(base), only(side)
	merged := map[treestate.Sum][]string{}
	for p, e := range now {
		merged[e.Sum] = append(merged[e.Sum], path.Base(p))
	}
	for sum, p := range before {
		q, ok := after[sum]
		b := base[p]
		if !ok || path.Base(p) == path.Base(q) || !alike(b, side[q]) || !alike(b, other[p]) || other[p].Nlink != 1 {
			continue
		}
		if old, taken := base[q]; taken && !alike(old, other[q]) {
			continue
		}
		if !slices.Contains(merged[sum], path.Base(q)) {
			return fmt.Errorf("the new name of %q, which became %q, is lost: it is %q", p, q, merged[sum])
		}
	}
	return nil
}

// only gives where the files are whose contents no other has, and that have one name.
func only(s treestate.State) map[treestate.Sum]string {
	count, at := map[treestate.Sum]int{}, map[treestate.Sum]string{}
	for p, e := range s {
		if e.IsRegular() && e.Size > 0 {
			count[e.Sum]++
			at[e.Sum] = p
		}
	}
	for sum, p := range at {
		if count[sum] > 1 || s[p].Nlink != 1 {
			delete(at, sum)
		}
	}
	return at
}

func sums(s treestate.State) map[treestate.Sum]bool {
	all := map[treestate.Sum]bool{}
	for _, e := range s {
		if e.IsRegular() {
			all[e.Sum] = true
		}
	}
	return all
}

// checkExactly compares a merge with what a simple merge of paths comes to.
func (w *branchWorld) checkExactly(t three, now treestate.State, r overlay.MergeResult) error {
	policy := overlay.ConflictReject
	if len(r.Conflicts) > 0 {
		policy = r.Conflicts[0].Resolved
	}
	want, sure := t.foresee(policy)
	if !sure || slices.ContainsFunc(r.Steps, func(s overlay.MergeStep) bool { return s.Source == "merge" }) {
		return nil
	}
	w.exact++
	if want == nil {
		return errors.New("a conflict was not seen")
	}
	if diff := timeless(want, now); len(diff) > 0 {
		return fmt.Errorf("a merge of paths comes to something else:\n\t%s\n\tconflicts: %v\n\tsteps: %v", strings.Join(diff, "\n\t"), r.Conflicts, r.Steps)
	}
	return nil
}

// foresee merges path by path, where nothing was moved. It gives nil where there are conflicts that the policy does not settle, and is not sure
// where a simple answer isn't possible.
func (t three) foresee(policy string) (want treestate.State, sure bool) {
	want = treestate.State{}
	conflict := false
	paths := maps.Clone(t.base)
	maps.Copy(paths, t.ours)
	maps.Copy(paths, t.theirs)
	for p := range paths {
		e, alive, ok := t.one(p)
		switch {
		case ok:
		case policy == overlay.ConflictMerge && t.ours[p].IsRegular() && t.theirs[p].IsRegular():
			return nil, false // it may be text
		case policy == overlay.ConflictOurs:
			e, alive = t.ours[p]
		case policy == overlay.ConflictTheirs:
			e, alive = t.theirs[p]
		default:
			conflict = true
		}
		if !ok && (t.ours[p].IsDir() || t.theirs[p].IsDir() || t.base[p].IsDir()) && !conflict {
			return nil, false // what is below goes with it
		}
		if alive {
			want[p] = e
		}
	}
	for p := range want {
		if p != "." && !want[path.Dir(p)].IsDir() {
			if policy == overlay.ConflictOurs || policy == overlay.ConflictTheirs {
				return nil, false
			}
			conflict = true
		}
	}
	if conflict {
		return nil, true
	}
	return want, true
}

// one merges what is at a path. It fails where both sides have changed it, not alike.
func (t three) one(p string) (e treestate.Entry, alive, ok bool) {
	b, inB := t.base[p]
	o, inO := t.ours[p]
	h, inT := t.theirs[p]
	retyped := func(e treestate.Entry, in bool) bool {
		return inB && in && treestate.TypeName(b.Mode) != treestate.TypeName(e.Mode)
	}
	switch {
	case inB == inT && !changed(b, h) && (!inB || b.Mtime == h.Mtime || b.IsDir()):
		return o, inO, true
	case inB == inO && !changed(b, o) && (!inB || b.Mtime == o.Mtime || b.IsDir()):
		return h, inT, true
	case !inO && !inT:
		return e, false, true
	case inB && !inO:
		return h, false, !changed(b, h)
	case inB && !inT:
		return o, false, !changed(b, o)
	case treestate.TypeName(o.Mode) != treestate.TypeName(h.Mode), retyped(o, inO) != retyped(h, inT):
		return e, false, false
	case !inB || retyped(o, inO):
		e, ok = combine(nil, o, h)
	default:
		e, ok = combine(&b, o, h)
	}
	return e, true, ok
}

// changed compares what counts as a change: not the mtime.
func changed(a, b treestate.Entry) bool {
	a.Mtime, b.Mtime = 0, 0
	return !alike(a, b)
}

// combine merges two versions of one thing, property by property. b is nil where both have made it.
func combine(b *treestate.Entry, o, t treestate.Entry) (e treestate.Entry, ok bool) {
	e = o
	if b == nil {
		e.Mtime = max(o.Mtime, t.Mtime)
		return e, !changed(o, t)
	}
	ok = true
	pick := func(base, ours, theirs any) bool { // reports whether theirs is to be taken
		switch {
		case ours == theirs || theirs == base:
			return false
		case ours == base:
			return true
		}
		ok = false
		return false
	}
	type content struct {
		sum    treestate.Sum
		size   int64
		target string
		rdev   uint64
	}
	of := func(e treestate.Entry) content { return content{e.Sum, e.Size, e.Target, e.Rdev} }
	if pick(of(*b), of(o), of(t)) {
		e.Sum, e.Size, e.Target, e.Rdev = t.Sum, t.Size, t.Target, t.Rdev
	}
	if pick(b.Mode, o.Mode, t.Mode) {
		e.Mode = t.Mode
	}
	if pick(b.UID, o.UID, t.UID) {
		e.UID = t.UID
	}
	if pick(b.GID, o.GID, t.GID) {
		e.GID = t.GID
	}
	e.Xattrs = maps.Clone(o.Xattrs)
	names := map[string]bool{}
	for _, x := range []map[string]string{b.Xattrs, o.Xattrs, t.Xattrs} {
		for name := range x {
			names[name] = true
		}
	}
	for name := range names {
		value := func(x map[string]string) string {
			if v, ok := x[name]; ok {
				return "=" + v
			}
			return ""
		}
		if !pick(value(b.Xattrs), value(o.Xattrs), value(t.Xattrs)) {
			continue
		}
		if v, ok := t.Xattrs[name]; ok {
			if e.Xattrs == nil {
				e.Xattrs = map[string]string{}
			}
			e.Xattrs[name] = v
		} else {
			delete(e.Xattrs, name)
		}
	}
	switch {
	case t.Mtime == b.Mtime:
	case o.Mtime == b.Mtime:
		e.Mtime = t.Mtime
	default:
		e.Mtime = max(o.Mtime, t.Mtime)
	}
	return e, ok
}
