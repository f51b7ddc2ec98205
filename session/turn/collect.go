package turn

import (
	"context"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// tidy does in the background what is to be done after a turn has ended: the checkpoint that it began with, if it was made for that, is of no more use, and old turns
// are collected when there are some.
//
// After a completed turn, the first waits for the next one to begin: a drop begins an epoch, so that it would not be known any more that nothing has changed
// since the turn, and that one would need a checkpoint of its own to begin with.
func (e *Engine) tidy(r Turn) {
	if r.Status == checkpoint.TurnCompleted {
		e.mu.Lock()
		e.served = append(e.served, r.Base)
		e.mu.Unlock()
	}
	e.inBackground(func(ctx context.Context) {
		if r.Status != checkpoint.TurnCompleted {
			e.dropBase(ctx, r.Base)
		}
		if e.keep > 0 && e.excess(r.Conversation) > e.keep/8 {
			_, _ = e.Collect(ctx) // the next one tries again
		}
	})
}

// dropServed drops in the background what completed turns began with.
func (e *Engine) dropServed() {
	e.mu.Lock()
	served := e.served
	e.served = nil
	e.mu.Unlock()
	if len(served) > 0 {
		e.inBackground(func(ctx context.Context) {
			for _, id := range served {
				e.dropBase(ctx, id)
			}
		})
	}
}

// dropBase drops a checkpoint that Begin has made, unless another turn would go back to it.
func (e *Engine) dropBase(ctx context.Context, id string) {
	c, err := e.checkpoint(id)
	if err == nil && c.CreatedBy == CreatedByBegin && c.Status == checkpoint.Active && !e.isBase(c.ID) {
		_ = e.w.Drop(ctx, c.ID) // it does no harm; Collect tries again
	}
}

// isBase reports whether the files of a turn that is under way would go back to a checkpoint.
func (e *Engine) isBase(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.busy {
		if t.Base == id || !t.begun { // nobody knows yet
			return true
		}
	}
	return false
}

// excess gives how many completed turns of a conversation are more than are kept.
func (e *Engine) excess(conversation string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := -e.keep
	for _, t := range e.list {
		if t.Conversation == conversation && t.Status == checkpoint.TurnCompleted {
			n++
		}
	}
	return n
}

// Collect frees what old turns have: of each conversation the newest completed turns are kept, as many as Options say, and failed and aborted ones that are not older than
// these. The others lose their records, their checkpoints and what only their states have. Also what a process that died has left behind is freed.
func (e *Engine) Collect(ctx context.Context) (Freed, error) {
	e.collecting.Lock()
	defer e.collecting.Unlock()
	if err := e.dropLeftBehind(ctx); err != nil {
		return Freed{}, err
	}
	e.mu.Lock()
	err := e.failure
	old := e.old()
	e.mu.Unlock()
	if err != nil {
		return Freed{}, err
	}
	return e.forget(ctx, old)
}

// dropLeftBehind drops the checkpoints that turns began with, and that have served.
func (e *Engine) dropLeftBehind(ctx context.Context) error {
	list, err := e.w.List(overlay.ListOptions{})
	if err != nil {
		return err
	}
	for _, c := range list {
		if c.CreatedBy == CreatedByBegin && !e.isBase(c.ID) {
			_ = e.w.Drop(ctx, c.ID)
		}
	}
	return ctx.Err()
}

// old gives the turns that are not kept. The caller holds e.mu.
func (e *Engine) old() []*entry {
	if e.keep == 0 {
		return nil
	}
	var old []*entry
	completed := map[string]int{}
	needed := e.needed()
	for _, t := range slices.Backward(e.list) {
		switch {
		case completed[t.Conversation] >= e.keep:
			if t.Settled && !needed[t.ID] {
				old = append(old, t)
			}
		case t.Status == checkpoint.TurnCompleted:
			completed[t.Conversation]++
		}
	}
	return old
}

// needed gives the turns that others need: the parents of those that are under way, whose checkpoints may be their bases too, the heads, and what conversations without a completed
// turn would go on from. The caller holds e.mu.
func (e *Engine) needed() map[string]bool {
	needed := map[string]bool{}
	seen := map[string]bool{}
	for _, t := range e.list {
		if !t.Settled {
			needed[t.Parent], needed[t.Base] = true, true
		}
		if !seen[t.Conversation] {
			seen[t.Conversation] = true
			if good, _ := e.lastGood(t.Conversation); good != nil {
				needed[good.ID] = true
			}
		}
	}
	for _, t := range e.busy {
		if !t.begun {
			needed[t.Parent] = true
		}
	}
	return needed
}

// forget removes turns: their checkpoints first, so that after a death of the process those that have records still are found again. The caller holds e.collecting.
func (e *Engine) forget(ctx context.Context, turns []*entry) (Freed, error) {
	var f Freed
	for _, t := range turns {
		if t.Status != checkpoint.TurnCompleted || !e.active(t.ID) { // a settled turn doesn't change any more
			continue
		}
		if err := e.w.Drop(ctx, t.ID); err != nil && ctx.Err() != nil {
			return f, err
		}
	}
	ids := make([]string, len(turns))
	for i, t := range turns {
		ids[i] = t.ID
	}
	if err := e.turns.Delete(ids...); err != nil {
		return f, err
	}
	e.mu.Lock()
	for _, id := range ids {
		delete(e.byID, id)
	}
	e.list = slices.DeleteFunc(e.list, func(t *entry) bool { return e.byID[t.ID] != t })
	e.mu.Unlock()
	f.Turns = len(ids)
	var err error
	f.Blobs, f.Bytes, err = e.turns.Sweep(ctx)
	return f, err
}

// ForgetDamaged removes the record of a turn that can't be read, so that conversations go on without it, and reports whether there was one. Its checkpoint stays.
func (e *Engine) ForgetDamaged(id string) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := slices.IndexFunc(e.damaged, func(d checkpoint.Damaged) bool { return d.ID == id })
	if at < 0 {
		return false, nil
	}
	if err := e.turns.Delete(id); err != nil {
		return false, err
	}
	e.damaged = slices.Delete(e.damaged, at, at+1)
	return true, nil
}

