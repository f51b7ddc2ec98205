package scan

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/parallel"
	"github.com/oklog/ulid/v2"
)

// Files on their way into the tree are in the directory where they belong, so that renaming them is atomic whatever is
// mounted where. Their names are never in a manifest that is rolled back to, so that whatever a crash leaves of them is removed.
const (
	tempPrefix = ".hyperfs-"
	tempEnd    = "~"
)

func tempName() string { return tempPrefix + ulid.Make().String() + tempEnd }

// isTemp reports whether a name is one that tempName gives.
func isTemp(name string) bool {
	id, ok := strings.CutPrefix(name, tempPrefix)
	if !ok || !strings.HasSuffix(id, tempEnd) {
		return false
	}
	_, err := ulid.ParseStrict(strings.TrimSuffix(id, tempEnd))
	return err == nil
}

// apply makes the live tree what the plan wants. Every name is looked at again before it is removed or replaced: what
// the manifest of now does not have is not lost.
func (w *Workspace) apply(p *plan) error {
	if p.empty() {
		return nil
	}
	a := &applier{w: w, p: p}
	top, err := w.top.again()
	if err != nil {
		return errs.Wrap(errs.Internal, "rollback", w.root, err)
	}
	defer top.close()
	if err := a.dir(top, 0); err != nil {
		return err
	}
	crash.Point("scan-placed")
	for _, i := range a.links {
		if err := a.link(i); err != nil {
			return a.failed(i, err)
		}
	}
	crash.Point("scan-linked")
	return a.dressDirs(top, 0)
}

// applier carries out a plan.
type applier struct {
	w     *Workspace
	p     *plan
	links []int32 // names that become further names of an inode, when all inodes are there
}

func (a *applier) failed(i int32, err error) error { return applyFailed(a.p.want.path(i), err) }

// applyFailed is the error for a path that a rollback could not change. The intent stays: who is told what to do can have it
// finished.
func applyFailed(path string, err error) error {
	var e *errs.Error
	why := ""
	switch {
	case errors.As(err, &e):
	case isInUse(err):
		why = "another program has it open"
	case openBlocks && isDenied(err):
		why = "another program may be running from it"
	}
	if why == "" {
		return errs.Ensure("rollback", path, err)
	}
	return errs.New(errs.Rollback, "rollback", path, "%s: %w", why, err).
		WithHint("end that program; the next hyperfs command then finishes the rollback")
}

// errNewer says that something was changed after the undo checkpoint was made.
var errNewer = errors.New("another program has changed it since the rollback began")

// dir makes what is in the directory i, which is open, what it should be, all but further names and the attributes of
// directories.
func (a *applier) dir(d dir, i int32) error {
	p := a.p
	if !p.todo[i] {
		return nil
	}
	if err := a.openUp(d); err != nil {
		return a.failed(i, err)
	}
	for _, k := range p.extra[i] {
		if err := a.remove(d, k); err != nil {
			return applyFailed(p.now.path(k), err)
		}
	}
	crash.Point("scan-removed")
	var files, dirs []int32
	p.want.children(i, func(c int32) {
		if p.want.entries[c].isDir() {
			dirs = append(dirs, c)
		} else {
			files = append(files, c)
		}
	})
	if err := a.files(d, files); err != nil {
		return err
	}
	for _, c := range dirs {
		if err := a.subdir(d, c); err != nil {
			return err
		}
	}
	return nil
}

// openUp lets this user, who has shut the directory for themselves, into it. Its mode comes back at the end.
func (a *applier) openUp(d dir) error {
	st, err := d.self()
	if err != nil || !a.w.mayLift(&st) || st.mode&0o700 == 0o700 {
		return err
	}
	return d.chmodSelf(lifted(st.mode))
}

// unchanged fails where a name does not lead any more to what the manifest of now has.
func (a *applier) unchanged(d dir, k int32) error {
	was := &a.p.now.entries[k]
	is, err := d.stat(was.name)
	if err != nil {
		if isMissing(err) {
			return errNewer
		}
		return err
	}
	same := was.inode() == is.inode() && was.kind() == is.kind()
	if same && !was.isDir() {
		same = was.size == is.size && a.sameTimes(k, &is)
	}
	if !same {
		return errNewer
	}
	return nil
}

// sameTimes reports whether the times of what k leads to are those that it had, or those that the rollback itself has
// given it by another name.
func (a *applier) sameTimes(k int32, is *stat) bool {
	was := &a.p.now.entries[k]
	if was.nlink == 1 && was.flags&flagUnstable == 0 && was.ctime != unknownTime {
		return was.mtime == is.mtime && was.ctime == is.ctime
	}
	i, used := a.p.user[was.first]
	return was.mtime == is.mtime || used && a.p.want.entries[i].mtime == is.mtime
}

// remove takes the entry k of now away, with all that is in it, but for directories that have something ignored in them.
func (a *applier) remove(d dir, k int32) error {
	if err := a.unchanged(d, k); err != nil {
		return err
	}
	e := &a.p.now.entries[k]
	if !e.isDir() {
		return d.unlink(e.name)
	}
	sub, err := a.enter(d, e.name)
	if err != nil {
		return err
	}
	defer sub.close()
	if err := a.openUp(sub); err != nil {
		return err
	}
	var failed error
	a.p.now.children(k, func(c int32) {
		if failed == nil && a.p.going(c) > 0 {
			failed = a.remove(sub, c)
		}
	})
	if failed != nil {
		return failed
	}
	if a.p.holds[k] {
		return dressAgain(sub, e)
	}
	if err := d.rmdir(e.name); err != nil {
		return fmt.Errorf("%w: %w", errNewer, err)
	}
	return nil
}

