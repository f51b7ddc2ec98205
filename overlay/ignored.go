//go:build linux

package overlay

import (
	"sync/atomic"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"golang.org/x/sys/unix"
)

// What the patterns ignore has no history. An ignored slot is like one of a directory that was made in this epoch, in every epoch: its changes are not recorded.
// Two questions must be kept apart.
//
// Is a slot ignored where it is now? That is asked of its path: by strict mode, by what is listed of ignored writes, and, of the path that a slot had in a state,
// by whoever reads the log (view_ignored.go).
//
// May a change of it go unrecorded? Only if it was ignored in every state that somebody may want back. A slot is loose if its path is ignored, and no record names a
// directory above it: then none of these was moved since the oldest of these states, and the path was the same in all of them. What is more is recorded does no harm, as
// whoever reads the log goes by the path of the state.
//
// So what was protected and is moved to an ignored place stays old as long as the log names it, with all that is in it. What was ignored and is moved to a
// protected place is new there, and protected from the next checkpoint on. A file that may have a protected name beside an ignored one is protected by both.

// ignoring is what a tree has of its patterns.
type ignoring struct {
	rules  *ignore.Rules
	moves  atomic.Uint64 // grows when a directory was moved, which may change what is ignored in it
	exiled atomic.Uint64 // the epoch for which metaExiled is written already
	frozen atomic.Bool   // all changes are recorded, for branches: see freeze.go
	writes ignoredWrites
}

// dirClass is what the patterns say of a directory.
type dirClass struct {
	moves   uint64       // ignoring.moves, when this was found out
	path    string       // of the directory, relative to the workspace; "" for the workspace itself
	ignored bool         // it is ignored, or one above it
	lost    bool         // it has no path: it was removed
	steady  atomic.Int32 // whether a record names it or one above it: 0 is unknown, 1 yes, 2 no
}

