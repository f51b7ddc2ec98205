//go:build linux

package overlay

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"golang.org/x/sys/unix"
)

// Changes that are made to the plain directory while no daemon runs have no preimage. They are found by their change
// times when the workspace is opened again: the store knows until when a daemon was watching. What is found is noted
// in the log, and a rollback that would need the unknown refuses.

const (
	beatEvery = 2 * time.Second
	// clockGrain is how far a file's change time may lag behind the clock.
	clockGrain = 10 * time.Millisecond
)

// beginChange notes that something may be about to change. EROFS says that nothing may, as a rollback could not be finished: what is changed now, its rest would
// take away. The caller shares t.mu.
func (t *Tree) beginChange() error {
	if t.halfway {
		return unix.EROFS
	}
	t.stir()
	return nil
}

// stir notes that something may be about to change.
func (t *Tree) stir() {
	if !t.stirred.Load() {
		t.stirred.Store(true)
	}
	t.ledger.note()
}

func (w *Workspace) startBeating() {
	w.stop = make(chan struct{})
	w.beating.Add(1)
	go func() {
		defer w.beating.Done()
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
				if !w.tree.stirred.Swap(false) {
					continue
				}
				if err := w.markSeen(); err != nil {
					w.log.Error("the heartbeat can't be written", "err", err)
				}
			}
		}
	}()
}

// lastBeat says that whatever changes from now on was not changed by this daemon. It waits until the clock of the files
// has passed the daemon's own last change.
func (w *Workspace) lastBeat() error {
	if w.tree.stirred.Load() {
		time.Sleep(2 * clockGrain)
	}
	print, err := w.tree.rootPrint()
	if err != nil {
		return err
	}
	return w.store.Update(func(tx *checkpoint.Tx) error {
		if err := errors.Join(tx.PutNumber(metaClean, 1), tx.PutNumber(metaRoot, print)); err != nil {
			return err
		}
		return putSeenAt(tx, time.Now())
	})
}

// markSeen says that all changes up to now were the daemon's own.
func (w *Workspace) markSeen() error {
	print, err := w.tree.rootPrint()
	if err != nil {
		return err
	}
	return w.store.Update(func(tx *checkpoint.Tx) error {
		if err := errors.Join(tx.PutNumber(metaClean, 0), tx.PutNumber(metaRoot, print)); err != nil {
			return err
		}
		return putSeen(tx)
	})
}

// putSeen is markSeen as part of a transaction, while the daemon is known to be running. Nobody else can
// change anything before the clock of the files has passed this moment.
func putSeen(tx *checkpoint.Tx) error {
	return putSeenAt(tx, time.Now().Add(clockGrain))
}

func putSeenAt(tx *checkpoint.Tx, at time.Time) error {
	if err := tx.PutMeta(metaClock, readClock().encode()); err != nil {
		return err
	}
	return tx.PutNumber(metaSeen, uint64(at.UnixNano()))
}

// outsideWalk looks for changes that nobody watched.
type outsideWalk struct {
	w     *Workspace
	t     *Tree
	since int64  // ns: what changed later is suspect
	root  uint64 // see metaRoot; 0 where there is none
	own   int64  // ns: until then it may have been the daemon, which died without a last beat
	found map[checkpoint.ID]string
	log   func() *lately
	tx    *checkpoint.Tx // of the walk

	rules []*ignore.Rules // of ignored places that are skipped
	into  bool            // something old may be in an ignored place: that is looked for there
}

// lately is what the log says since the last epoch that somebody needs the beginning of. Others may have begun since then, such as those of diffs, which make no difference.
type lately struct {
	*checkpoint.Fold
	old map[checkpoint.ID]bool // inodes that are known to be older
}

// lately reads it. What can't be read protects nothing: so whatever looks changed is suspect.
func (w *Workspace) lately() *lately {
	from := w.tree.epoch
	if needed := w.retained(); len(needed) > 0 {
		from = min(from, needed[len(needed)-1])
	}
	fold, err := w.store.Fold(from, 0)
	if err != nil {
		w.log.Error("it can't be told what was saved of files that look changed", "err", err)
		return &lately{&checkpoint.Fold{}, nil}
	}
	l := &lately{fold, map[checkpoint.ID]bool{}}
	for _, o := range fold.Slots {
		l.old[o.ID] = true
	}
	for id := range fold.Linked {
		l.old[id] = true
	}
	return l
}

func (l *lately) hasAttr(id checkpoint.ID) bool {
	_, ok := l.Attrs[id]
	return ok
}