// DeleteConversation forgets all turns of a conversation, and their checkpoints. The files stay as they are. Errors: NOT_FOUND; BUSY while one of its turns is under way, or one of
// another conversation that began with its state.
func (e *Engine) DeleteConversation(ctx context.Context, name string) (Freed, error) {
	e.collecting.Lock()
	defer e.collecting.Unlock()
	e.mu.Lock()
	var turns []*entry
	ids := map[string]bool{}
	for _, t := range e.list {
		if t.Conversation == name {
			turns, ids[t.ID] = append(turns, t), true
		}
	}
	var err error
	for _, t := range e.busy {
		if t.Conversation == name || ids[t.Parent] || ids[t.Base] {
			err = errs.New(errs.Busy, op, name, "turn %s is under way", t.ID).WithHint("it must end first")
		}
	}
	if err == nil {
		err = e.failure
	}
	e.mu.Unlock()
	switch {
	case err != nil:
		return Freed{}, err
	case len(turns) == 0:
		return Freed{}, errs.New(errs.NotFound, op, name, "there is no such conversation").WithHint("`hyperfs turns conversations` shows them")
	}
	return e.forget(ctx, turns)
}

// Leaves says which conversations a rollback of the files alone, or an undo, has left where they were: their last turns are what the files came from before, and not any more.
func (e *Engine) Leaves(r overlay.RollbackResult) ([]Leaves, error) {
	now, err := e.past(r.Checkpoint)
	if err != nil {
		return nil, err
	}
	before := map[string]bool{}
	if r.Undo != "" {
		if before, err = e.past(r.Undo); err != nil {
			return nil, err
		}
	}
	line := r.Branch
	if line == "" {
		line = overlay.MainBranch
	}
	list, err := e.Conversations()
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	at := ""
	if t := e.byID[r.Checkpoint]; t != nil && t.Status == checkpoint.TurnCompleted {
		at = t.ID
	}
	var leaves []Leaves
	for _, c := range list {
		h := e.byID[c.Head]
		if h != nil && h.WorksIn == line && !now[h.ID] && (before[h.ID] || r.Undo == "") {
			leaves = append(leaves, Leaves{Conversation: c.Name, Head: h.ID, At: at})
		}
	}
	return leaves, nil
}

// past gives a checkpoint and those that its state came from.
func (e *Engine) past(id string) (map[string]bool, error) {
	list, err := e.w.Lineage(id)
	if errs.CodeOf(err) == errs.NotFound {
		return map[string]bool{}, nil
	}
	past := make(map[string]bool, len(list))
	for _, c := range list {
		past[c.ID] = true
	}
	return past, err
}
