//go:build linux

package overlay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
)

// Fsck proves the store's invariants, and gives what does not hold: every checkpoint's record can be read; every active one could be rolled back to;
// every preimage is there and, with deep, also those that no rollback would need have the bytes that were saved; the log is consistent in itself; nothing in the trash or
// the backups is without a record; the state of every completed turn can be read. What a drop or a rollback has left to be freed is freed first; nothing else is changed.
func (w *Workspace) Fsck(ctx context.Context, deep bool) ([]Problem, error) {
	leave, err := w.enter("fsck", false)
	if err != nil {
		return nil, err
	}
	defer leave()
	if _, err := w.collect(ctx); err != nil {
		return nil, errs.Ensure("fsck", "", err)
	}
	f := &fsck{w: w, t: w.tree, deep: deep, seen: map[Problem]bool{}}
	if err := w.Turns().Check(ctx, func(where, what string) { f.found(where, "%s", what) }); err != nil {
		return f.problems, errs.Ensure("fsck", "", err)
	}
	w.tree.lockToLook()
	defer w.tree.unlockLooked()
	for _, check := range []func(context.Context) error{f.log, f.checkpoints, f.trash, f.backups} {
		if err := ctx.Err(); err != nil {
			return f.problems, err
		}
		if err := check(ctx); err != nil {
			return f.problems, errs.Ensure("fsck", "", err)
		}
	}
	return f.problems, nil
}

type fsck struct {
	w        *Workspace
	t        *Tree
	deep     bool
	all      *checkpoint.Named
	problems []Problem
	seen     map[Problem]bool
}

func (f *fsck) found(where, format string, args ...any) {
	p := Problem{where, fmt.Sprintf(format, args...)}
	if !f.seen[p] {
		f.seen[p] = true
		f.problems = append(f.problems, p)
	}
}

// log checks the records by themselves.
func (f *fsck) log(context.Context) (err error) {
	if f.all, err = f.w.store.All(); err != nil {
		f.found("undo log", "it can't be read: %v", err)
		f.all = &checkpoint.Named{}
		return nil
	}
	return f.w.store.CheckReverse(func(what string) { f.found("undo log", "%s", what) })
}

// checkpoints plans a rollback to every active one, and names those whose record can't be read.
func (f *fsck) checkpoints(ctx context.Context) error {
	f.w.list.RLock()
	damaged := maps.Clone(f.w.damaged)
	f.w.list.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(damaged)) {
		f.found(id, "its record is damaged: %v", damaged[id])
	}
	for _, c := range f.w.all(func(c *checkpoint.Checkpoint) bool { return c.Status == checkpoint.Active }) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.Epoch == 0 || c.Epoch > f.t.epoch {
			f.found(c.ID, "its epoch is %d, and the current one is %d", c.Epoch, f.t.epoch)
			continue
		}
		if c.Parent != "" {
			if _, err := f.w.Get(c.Parent); err != nil && f.w.isYoung(c.Parent) {
				f.found(c.ID, "its parent %s has no record", c.Parent)
			}
		}
		if err := f.plan(c.ID, c); err != nil {
			return err
		}
		f.tracked(c)
	}
	return f.pins(ctx)
}

// tracked proves the copies of tracked files.
func (f *fsck) tracked(c checkpoint.Checkpoint) {
	for _, t := range f.w.trackedAt(c.Epoch) {
		if t.Copy == "" {
			continue
		}
		file, err := f.w.tracked.open(&t)
		if err != nil {
			f.found("tracked/"+t.Copy, "the copy of %s can't be used: %v", t.Path, err)
			continue
		}
		_ = file.Close()
	}
}

// pins plans a rollback to the beginning of every epoch that is pinned.
func (f *fsck) pins(ctx context.Context) error {
	done := map[checkpoint.Epoch]bool{}
	for _, p := range f.w.Pins() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if done[p.Epoch] {
			continue
		}
		done[p.Epoch] = true
		if p.Epoch == 0 || p.Epoch > f.t.epoch {
			f.found(p.Owner, "it pins the epoch %d, and the current one is %d", p.Epoch, f.t.epoch)
			continue
		}
		if err := f.plan(p.Owner, checkpoint.Checkpoint{Epoch: p.Epoch}); err != nil {
			return err
		}
		if of := f.w.graftedOn(p.Epoch); of != p.Epoch {
			if err := f.plan(p.Owner, checkpoint.Checkpoint{Epoch: of}); err != nil {
				return err
			}
		}
	}
	return nil
}

// isYoung reports whether a checkpoint's record can't have been forgotten yet.
func (w *Workspace) isYoung(id string) bool {
	w.list.RLock()
	defer w.list.RUnlock()
	for other, c := range w.checkpoints {
		if c.Status != checkpoint.Active && strings.Compare(other, id) < 0 {
			return true
		}
	}
	return false
}

func (f *fsck) plan(where string, c checkpoint.Checkpoint) error {
	fold, err := f.w.store.Fold(c.Epoch, 0)
	if err != nil {
		f.found(where, "its records can't be read: %v", err)
		return nil
	}
	v := f.t.newFrozenView(fold)
	defer v.close()
	v.hide(f.w.hiddenIn(c), c)
	if _, err := f.t.makePlan(v); err != nil && errs.CodeOf(err) != errs.Rollback { // that is a matter of rights
		f.found(where, "a rollback would fail: %v", err)
	}
	return nil
}

func (f *fsck) content(where string, ref strategy.Ref) {
	if err := f.t.tier.verify(ref); err != nil {
		f.found(where, "the preimage can't be used: %v", err)
	}
}

func (f *fsck) trash(context.Context) error {
	named := map[string]bool{}
	for id := range f.all.Occupants {
		named[id.String()] = true
	}
	var extra []string
	err := eachName(f.t.trashFd, func(name string) error {
		if !named[name] {
			extra = append(extra, name)
		}
		return nil
	})
	slices.Sort(extra)
	for _, name := range extra {
		f.found("trash/"+name, "no record names it; `hyperfs gc` frees it")
	}
	return err
}

func (f *fsck) backups(context.Context) error {
	have := map[string]bool{}
	err := f.w.tiers.list(func(ref strategy.Ref, _ int64) error {
		have[ref.Name] = true
		if _, ok := f.all.Contents[ref.Name]; !ok {
			f.found(placeOf(ref), "no record names it; `hyperfs gc` frees it")
		}
		return nil
	})
	for name, ref := range f.all.Contents {
		if !have[name] || ref.Tier == strategy.Hot && !f.w.tiers.hot.Has(ref) {
			f.found(placeOf(ref), "a record names it and it is missing")
		} else if f.deep {
			f.content(placeOf(ref), ref)
		}
	}
	return err
}

// placeOf is where a user would look for a preimage.
func placeOf(ref strategy.Ref) string {
	if ref.Tier.Volatile() || ref.Tier == strategy.Hot {
		return string(ref.Tier) + "/" + ref.Name
	}
	return "backup/" + ref.Name
}
