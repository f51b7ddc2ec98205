//go:build linux

package overlay

import (
	"context"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// pastSide is a state of the live tree that is compared with another. IDs are resolved, so that both sides name an inode alike. What was changed while
// nobody watched is told as it is now, and Unknown.
type pastSide struct{ *state }

// newComparison compares two states of the live tree.
func newComparison(a, b *state) (*Comparison, error) {
	early, late := a, b
	if early.epoch > late.epoch {
		early, late = late, early
	}
	slots, inodes, err := early.past.Until(late.past)
	if err != nil {
		return nil, err
	}
	return &Comparison{
		A: pastSide{a}, B: pastSide{b}, Slots: slots, Inodes: inodes,
		SameContent: func(ctx context.Context, id checkpoint.ID) (bool, bool, error) {
			return sameContent(ctx, early, late, id)
		},
		SameXattrs: func(id checkpoint.ID) bool {
			_, x, errX := a.past.Xattrs(id)
			_, y, errY := b.past.Xattrs(id)
			return !x && !y && errX == nil && errY == nil
		},
		Ignored: func(path string, isDir bool) bool { return anyMatches(early.rules, path, isDir) },
	}, nil
}

// ask is state.do for what need not be known.
func (s pastSide) ask(fn func(q *search) error) error {
	return s.do(func(q *search) error {
		q.unchecked = true
		return fn(q)
	})
}

// Lookup is asked of directories that are not in the state, too, and may be gone for good. One that is in it is found where the log has seen it, as a rollback
// finds it.
func (s pastSide) Lookup(dir checkpoint.ID, name string) (e StateEntry, err error) {
	err = s.ask(func(q *search) error {
		e, err = s.lookup(q, checkpoint.Slot{Dir: dir, Name: name})
		if err == errLost || err == errGone {
			err = unix.ENOENT
		}
		return err
	})
	e.ID = s.w.store.Resolve(e.ID)
	return e, err
}

func (s pastSide) List(dir checkpoint.ID) (all []DirEntry, err error) {
	err = s.ask(func(q *search) error {
		all, err = s.list(q, dir)
		return err
	})
	return all, err
}

func (s pastSide) Attr(id checkpoint.ID) (a Attr, err error) {
	err = s.ask(func(q *search) error {
		a, err = s.attr(q, id)
		return err
	})
	return a, err
}

func (s pastSide) Xattrs(id checkpoint.ID) (xs []checkpoint.Xattr, err error) {
	err = s.ask(func(q *search) error {
		xs, err = s.xattrs(q, id)
		return err
	})
	return xs, err
}

func (s pastSide) Open(id checkpoint.ID) (SideFile, error) { return s.state.Open(id) }

func (s pastSide) Places(id checkpoint.ID) (all []checkpoint.Slot, err error) {
	err = s.ask(func(q *search) error {
		for _, slots := range q.places() {
			list, err := slots(id)
			if err != nil {
				return q.failure("find an inode", err)
			}
			all = append(all, list...)
		}
		return nil
	})
	return all, err
}

func (s pastSide) Unknown(id checkpoint.ID) bool {
	known := false
	err := s.do(func(q *search) (err error) {
		known, err = q.isKnown(id)
		return err
	})
	return err != nil || !known
}

// sameContent reports whether the content of an inode is the same in two states, if that can be said without reading all of it: of what was kept block by block
// between them, only these blocks can differ.
func sameContent(ctx context.Context, early, late *state, id checkpoint.ID) (same, known bool, err error) {
	saved, known, err := savedBetween(early, late, id)
	if err != nil || !known || len(saved) == 0 {
		return true, known, err
	}
	x, err := early.Open(id)
	if err != nil {
		return false, true, err
	}
	defer x.Close()
	y, err := late.Open(id)
	if err != nil {
		return false, true, err
	}
	defer y.Close()
	for _, e := range saved {
		if same, err := sameRange(ctx, x, y, e.From, e.To); err != nil || !same {
			return false, true, err
		}
	}
	return true, true, nil
}

// savedBetween gives the ranges in which the contents of an inode in two states can differ. It is not known where the one does not lie over the other: what somebody saves
// meanwhile can make it look so.
func savedBetween(early, late *state, id checkpoint.ID) (saved []strategy.Extent, known bool, err error) {
	err = early.sharing(func(*search) error { // so that no block preimage is removed meanwhile
		is, _, err := late.past.Content(id)
		if err != nil {
			return err
		}
		was, _, err := early.past.Content(id)
		if err != nil {
			return err
		}
		parts, ok := between(was, is)
		if known = ok; !ok || len(parts) == 0 {
			return nil
		}
		chain, err := early.t.tier.blocks.OpenChain(parts)
		if err != nil {
			return err
		}
		defer chain.Close()
		saved = chain.Saved()
		return nil
	})
	return saved, known, err
}

// between gives the block preimages that lead from one content of an inode to a later one: outside of what they saved, both are the same. ok is
// false where that can't be said.
func between(was, is checkpoint.Content) (parts []strategy.Ref, ok bool) {
	k := len(was.Parts) - len(is.Parts)
	if k < 0 || was.Ref != is.Ref || !slices.Equal(was.Parts[k:], is.Parts) {
		return nil, false
	}
	return was.Parts[:k], true
}
