//go:build linux

package overlay

import (
	"slices"
	"strings"
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

// stir notes that something may be about to change.
func (t *Tree) stir() {
	if !t.stirred.Load() {
		t.stirred.Store(true)
	}
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
	return w.store.Update(func(tx *checkpoint.Tx) error {
		if err := tx.PutNumber(metaClean, 1); err != nil {
			return err
		}
		return tx.PutNumber(metaSeen, uint64(time.Now().UnixNano()))
	})
}

// markSeen says that all changes up to now were the daemon's own.
func (w *Workspace) markSeen() error {
	return w.store.Update(func(tx *checkpoint.Tx) error {
		if err := tx.PutNumber(metaClean, 0); err != nil {
			return err
		}
		return putSeen(tx)
	})
}

// putSeen is markSeen as part of a transaction, while the daemon is known to be running. Nobody else can
// change anything before the clock of the files has passed this moment.
func putSeen(tx *checkpoint.Tx) error {
	return tx.PutNumber(metaSeen, uint64(time.Now().Add(clockGrain).UnixNano()))
}

// outsideWalk looks for changes that nobody watched.
type outsideWalk struct {
	w     *Workspace
	t     *Tree
	since int64 // ns: what changed later is suspect
	own   int64 // ns: until then it may have been the daemon, which died without a last beat
	found map[checkpoint.ID]string

	rules []*ignore.Rules // of ignored places that are skipped
	into  bool            // something old may be in an ignored place: that is looked for there
}

// findOutsideChanges notes all changes since the last beat that have no preimage in the current epoch. It costs a walk
// of the tree, so it is done only where there is a checkpoint.
func (w *Workspace) findOutsideChanges(next *ignore.Rules) error {
	var seen, clean, exiled uint64
	err := w.store.View(func(tx *checkpoint.Tx) (err error) {
		if seen, err = tx.Number(metaSeen); err != nil {
			return err
		}
		if exiled, err = tx.Number(metaExiled); err != nil {
			return err
		}
		clean, err = tx.Number(metaClean)
		return err
	})
	if err != nil {
		return err
	}
	if seen != 0 && w.tree.protecting {
		o := &outsideWalk{w: w, t: w.tree, since: int64(seen) - int64(clockGrain), found: map[checkpoint.ID]string{}}
		o.rules = w.rulesAround(next)
		o.into = exiled != 0 && checkpoint.Epoch(exiled) >= w.retained()[0]
		o.own = o.since
		if clean == 0 {
			o.own = int64(seen) + int64(beatEvery) + int64(time.Second)
		}
		return o.run()
	}
	return nil
}

func (o *outsideWalk) run() error {
	var st unix.Statx_t
	if err := statFd(o.t.rootFd, &st); err != nil {
		return err
	}
	err := o.w.store.View(func(tx *checkpoint.Tx) error {
		l := &logTx{Tx: tx}
		if err := o.checkDir(l, &st, ".", false); err != nil {
			return err
		}
		return o.walk(l, outsideDir{fd: o.t.rootFd, id: o.t.identity(o.t.root), steady: true})
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

// outsideDir is a directory on the way.
type outsideDir struct {
	fd      int
	id      checkpoint.ID
	path    string // "" for the workspace
	isNew   bool   // no checkpoint knows it
	ignored bool
	steady  bool // no record names it or one above it
}

// walk goes through a directory.
func (o *outsideWalk) walk(l *logTx, d outsideDir) error {
	dirfd := d.fd
	return eachName(dirfd, func(name string) error {
		if d.path == "" && name == StoreName {
			return nil
		}
		var st unix.Statx_t
		if err := statAt(dirfd, name, &st); err == unix.EACCES {
			return nil // as below
		} else if err != nil {
			return err
		}
		if o.t.isForeign(&st) {
			return nil
		}
		sub := outsideDir{id: o.t.idOf(&st), path: below(d.path, name), steady: d.steady}
		sub.ignored = d.ignored || anyMatches(o.rules, sub.path, isDir(&st))
		if sub.ignored && !o.into {
			return nil
		}
		fresh, err := o.fresh(l, d, name, &sub)
		if err != nil {
			return err
		}
		if !isDir(&st) {
			return o.checkFile(l, &st, sub.path, fresh)
		}
		if err := o.checkDir(l, &st, sub.path, fresh); err != nil {
			return err
		}
		fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.EACCES {
			return nil // what its owner can't read, its owner can't have changed in there either
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		sub.fd, sub.isNew = fd, fresh
		return o.walk(l, sub)
	})
}

// fresh reports whether an inode came to be in this epoch, by the rule in doc.go.
func (o *outsideWalk) fresh(l *logTx, d outsideDir, name string, sub *outsideDir) (bool, error) {
	if o.into {
		named, err := l.Named(sub.id)
		if err != nil {
			return false, err
		}
		if sub.ignored && d.steady {
			sub.steady = !named
			return !named, nil
		}
		sub.steady = d.steady && !named
	}
	if old, err := l.MarkedOld(o.t.epoch, sub.id); err != nil || old {
		return false, err
	}
	if d.isNew {
		return true, nil
	}
	return l.HasSlot(o.t.epoch, checkpoint.Slot{Dir: d.id, Name: name})
}

func (o *outsideWalk) checkFile(l *logTx, st *unix.Statx_t, path string, isNew bool) error {
	if isNew || nsOf(st.Ctime) <= o.since {
		return nil
	}
	id := o.t.idOf(st)
	if c, _, err := l.Content(o.t.epoch, id); err != nil || c.Whole() { // of blocks, it is not known whether they are those that were changed
		return err
	}
	a, has, err := l.Attr(o.t.epoch, id)
	if err != nil {
		return err
	}
	moved, err := l.MarkedOld(o.t.epoch, id)
	if err != nil {
		return err
	}
	switch {
	case has && a.Size == int64(st.Size) && a.Mtime == nsOf(st.Mtime):
		return nil // the daemon changed its attributes
	case nsOf(st.Ctime) <= o.own && (has || moved || nsOf(st.Mtime) <= o.since):
		return nil // the daemon's last changes: of attributes, of names, or of a name in the trash
	case moved && nsOf(st.Mtime) <= o.since:
		return nil // the daemon gave it another name
	}
	o.found[id] = path
	return nil
}

func (o *outsideWalk) checkDir(l *logTx, st *unix.Statx_t, path string, isNew bool) error {
	if isNew || nsOf(st.Ctime) <= o.since {
		return nil
	}
	id := o.t.idOf(st)
	has, err := l.HasAttr(o.t.epoch, id)
	if err != nil {
		return err
	}
	moved, err := l.MarkedOld(o.t.epoch, id)
	if err != nil {
		return err
	}
	if (has || moved) && nsOf(st.Ctime) <= o.own {
		return nil
	}
	o.found[id] = path
	return nil
}

func sortedByPath(m map[checkpoint.ID]string) []checkpoint.ID {
	ids := make([]checkpoint.ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b checkpoint.ID) int { return strings.Compare(m[a], m[b]) })
	return ids
}
