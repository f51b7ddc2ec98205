//go:build linux

package overlay

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// restorer carries a plan out. Every step can be run again: what is done already is found done. The caller holds Tree.mu alone.
type restorer struct {
	w         *Workspace
	t         *Tree
	target    checkpoint.Checkpoint
	intent    intent
	view      *view
	plan      *plan
	commit    func(*checkpoint.Tx) error // see RollbackOptions; nil means nothing
	resumed   bool
	result    RollbackResult
	oldestPin checkpoint.Epoch
	pinned    bool            // there is an oldestPin
	shared    []*inodeRestore // whose preimage's file is in the workspace now
	dirsMoved bool
	replaced  int
	lifted    map[checkpoint.ID]uint32 // modes of directories that had to be lifted
	restored  map[checkpoint.ID]bool   // inodes that got their attributes back
	recorded  map[checkpoint.ID]bool   // inodes whose attributes are in the batch or in the log
	entries   []link                   // what the kernel must forget
	touched   []*Node
	tracked   []*slotChange // names in ignored places that were given back what was tracked there
}

// remakeDirs makes the directories anew that could not be kept, and plans again with them.
func (r *restorer) remakeDirs() error {
	for len(r.plan.remake) > 0 {
		for _, old := range r.plan.remake {
			if err := r.remakeDir(old); err != nil {
				return err
			}
		}
		end := checkpoint.Epoch(r.intent.Epoch)
		fold, err := r.w.store.Fold(r.target.Epoch, end)
		if err != nil {
			return err
		}
		before, replaced := r.view.before, r.view.replaced
		r.view.close()
		r.view = r.t.newFrozenView(fold)
		r.view.before, r.view.replaced = before, replaced
		r.view.hide(r.w.rulesSince(r.target.Epoch), r.target)
		if r.plan, err = r.t.makePlan(r.view); err != nil {
			return err
		}
	}
	return nil
}

func (r *restorer) remakeDir(old checkpoint.ID) error {
	name := r.t.tempName()
	if err := unix.Mkdirat(r.t.tmpFd, name, 0o700); err != nil {
		return err
	}
	var st unix.Statx_t
	if err := statAt(r.t.tmpFd, name, &st); err != nil {
		return err
	}
	id := r.t.idOf(&st)
	if err := renameNoReplace(r.t.tmpFd, name, r.t.trashFd, id.String()); err != nil {
		return err
	}
	return r.w.store.PutAlias(old, id, r.intent.Epoch)
}

// apply makes the changes: everything that is wrong is moved aside, then everything that is missing is put in its place,
// then contents, then attributes; modification times of directories last, as all else changes them.
func (r *restorer) apply() error {
	r.view.thaw()
	r.lifted, r.restored = map[checkpoint.ID]uint32{}, map[checkpoint.ID]bool{}
	r.sortAside()
	for _, c := range r.plan.slots {
		if err := r.moveAside(c); err != nil {
			return r.failed(c.slot, err)
		}
		crash.Point("rollback-aside")
	}
	left := map[checkpoint.ID]int{}
	for _, c := range r.plan.slots {
		left[c.want.ID]++
	}
	for _, c := range r.plan.slots {
		if err := r.put(c, left); err != nil {
			return r.failed(c.slot, err)
		}
		crash.Point("rollback-put")
	}
	if err := r.stageAll(); err != nil {
		return err
	}
	if err := r.restoreInodes(); err != nil {
		return err
	}
	if err := r.restoreDirTimes(); err != nil {
		return err
	}
	if err := r.restoreTracked(); err != nil {
		return err
	}
	return r.lower()
}

// sortAside brings the changes into an order in which a directory comes after what is in it, where one may have to be removed.
func (r *restorer) sortAside() {
	if r.t.canMoveDirs {
		return
	}
	depth := map[*slotChange]int{}
	for _, c := range r.plan.slots {
		if c.held.Mode&unix.S_IFMT == unix.S_IFDIR {
			depth[c] = r.t.depth(c.dir)
		} else {
			depth[c] = math.MaxInt
		}
	}
	slices.SortStableFunc(r.plan.slots, func(a, b *slotChange) int { return cmp.Compare(depth[b], depth[a]) })
}

func (r *restorer) failed(s checkpoint.Slot, err error) error {
	return errs.New(errs.Rollback, "rollback", r.plan.slotPath(s), "%w", err).
		WithHint("the rest is made by hyperfs rollback, or by the next mount, as soon as that can be done; nothing can be changed before")
}

// notify tells the kernel what to forget, and then those who watch files. The caller holds no lock of the tree.
func (r *restorer) notify() {
	n := r.t.notifier
	if n == nil {
		return
	}
	teller, ok := n.(Teller)
	if !ok {
		r.forgetAll(func(l link) { n.InvalEntry(l.parent, l.name) })
		return
	}
	effects := r.effects()
	gone := map[link]Inode{}
	for _, e := range effects {
		if e.Gone != nil {
			gone[link{e.Dir.(*Node), e.Name}] = e.Gone
		}
	}
	teller.Tell(effects, func() {
		r.forgetAll(func(l link) {
			if was := gone[l]; was != nil {
				teller.Removed(l.parent, l.name, was)
			} else {
				n.InvalEntry(l.parent, l.name)
			}
		})
	})
}

// forgetAll has the kernel forget what changed: the names as forget does it.
func (r *restorer) forgetAll(forget func(link)) {
	for _, e := range r.entries {
		forget(e)
	}
	seen := map[*Node]bool{}
	for _, node := range r.touched {
		if !seen[node] {
			seen[node] = true
			r.t.notifier.InvalInode(node)
		}
	}
}

// tempName gives a name in the store's tmp directory that nobody has used.
func (t *Tree) tempName() string { return strconv.FormatUint(t.tempNum.Add(1), 16) }

// cheapSave reports whether the tier keeps a preimage without copying it.
func (t *Tree) cheapSave() bool { return t.tier.Kind() == strategy.Reflink }
