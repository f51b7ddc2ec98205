package fs

import (
	"sync"
	"sync/atomic"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Shelf has the volumes that a mount shows besides the live tree: <mount>/.hyperfs/checkpoints/<id> and <mount>/.hyperfs/branches/<name>.
// Its methods may be called concurrently, and from requests: so they must touch no path inside the mount.
//
// The kernel keeps for good what it was told of the names, also that there is none: Server.ShelfChanged says when that holds no more.
type Shelf interface {
	// Checkpoints and Branches name what there is. A name that no file can have is not shown.
	Checkpoints() []string
	Branches() []string

	// Checkpoint and Branch open a volume, which is compared with ==; the function gives it back, once. NOT_FOUND or ENOENT says that there
	// is none. Until a volume was given back as often as it was opened, the same name gives the same one again, if it does not mean another
	// by now. It is kept until the kernel has forgotten all inodes of it and no file of it is open. Of an overlay.Follower the kernel keeps nothing.
	Checkpoint(id string) (overlay.Volume, func(), error)
	Branch(name string) (overlay.Volume, func(), error)
}

// ShelfKind is what a name on the shelf is of: the directory in .hyperfs that it is in.
type ShelfKind string

// The kinds.
const (
	Checkpoints ShelfKind = "checkpoints"
	Branches    ShelfKind = "branches"
)

// slot is a name on the shelf.
type slot struct {
	dir  *shelfDir
	name string
}

// shelf keeps the volumes of a Shelf that are in use.
type shelf struct {
	vol  *volume // of the directories
	dirs *shelfVolume

	mu    sync.Mutex
	loans map[slot]*loan // guarded by mu
}

// loan is a volume of the Shelf. It is given back when nobody uses it: users counts the inodes in the node table, the open files, and the
// requests under way.
type loan struct {
	shelf *shelf
	at    slot
	users atomic.Int64 // grows from 0 only with shelf.mu held
	gone  atomic.Bool  // the name has come to mean something else, or nothing

	ready    chan struct{} // closed when what follows is set
	vol      *volume
	giveBack func()
	err      error

	returned bool // guarded by shelf.mu
}

func newShelf(of Shelf, tree *overlay.Tree) *shelf {
	dirs := newShelfVolume(of, tree)
	s := &shelf{vol: newVolume(dirs, true), dirs: dirs, loans: map[slot]*loan{}}
	s.vol.cache.attr = forNow.attr // mode and owner follow the root of the live tree
	return s
}

// at gives the volume that a name is of, in the live tree's root or in a directory of the shelf, and holds it.
func (s *shelf) at(dir node, name string) (*volume, error) {
	d, ok := dir.Inode.(*shelfDir)
	if !ok || d.open == nil {
		return s.vol, nil
	}
	if len(name) > unix.NAME_MAX {
		return nil, unix.ENAMETOOLONG
	}
	l, err := s.borrow(slot{d, name})
	if err != nil {
		return nil, err
	}
	return l.vol, nil
}

// borrow gives the loan of a slot to one user more. Who comes while it is being opened waits.
func (s *shelf) borrow(at slot) (*loan, error) {
	s.mu.Lock()
	l := s.loans[at]
	if l == nil {
		l = &loan{shelf: s, at: at, ready: make(chan struct{}), err: unix.EIO} // which stays if the Shelf panics
		s.loans[at] = l
		l.users.Add(1)
		s.mu.Unlock()
		l.open()
		return l, l.err
	}
	l.users.Add(1)
	s.mu.Unlock()
	<-l.ready
	return l, l.err
}

func (l *loan) open() {
	defer close(l.ready)
	defer func() {
		if l.err != nil {
			l.shelf.strike(l)
		}
	}()
	v, giveBack, err := l.at.dir.open(l.at.name)
	if err == nil {
		if f, ok := v.(overlay.Follower); ok && f.Follows() {
			l.vol = newVolume(v, false)
			l.vol.cache = timeouts{}
		} else {
			l.vol = newVolume(v, true)
		}
		l.giveBack = giveBack
		l.vol.loan = l
	}
	l.err = notFound(err)
}

// notFound makes ENOENT of NOT_FOUND.
func notFound(err error) error {
	if errs.CodeOf(err) == errs.NotFound {
		return unix.ENOENT
	}
	return err
}

// strike makes the next who asks for the slot open it anew.
func (s *shelf) strike(l *loan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loans[l.at] == l {
		delete(s.loans, l.at)
	}
}

// let ends one use.
func (l *loan) let() {
	if l.users.Add(-1) > 0 {
		return
	}
	s := l.shelf
	s.mu.Lock()
	last := l.users.Load() == 0 && !l.returned // somebody may have borrowed it meanwhile
	if last {
		l.returned = true
		if s.loans[l.at] == l {
			delete(s.loans, l.at)
		}
	}
	s.mu.Unlock()
	if last {
		l.giveBack()
	}
}

// recall looks whether a slot still holds what was opened there. If it certainly does not, it gives up the loan and returns it; let ends that.
// same says that it certainly does.
func (s *shelf) recall(at slot) (stale *loan, same bool) {
	s.mu.Lock()
	l := s.loans[at]
	if l == nil {
		s.mu.Unlock()
		return nil, false
	}
	l.users.Add(1)
	s.mu.Unlock()
	if <-l.ready; l.err != nil {
		return nil, false
	}
	v, giveBack, err := at.dir.open(at.name)
	if err == nil {
		giveBack()
		same = v == l.vol.Volume
	}
	if same || err != nil && notFound(err) != unix.ENOENT {
		l.let()
		return nil, same
	}
	l.gone.Store(true)
	s.strike(l)
	return l, false
}

// ShelfChanged tells that a name has come to the shelf, is no more there, or means another volume than before. It is at once so for
// everybody. What is still in use of a volume that the name does not mean any more is stale from then on: requests for it fail with
// ESTALE, as on a network filesystem whose server has lost a file, mappings of its files are void, and what is mounted in it is detached.
// The Shelf must answer as it is now, and is asked. It must not be called from a request, nor with a lock held that a method of the Shelf takes.
func (m *Server) ShelfChanged(kind ShelfKind, name string) { m.fs.shelfChanged(kind, name) }

func (s *filesystem) shelfChanged(kind ShelfKind, name string) {
	if s.shelf == nil {
		return
	}
	dir := s.shelf.dirs.kinds[kind]
	stale, same := s.shelf.recall(slot{dir, name})
	dir.touch()
	t := notifier{s}
	if !same { // the kernel would detach what is mounted in it
		t.InvalEntry(dir, name)
	}
	t.InvalInode(dir)
	if stale == nil {
		return
	}
	defer stale.let()
	s.invalidated.Add(1) // so that nothing is cached of a node that comes after this list
	nodes := s.nodes.of(stale.vol)
	for _, n := range nodes {
		t.InvalInode(n.Inode)
	}
	s.nodes.evict(nodes)
}

// between says why nothing can be moved or linked from one directory to another, or nil. Of the shelf nothing can, and it must not be EXDEV: mv(1)
// would copy then, and remove what it has copied.
func (s *filesystem) between(from, to node) error {
	switch {
	case from.vol == to.vol:
		return nil
	case s.shelf != nil && (from.vol == s.shelf.vol || to.vol == s.shelf.vol):
		return unix.EPERM
	}
	return unix.EXDEV
}