// enter opens a directory in d, also where its owner has shut it.
func (a *applier) enter(d dir, name string) (dir, error) {
	sub, err := d.sub(name)
	if !isDenied(err) {
		return sub, err
	}
	st, serr := d.stat(name)
	if serr != nil || !a.w.mayLift(&st) {
		return sub, err
	}
	if err := d.chmod(name, lifted(st.mode)); err != nil {
		return sub, err
	}
	return d.sub(name)
}

// files makes the inodes of a directory that must be made, and gives those that stay their attributes.
func (a *applier) files(d dir, list []int32) error {
	p := a.p
	var work []int32
	for _, i := range list {
		first := p.want.entries[i].first
		switch {
		case p.inPlace(i):
			if p.mustDress(i) {
				work = append(work, i)
			}
		case p.source[first] < 0 && first == i:
			work = append(work, i)
		default:
			a.links = append(a.links, i)
		}
	}
	return parallel.Each(work, func(i int32) error {
		e := &p.want.entries[i]
		if p.inPlace(i) {
			return a.failed(i, d.dress(e.name, e))
		}
		return a.failed(i, a.make(d, i))
	})
}

// make makes an inode beside its place, and puts it there.
func (a *applier) make(d dir, i int32) error {
	e := &a.p.want.entries[i]
	tmp := tempName()
	var err error
	if e.isRegular() && e.ref.Name != "" {
		err = a.w.backups.Materialize(e.ref, d.descriptor(), tmp, false)
	} else {
		err = d.special(tmp, e)
	}
	if err != nil {
		return err
	}
	crash.Point("scan-made")
	if err := d.dress(tmp, e); err != nil {
		_ = d.unlink(tmp)
		return err
	}
	if syncsFiles && a.w.cfg.Sync && e.isRegular() {
		err = d.syncFile(tmp)
	}
	if err == nil {
		err = a.put(d, tmp, i)
	}
	if err != nil {
		_ = d.unlink(tmp)
	}
	return err
}

// put renames tmp to the name of i, in the place of what now has there.
func (a *applier) put(d dir, tmp string, i int32) error {
	name := a.p.want.entries[i].name
	if k := a.p.at[i]; k >= 0 {
		if err := a.unchanged(d, k); err != nil {
			return err
		}
		if a.p.now.entries[k].isDir() {
			if err := a.remove(d, k); err != nil {
				return err
			}
		}
	} else if _, err := d.stat(name); !isMissing(err) {
		if err == nil {
			err = errNewer
		}
		return err
	}
	return d.rename(tmp, name)
}

// link makes i a further name of an inode.
func (a *applier) link(i int32) error {
	p := a.p
	e := &p.want.entries[i]
	src := p.source[e.first]
	if src < 0 {
		src = e.first
	}
	from, err := a.w.openDir(p.want.path(p.want.entries[src].parent))
	if err != nil {
		return err
	}
	defer from.close()
	to, err := a.w.openDir(p.want.path(e.parent))
	if err != nil {
		return err
	}
	defer to.close()
	tmp := tempName()
	if err := from.link(p.want.entries[src].name, to, tmp); err != nil {
		return err
	}
	if err := a.put(to, tmp, i); err != nil {
		_ = to.unlink(tmp)
		return err
	}
	return nil
}

// subdir makes a directory what it should be.
func (a *applier) subdir(d dir, i int32) error {
	p := a.p
	name := p.want.entries[i].name
	if !p.todo[i] {
		return nil
	}
	if !p.isDirAt(i) {
		if err := a.mkdir(d, i); err != nil {
			return a.failed(i, err)
		}
	}
	sub, err := a.enter(d, name)
	if err != nil {
		return a.failed(i, err)
	}
	defer sub.close()
	return a.dir(sub, i)
}

func (a *applier) mkdir(d dir, i int32) error {
	name := a.p.want.entries[i].name
	if k := a.p.at[i]; k >= 0 {
		if err := a.remove(d, k); err != nil {
			return err
		}
	}
	return d.mkdir(name)
}

// dressDirs gives the directories that were changed their attributes, those of the workspace itself last.
func (a *applier) dressDirs(d dir, i int32) error {
	p := a.p
	var failed error
	p.want.children(i, func(c int32) {
		e := &p.want.entries[c]
		if failed != nil || !e.isDir() || !p.todo[c] {
			return
		}
		sub, err := d.sub(e.name)
		if err != nil {
			failed = a.failed(c, err)
			return
		}
		defer sub.close()
		failed = a.dressDirs(sub, c)
	})
	if failed != nil {
		return failed
	}
	if k := p.at[i]; p.want.entries[i].flags&flagWay != 0 && p.isDirAt(i) {
		return a.failed(i, dressAgain(d, &p.now.entries[k]))
	}
	if !p.dirs[i] {
		// Nothing was changed but something below it, for which its mode may have been lifted.
		st, err := d.self()
		if err != nil || st.mode == p.want.entries[i].mode {
			return a.failed(i, err)
		}
	}
	return a.failed(i, d.dressSelf(&p.want.entries[i]))
}

// dressAgain gives a directory that is not protected, or stays though it should not be there, the attributes that it had before something in it was changed.
func dressAgain(d dir, was *entry) error {
	if !owns(&was.stat) {
		return nil
	}
	return d.dressSelf(was)
}
