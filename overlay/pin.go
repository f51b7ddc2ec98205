//go:build linux

package overlay

import (
	"cmp"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// Pin keeps the state of an active checkpoint for owner, whatever becomes of the checkpoint: then is called in the transaction that
// writes the pin, with the checkpoint and the epoch that is pinned. It costs one commit, or what a snapshot does where ignored paths become part of the state: see freeze.go. Errors: those of Rollback's checkpoint, and then's.
func (w *Workspace) Pin(id, owner string, then func(tx *checkpoint.Tx, c checkpoint.Checkpoint) error) error {
	leave, err := w.enter("fork", true) // what could drop the checkpoint holds it alone
	if err != nil {
		return err
	}
	defer leave()
	c, err := w.target("fork", id)
	if err != nil {
		return errs.Ensure("fork", id, err)
	}
	w.pinning.Lock()
	defer w.pinning.Unlock()
	pinned, ok := w.pinnedAs(c.Epoch)
	if !ok {
		return errs.Ensure("fork", id, w.pinGraft(c, owner, then))
	}
	c.Epoch = pinned
	p := checkpoint.Pin{Epoch: pinned, Owner: owner}
	err = w.store.Update(func(tx *checkpoint.Tx) error {
		if err := tx.PutPin(p); err != nil {
			return err
		}
		return then(tx, c)
	})
	if err != nil {
		return errs.Ensure("fork", id, err)
	}
	w.list.Lock()
	defer w.list.Unlock()
	w.pins[p] = struct{}{}
	return nil
}

// Unpin takes a pin back, in the transaction in which then is called. What nothing else needs is freed in the background.
func (w *Workspace) Unpin(p checkpoint.Pin, then func(tx *checkpoint.Tx) error) error {
	leave, err := w.enter("drop branch", false)
	if err != nil {
		return err
	}
	defer leave()
	w.list.RLock()
	_, ok := w.pins[p]
	w.list.RUnlock()
	if !ok {
		return errs.New(errs.NotFound, "drop branch", p.Owner, "it has not pinned the epoch %d", p.Epoch)
	}
	next, thaws := w.thaws(p)
	release := func(tx *checkpoint.Tx) error {
		if err := tx.DeletePin(p); err != nil {
			return err
		}
		if thaws {
			if err := putFrozen(tx, next); err != nil {
				return err
			}
		}
		return then(tx)
	}
	forget := func() {
		w.list.Lock()
		delete(w.pins, p)
		w.frozen = next
		last := len(w.pins) == 0
		w.list.Unlock()
		if last {
			w.tree.setFrozen(false)
		}
	}
	if thaws || w.needers(p.Epoch) == 1 {
		return errs.Ensure("drop branch", p.Owner, w.endNeed(release, forget))
	}
	err = w.store.Update(release)
	if err == nil {
		forget()
	}
	return errs.Ensure("drop branch", p.Owner, err)
}

// endNeed begins a new epoch, so that no record of the current one has to be told apart from those that nobody needs any more. What fn writes, and
// done in memory, says who these are. The caller holds w.admin alone.
func (w *Workspace) endNeed(fn func(tx *checkpoint.Tx) error, done func()) error {
	w.tree.mu.Lock()
	err := w.beginEpoch(func(tx *checkpoint.Tx, _ checkpoint.Epoch) error { return fn(tx) }, func() {})
	if err == nil {
		done()
		err = w.setProtecting()
	}
	w.tree.mu.Unlock()
	if err == nil {
		w.collectInBackground()
	}
	return err
}

// needers counts who needs the state at the beginning of an epoch.
func (w *Workspace) needers(e checkpoint.Epoch) int {
	n := 0
	for _, needed := range w.needed() {
		if needed == e {
			n++
		}
	}
	return n
}

// Pins gives all pins, in the order of epochs. Those that their owner knows nothing of, because it died before it was told, it takes back with Unpin.
func (w *Workspace) Pins() []checkpoint.Pin {
	w.list.RLock()
	defer w.list.RUnlock()
	var all []checkpoint.Pin
	for p := range w.pins {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b checkpoint.Pin) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Owner, b.Owner))
	})
	return all
}