// findOutsideChanges notes all changes since the last beat that have no preimage from before. It costs a walk
// of the tree, so it is done only where there is a checkpoint.
func (w *Workspace) findOutsideChanges(next *ignore.Rules) error {
	var seen, clean, root, exiled uint64
	var then []byte
	err := w.store.View(func(tx *checkpoint.Tx) (err error) {
		if seen, err = tx.Number(metaSeen); err != nil {
			return err
		}
		if then, err = tx.Meta(metaClock); err != nil {
			return err
		}
		if root, err = tx.Number(metaRoot); err != nil {
			return err
		}
		if exiled, err = tx.Number(metaExiled); err != nil {
			return err
		}
		clean, err = tx.Number(metaClean)
		return err
	})
	if err != nil || seen == 0 || !w.tree.protecting {
		return err
	}
	o := &outsideWalk{w: w, t: w.tree, since: int64(seen) - int64(clockGrain), root: root, found: map[checkpoint.ID]string{}, log: sync.OnceValue(w.lately)}
	if len(w.pins) == 0 { // a branch may need what is ignored
		o.rules = w.rulesAround(next)
	}
	o.into = exiled != 0 && checkpoint.Epoch(exiled) >= w.retained()[0]
	o.own = o.since
	switch {
	case clean != 0:
	case w.lastStir != 0:
		o.own = max(o.since, w.lastStir+int64(stirGrain+stirEnds))
	default: // the ledger is missing, or younger than the daemon
		o.own = int64(seen) + int64(beatEvery) + int64(time.Second)
	}
	if c, ok := decodeClock(then); ok {
		if earliest := c.earliest(o.since, readClock()); earliest < o.since {
			w.log.Warn("the clock was set back while hyperfs was not running: whatever was changed later than it can have shown counts as changed", "since", time.Unix(0, earliest))
			o.since, o.own = earliest, earliest
		}
	}
	return o.run()
}

func (o *outsideWalk) run() error {
	var st unix.Statx_t
	if err := statFd(o.t.rootFd, &st); err != nil {
		return err
	}
	err := o.w.store.View(func(tx *checkpoint.Tx) error {
		o.tx = tx
		if err := o.checkRoot(&st); err != nil {
			return err
		}
		if err := o.walk(outsideDir{fd: o.t.rootFd, id: o.t.identity(o.t.root), steady: true, isNew: notNew}); err != nil {
			return err
		}
		return o.walkTrash()
	})
	if err != nil || len(o.found) == 0 {
		return err
	}
	o.w.log.Warn("the workspace was changed while hyperfs was not running", "paths", len(o.found))
	b := o.w.store.NewBatch()
	defer b.Cancel()
	for id, path := range o.found {
		if err := b.PutOutside(o.t.epoch, id, path); err != nil {
			return err
		}
	}
	return b.Flush()
}

// checkRoot is checkDir for the workspace's own directory, which may have been renamed.
func (o *outsideWalk) checkRoot(st *unix.Statx_t) error {
	print, err := o.t.rootPrint()
	if err == nil && (o.root == 0 || print != o.root) {
		o.checkDir(st, ".", notNew)
	}
	return err
}

// walkTrash looks for old inodes that somebody has changed where they are kept. What no record names is about to be removed.
func (o *outsideWalk) walkTrash() error {
	return eachName(o.t.trashFd, func(name string) error {
		var st unix.Statx_t
		if err := statAt(o.t.trashFd, name, &st); err != nil {
			return err
		}
		d := outsideDir{id: o.t.idOf(&st), path: StoreName + "/trash/" + name, isNew: notNew, kept: true}
		if named, err := o.tx.Named(d.id); err != nil || !named {
			return err
		}
		if !isDir(&st) {
			return o.checkFile(o.t.trashFd, name, &st, d.path, notNew)
		}
		o.checkDir(&st, d.path, notNew)
		return o.descend(o.t.trashFd, name, d)
	})
}

// newness reports whether an inode came to be so lately that no checkpoint knows it. The log is asked only for what looks as if it had been changed.
type newness func() bool

func notNew() bool { return false }

// outsideDir is a directory on the way.
type outsideDir struct {
	fd      int
	id      checkpoint.ID
	path    string // "" for the workspace
	isNew   newness
	kept    bool // it is in the trash: no pattern is about its path there
	ignored bool
	steady  bool // no record names it or one above it; told only where ignored roots are walked
}

