//go:build linux

package overlay

import (
	"encoding/json"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/ignore"
)

// metaRules has the ignore patterns of the epochs: a list of rulesFrom, as JSON.
const metaRules = "rules"

// rulesFrom are the ignore patterns in use from an epoch on, up to the next one's.
type rulesFrom struct {
	Epoch    checkpoint.Epoch `json:"epoch"`
	Patterns []string         `json:"patterns"`

	rules *ignore.Rules
}

// loadRules reads the patterns of earlier epochs, and gives those to use from now on.
func (w *Workspace) loadRules() (*ignore.Rules, error) {
	var b []byte
	if err := w.store.View(func(tx *checkpoint.Tx) (err error) { b, err = tx.Meta(metaRules); return err }); err != nil {
		return nil, err
	}
	if b != nil {
		if err := json.Unmarshal(b, &w.rules); err != nil {
			return nil, errs.New(errs.Integrity, "open workspace", "", "the ignore patterns of earlier epochs can't be read: %w", err)
		}
	}
	var err error
	for i := range w.rules {
		if w.rules[i].rules, err = ignore.Compile(w.rules[i].Patterns); err != nil {
			return nil, errs.New(errs.Integrity, "open workspace", "", "the ignore patterns of an earlier epoch make no sense: %w", err)
		}
	}
	if w.cfg.SameIgnored {
		return w.lastRules(), nil
	}
	next, err := ignore.Compile(w.cfg.Ignore)
	if err != nil {
		return nil, errs.New(errs.Usage, "open workspace", "", "%w", err)
	}
	return next, nil
}

// lastRules gives those of the current epoch.
func (w *Workspace) lastRules() *ignore.Rules {
	if len(w.rules) == 0 {
		return nil
	}
	return w.rules[len(w.rules)-1].rules
}

// useRules has the tree go by the patterns from now on. Where others were in use, another epoch begins: each has one list.
func (w *Workspace) useRules(next *ignore.Rules) error {
	since, _ := w.wholeSince()
	if !next.Equal(w.lastRules()) {
		if err := w.changeRules(next); err != nil {
			return err
		}
	}
	if next != nil {
		g := &ignoring{rules: next}
		g.writes.strict, g.writes.send = w.cfg.StrictIgnored, w.events.send
		w.tree.ignore = g
		return w.freezeAgain(since)
	}
	return nil
}

func (w *Workspace) changeRules(next *ignore.Rules) error {
	w.tree.mu.Lock()
	defer w.tree.mu.Unlock()
	list := w.rulesNeeded()
	err := w.beginEpoch(func(tx *checkpoint.Tx, e checkpoint.Epoch) error {
		list = append(list, rulesFrom{Epoch: e, Patterns: next.Lines(), rules: next})
		b, err := json.Marshal(list)
		if err != nil {
			return err
		}
		return tx.PutMeta(metaRules, b)
	}, func() {})
	if err != nil {
		return err
	}
	w.rules = list
	return w.setProtecting()
}

// rulesNeeded gives those of the epochs that somebody may want back.
func (w *Workspace) rulesNeeded() []rulesFrom {
	first := w.tree.epoch
	if needed := w.retained(); len(needed) > 0 {
		first = needed[0]
	}
	list := slices.Clone(w.rules)
	for len(list) > 1 && list[1].Epoch <= first {
		list = list[1:]
	}
	return list
}

// rulesSince gives every list of patterns that was in use at the beginning of an epoch or later.
func (w *Workspace) rulesSince(e checkpoint.Epoch) []*ignore.Rules {
	var all []*ignore.Rules
	for i, r := range w.rules {
		if r.rules != nil && (i+1 == len(w.rules) || w.rules[i+1].Epoch > e) {
			all = append(all, r.rules)
		}
	}
	return all
}

// rulesAround gives the lists of the epoch that is going on, and of the one that follows when next is another: what either ignores is no part of a state that has both.
func (w *Workspace) rulesAround(next *ignore.Rules) []*ignore.Rules {
	var all []*ignore.Rules
	for _, r := range []*ignore.Rules{w.lastRules(), next} {
		if r != nil {
			all = append(all, r)
		}
	}
	return all
}

// ignoreStatus says what is ignored; nil for nothing.
func (w *Workspace) ignoreStatus() *IgnoreStatus {
	if w.tree.ignore == nil {
		return nil
	}
	return &IgnoreStatus{Patterns: w.tree.ignore.rules.Lines(), Strict: w.cfg.StrictIgnored}
}
