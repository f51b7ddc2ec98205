//go:build linux

package branch

import (
	"context"
	"errors"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// Edit makes the changes that fn makes to a branch, all or none. fn works on a copy of what the branch was at a checkpoint of its own; if it
// succeeds, the branch becomes that copy as by a rollback, which Undo takes back. BUSY says that the branch was changed since the checkpoint. If
// the daemon dies, the copy is forgotten.
func (m *Manager) Edit(ctx context.Context, name, since, message string, fn func(overlay.Volume) error) (overlay.RollbackResult, error) {
	const op = "merge"
	fail := func(err error) (overlay.RollbackResult, error) {
		return overlay.RollbackResult{}, errs.Ensure(op, name, err)
	}
	start := time.Now()
	c, err := m.copyOf(since)
	if err != nil {
		return fail(err)
	}
	defer func() {
		m.forgetCopy(c)
		m.collectSoon()
	}()
	if err := fn(c); err != nil {
		return fail(err)
	}
	crash.Point("branch-edited")
	v, leave, err := m.enterBranch(op, name)
	if err != nil {
		return fail(err)
	}
	defer leave()
	v.flushMapped()
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	v.mu.Lock()
	res, told, err := m.applyRollback(v, op, overlay.RollbackOptions{}, func(b *checkpoint.Branch) (target, error) {
		return m.copyTarget(b, c, since, message)
	})
	v.mu.Unlock()
	if err != nil {
		return fail(err)
	}
	crash.Point("branch-adopted")
	v.tell(told)
	res.Checkpoint, res.Duration = since, time.Since(start)
	return res, nil
}

// copyOf gives a writable volume that begins as a checkpoint of a branch, and that no branch has.
func (m *Manager) copyOf(id string) (*Volume, error) {
	leave, err := m.enter("merge", true)
	if err != nil {
		return nil, err
	}
	defer leave()
	num, err := m.next()
	if err != nil {
		return nil, err
	}
	return m.volume("merge", func() (place, error) {
		c := m.checkpoints[id]
		if c == nil {
			return place{}, noCheckpoint("merge", id)
		}
		l := checkpoint.Layer{Num: num, Parent: c.Layer, Epoch: c.Epoch}
		if err := m.store.Update(func(tx *checkpoint.Tx) error { return tx.PutLayer(l) }); err != nil {
			return place{}, err
		}
		m.layers[num] = l
		return place{volumeKey{branch: num}, num, c.Epoch}, nil // numbers are not used twice, so no branch has this one
	})
}

// forgetCopy gives up a volume that copyOf gave. Its layer stays as long as the branch stands on it.
func (m *Manager) forgetCopy(v *Volume) {
	v.mu.Lock()
	v.gone = true
	v.closeState()
	v.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.volumes, v.key)
}

// hasRecords reports whether a layer has changed anything.
func (m *Manager) hasRecords(layer uint64) (has bool, err error) {
	err = m.store.View(func(tx *checkpoint.Tx) error {
		err := tx.EachLayerSlot(layer, func(checkpoint.Slot, checkpoint.LayerSlot) error { return errSome })
		if err == nil {
			err = tx.EachLayerInode(layer, func(checkpoint.ID, checkpoint.LayerInode) error { return errSome })
		}
		return err
	})
	if err == errSome {
		return true, nil
	}
	return false, err
}

// errSome ends a search that has found something.
var errSome = errors.New("there is some")

// copyTarget is the target of a rollback to a copy, if the branch holds what it held at the checkpoint. The caller holds mu, and the branch's volume
// alone.
func (m *Manager) copyTarget(b *checkpoint.Branch, v *Volume, since, message string) (target, error) {
	c := m.checkpoints[since]
	if c == nil || c.Status != checkpoint.Active || m.layers[b.Layer].Parent != c.Layer {
		return target{}, errs.New(errs.Busy, "merge", b.Name, "it was rolled back meanwhile").WithHint("try again")
	}
	changed, err := m.hasRecords(b.Layer)
	if err != nil {
		return target{}, err
	}
	if changed {
		return target{}, errs.New(errs.Busy, "merge", b.Name, "it was changed meanwhile").WithHint("try again")
	}
	return target{id: since, layer: v.layer, head: since, message: message}, nil
}