// needed gives the epochs that active checkpoints, pins and open states need, once for each of them.
func (w *Workspace) needed() []checkpoint.Epoch {
	w.list.RLock()
	defer w.list.RUnlock()
	return append(w.checkpointEpochs(), w.pinnedEpochs()...)
}

// pinnedEpochs gives those that pins and open states need, and that stay where they are. The caller holds w.list.
func (w *Workspace) pinnedEpochs() []checkpoint.Epoch {
	es := w.states.epochs()
	for p := range w.pins {
		es = append(es, p.Epoch)
	}
	for _, e := range w.frozen.Grafts {
		es = append(es, e)
	}
	return es
}

// oldestPin gives the earliest epoch that is pinned or open; ok is false where there is none.
func (w *Workspace) oldestPin() (e checkpoint.Epoch, ok bool) {
	w.list.RLock()
	defer w.list.RUnlock()
	es := w.pinnedEpochs()
	if len(es) == 0 {
		return 0, false
	}
	return slices.Min(es), true
}

// checkpointEpochs gives those that active checkpoints need. The caller holds w.list.
func (w *Workspace) checkpointEpochs() []checkpoint.Epoch {
	var es []checkpoint.Epoch
	for _, c := range w.checkpoints {
		if c.Status == checkpoint.Active || c.Status == checkpoint.RollingBack {
			es = append(es, c.Epoch)
			if c.CreatedBy == "rollback" && len(w.rules) > 0 {
				es = append(es, c.Epoch+1) // so that its own records are told from what came after it: see view.putByRollback
			}
		}
	}
	return es
}

// retained gives the epochs that are needed, in order; nil where there is none.
func (w *Workspace) retained() []checkpoint.Epoch {
	es := w.needed()
	slices.Sort(es)
	return slices.Compact(es)
}

// OpenState opens the state of the live tree at the beginning of an epoch that a checkpoint or a pin needs. It stays exact until it is closed, whatever becomes of
// these. NOT_FOUND says that nobody has kept it.
func (w *Workspace) OpenState(e checkpoint.Epoch) (State, error) {
	leave, err := w.enter("open state", true)
	if err != nil {
		return nil, err
	}
	defer leave()
	if of := w.graftedOn(e); of != e {
		g, err := w.openGraft(of, e)
		if err != nil {
			return nil, err
		}
		return g, nil
	}
	return asState(w.openState(e))
}

// asState keeps a failure from becoming a State that is not nil.
func asState(s *openState, err error) (State, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// OpenCheckpoint opens the state that an active checkpoint has.
func (w *Workspace) OpenCheckpoint(id string) (State, error) {
	leave, err := w.enter("open state", true)
	if err != nil {
		return nil, err
	}
	defer leave()
	c, err := w.target("open state", id)
	if err != nil {
		return nil, errs.Ensure("open state", id, err)
	}
	return asState(w.openState(c.Epoch))
}

// openState is for a caller who shares w.admin.
func (w *Workspace) openState(e checkpoint.Epoch) (*openState, error) {
	w.collecting.Lock() // nothing may be dropped or joined while the log is read
	defer w.collecting.Unlock()
	if w.needers(e) == 0 {
		return nil, errs.New(errs.NotFound, "open state", "", "nobody has kept the state at the beginning of epoch %d", e)
	}
	s, err := w.states.openAt(e)
	if err != nil {
		return nil, errs.Ensure("open state", "", err)
	}
	return s, nil
}

// closeState gives a state back. If it was the last that needed its epoch, what that has kept is freed in the background.
func (w *Workspace) closeState(s *state) {
	if last := w.states.close(s); !last || w.needers(s.epoch) > 0 {
		return
	}
	w.list.RLock()
	defer w.list.RUnlock()
	if w.closed {
		return
	}
	w.gcing.Add(1) // Close waits for that after it has set closed
	go func() {
		defer w.gcing.Done()
		w.admin.Lock()
		defer w.admin.Unlock()
		if w.needers(s.epoch) > 0 {
			return
		}
		if err := w.endNeed(func(*checkpoint.Tx) error { return nil }, func() {}); err != nil {
			w.log.Error("what a state has kept can't be freed; gc will", "err", err)
		}
	}()
}
