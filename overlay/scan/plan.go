package scan

import (
	"context"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/parallel"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
)

// plan is what makes the live tree, of which now is a manifest, equal to want.
type plan struct {
	want, now *manifest // the parts that can be compared
	origin    []int32   // for each entry of want, its index in the whole manifest; nil where it is that
	holds     []bool    // directories of now that can't be removed: see manifest.holding
	holes     bool      // the same bytes with other holes are another content
	at        []int32   // for each entry of want: what now has at its path, -1 if nothing
	// source is for each first name in want: the name whose inode in the live tree holds what is wanted already, and
	// becomes the inode of all the others; -1 if the inode must be made.
	source []int32
	user   map[int32]int32   // the first name in want of the inode that takes over one of the live tree, by that one's first name
	extra  map[int32][]int32 // entries of now that must go, by the directory of want that they are in
	todo   []bool            // for each directory of want: something in it or below it must be done
	dirs   []bool            // directories of want whose attributes must be set
	stays  []bool            // entries of now whose name keeps its inode: see leaves
	counts counts
}

// counts are what a rollback tells of itself.
type counts struct{ restored, removed, modified int }

func newPlan(want, now *manifest, holes bool) *plan {
	p := &plan{holes: holes, extra: map[int32][]int32{}}
	p.want, p.origin = want.within(now.asked(), true)
	p.now, _ = now.within(want.scope, false)
	want, now = p.want, p.now
	p.at, p.holds = pairs(want, now), now.holding()
	p.source = make([]int32, len(want.entries))
	p.todo, p.dirs = make([]bool, len(want.entries)), make([]bool, len(want.entries))
	p.chooseSources()
	p.findExtra()
	for i := range want.entries {
		p.look(int32(i))
	}
	return p
}

// isDirAt reports whether the entry i of want and what is there now are both directories.
func (p *plan) isDirAt(i int32) bool {
	return p.at[i] >= 0 && p.want.entries[i].isDir() && p.now.entries[p.at[i]].isDir()
}

// chooseSources gives every inode of want one of the live tree that holds the same. No live one is taken twice.
func (p *plan) chooseSources() {
	for i := range p.source {
		p.source[i] = -1
	}
	p.user = map[int32]int32{}
	for i := range p.want.entries {
		e := &p.want.entries[i]
		k := p.at[i]
		if e.isDir() || k < 0 || p.source[e.first] >= 0 || !sameData(e, &p.now.entries[k], p.holes) {
			continue
		}
		live := p.now.entries[k].first
		if _, taken := p.user[live]; !taken {
			p.user[live] = e.first
			p.source[e.first] = int32(i)
		}
	}
}

// inPlace reports whether the name i of want leads to the inode that it should lead to.
func (p *plan) inPlace(i int32) bool {
	src := p.source[p.want.entries[i].first]
	return src >= 0 && p.at[i] >= 0 && p.now.entries[p.at[i]].first == p.now.entries[p.at[src]].first
}

// findExtra lists what must go: what want has no name for. What has a name, but of another type, is replaced.
func (p *plan) findExtra() {
	for i := range p.want.entries {
		if !p.isDirAt(int32(i)) {
			continue
		}
		names := newCursor(p.want, int32(i))
		p.now.children(p.at[i], func(k int32) {
			if names.find(p.now.entries[k].name) >= 0 {
				return
			}
			if n := p.going(k); n > 0 {
				p.extra[int32(i)] = append(p.extra[int32(i)], k)
				p.counts.removed += n
				p.mark(int32(i))
			}
		})
	}
}

// going counts the names at or below the entry k of now that go, if want has none of them, each with all that is below it.
func (p *plan) going(k int32) (n int) {
	if !p.holds[k] {
		return 1
	}
	p.now.children(k, func(c int32) { n += p.going(c) })
	return n
}

// kept counts the directories of now that want does not have, and that stay for what is ignored in them; those in one of these are not counted.
func (p *plan) kept() (n int) {
	known := make([]bool, len(p.now.entries))
	for _, k := range p.at {
		if k >= 0 {
			known[k] = true
		}
	}
	for k := range p.now.entries {
		e := &p.now.entries[k]
		if !known[k] && p.holds[k] && e.flags&flagWay == 0 && known[e.parent] {
			n++
		}
	}
	return n
}

// mark notes that a directory is going to be changed.
func (p *plan) mark(dir int32) {
	p.dirs[dir] = true
	p.visit(dir)
}

// visit notes that there is something to do below a directory.
func (p *plan) visit(dir int32) {
	for ; dir >= 0 && !p.todo[dir]; dir = p.want.entries[dir].parent {
		p.todo[dir] = true
	}
}

