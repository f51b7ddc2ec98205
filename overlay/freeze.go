//go:build linux

package overlay

import (
	"encoding/json"
	"maps"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/ignore"
)

// A branch shows ignored paths too: without its dependencies a program does not run. What it shows must not change under it, so as long as anything is pinned the
// changes of ignored paths are recorded like all others: no slot is loose. A rollback and a diff of the live tree take no notice, as they go by the path of the state.
//
// What was changed in ignored places before that is not known. A state that is pinned and older than the recording is therefore a graft of two: what is protected is
// that of the checkpoint, what is ignored that of an epoch that begins with the pin, whose number stands for both (past_graft.go).

// metaFrozen has frozen in the store, as JSON.
const metaFrozen = "frozen"

// frozen says what is recorded of ignored paths.
type frozen struct {
	// Since is the epoch from which on everything is recorded; nil where ignored paths are not, unless there are no patterns.
	Since  *checkpoint.Epoch                     `json:"since,omitempty"`
	Grafts map[checkpoint.Epoch]checkpoint.Epoch `json:"grafts,omitempty"` // pinned epochs, and those of what is protected in their states
}

// loadFrozen reads what an earlier process left, after the pins. Where there are none, it holds no more.
func (w *Workspace) loadFrozen() error {
	var b []byte
	if err := w.store.View(func(tx *checkpoint.Tx) (err error) { b, err = tx.Meta(metaFrozen); return err }); err != nil || b == nil || len(w.pins) == 0 {
		return err
	}
	if err := json.Unmarshal(b, &w.frozen); err != nil {
		return errs.New(errs.Integrity, "open workspace", "", "what was recorded of ignored paths can't be read: %w", err)
	}
	return nil
}

func putFrozen(tx *checkpoint.Tx, f frozen) error {
	if f.Since == nil && len(f.Grafts) == 0 {
		return tx.DeleteMeta(metaFrozen)
	}
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return tx.PutMeta(metaFrozen, b)
}

// wholeSince gives the epoch from which on everything is recorded. The caller holds w.list, which may be shared, or has the workspace alone.
func (w *Workspace) wholeSince() (e checkpoint.Epoch, ok bool) {
	if w.frozen.Since != nil {
		return *w.frozen.Since, true
	}
	if w.lastRules() != nil {
		return 0, false
	}
	if n := len(w.rules); n > 0 {
		e = w.rules[n-1].Epoch
	}
	return e, true
}

// isWhole reports whether the state at the beginning of an epoch is known with all that is ignored.
func (w *Workspace) isWhole(e checkpoint.Epoch) bool {
	w.list.RLock()
	defer w.list.RUnlock()
	since, ok := w.wholeSince()
	return ok && e >= since
}

// freezeAgain has ignored paths recorded, if they are to be because of the pins that an earlier process left. No change was made with the rules in use yet; since is
// what wholeSince gave before them.
func (w *Workspace) freezeAgain(since checkpoint.Epoch) error {
	if len(w.pins) == 0 {
		return nil
	}
	w.tree.ignore.frozen.Store(true)
	if w.frozen.Since != nil {
		return nil
	}
	next := frozen{Since: &since, Grafts: w.frozen.Grafts}
	err := w.store.Update(func(tx *checkpoint.Tx) error { return putFrozen(tx, next) })
	if err == nil {
		w.frozen = next
	}
	return err
}

// pinnedAs gives the epoch to pin for the state of a checkpoint: that of the checkpoint itself, or of a graft that is there already. ok is false where it must be made.
func (w *Workspace) pinnedAs(e checkpoint.Epoch) (pinned checkpoint.Epoch, ok bool) {
	if w.isWhole(e) {
		return e, true
	}
	w.list.RLock()
	defer w.list.RUnlock()
	for pinned, of := range w.frozen.Grafts {
		if of == e {
			return pinned, true
		}
	}
	return 0, false
}

// graftedOn gives the epoch whose state has what is protected in the state of a pinned one: mostly that is the same.
func (w *Workspace) graftedOn(e checkpoint.Epoch) checkpoint.Epoch {
	w.list.RLock()
	defer w.list.RUnlock()
	if of, ok := w.frozen.Grafts[e]; ok {
		return of
	}
	return e
}

