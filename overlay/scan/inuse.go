package scan

import (
	"slices"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// checkInUse refuses a rollback, before it touches anything, that would remove or replace what another program has open
// and does not share for that.
func (w *Workspace) checkInUse(p *plan) error {
	if !openBlocks {
		return nil
	}
	c := inUse{p: p, goes: p.leaving()}
	top, err := w.top.again()
	if err != nil {
		return errs.Ensure("rollback", w.root, err)
	}
	defer top.close()
	return c.dir(top, 0)
}

// inUse asks for each entry of the live tree that goes whether it can.
type inUse struct {
	p    *plan
	goes []bool // it or something below it
}

func (c *inUse) dir(d dir, i int32) (err error) {
	now := c.p.now
	now.children(i, func(k int32) {
		if err == nil && c.goes[k] {
			err = c.entry(d, k)
		}
	})
	return err
}

func (c *inUse) entry(d dir, k int32) error {
	e := &c.p.now.entries[k]
	if e.isDir() && e.flags&(flagForeign|flagClosed) == 0 {
		sub, err := d.sub(e.name)
		if isMissing(err) {
			return nil // it was changed just now: whoever removes it finds out
		}
		if err != nil {
			return errs.Ensure("rollback", c.p.now.path(k), err)
		}
		err = c.dir(sub, k)
		sub.close()
		if err != nil {
			return err
		}
	}
	if !c.p.leaves(k) {
		return nil
	}
	switch err := d.freely(e.name); {
	case isInUse(err):
		return errs.New(errs.Rollback, "rollback", c.p.now.path(k), "another program has it open: %w", err).
			WithHint("end that program, or let it leave the directory; nothing was changed")
	case isDenied(err):
		return errs.New(errs.Rollback, "rollback", c.p.now.path(k), "this user may not remove it: %w", err)
	}
	return nil
}

// leaving marks the entries of now that are taken away or replaced, and the directories that they are in.
func (p *plan) leaving() []bool {
	goes := make([]bool, len(p.now.entries))
	for k := range p.now.entries {
		if p.leaves(int32(k)) {
			for i := int32(k); i >= 0 && !goes[i]; i = p.now.entries[i].parent {
				goes[i] = true
			}
		}
	}
	return goes
}

// leaves reports whether the name of the entry k of now is taken from its inode.
func (p *plan) leaves(k int32) bool {
	if p.stays == nil {
		p.stays = slices.Clone(p.holds)
		for i, at := range p.at {
			if at >= 0 && (p.isDirAt(int32(i)) || !p.want.entries[i].isDir() && p.inPlace(int32(i))) {
				p.stays[at] = true
			}
		}
	}
	return !p.stays[k]
}
