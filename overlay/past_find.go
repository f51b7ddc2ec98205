//go:build linux

package overlay

import (
	"errors"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

var (
	errLost = errors.New("the inode is nowhere where it was seen")
	errGone = errors.New("the directory was removed, and its entries before it")
)

// search finds inodes of a state wherever they are now. It lasts for one call, which shares Tree.mu or holds it alone. IDs are resolved.
type search struct {
	*state
	alone     bool            // Tree.mu is held alone, and directories may be opened up
	unchecked bool            // what was changed while nobody watched is told as it is now
	under     []checkpoint.ID // what is being looked for: where things were seen may be so long out of date that it leads in a circle
	tries     int
}

// maxTries is how many places one call looks at. Only what is missing takes more than a few.
const maxTries = 1 << 12

// spot is where an inode is now. Call done once.
type spot struct {
	dir     pastDir
	slot    checkpoint.Slot // zero in the trash, and of the root
	name    string          // in dir
	trashed bool            // that is its name in the trash
	st      unix.Statx_t
}

func (f *spot) done() { f.dir.done() }

// pastDir is a directory's descriptor in use. Call done once.
type pastDir struct {
	cache *dirCache[checkpoint.ID] // nil for one that is not in it
	e     *dirEntry[checkpoint.ID]
	fd    int // O_PATH
}

func (d pastDir) done() {
	if d.cache != nil {
		d.cache.done(d.e)
	}
}

// openDir opens a directory of the state. errGone says that it was removed from a filesystem where it can't be kept; its slots and attributes are in
// the log.
func (q *search) openDir(id checkpoint.ID) (pastDir, error) {
	if id == q.t.root.id {
		return pastDir{fd: q.t.rootFd}, nil
	}
	if e := q.dirs.get(id); e != nil {
		return pastDir{q.dirs, e, e.fd}, nil
	}
	fd, err := q.open(id, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return pastDir{}, err
	}
	e := q.dirs.add(id, fd)
	return pastDir{q.dirs, e, e.fd}, nil
}

// open opens an inode other than the root without following a symlink, with its identity proved. The caller closes the descriptor.
func (q *search) open(id checkpoint.ID, flags int) (int, error) {
	for range 8 {
		f, err := q.find(id)
		if err != nil {
			return -1, err
		}
		fd, err := q.openSpot(&f, id, flags)
		f.done()
		if err != unix.ESTALE {
			return fd, err
		}
	}
	return -1, errLost
}

// openSpot opens what was found. ESTALE says that it is there no more.
func (q *search) openSpot(f *spot, id checkpoint.ID, flags int) (int, error) {
	if flags&unix.O_DIRECTORY != 0 && !isDir(&f.st) {
		return -1, unix.ENOTDIR
	}
	fd := -1
	err := q.within(f.slot.Dir, f.dir.fd, func() (err error) {
		fd, err = unix.Openat(f.dir.fd, f.name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
		return -1, unix.ESTALE
	}
	if err != nil {
		return -1, err
	}
	var st unix.Statx_t
	if err := statFd(fd, &st); err != nil || q.t.idOf(&st) != id {
		_ = unix.Close(fd)
		return -1, unix.ESTALE
	}
	return fd, nil
}

// reach gives a descriptor on which *at calls with AT_EMPTY_PATH, or calls through /proc/self/fd, work for an inode.
func (q *search) reach(id checkpoint.ID) (fd int, done func(), err error) {
	if id == q.t.root.id {
		return q.t.rootFd, func() {}, nil
	}
	fd, err = q.open(id, unix.O_PATH)
	return fd, func() { _ = unix.Close(fd) }, err
}

// within is Tree.within for a directory of the state.
func (q *search) within(dir checkpoint.ID, fd int, fn func() error) error {
	err := fn()
	if err != unix.EACCES || !q.alone || dir.IsZero() {
		return err
	}
	n, done, err := q.node(dir)
	if err != nil {
		return err
	}
	defer done()
	return q.t.within(n, fd, fn)
}

// node gives the node of an inode, which it may have while Tree.mu is held alone.
func (q *search) node(id checkpoint.ID) (*Node, func(), error) {
	v := q.t.newView(&checkpoint.Fold{})
	for up := id; up != q.t.root.id && len(v.at) < maxTries; {
		slot, ok := q.lastSeen(up.Ino)
		if !ok {
			break
		}
		v.saw(up, slot)
		up = slot.Dir
	}
	n, err := v.find(id)
	if err == nil && n == nil {
		err = errLost
	}
	if err != nil {
		v.close()
	}
	return n, v.close, err
}

// find gives where an inode is now.
func (q *search) find(id checkpoint.ID) (spot, error) {
	if id == q.t.root.id {
		f := spot{dir: pastDir{fd: q.t.rootFd}, name: "."}
		return f, statFd(q.t.rootFd, &f.st)
	}
	if slices.Contains(q.under, id) {
		return spot{}, errLost
	}
	q.under = append(q.under, id)
	defer func() { q.under = q.under[:len(q.under)-1] }()
	f, err := q.look(id)
	for n := 0; err == errLost && len(q.under) == 1 && n < 4; n++ { // it may be moved from one place to another all the time
		f, err = q.look(id)
	}
	if err == errLost && q.isGone(id) {
		err = errGone
	}
	return f, err
}

// isGone reports whether a directory of the state was removed for good. Of such a one everything is in the log.
func (q *search) isGone(id checkpoint.ID) bool {
	a, ok, err := q.past.Attr(id)
	return !q.t.canMoveDirs && err == nil && ok && a.Mode&unix.S_IFMT == unix.S_IFDIR
}

// look goes through the places where an inode may be: a move is in the log before it is made, so one that is not where it was seen is where the log
// says.
func (q *search) look(id checkpoint.ID) (spot, error) {
	for _, slots := range q.places() {
		list, err := slots(id)
		if err != nil {
			return spot{}, q.failure("find an inode", err)
		}
		for _, slot := range list {
			if f, err := q.at(slot, id); err != errLost {
				return f, err
			}
		}
	}
	f := spot{dir: pastDir{fd: q.t.trashFd}, name: id.String(), trashed: true}
	if err := statAt(q.t.trashFd, f.name, &f.st); err != nil || q.t.idOf(&f.st) != id {
		return spot{}, errLost
	}
	return f, nil
}

// places are the ways to learn of slots where an inode may be. The last one is asked after the others: it knows of every move that was made meanwhile.
func (q *search) places() []func(checkpoint.ID) ([]checkpoint.Slot, error) {
	return []func(checkpoint.ID) ([]checkpoint.Slot, error){q.seenAt, q.knownAt, q.notedAt, q.past.Where}
}

func (q *search) seenAt(id checkpoint.ID) ([]checkpoint.Slot, error) {
	if slot, ok := q.lastSeen(id.Ino); ok {
		return []checkpoint.Slot{slot}, nil
	}
	return nil, nil
}

func (q *search) knownAt(id checkpoint.ID) ([]checkpoint.Slot, error) {
	if n := q.t.known(id); n != nil {
		return q.t.slotsOf(n), nil
	}
	return nil, nil
}

func (q *search) notedAt(id checkpoint.ID) (slots []checkpoint.Slot, err error) {
	err = q.w.store.Get(func(tx *checkpoint.Tx) error {
		loc, _, err := tx.Loc(id)
		slots = loc.Slots
		return err
	})
	for i := range slots {
		slots[i].Dir = q.w.store.Resolve(slots[i].Dir)
	}
	return slots, err
}

// at looks for an inode in one place; errLost says that it is not there.
func (q *search) at(slot checkpoint.Slot, id checkpoint.ID) (spot, error) {
	if q.tries++; q.tries > maxTries {
		return spot{}, errLost
	}
	d, err := q.openDir(slot.Dir)
	if err == errGone || err == unix.ENOTDIR {
		err = errLost
	}
	if err != nil {
		return spot{}, err
	}
	f := spot{dir: d, slot: slot, name: slot.Name}
	err = q.within(slot.Dir, d.fd, func() error { return statAt(d.fd, slot.Name, &f.st) })
	if err == unix.ENOENT || err == unix.ENOTDIR || err == nil && q.t.idOf(&f.st) != id {
		err = errLost
	}
	if err != nil {
		d.done()
		return spot{}, err
	}
	q.saw(id.Ino, slot)
	return f, nil
}

// namesOf gives how many names an inode has now, at least the one that it had in the state.
func (q *search) namesOf(f *spot) uint32 {
	switch n := f.st.Nlink; {
	case isDir(&f.st):
		return 1
	case f.trashed, n > 1 && q.t.inTrash(q.t.idOf(&f.st)):
		return max(n-1, 1)
	default:
		return max(n, 1)
	}
}