// walk goes through a directory.
func (o *outsideWalk) walk(d outsideDir) error {
	return eachName(d.fd, func(name string) error {
		if d.path == "" && name == StoreName {
			return nil
		}
		var st unix.Statx_t
		if err := statAt(d.fd, name, &st); err == unix.EACCES {
			return nil // as below
		} else if err != nil {
			return err
		}
		if o.t.isForeign(&st) {
			return nil
		}
		sub := outsideDir{id: o.t.idOf(&st), path: below(d.path, name), steady: d.steady, kept: d.kept}
		sub.ignored = d.ignored || !d.kept && anyMatches(o.rules, sub.path, isDir(&st))
		if sub.ignored && !o.into {
			return nil
		}
		sub.isNew = sync.OnceValue(func() bool { return o.fresh(checkpoint.Slot{Dir: d.id, Name: name}, sub.id, d.isNew) })
		if o.into {
			named, err := o.tx.Named(sub.id)
			if err != nil {
				return err
			}
			if sub.steady = d.steady && !named; sub.ignored && d.steady {
				sub.isNew = func() bool { return !named }
			}
		}
		if !isDir(&st) {
			return o.checkFile(d.fd, name, &st, sub.path, sub.isNew)
		}
		o.checkDir(&st, sub.path, sub.isNew)
		return o.descend(d.fd, name, sub)
	})
}

// descend goes through what a directory has under a name, which is the directory d.
func (o *outsideWalk) descend(dirfd int, name string, d outsideDir) error {
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.EACCES {
		return nil // what its owner can't read, its owner can't have changed in there either
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	d.fd = fd
	return o.walk(d)
}

// fresh is newness by the rule in doc.go.
func (o *outsideWalk) fresh(slot checkpoint.Slot, id checkpoint.ID, dirIsNew newness) bool {
	if o.log().old[id] {
		return false
	}
	_, recorded := o.log().Slots[slot]
	return recorded || dirIsNew()
}

// checkFile notes a file that somebody else may have changed. What the daemon itself changed last before it was killed has a record, or is a change of names or of a name in the
// trash, which leaves the modification time alone.
func (o *outsideWalk) checkFile(dirfd int, name string, st *unix.Statx_t, path string, isNew newness) error {
	if nsOf(st.Ctime) <= o.since || isNew() {
		return nil
	}
	id := o.t.idOf(st)
	if _, have := o.found[id]; have {
		return nil
	}
	if o.log().Contents[id].Whole() { // of blocks, it is not known whether they are those that were changed
		return o.checkXattrs(dirfd, name, st, path)
	}
	if nsOf(st.Ctime) <= o.own && (o.log().hasAttr(id) || o.log().old[id] || nsOf(st.Mtime) <= o.since) {
		return nil
	}
	o.found[id] = path
	return nil
}

// checkXattrs notes a file of which all is saved but xattrs that somebody else has set: those that it had when its content was saved are saved with it.
func (o *outsideWalk) checkXattrs(dirfd int, name string, st *unix.Statx_t, path string) error {
	if nsOf(st.Ctime) <= o.own {
		return nil
	}
	id := o.t.idOf(st)
	if _, saved := o.log().Xattrs[id]; saved {
		return nil
	}
	at := procPath(dirfd) + "/" + name
	has, err := hasXattrs(func(b []byte) (int, error) { return unix.Llistxattr(at, b) })
	if has {
		o.found[id] = path
	}
	return err
}

// hasXattrs reports whether a file has extended attributes that a user could have changed; the label of SELinux, which every file has, does not count.
func hasXattrs(list func([]byte) (int, error)) (bool, error) {
	names, err := growing(list)
	if err != nil {
		if err == unix.EOPNOTSUPP || err == unix.ENOENT {
			return false, nil
		}
		return false, err
	}
	for name := range strings.SplitSeq(strings.Trim(string(names), "\x00"), "\x00") {
		if name != "" && name != "security.selinux" {
			return true, nil
		}
	}
	return false, nil
}

func (o *outsideWalk) checkDir(st *unix.Statx_t, path string, isNew newness) {
	if nsOf(st.Ctime) <= o.since || isNew() {
		return
	}
	id := o.t.idOf(st)
	if nsOf(st.Ctime) > o.own || !o.log().hasAttr(id) && !o.log().old[id] {
		o.found[id] = path
	}
}

func sortedByPath(m map[checkpoint.ID]string) []checkpoint.ID {
	ids := make([]checkpoint.ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b checkpoint.ID) int { return strings.Compare(m[a], m[b]) })
	return ids
}
