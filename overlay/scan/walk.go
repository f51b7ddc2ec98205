package scan

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/internal/parallel"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
)

// errChanged says that the tree changed in a way that the scan has to begin again.
var errChanged = errors.New("it is being changed by another program")

// tries is how often a scan, or the reading of a file, begins again because something changed meanwhile.
const tries = 4

// scanFor says what a scan is to find.
type scanFor struct {
	base  *manifest // an earlier one: what has not changed since is taken over; may be nil
	also  *manifest // another one that contents may be those of, whatever holes they have; may be nil
	save  bool      // contents that neither has are saved
	scope scope
	temps bool // also what a rollback that was cut short has left in ignored directories
	only  bool // nothing but what is tracked
}

// scanner makes a manifest of the live tree.
type scanner struct {
	scanFor
	ctx context.Context
	w   *Workspace

	left    map[int32][]string // manifest.left
	unknown map[string]bool    // tracked paths of which it can't be told what is there
	out     *manifest
	top     stat // of the workspace itself
	groups  map[inode]int32
	inBase  func() map[inode]int32 // the inodes of base
	inAlso  func() map[inode]int32
	buf     []byte

	mu    sync.Mutex     // guards what follows
	saved []strategy.Ref // by this scan
	gone  map[int32]bool // entries that vanished before they could be read
}

// scan makes a manifest. Where it saves, what it has saved is in saved, to be removed by a caller who has no use for it.
func (w *Workspace) scan(ctx context.Context, o scanFor) (m *manifest, saved []strategy.Ref, err error) {
	for range tries {
		s := &scanner{scanFor: o, ctx: ctx, w: w, groups: map[inode]int32{}, gone: map[int32]bool{}, buf: make([]byte, 64<<10)}
		s.inBase, s.inAlso = sync.OnceValue(o.base.inodes), sync.OnceValue(o.also.inodes)
		err = s.run()
		if e := w.lifts.done(); err == nil {
			err = e
		}
		if err == nil {
			return s.out, s.saved, nil
		}
		w.discard(s.saved)
		if !errors.Is(err, errChanged) {
			return nil, nil, err
		}
	}
	var e *errs.Error
	if errors.As(err, &e) {
		return nil, nil, e.WithHint("end what works in it, or try again")
	}
	return nil, nil, err
}

// discard frees backups that no manifest names.
func (w *Workspace) discard(refs []strategy.Ref) {
	for _, r := range refs {
		if err := w.backups.Remove(r); err != nil {
			w.log.Warn("a backup can't be removed", "name", r.Name, "err", err)
		}
	}
}

func (s *scanner) run() error {
	stamp, err := s.w.now()
	if err != nil {
		return errs.Wrap(errs.Internal, "scan", "", err)
	}
	s.out = &manifest{stamp: stamp}
	top, err := s.w.top.again()
	if err != nil {
		return errs.Wrap(errs.Internal, "scan", s.w.root, err)
	}
	defer top.close()
	st, err := top.self()
	if err != nil {
		return errs.Wrap(errs.Internal, "scan", s.w.root, err)
	}
	s.top = st
	root := entry{parent: -1, stat: st}
	if root.xattrs, err = top.selfXattrs(); err != nil {
		return errs.Wrap(errs.Internal, "scan", s.w.root, err)
	}
	at := s.scope.lane()
	if s.only {
		at.ignored = true
	}
	list := newLister(s.ctx, s.isForeign, s.temps).list(top, at, overlay.StoreName)
	s.forgetLeft()
	if s.confirms(list, at, &root) {
		*s.out = manifest{stamp: s.base.stamp, entries: s.base.entries, asBase: true, scope: s.base.scope, sought: s.scope, left: s.left}
		return nil
	}
	s.forgetLeft()
	if s.base != nil {
		s.out.entries = make([]entry, 0, len(s.base.entries)+64)
	}
	s.out.entries = append(s.out.entries, root)
	if err := s.dir(top, 0, newCursor(s.base, 0), newCursor(s.also, 0), at, list); err != nil {
		return err
	}
	return s.finish()
}

// confirms reports whether all is as base has it.
func (s *scanner) confirms(list *listing, at *lane, root *entry) bool {
	return s.base != nil && slices.EqualFunc(s.base.scope.rules, s.scope.rules, (*ignore.Rules).Equal) &&
		s.takes(&s.base.entries[0], root) && s.sameBelow(list, 0, at) == len(s.base.entries) &&
		s.scope.without(s.unknown).equal(s.base.scope)
}

