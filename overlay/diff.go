//go:build linux

package overlay

import (
	"context"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// Diff tells what changed from one checkpoint to another, or (to "") to now; from "" is the newest checkpoint. Both are states of one instant, whoever goes
// on working meanwhile. It answers from the log, so it costs what changed. With expand, what is below created directories is listed too. A file that changed is listed
// under each of its names. Errors: NOT_FOUND, ROLLBACK for a checkpoint that is not active.
func (w *Workspace) Diff(ctx context.Context, from, to string, expand bool) (Diff, error) {
	diff := Diff{From: from, To: to, Changes: []Change{}}
	err := w.entered("diff", func(leave func()) error {
		return w.compare("diff", from, to, leave, func(id string, c *Comparison) (err error) {
			diff.From = id
			diff.Changes, err = c.Changes(ctx, expand)
			return err
		})
	})
	return diff, err
}

// Reconcile tells what changed since a checkpoint ("" is the newest) as lists of paths.
func (w *Workspace) Reconcile(ctx context.Context, id string) (ReconcileResult, error) {
	diff, err := w.Diff(ctx, id, "", false)
	if err != nil {
		return ReconcileResult{}, err
	}
	return diff.Reconcile(), nil
}

// DiffEpochs tells what changed from the beginning of one epoch to that of a later one, with what is below created directories. Checkpoints or pins
// must need both: else NOT_FOUND. What the patterns have ignored since then is left out.
func (w *Workspace) DiffEpochs(ctx context.Context, from, to checkpoint.Epoch) (changes []Change, err error) {
	err = w.entered("diff", func(leave func()) error {
		a, err := w.openState(w.graftedOn(from))
		if err != nil {
			return err
		}
		defer a.Close()
		b, err := w.openState(to)
		if err != nil {
			return err
		}
		defer b.Close()
		leave()
		c, err := newComparison(a.state, b.state)
		if err != nil {
			return err
		}
		changes, err = c.Changes(ctx, true)
		return err
	})
	return changes, errs.Ensure("diff", "", err)
}

// entered runs fn, which shares w.admin until it calls leave. The workspace is not closed before fn has returned.
func (w *Workspace) entered(op string, fn func(leave func()) error) error {
	done, err := w.stay(op)
	if err != nil {
		return err
	}
	defer done()
	leave, err := w.enter(op, true)
	if err != nil {
		return err
	}
	inside := true
	once := func() {
		if inside {
			inside = false
			leave()
		}
	}
	defer once()
	return fn(once)
}

// compare calls fn with two states, named as for Diff, and the ID of the first. The caller holds w.admin; leave is called when that is not needed any more:
// open states stay what they are, whatever is done to checkpoints.
func (w *Workspace) compare(op, from, to string, leave func(), fn func(from string, c *Comparison) error) error {
	x, err := w.target(op, from)
	if err != nil {
		return errs.Ensure(op, from, err)
	}
	if to == "" && w.unchangedSince(x.Epoch) {
		leave()
		return errs.Ensure(op, x.ID, fn(x.ID, &Comparison{}))
	}
	a, err := w.openState(x.Epoch)
	if err != nil {
		return errs.Ensure(op, x.ID, err)
	}
	defer a.Close()
	b, done, err := w.openEnd(op, to, x.Epoch)
	if err != nil {
		return errs.Ensure(op, to, err)
	}
	defer done()
	leave()
	c, err := newComparison(a.state, b)
	if err != nil {
		return errs.Ensure(op, x.ID, err)
	}
	c.more = w.diffTracked(a.epoch, b.epoch)
	return errs.Ensure(op, x.ID, fn(x.ID, c))
}

// unchangedSince reports whether it is known that nothing has changed since an epoch began. No log has to be read for that. Of tracked files it is never known: what
// changes of them is not in the log.
func (w *Workspace) unchangedSince(e checkpoint.Epoch) bool {
	if len(w.trackedAt(e)) > 0 {
		return false
	}
	w.tree.flushMapped()
	w.tree.mu.RLock()
	defer w.tree.mu.RUnlock()
	return w.tree.epoch == e && w.store.Untouched(e)
}

// Unchanged reports whether it is known that nothing has changed since a checkpoint, from which the live state comes. It is not known where files may be written to
// past the daemon, or are tracked below an ignored path, or where the checkpoint was made by an earlier daemon.
func (w *Workspace) Unchanged(id string) bool {
	leave, err := w.enter("compare", true)
	if err != nil {
		return false
	}
	defer leave()
	w.list.RLock()
	c, head := w.checkpoints[id], w.head
	known := c != nil && c.Status == checkpoint.Active && head == id
	w.list.RUnlock()
	if !known || len(w.protectedPaths()) > 0 || !w.unchangedSince(c.Epoch) {
		return false
	}
	w.tree.mu.RLock()
	defer w.tree.mu.RUnlock()
	return w.tree.epoch == c.Epoch && len(w.tree.directNodes()) == 0 && w.store.Untouched(c.Epoch)
}

// openEnd opens the second of two states that Diff compares; from is the first.
func (w *Workspace) openEnd(op, to string, from checkpoint.Epoch) (s *state, done func(), err error) {
	if to == "" {
		return w.openNow(from)
	}
	x, err := w.target(op, to)
	if err != nil {
		return nil, nil, err
	}
	o, err := w.openState(x.Epoch)
	if err != nil {
		return nil, nil, err
	}
	return o.state, o.Close, nil
}

// openNow opens what the live tree is at this instant. If something has changed since the last epoch began, another one begins: that costs what a snapshot costs, and
// what is changed after that gets a preimage of its own. It is to be compared with the state at the beginning of another epoch. The caller holds w.admin.
func (w *Workspace) openNow(with checkpoint.Epoch) (*state, func(), error) {
	w.tree.flushMapped()
	w.collecting.Lock() // nothing may be dropped or joined while the log is read
	defer w.collecting.Unlock()
	e, err := w.epochOfNow(with)
	if err != nil {
		return nil, nil, err
	}
	o, err := w.states.openAt(e)
	if err != nil {
		return nil, nil, err
	}
	return o.state, func() { w.closeNow(o.state) }, nil
}

// epochOfNow gives the epoch at whose beginning the live tree was what it is now. What changes in tracked files is not in the log: where there are some, one always begins.
func (w *Workspace) epochOfNow(with checkpoint.Epoch) (checkpoint.Epoch, error) {
	w.tree.mu.Lock()
	defer w.tree.mu.Unlock()
	before := w.trackedAt(with)
	if w.store.Untouched(w.tree.epoch) && len(before) == 0 {
		return w.tree.epoch, nil
	}
	err := w.beginEpoch(func(*checkpoint.Tx, checkpoint.Epoch) error { return nil }, func() {})
	if err == nil {
		err = w.lookAgain(before)
	}
	return w.tree.epoch, err
}

// closeNow gives back what openNow gave. The epochs that only this needed are not joined each time: that costs what reading all their records does.
func (w *Workspace) closeNow(s *state) {
	if last := w.states.close(s); last && w.needers(s.epoch) == 0 && w.passing.Add(1)%passingMax == 0 {
		w.collectInBackground()
	}
}

// passingMax is how many epochs that nobody needs any more are left to be joined at once.
const passingMax = 16