// pinGraft pins a graft of the state of a checkpoint, and of what is ignored now. From then on that is recorded. The caller holds w.pinning.
func (w *Workspace) pinGraft(c checkpoint.Checkpoint, owner string, then func(tx *checkpoint.Tx, c checkpoint.Checkpoint) error) error {
	t := w.tree
	t.flushMapped()
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.setFrozen(true) // also for what beginEpoch itself saves
	p, of := checkpoint.Pin{Owner: owner}, c.Epoch
	var next frozen
	err := w.beginEpoch(func(tx *checkpoint.Tx, e checkpoint.Epoch) error {
		w.list.RLock()
		next = frozen{Since: w.frozen.Since, Grafts: maps.Clone(w.frozen.Grafts)}
		_, whole := w.wholeSince()
		w.list.RUnlock()
		if !whole {
			next.Since = &e
		}
		if next.Grafts == nil {
			next.Grafts = map[checkpoint.Epoch]checkpoint.Epoch{}
		}
		next.Grafts[e] = of
		if err := putFrozen(tx, next); err != nil {
			return err
		}
		p.Epoch, c.Epoch = e, e
		if err := tx.PutPin(p); err != nil {
			return err
		}
		return then(tx, c)
	}, func() {})
	if err != nil {
		t.setFrozen(was)
		return err
	}
	w.list.Lock()
	defer w.list.Unlock()
	w.pins[p], w.frozen = struct{}{}, next
	return nil
}

// setFrozen says whether ignored paths are recorded, and gives what it was before. The caller holds Tree.mu alone, and an epoch begins before it gives that up.
func (t *Tree) setFrozen(is bool) (was bool) {
	if t.ignore == nil {
		return false
	}
	was = t.ignore.frozen.Swap(is)
	if was != is {
		t.reclassify()
	}
	return was
}

// thaws gives what is recorded of ignored paths without a pin, and whether that is another than now.
func (w *Workspace) thaws(p checkpoint.Pin) (next frozen, changed bool) {
	w.list.RLock()
	defer w.list.RUnlock()
	next = w.frozen
	others, same := 0, 0
	for o := range w.pins {
		if o != p {
			others++
			if o.Epoch == p.Epoch {
				same++
			}
		}
	}
	if _, ok := next.Grafts[p.Epoch]; ok && same == 0 {
		next.Grafts = maps.Clone(next.Grafts)
		delete(next.Grafts, p.Epoch)
		changed = true
	}
	if next.Since != nil && others == 0 {
		next.Since, changed = nil, true
	}
	return next, changed
}

// rulesBetween gives every list of patterns that was in use from the beginning of one epoch to that of a later one.
func (w *Workspace) rulesBetween(from, to checkpoint.Epoch) []*ignore.Rules {
	var all []*ignore.Rules
	for i, r := range w.rules {
		if r.rules != nil && r.Epoch <= to && (i+1 == len(w.rules) || w.rules[i+1].Epoch > from) {
			all = append(all, r.rules)
		}
	}
	return all
}

// IgnoredSince gives what the patterns in use since the state of a pinned epoch ignore: paths of which the live tree has no history since then, but for what is below
// another such path. It is nil where there are no patterns.
func (w *Workspace) IgnoredSince(e checkpoint.Epoch) func(path string, isDir bool) bool {
	rules := w.rulesSince(w.graftedOn(e))
	if len(rules) == 0 {
		return nil
	}
	return func(path string, isDir bool) bool { return anyMatches(rules, path, isDir) }
}

// hiddenIn gives the rules of what is no part of the state of a checkpoint, or of a pinned epoch where that has no ID: such a one may have all that is ignored, too.
func (w *Workspace) hiddenIn(c checkpoint.Checkpoint) []*ignore.Rules {
	if c.ID == "" && w.isWhole(c.Epoch) {
		return nil
	}
	return w.rulesSince(c.Epoch)
}