// below gives the path of a name in a directory.
func below(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// classOf gives what the patterns say of a directory. While a directory is being moved it may be what they said before.
func (t *Tree) classOf(n *Node) *dirClass {
	moves := t.ignore.moves.Load()
	if c := n.class.Load(); c != nil && c.moves == moves {
		return c
	}
	c := &dirClass{moves: moves}
	if n != t.root {
		parent, name, ok := t.slotOf(n)
		if !ok {
			return &dirClass{lost: true}
		}
		up := t.classOf(parent)
		if up.lost {
			return up
		}
		c.path = below(up.path, name)
		c.ignored = up.ignored || t.ignore.rules.Match(c.path, true)
	}
	n.class.Store(c)
	return c
}

// ignores reports whether a slot is ignored where it is now, if it holds a directory or something else.
func (t *Tree) ignores(dir *Node, name string, isDir bool) bool {
	if t.ignore == nil {
		return false
	}
	c := t.classOf(dir)
	return c.ignored || !c.lost && t.ignore.rules.Match(below(c.path, name), isDir)
}

// loose reports whether changes of a slot go unrecorded, if it holds a directory or something else.
func (t *Tree) loose(l *logTx, dir *Node, name string, isDir bool) (bool, error) {
	if t.ignore == nil || t.ignore.frozen.Load() || !t.ignores(dir, name, isDir) {
		return false, nil
	}
	return t.steady(l, dir)
}

// steady reports whether no record names a directory or one above it.
func (t *Tree) steady(l *logTx, n *Node) (bool, error) {
	if n == t.root {
		return true, nil
	}
	c := t.classOf(n)
	if s := c.steady.Load(); s != 0 {
		return s == 2, nil
	}
	parent, _, ok := t.slotOf(n)
	if !ok || c.lost {
		return false, nil
	}
	is, err := t.steady(l, parent)
	if err != nil {
		return false, err
	}
	if is {
		named, err := l.Named(t.identity(n))
		if err != nil {
			return false, err
		}
		is = !named
	}
	c.steady.Store(1)
	if is {
		c.steady.Store(2)
	}
	return is, nil
}

// isNewIgnored is isNew for what is in a loose slot: it is old if a record names it, or if it may have a protected name too.
func (t *Tree) isNewIgnored(l *logTx, n *Node, id checkpoint.ID) (bool, error) {
	named, err := l.Named(id)
	if err != nil || named || n.dir {
		return !named, err
	}
	var st unix.Statx_t
	if t.statOpen(n, nil, &st) != nil {
		return false, nil
	}
	if st.Nlink <= 1 {
		return true, nil
	}
	slots := t.namesOf(n)
	if int(t.names(&st)) > len(slots) {
		return false, nil
	}
	for _, s := range slots {
		if is, err := t.loose(l, s.parent, s.name, false); err != nil || !is {
			return false, err
		}
	}
	return true, nil
}

// recordChange is recordSlot for a slot that is about to get something of the type gets, or to lose what it holds: then that is 0. An ignored thing counts as
// nothing.
func (t *Tree) recordChange(l *logTx, dir *Node, name string, held checkpoint.Occupant, gets uint32) error {
	if t.ignore == nil {
		return t.recordSlot(l, dir, name, held)
	}
	had, err := t.protects(l, dir, name, held.Mode)
	if err != nil {
		return err
	}
	has, err := t.protects(l, dir, name, gets)
	switch {
	case err != nil:
		return err
	case !had && !has:
		return t.recordAttr(l, dir) // which is protected itself, if it is old, and gets another modification time
	case !had:
		held = checkpoint.Occupant{}
	}
	return t.recordSlot(l, dir, name, held)
}

// protects reports whether a slot that holds something of a type is protected. Nothing is not.
func (t *Tree) protects(l *logTx, dir *Node, name string, mode uint32) (bool, error) {
	if mode == 0 {
		return false, nil
	}
	is, err := t.loose(l, dir, name, mode&unix.S_IFMT == unix.S_IFDIR)
	return !is, err
}

// movesUnseen reports whether a move needs no note of where the inode is: nothing that the log knows is on the way to it or below it.
func (t *Tree) movesUnseen(l *logTx, isNew bool, from, to *side) (bool, error) {
	if t.ignore == nil || !isNew {
		return false, nil
	}
	for _, s := range []*side{from, to} {
		if is, err := t.loose(l, s.dir, s.name, isDir(&from.st)); err != nil || !is {
			return false, err
		}
	}
	has, err := l.HasLoc(t.idOf(&from.st))
	return !has, err
}

// metaExiled is the last epoch in which something old was moved to where only a look into ignored directories finds it.
const metaExiled = "exiled"

// recordExile notes that an old inode goes to an ignored place, or takes one along: what is changed in there while nobody watches must be found.
func (t *Tree) recordExile(l *logTx, isNew bool, st *unix.Statx_t, dir *Node, name string) error {
	if t.ignore == nil || isNew || t.ignore.exiled.Load() == uint64(t.epoch) {
		return nil
	}
	if !isDir(st) && !t.ignores(dir, name, false) {
		return nil
	}
	l.mark(&t.ignore.exiled, uint64(t.epoch))
	return l.PutNumber(metaExiled, uint64(t.epoch))
}

// movedDirs has it found out anew what is ignored, if a directory was moved that was not ignored before and after. The caller shares Tree.mu, so that no checkpoint
// is made in between.
func (t *Tree) movedDirs(from, to *side) {
	if t.ignore == nil || !isDir(&from.st) && !(to.some && isDir(&to.st)) {
		return
	}
	if !t.classOf(from.dir).ignored || !t.classOf(to.dir).ignored {
		t.ignore.moves.Add(1)
	}
}

// reclassify has it found out anew what is ignored, after a rollback.
func (t *Tree) reclassify() {
	if t.ignore != nil {
		t.ignore.moves.Add(1)
	}
}
