//go:build linux

package branch

import (
	"context"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

var _ overlay.Journals = (*Workspace)(nil)

// Recover lists the checkpoints of main and of branches that earlier daemons left, in the order in which they were made. Without durable journals there are none.
func (f *Workspace) Recover(ctx context.Context) ([]overlay.Recoverable, error) {
	list, err := f.Workspace.Recover(ctx)
	if err != nil || f.noJournals {
		return list, err
	}
	left := f.branches.ListAll(overlay.ListOptions{IncludeInactive: true})
	left = slices.DeleteFunc(left, func(c checkpoint.Checkpoint) bool { return c.Session == f.Session() })
	states, err := f.ProveStates(ctx, epochsOf(left))
	if err != nil {
		return nil, err
	}
	for _, c := range left {
		why := overlay.RehydrateStatus(c)
		if why == nil {
			why = states[c.Epoch]
		}
		if why == nil {
			why = f.branches.Prove(c.ID)
		}
		list = append(list, overlay.NewRecoverable(c, why))
	}
	slices.SortStableFunc(list, func(a, b overlay.Recoverable) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return list, nil
}

// epochsOf gives the epochs of main that active checkpoints lie over.
func epochsOf(list []checkpoint.Checkpoint) (epochs []checkpoint.Epoch) {
	for _, c := range list {
		if c.Status == checkpoint.Active {
			epochs = append(epochs, c.Epoch)
		}
	}
	slices.Sort(epochs)
	return slices.Compact(epochs)
}

// Rehydrate makes a checkpoint that an earlier daemon left this one's own. For one of a branch it is proved that main's state below the branch could be had back, and that the
// branch's own files are there; these have no checksums.
func (f *Workspace) Rehydrate(ctx context.Context, id string) (checkpoint.Checkpoint, error) {
	c, err := f.branches.Checkpoint(id)
	if err != nil {
		return f.Workspace.Rehydrate(ctx, id)
	}
	if f.noJournals {
		return c, errs.New(errs.Unsupported, "rehydrate", id, "durable journals are off").WithHint("mount without --no-durable-journals")
	}
	if err := overlay.RehydrateStatus(c); err != nil {
		return c, err
	}
	states, err := f.ProveStates(ctx, []checkpoint.Epoch{c.Epoch})
	if err != nil {
		return c, err
	}
	if why := states[c.Epoch]; why != nil {
		return c, errs.New(errs.CodeOf(errs.Ensure("rehydrate", id, why)), "rehydrate", id, "%w", why)
	}
	if err := f.branches.Prove(id); err != nil {
		return c, err
	}
	if c, err = f.branches.adoptSession(id); err != nil {
		return c, err
	}
	f.Announce(overlay.Event{Type: "rehydrate", Checkpoint: id, Data: c})
	return c, nil
}

// Prove proves that everything is there that a checkpoint of a branch has beside main's state. INTEGRITY says what is missing.
func (m *Manager) Prove(id string) error {
	const op = "rehydrate"
	leave, err := m.enter(op, true)
	if err != nil {
		return err
	}
	defer leave()
	m.mu.Lock()
	c := m.checkpoints[id]
	m.mu.Unlock()
	if c == nil {
		return noCheckpoint(op, id)
	}
	s, err := m.loadState(c.Epoch, c.Layer)
	if err != nil {
		return errs.Ensure(op, id, err)
	}
	defer s.base.Close()
	return m.verify(op, id, s)
}

// adoptSession makes an active checkpoint of a branch one of this session.
func (m *Manager) adoptSession(id string) (checkpoint.Checkpoint, error) {
	const op = "rehydrate"
	leave, err := m.enter(op, false)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer leave()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.checkpoints[id]
	if c == nil {
		return checkpoint.Checkpoint{}, noCheckpoint(op, id)
	}
	if err := overlay.RehydrateStatus(c.Checkpoint); err != nil { // somebody was quicker
		return c.Checkpoint, err
	}
	next := *c
	next.Session, next.UpdatedAt = m.cfg.Session, time.Now()
	if err := m.store.Update(func(tx *checkpoint.Tx) error { return tx.PutBranchCheckpoint(next) }); err != nil {
		return c.Checkpoint, errs.Ensure(op, id, err)
	}
	*c = next
	return recoverable(next.Checkpoint), nil
}
