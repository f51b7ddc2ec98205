//go:build linux

package overlay

import (
	"maps"
	"slices"
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// The state of the live tree at the beginning of an epoch is, of every slot and inode, what the earliest record since then says, and what is live where there is
// none. The state is read while the tree changes: every change is made after its record is there. So what is live is read first, and the records are asked after that; if
// there is one by then, it is what counts.
//
// A state uses no Node: nobody keeps the kernel's requests of the live tree apart from those of a state, so a name that a state has just seen may be out of date when it
// is noted. Directories are held open by descriptors instead, which lead to them wherever they are moved, and everything else is found by its name in one of
// them, with its identity proved.

// states are the states that are open, and what they have in common.
type states struct {
	w *Workspace
	t *Tree

	mu   sync.RWMutex                // guards what follows
	open map[checkpoint.Epoch]*state // with the number of those who have it open
	seen map[uint64]checkpoint.Slot  // where inodes were seen last, by their numbers; whoever uses it proves what is there
	good map[preimage]struct{}       // preimages that were proved to be what was saved

	dirs  *dirCache[checkpoint.ID]
	ended bool // the descriptors of the tree are closed; guarded by Tree.mu
}

// state is the state at the beginning of an epoch.
type state struct {
	*states
	epoch checkpoint.Epoch
	past  *checkpoint.Past
	rules []*ignore.Rules // of what has no state, unless whole: that is shown as it is now
	whole bool            // what the rules ignore has a state too
	count int             // guarded by states.mu

	surveying sync.Mutex // held while the whole state is looked through; before Tree.mu
	surveyed  bool       // guarded by surveying
}

// pastDirs is how many directory descriptors the states keep open, at most.
func pastDirs() int { return max(16, min(FileLimit()/16, 128)) }

func newStates(w *Workspace) *states {
	return &states{
		w: w, t: w.tree, open: map[checkpoint.Epoch]*state{},
		seen: map[uint64]checkpoint.Slot{}, good: map[preimage]struct{}{}, dirs: newDirCache[checkpoint.ID](pastDirs()),
	}
}

// preimage is what names one.
type preimage struct {
	tier strategy.Kind
	name string
}

// verify proves that the preimages of a content are what was saved, once for each as long as there are open states.
func (ss *states) verify(c checkpoint.Content) error {
	for _, ref := range c.Refs() {
		p := preimage{ref.Tier, ref.Name}
		ss.mu.RLock()
		_, good := ss.good[p]
		ss.mu.RUnlock()
		if good {
			continue
		}
		if err := ss.t.tier.verify(ref); err != nil {
			return err
		}
		ss.mu.Lock()
		ss.good[p] = struct{}{}
		ss.mu.Unlock()
	}
	return nil
}

// openState is a state that somebody has open.
type openState struct {
	*state
	once sync.Once
}

// Close is State.Close.
func (o *openState) Close() { o.once.Do(func() { o.w.closeState(o.state) }) }

// openAt opens the state of an epoch. The caller sees to it that nothing is dropped from the undo log meanwhile.
func (ss *states) openAt(e checkpoint.Epoch) (*openState, error) {
	past, err := ss.w.store.OpenPast(e)
	if err != nil {
		return nil, err
	}
	whole := ss.w.isWhole(e)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.open[e]
	if s == nil {
		s = &state{states: ss, epoch: e, past: past, rules: ss.w.rulesSince(e), whole: whole}
		ss.open[e] = s
	} else {
		past.Close()
	}
	s.count++
	return &openState{state: s}, nil
}

// close takes one away of those who have a state open, and reports whether it was the last.
func (ss *states) close(s *state) (last bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.count--; s.count > 0 {
		return false
	}
	delete(ss.open, s.epoch)
	s.past.Close()
	if len(ss.open) == 0 {
		ss.seen, ss.good = map[uint64]checkpoint.Slot{}, map[preimage]struct{}{}
		ss.dirs.close()
	}
	return true
}

// epochs gives those of the states that are open.
func (ss *states) epochs() []checkpoint.Epoch {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	return slices.Collect(maps.Keys(ss.open))
}

// end makes all states fail from now on. The caller holds Tree.mu alone.
func (ss *states) end() {
	ss.ended = true
	ss.dirs.close()
}

// saw notes where an inode is.
func (ss *states) saw(ino uint64, slot checkpoint.Slot) {
	ss.mu.RLock()
	have := ss.seen[ino]
	ss.mu.RUnlock()
	if have == slot {
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.seen[ino] = slot
}

func (ss *states) lastSeen(ino uint64) (checkpoint.Slot, bool) {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	slot, ok := ss.seen[ino]
	return slot, ok
}

// do runs fn while Tree.mu is shared. Where an inode is nowhere that anybody knows of, the whole state is looked through, and fn runs again. So it does where an
// ordinary user has shut a directory for themselves, with nobody there then who could see that it is opened up for a moment.
func (s *state) do(fn func(q *search) error) error {
	err := s.sharing(fn)
	if err == errLost {
		if err := s.survey(); err != nil {
			return err
		}
		err = s.sharing(fn)
	}
	if err == unix.EACCES && !s.t.privileged {
		err = s.alone(fn)
	}
	if err == errLost && len(s.rules) > 0 { // most likely an ignored one, which anybody may remove
		return unix.ESTALE
	}
	if err == errLost || err == errGone {
		s.t.log.Error("an inode of an earlier state is missing", "epoch", uint64(s.epoch), "err", err)
		return unix.EIO
	}
	return err
}

func (s *state) sharing(fn func(q *search) error) error {
	s.t.mu.RLock()
	defer s.t.mu.RUnlock()
	if s.ended {
		return unix.EIO
	}
	return fn(&search{state: s})
}

func (s *state) alone(fn func(q *search) error) error {
	s.t.lockToLook()
	defer s.t.unlockLooked()
	if s.ended {
		return unix.EIO
	}
	s.t.stir() // opening up is a change, too
	return fn(&search{state: s, alone: true})
}

// Root is State.Root.
func (s *state) Root() checkpoint.ID { return s.t.root.id }

// Lookup is State.Lookup.
func (s *state) Lookup(dir checkpoint.ID, name string) (e StateEntry, err error) {
	err = s.do(func(q *search) error {
		e, err = s.lookup(q, checkpoint.Slot{Dir: s.w.store.Resolve(dir), Name: name})
		return err
	})
	return e, err
}

func (s *state) lookup(q *search, slot checkpoint.Slot) (StateEntry, error) {
	if isNoName(slot.Name) || slot.Dir == s.t.root.id && slot.Name == StoreName {
		return StateEntry{}, unix.ENOENT
	}
	if o, ok, err := s.past.Slot(slot); err != nil || ok {
		return s.entryOf(o, err)
	}
	if err := q.checkKnown(slot.Dir); err != nil {
		return StateEntry{}, err
	}
	var st unix.Statx_t
	live := s.statIn(q, slot, &st)
	if o, ok, err := s.past.Slot(slot); err != nil || ok {
		return s.entryOf(o, err)
	}
	if live != nil {
		return StateEntry{}, live
	}
	if s.t.isForeign(&st) {
		return StateEntry{}, unix.ENOENT
	}
	id := s.t.idOf(&st)
	s.saw(id.Ino, slot)
	return StateEntry{s.w.store.Before(id, s.epoch), uint32(st.Mode) & unix.S_IFMT}, nil
}

// isNoName reports whether no slot has the name.
func isNoName(name string) bool {
	return name == "" || name == "." || name == ".." || slices.Contains([]byte(name), '/') || slices.Contains([]byte(name), 0)
}

func (s *state) entryOf(o checkpoint.Occupant, err error) (StateEntry, error) {
	if err == nil && o.ID.IsZero() {
		err = unix.ENOENT
	}
	if err != nil {
		return StateEntry{}, s.failure("look up", err)
	}
	return StateEntry{s.w.store.Before(o.ID, s.epoch), o.Mode & unix.S_IFMT}, nil
}

// statIn describes what a directory holds now under a name.
func (s *state) statIn(q *search, slot checkpoint.Slot, st *unix.Statx_t) error {
	d, err := q.openDir(slot.Dir)
	if err == errGone {
		return unix.ENOENT
	}
	if err != nil {
		return err
	}
	defer d.done()
	return q.within(slot.Dir, d.fd, func() error { return statAt(d.fd, slot.Name, st) })
}

// isKnown reports whether it is known what an inode was. It is not if that was changed while nobody watched, unless all of it was saved before that: see plan.savedBefore.
func (q *search) isKnown(id checkpoint.ID) (bool, error) {
	found, changed, err := q.past.Outside(id)
	if err != nil || !changed {
		return true, err
	}
	if _, whole, err := q.past.Content(id); err != nil || whole == 0 || whole >= found {
		return false, err
	}
	if in, ok, err := q.past.XattrsIn(id); err != nil || ok {
		return in < found, err
	}
	fd, done, err := q.reach(id)
	if err != nil {
		return false, err
	}
	defer done()
	has, err := hasXattrs(func(b []byte) (int, error) { return unix.Listxattr(procPath(fd), b) })
	return !has, err
}

// checkKnown fails for an inode of which it is not known what it was.
func (q *search) checkKnown(id checkpoint.ID) error {
	if q.unchecked {
		return nil
	}
	known, err := q.isKnown(id)
	if err != nil {
		return q.failure("look for changes", err)
	}
	if known {
		return nil
	}
	q.t.log.Error("an inode was changed while hyperfs was not running, and what it was before is not known", "id", id.String(), "epoch", uint64(q.epoch))
	return unix.EIO
}

// failure is what a caller gets for an error that means that the state can't be told.
func (s *state) failure(doing string, err error) error {
	switch err {
	case nil, errLost, errGone, unix.ENOENT, unix.EACCES, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOTDIR, unix.EINVAL, unix.EIO:
		return err
	}
	s.t.log.Error("an earlier state can't be told", "doing", doing, "epoch", uint64(s.epoch), "err", err)
	return unix.EIO
}

// Attr is State.Attr. Times of access and change are those of the last modification, so that they stay as they are, too.
func (s *state) Attr(id checkpoint.ID) (a Attr, err error) {
	err = s.do(func(q *search) error {
		a, err = s.attr(q, s.w.store.Resolve(id))
		return err
	})
	a.Ino = id.Ino
	return a, err
}

func (s *state) attr(q *search, id checkpoint.ID) (Attr, error) {
	if err := q.checkKnown(id); err != nil {
		return Attr{}, err
	}
	a, names, err := s.recorded(id)
	if err != nil {
		return Attr{}, s.failure("read attributes", err)
	}
	if a != nil && names > 0 {
		return s.attrOf(id, a, names), nil
	}
	f, err := q.find(id)
	if err != nil {
		return Attr{}, err
	}
	defer f.done()
	visible := q.namesOf(&f)
	if a, names, err = s.recorded(id); err != nil {
		return Attr{}, s.failure("read attributes", err)
	}
	if names == 0 {
		names = visible
	}
	if a != nil {
		return s.attrOf(id, a, names), nil
	}
	now := attrOf(&f.st)
	now.Nlink, now.Atime, now.Ctime = names, now.Mtime, now.Mtime
	return now, nil
}

// recorded gives what the log has of the attributes of an inode: nil where it has none; names is 0 where it does not say how many there were.
func (s *state) recorded(id checkpoint.ID) (a *checkpoint.Attr, names uint32, err error) {
	r, ok, err := s.past.Attr(id)
	if err != nil {
		return nil, 0, err
	}
	if ok {
		a = &r
	}
	if ok && r.Mode&unix.S_IFMT == unix.S_IFDIR {
		return a, 1, nil
	}
	names, ok, err = s.past.NameCount(id)
	if ok {
		names = max(names, 1) // it had one in the state
	}
	return a, names, err
}

const sector = 512 // bytes that st_blocks counts

func (s *state) attrOf(id checkpoint.ID, r *checkpoint.Attr, names uint32) Attr {
	mtime := unix.NsecToTimespec(r.Mtime)
	a := Attr{
		Mode: r.Mode, Nlink: names, UID: r.UID, GID: r.GID, Rdev: r.Rdev, Size: r.Size, Blksize: 4096,
		Atime: mtime, Mtime: mtime, Ctime: mtime, Btime: unix.NsecToTimespec(id.Birth),
	}
	if r.Mode&unix.S_IFMT == unix.S_IFREG {
		a.Blocks = (r.Size + sector - 1) / sector
	}
	return a
}

// Xattrs is State.Xattrs.
func (s *state) Xattrs(id checkpoint.ID) (xs []checkpoint.Xattr, err error) {
	id = s.w.store.Resolve(id)
	err = s.do(func(q *search) error {
		xs, err = s.xattrs(q, id)
		return err
	})
	return xs, err
}

func (s *state) xattrs(q *search, id checkpoint.ID) (xs []checkpoint.Xattr, err error) {
	if err := q.checkKnown(id); err != nil {
		return nil, err
	}
	saved, ok, err := s.past.Xattrs(id)
	if err != nil || ok {
		return saved, s.failure("read xattrs", err)
	}
	live := s.liveXattrs(q, id, &xs)
	if saved, ok, err = s.past.Xattrs(id); err != nil || ok {
		return saved, s.failure("read xattrs", err)
	}
	return xs, live
}

func (s *state) liveXattrs(q *search, id checkpoint.ID, xs *[]checkpoint.Xattr) error {
	fd, done, err := q.reach(id)
	if err != nil {
		return err
	}
	defer done()
	*xs, err = xattrsOf(procPath(fd))
	return s.failure("read xattrs", err)
}

// Readlink is State.Readlink. The target of a symlink never changes.
func (s *state) Readlink(id checkpoint.ID) (target string, err error) {
	err = s.do(func(q *search) error {
		fd, done, err := q.reach(id)
		if err != nil {
			return err
		}
		defer done()
		target, err = readlinkAt(fd, "")
		return s.failure("read a symlink", err)
	})
	return target, err
}