// look finds out what has to be done with the entry i.
func (p *plan) look(i int32) {
	e := &p.want.entries[i]
	switch {
	case e.isDir() && p.isDirAt(i):
		if !sameAttrs(e, &p.now.entries[p.at[i]]) {
			p.counts.modified++
			p.mark(i)
		}
	case e.isDir():
		p.counts.restored++
		p.mark(i)
		p.mark(e.parent)
	case !p.inPlace(i):
		if p.at[i] >= 0 && p.now.entries[p.at[i]].kind() == e.kind() {
			p.counts.modified++
		} else {
			p.counts.restored++
		}
		p.mark(e.parent)
	case p.mustDress(i):
		p.counts.modified++
		p.visit(e.parent)
	}
}

// mustDress reports whether i is the name by which an inode that stays gets other attributes.
func (p *plan) mustDress(i int32) bool {
	e := &p.want.entries[i]
	return p.source[e.first] == i && !sameAttrs(e, &p.now.entries[p.at[i]])
}

// empty reports whether nothing has to be done.
func (p *plan) empty() bool { return !p.todo[0] }

// verify proves, before anything is touched, that the plan can be carried out: every backup that it wants is there and
// is what was saved, and nothing is wanted that this user can't make.
func (w *Workspace) verify(ctx context.Context, p *plan) error {
	if err := p.checkLeft(); err != nil {
		return err
	}
	if err := p.removable(); err != nil {
		return err
	}
	if err := w.checkCase(p); err != nil {
		return err
	}
	if err := w.checkLinks(p); err != nil {
		return err
	}
	if err := w.checkInUse(p); err != nil {
		return err
	}
	var wanted []int32
	for i := range p.want.entries {
		e := &p.want.entries[i]
		if err := p.possible(int32(i)); err != nil {
			return err
		}
		if e.isRegular() && e.first == int32(i) && p.source[i] < 0 && e.size > 0 {
			wanted = append(wanted, int32(i))
		}
	}
	return parallel.Each(wanted, func(i int32) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.backups.Verify(p.want.entries[i].ref); err != nil {
			return errs.New(errs.Integrity, "rollback", p.want.path(i), "its content can't be had back: %w", err)
		}
		return nil
	})
}

// possible refuses what can be known to fail.
func (p *plan) possible(i int32) error {
	e := &p.want.entries[i]
	refuse := func(format string, args ...any) error {
		return errs.New(errs.Integrity, "rollback", p.want.path(i), format, args...)
	}
	made := !e.isDir() && p.source[e.first] < 0 || e.isDir() && !p.isDirAt(i)
	switch {
	case e.flags&flagForeign != 0 && (p.at[i] < 0 || p.now.entries[p.at[i]].flags&flagForeign == 0):
		return refuse("something was mounted there, and is no more")
	case p.at[i] >= 0 && p.now.entries[p.at[i]].flags&flagForeign != 0 && e.flags&flagForeign == 0:
		return refuse("something is mounted there now")
	case e.flags&flagClosed != 0 && (made || e.isDir() && !p.now.entries[p.at[i]].sameInode(&e.stat)):
		return refuse("this user could not read it, so nothing is there to put back")
	case made && !mayOwn(e.uid, e.gid):
		return refuse("it belonged to user %d and group %d, and only root can give it back", e.uid, e.gid)
	case made && !privileged() && (e.kind() == modeChar || e.kind() == modeBlock):
		return refuse("it was a device, which only root can make")
	case made && !e.isDir() && !makeable(e):
		return refuse("it was a %s, which can't be made here", overlay.TypeName(e.mode))
	case p.changesOthers(i):
		return refuse("it belongs to user %d, and only they and root can change it", p.now.entries[p.at[i]].uid)
	case made && e.isRegular() && e.size > 0 && (e.ref == strategy.Ref{}):
		return refuse("there is no backup of it")
	}
	return nil
}

// changesOthers reports whether the rollback changes an inode of another user, as which this one may not.
func (p *plan) changesOthers(i int32) bool {
	e := &p.want.entries[i]
	if p.at[i] < 0 || owns(&p.now.entries[p.at[i]].stat) || e.flags&flagWay != 0 {
		return false
	}
	if e.isDir() {
		return p.isDirAt(i) && p.dirs[i]
	}
	return p.inPlace(i) && p.mustDress(i)
}

// removable refuses to take away what cannot be taken away.
func (p *plan) removable() error {
	for i := range p.now.entries {
		e := &p.now.entries[i]
		if e.flags&flagForeign == 0 && (!e.isDir() || e.flags&flagClosed == 0) || !p.goes(int32(i)) {
			continue
		}
		why := "this user may not read it"
		if e.flags&flagForeign != 0 {
			why = "something is mounted there"
		}
		return errs.New(errs.Rollback, "rollback", p.now.path(int32(i)), "it was not there, and can't be removed: %s", why)
	}
	return nil
}

// goes reports whether the rollback takes the entry i of now away, or puts something of another type there.
func (p *plan) goes(i int32) bool {
	for k := range p.want.entries {
		if p.at[k] == i {
			return p.want.entries[k].kind() != p.now.entries[i].kind()
		}
	}
	return !p.holds[i]
}