func (s *scanner) forgetLeft() { s.left, s.unknown = map[int32][]string{}, map[string]bool{} }

// note notes what is left out of the directory i, whose lane is at, and of which tracked paths it can't be told what is there.
func (s *scanner) note(i int32, at *lane, name string, st *stat, is inside) {
	if at == nil {
		return
	}
	if !is.in {
		s.left[i] = append(s.left[i], name)
	}
	path, to := at.below(name)
	switch {
	case to == nil:
	case s.isForeign(st):
		to.each(path, s.unknown)
	case to.end && (st.isDir() || !is.in):
		s.unknown[path] = true
	}
}

// shutOff notes that what is in a directory that leads to what is tracked can't be read.
func (s *scanner) shutOff(at *lane) {
	if at != nil && at.way != nil {
		at.way.each(at.path, s.unknown)
	}
}

// finish takes out what vanished, and gives further names of an inode what was found out with the first.
func (s *scanner) finish() error {
	for i := range s.out.entries {
		e := &s.out.entries[i]
		if s.gone[int32(i)] && e.nlink > 1 {
			return s.changed(int32(i))
		}
	}
	s.out.scope, s.out.sought, s.out.left = s.scope.without(s.unknown), s.scope, s.left
	s.out.remove(s.gone)
	s.out.closeDirs()
	for i := range s.out.entries {
		e := &s.out.entries[i]
		if f := &s.out.entries[e.first]; f.ref.Name == "" && e.ref.Size == f.size {
			f.ref = e.ref
		}
	}
	for i := range s.out.entries {
		e := &s.out.entries[i]
		if e.first == int32(i) {
			continue
		}
		f := &s.out.entries[e.first]
		e.stat, e.flags, e.target, e.xattrs, e.ref = f.stat, f.flags, f.target, f.xattrs, f.ref
	}
	return nil
}

// changed is the error for an entry that is not what it was a moment ago.
func (s *scanner) changed(i int32) error { return s.failed(i, errChanged) }

func (s *scanner) failed(i int32, err error) error {
	return errs.Ensure("scan", s.out.path(i), wrapped(s.out.path(i), err))
}

// wrapped gives err a code, unless it has one or comes from a context.
func wrapped(path string, err error) error {
	if errors.Is(err, errChanged) {
		return errs.Wrap(errs.Busy, "scan", path, err)
	}
	if isInUse(err) {
		return errs.New(errs.Busy, "scan", path, "another program has it open and lets nobody read it: %w", err).WithHint("end that program, or try again")
	}
	return err
}

// cursor finds entries of one directory whose names are asked for in order.
type cursor struct {
	m      *manifest
	k, end int32
}

func newCursor(m *manifest, i int32) cursor {
	if m == nil || i < 0 {
		return cursor{}
	}
	return cursor{m, i + 1, m.entries[i].end}
}

// find gives the index of a name, -1 if it is not there.
func (c *cursor) find(name string) int32 {
	for c.k < c.end && c.m.entries[c.k].name < name {
		c.k = c.m.entries[c.k].end
	}
	if c.k < c.end && c.m.entries[c.k].name == name {
		return c.k
	}
	return -1
}

// at gives the entry of an index, nil for -1.
func (m *manifest) at(i int32) *entry {
	if m == nil || i < 0 {
		return nil
	}
	return &m.entries[i]
}

// job is a file that has to be read.
type job struct {
	i         int32
	name      string
	old, also *entry // what the manifests have of its name; may be nil
	seen      *stat  // what is known of it already; may be nil
	sub       *listing
	in        *lane // of a directory
}

// dir scans what is in the directory i, of which there may be a listing, and gives d back open.
func (s *scanner) dir(d dir, i int32, old, also cursor, at *lane, list *listing) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if list == nil {
		names, err := namesIn(d, at, s.temps, s.buf)
		if err != nil {
			return s.failed(i, err)
		}
		list = &listing{names: names, stats: make([]stat, len(names))}
	}
	var jobs []job
	for k, name := range list.names {
		if i == 0 && name == overlay.StoreName {
			continue
		}
		j := job{name: name, old: s.base.at(old.find(name)), also: s.also.at(also.find(name))}
		j.seen, j.sub = list.at(k)
		read, err := s.name(d, i, &j, old, also, at, func(st *stat) inside { return list.in(k, at, st) })
		if err != nil {
			return err
		}
		if read {
			jobs = append(jobs, j)
		}
	}
	// The entries stay where they are meanwhile: nothing is added to them.
	return parallel.Each(jobs, func(j job) error { return s.content(d, j) })
}

