//go:build linux

package branch

import (
	"context"
	"io"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// Diff tells what changed in a branch from one of its checkpoints to another, or (to "") to now; from "" is the checkpoint that the live state
// comes from, or else the fork point, which can be named by its ID too. With expand, what is below created directories is listed too. Errors: NOT_FOUND,
// ROLLBACK for a checkpoint that is not active.
func (m *Manager) Diff(ctx context.Context, name, from, to string, expand bool) (overlay.Diff, error) {
	diff := overlay.Diff{Changes: []overlay.Change{}}
	err := m.compare("diff", name, from, to, func(from string, c *overlay.Comparison) (err error) {
		diff.From, diff.To = from, to
		diff.Changes, err = c.Changes(ctx, expand)
		return err
	})
	return diff, err
}

// diffSince tells what changed in a branch from the state that another one was forked from to a checkpoint, with what is below created directories.
func (m *Manager) diffSince(ctx context.Context, name string, child checkpoint.Branch, to string) ([]overlay.Change, error) {
	const op = "diff"
	v, leave, err := m.enterBranch(op, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	m.mu.Lock()
	b := *m.branches[v.key.branch]
	z, err := m.target(op, &b, to)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var changes []overlay.Change
	err = m.comparing(b.Epoch, child.Fork, z.layer, func(c *overlay.Comparison) (err error) {
		changes, err = c.Changes(ctx, true)
		return err
	})
	return changes, errs.Ensure(op, name, err)
}

// Patch writes what changed between two states of a branch, named as for Diff, as a patch that `git apply` takes. It holds what git
// knows: contents, the executable bit, symlinks, names; no directories, owners, times, xattrs or devices.
func (m *Manager) Patch(ctx context.Context, name, from, to string, out io.Writer) error {
	return m.compare("patch", name, from, to, func(_ string, c *overlay.Comparison) error { return c.Patch(ctx, out) })
}

// compare calls fn with two states of a branch, which do not change meanwhile, and the ID of the first.
func (m *Manager) compare(op, name, from, to string, fn func(from string, c *overlay.Comparison) error) error {
	v, leave, err := m.enterBranch(op, name)
	if err != nil {
		return err
	}
	defer leave()
	if to == "" {
		v.flushMapped()
		v.mu.Lock()
		defer v.mu.Unlock()
	}
	m.mu.Lock()
	b := *m.branches[v.key.branch]
	a, err := m.target(op, &b, from)
	z := target{layer: b.Layer}
	if err == nil && to != "" {
		z, err = m.target(op, &b, to)
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	err = m.comparing(b.Epoch, a.layer, z.layer, func(c *overlay.Comparison) error { return fn(a.id, c) })
	return errs.Ensure(op, name, err)
}

// comparing calls fn with the states of two layers over main's state at the beginning of an epoch.
func (m *Manager) comparing(epoch checkpoint.Epoch, from, to uint64, fn func(*overlay.Comparison) error) error {
	a, err := m.loadState(epoch, from)
	if err != nil {
		return err
	}
	defer a.base.Close()
	b, err := m.loadState(epoch, to)
	if err != nil {
		return err
	}
	defer b.base.Close()
	p := newPlaces(a.base)
	c := newComparison(newView(a, m.pool, p), newView(b, m.pool, p))
	if m.cfg.Ignored != nil {
		c.Ignored = m.cfg.Ignored(epoch)
	}
	for id := range c.Inodes {
		if err := p.want(id); err != nil {
			return err
		}
	}
	return fn(c)
}

// newComparison compares two states over one of main. Only what a layer has a record of can differ.
func newComparison(a, b *view) *overlay.Comparison {
	c := &overlay.Comparison{
		A: a, B: b, Slots: map[checkpoint.Slot]struct{}{}, Inodes: map[checkpoint.ID]struct{}{},
		SameContent: func(_ context.Context, id checkpoint.ID) (same, known bool, err error) {
			same = a.inodes[id].data == b.inodes[id].data
			return same, same, nil
		},
		SameXattrs: func(id checkpoint.ID) bool { return a.inodes[id].pool == b.inodes[id].pool },
	}
	for _, v := range []*view{a, b} {
		for dir, names := range v.slots {
			for name := range names {
				c.Slots[checkpoint.Slot{Dir: dir, Name: name}] = struct{}{}
			}
		}
		for id := range v.inodes {
			if a.inodes[id] != b.inodes[id] {
				c.Inodes[id] = struct{}{}
			}
		}
	}
	return c
}

// Unchanged reports whether nothing has changed in an active branch since a checkpoint of its own, or its fork point, from which its live state comes.
func (m *Manager) Unchanged(name, id string) bool {
	v, leave, err := m.enterBranch("compare", name)
	if err != nil {
		return false
	}
	defer leave()
	v.flushMapped()
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.gone || !m.standsOn(v, id) {
		return false
	}
	empty, err := m.store.LayerIsEmpty(v.layer)
	return err == nil && empty
}

// standsOn reports whether the live layer of a branch lies right on the state of a checkpoint, and the branch comes from that. The caller shares v.mu.
func (m *Manager) standsOn(v *Volume, id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, l := m.branches[v.key.branch], m.layers[v.layer]
	if id == b.ForkPoint {
		return b.Head == "" && l.Parent == b.Fork
	}
	c := m.checkpoints[id]
	return c != nil && c.BranchNum == b.Num && c.Status == checkpoint.Active && b.Head == id && l.Parent == c.Layer
}
