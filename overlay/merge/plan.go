//go:build linux

package merge

import (
	"cmp"
	"context"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// Make makes the plan. The caller closes it. Errors: USAGE for an unknown policy, INTEGRITY where a diff does not explain the difference of
// its trees, and what the volumes give.
func Make(ctx context.Context, in Input) (*Plan, error) {
	in.Policy, in.MaxText = cmp.Or(in.Policy, Reject), cmp.Or(in.MaxText, DefaultMaxText)
	switch in.Policy {
	case Reject, Ours, Theirs, Text:
	default:
		return nil, errs.New(errs.Usage, "merge", string(in.Policy), "there is no such policy; there are reject, ours, theirs and merge")
	}
	p := &Plan{Policy: in.Policy, Ops: []Op{}, Conflicts: []Conflict{}, Merged: []string{}, spool: &spool{dir: in.SpoolDir}}
	m := &merger{in: in, plan: p, spool: p.spool}
	m.byBase = map[string]*node{}
	for at, v := range []overlay.Volume{in.Base, in.Ours.Volume, in.Theirs.Volume} {
		m.trees[at] = newTree(v)
		m.fresh[at], m.known[at] = map[string]*node{}, map[uint64]int{}
		defer m.trees[at].forget()
	}
	if err := m.run(ctx); err != nil {
		_ = p.Close()
		return nil, errs.Ensure("merge", "", err)
	}
	return p, nil
}

func (m *merger) run(ctx context.Context) (err error) {
	if m.sides[inOurs], err = newSide("the parent", m.trees[inBase], m.trees[inOurs], m.in.Ours.Changes); err != nil {
		return err
	}
	if m.sides[inTheirs], err = newSide("the branch", m.trees[inBase], m.trees[inTheirs], m.in.Theirs.Changes); err != nil {
		return err
	}
	m.ctx = ctx
	for _, step := range []func() error{m.grow, m.settle, m.makeOps} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