// name scans one name, and reports whether its content must be read.
func (s *scanner) name(d dir, parent int32, j *job, old, also cursor, at *lane, in func(*stat) inside) (read bool, err error) {
	var st stat
	if j.seen != nil {
		st = *j.seen
	} else if st, err = d.stat(j.name); isMissing(err) {
		return false, nil
	}
	if isDenied(err) { // nobody but others may search the directory
		s.shutOff(at)
		if at == nil || !at.ignored {
			s.out.entries[parent].flags |= flagClosed
		}
		return false, nil
	}
	j.i = int32(len(s.out.entries))
	e := entry{name: j.name, parent: parent, first: j.i, stat: st}
	if err != nil {
		return false, s.failedName(parent, j.name, err)
	}
	if !s.w.births {
		e.birth = 0
	}
	is := in(&st)
	if is.in && s.isForeign(&st) && at.ignores(j.name, &st) {
		is.in = false
	}
	if s.note(parent, at, j.name, &st, is); !is.in {
		return false, nil
	}
	if j.in = is.sub; e.isDir() && j.in != nil && j.in.ignored {
		e.flags |= flagWay
	}
	if e.isDir() {
		return false, s.subdir(d, j, e, old, also)
	}
	if s.isForeign(&e.stat) {
		e.flags |= flagForeign
		s.out.entries = append(s.out.entries, e)
		return false, nil
	}
	if e.nlink > 1 {
		if first, ok := s.groups[e.inode()]; ok {
			e.first = first
			s.out.entries = append(s.out.entries, e)
			return !s.save && couldHold(j.also, &e.stat), nil // which no manifest may have under its first name
		}
		s.groups[e.inode()] = j.i
	}
	if s.takes(j.old, &e) {
		e.target, e.xattrs, e.ref, e.flags = j.old.target, j.old.xattrs, j.old.ref, j.old.flags
		s.out.entries = append(s.out.entries, e)
		return false, nil
	}
	return s.fresh(d, j, e)
}

// takes reports whether what base has of a name, if anything, still holds for e.
func (s *scanner) takes(old *entry, e *entry) bool {
	if old == nil || old.flags&flagForeign != 0 || !old.untouched(&e.stat) || s.base.racy(old) || !s.known(old) {
		return false
	}
	return true
}

// sameBelow goes through a listing of the directory i of base, and gives the index of the first entry of base that it does not
// confirm: that of the end of the directory, if all is as it was.
func (s *scanner) sameBelow(list *listing, i int, at *lane) int {
	k := i + 1
	if list == nil {
		return i
	}
	for n, name := range list.names {
		if i == 0 && name == overlay.StoreName {
			continue
		}
		st, sub := list.at(n)
		if st == nil {
			return i
		}
		inside := list.in(n, at, st)
		if inside.in && s.isForeign(st) && at.ignores(name, st) {
			inside.in = false
		}
		if s.note(int32(i), at, name, st, inside); !inside.in {
			continue
		}
		if k >= len(s.base.entries) {
			return i
		}
		e := &s.base.entries[k]
		if e.parent != int32(i) || e.name != name {
			return i
		}
		foreign := e.flags&flagForeign != 0
		is := entry{stat: *st}
		if foreign != s.isForeign(st) || foreign && !e.untouched(st) || !foreign && !s.takes(e, &is) {
			return i
		}
		switch {
		case !e.isDir(), foreign:
			k++
		default:
			end := s.sameBelow(sub, k, inside.sub)
			if end != int(e.end) {
				return i
			}
			k = end
		}
	}
	return k
}

// known reports whether a manifest has all that there is to know of an entry.
func (s *scanner) known(e *entry) bool {
	return !e.isRegular() || e.size == 0 || e.ref.Name != "" || e.flags&flagClosed != 0
}

// fresh is name for what no manifest is known to have.
func (s *scanner) fresh(d dir, j *job, e entry) (read bool, err error) {
	if e.kind() == modeSymlink {
		if e.target, err = d.readlink(j.name); err != nil {
			return false, s.failedName(e.parent, j.name, errChanged)
		}
	}
	e.xattrs, err = d.xattrs(j.name)
	switch {
	case isMissing(err):
		return false, s.failedName(e.parent, j.name, errChanged)
	case isDenied(err) && e.isRegular(): // it cannot be opened either
	case err != nil:
		return false, s.failedName(e.parent, j.name, err)
	}
	s.out.entries = append(s.out.entries, e)
	return e.isRegular() && (e.size > 0 || err != nil), nil
}

func (s *scanner) failedName(parent int32, name string, err error) error {
	path := s.pathOf(parent, name)
	return errs.Ensure("scan", path, wrapped(path, err))
}

// subdir scans a directory in d.
func (s *scanner) subdir(d dir, j *job, e entry, old, also cursor) error {
	if s.isForeign(&e.stat) {
		e.flags |= flagForeign
		s.out.entries = append(s.out.entries, e)
		return nil
	}
	sub, err := d.sub(j.name)
	switch {
	case isMissing(err):
		return nil
	case isDenied(err) && s.w.mayLift(&e.stat):
		return s.w.withLifted(d, j.name, s.pathOf(e.parent, j.name), &e.stat, func() error {
			if sub, err = d.sub(j.name); err != nil {
				return s.failedName(e.parent, j.name, err)
			}
			return s.opened(sub, j, e, old, also)
		})
	case isDenied(err):
		s.shutOff(j.in)
		if e.flags&flagWay != 0 {
			s.left[e.parent] = append(s.left[e.parent], j.name)
			return nil
		}
		e.flags |= flagClosed
		s.out.entries = append(s.out.entries, e)
		return nil
	case err != nil:
		return s.failedName(e.parent, j.name, err)
	}
	if !e.searchable(s.w) {
		defer sub.close()
		return s.w.withLifted(d, j.name, s.pathOf(e.parent, j.name), &e.stat, func() error {
			again, err := sub.again()
			if err != nil {
				return err
			}
			return s.opened(again, j, e, old, also)
		})
	}
	return s.opened(sub, j, e, old, also)
}

// searchable reports whether names in the directory can be reached.
func (e *entry) searchable(w *Workspace) bool { return e.mode&0o100 != 0 || !w.mayLift(&e.stat) }

func (s *scanner) pathOf(parent int32, name string) string {
	if parent == 0 {
		return name
	}
	return s.out.path(parent) + "/" + name
}

// opened scans a directory that is open, and closes it.
func (s *scanner) opened(sub dir, j *job, e entry, old, also cursor) (err error) {
	defer sub.close()
	if s.takes(j.old, &e) {
		e.xattrs = j.old.xattrs
	} else if e.xattrs, err = sub.selfXattrs(); err != nil {
		return s.failedName(e.parent, j.name, err)
	}
	s.out.entries = append(s.out.entries, e)
	return s.dir(sub, j.i, within(old, j.old), within(also, j.also), j.in, j.sub)
}

// within gives a cursor for what is in e, which c has just found; an empty one where that is no directory.
func within(c cursor, e *entry) cursor {
	if e == nil {
		return cursor{}
	}
	return newCursor(c.m, c.k)
}

func (s *scanner) isForeign(st *stat) bool {
	if s.top.mount == 0 || st.mount == 0 { // the system tells no mounts; only directories have the device of theirs for sure
		return st.isDir() && st.dev != s.top.dev
	}
	return st.mount != s.top.mount
}

// mayLift reports whether what st describes is shut to this user only because they have shut it themselves.
func (w *Workspace) mayLift(st *stat) bool { return !privileged() && int(st.uid) == os.Geteuid() }

// content finds out what a file holds. Many goroutines may call it.
func (s *scanner) content(d dir, j job) error {
	e := &s.out.entries[j.i]
	f, err := d.open(j.name)
	switch {
	case err == nil:
		defer f.Close()
		return s.read(j, f)
	case isMissing(err):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gone[j.i] = true
		return nil
	case isDenied(err) && s.w.mayLift(&e.stat):
		return s.w.withLifted(d, j.name, s.out.path(j.i), &e.stat, func() error { return s.shut(d, j) })
	case isDenied(err):
		e.flags |= flagClosed
		return nil
	}
	return s.failed(j.i, err)
}

// shut is content for a file whose mode was lifted. Its times are not those that it will have.
func (s *scanner) shut(d dir, j job) error {
	e := &s.out.entries[j.i]
	f, err := d.open(j.name)
	if err != nil {
		return s.failed(j.i, err)
	}
	defer f.Close()
	if e.xattrs, err = d.xattrs(j.name); err != nil {
		return s.failed(j.i, err)
	}
	st := e.stat
	if err := s.read(j, f); err != nil {
		return err
	}
	e.mode, e.flags = st.mode, e.flags|flagUnstable
	return nil
}

// read gives a file's entry its content.
func (s *scanner) read(j job, f *os.File) error {
	e := &s.out.entries[j.i]
	for try := 1; ; try++ {
		before, err := statFile(f)
		if err != nil {
			return s.failed(j.i, err)
		}
		if !before.isRegular() || before.inode() != e.inode() {
			return s.changed(j.i)
		}
		if e.ref, err = s.find(j, f, &before); err != nil {
			return s.failed(j.i, err)
		}
		writer := hasWriter(f)
		after, err := statFile(f)
		if err != nil {
			return s.failed(j.i, err)
		}
		stable := before.untouched(&after)
		if stable || try == tries {
			birth := e.birth
			e.stat = before
			e.birth = birth
			if e.ref.Name != "" {
				e.size = e.ref.Size
			}
			if !stable || writer {
				e.flags |= flagUnstable
			}
			return nil
		}
		s.forget(e.ref)
	}
}

// find gives the backup that has the content of f: one of a manifest, or else a new one; none if nothing is to be saved.
func (s *scanner) find(j job, f *os.File, st *stat) (strategy.Ref, error) {
	if st.size == 0 {
		return strategy.Ref{}, nil
	}
	var sum uint64
	var summed bool
	for _, c := range s.candidates(j, st) {
		if !summed {
			got, size, err := strategy.SumFile(f)
			if err != nil {
				return strategy.Ref{}, err
			}
			if size != st.size {
				break
			}
			sum, summed = got, true
		}
		ref, err := s.w.backups.Sum(c.ref)
		if err == nil && ref.Sum == sum {
			return ref, nil
		}
	}
	if !s.save {
		return strategy.Ref{}, nil
	}
	ref, err := s.w.backups.save(f)
	if err != nil {
		return ref, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved = append(s.saved, ref)
	return ref, nil
}

// candidates are entries that may have the same content. What a rollback wants comes first: the backup of the same bytes that the
// other manifest has may not be known to be of the same.
func (s *scanner) candidates(j job, st *stat) []*entry {
	all := make([]*entry, 0, 4)
	for _, c := range []*entry{j.also, byInode(s.also, s.inAlso, st), j.old, byInode(s.base, s.inBase, st)} {
		if !couldHold(c, st) || s.save && s.also == nil && !sameHoles(&c.stat, st) {
			continue
		}
		all = append(all, c)
	}
	return all
}

// byInode gives what a manifest, whose inodes are in, has of an inode; nil if it has none or is nil.
func byInode(m *manifest, in func() map[inode]int32, st *stat) *entry {
	if m == nil {
		return nil
	}
	i, ok := in()[st.inode()]
	if !ok {
		return nil
	}
	return m.at(i)
}

// couldHold reports whether c, which may be nil, has a backup that may be the content of what st describes.
func couldHold(c *entry, st *stat) bool {
	return c != nil && st.isRegular() && st.size > 0 && c.ref.Name != "" && c.ref.Size == st.size
}

// holeTolerance is how many blocks of 512 bytes a file may have more than another one with the same holes: filesystems
// allocate ahead.
const holeTolerance = 128

func sameHoles(a, b *stat) bool {
	return a.blocks-b.blocks <= holeTolerance && b.blocks-a.blocks <= holeTolerance
}

// forget removes a backup of a content that did not last.
func (s *scanner) forget(ref strategy.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.saved {
		if r.Name == ref.Name {
			s.w.discard(s.saved[i : i+1])
			s.saved = append(s.saved[:i], s.saved[i+1:]...)
			return
		}
	}
}
