//go:build linux

package branch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Rollback makes a branch what it was at a checkpoint of its own; with an empty ID, at the one that its state comes from, and if there is none, when it
// was forked. What the live layer has becomes the undo checkpoint. Errors: NOT_FOUND, ROLLBACK for a checkpoint that is not
// active, INTEGRITY where the pool lacks something: then nothing is touched.
func (m *Manager) Rollback(ctx context.Context, name, id string, o overlay.RollbackOptions) (overlay.RollbackResult, error) {
	return m.rollBack(ctx, "rollback", name, o, func(b *checkpoint.Branch) (target, error) { return m.target("rollback", b, id) })
}

// Undo takes the last rollback of a branch back. ROLLBACK says that there is nothing to undo.
func (m *Manager) Undo(ctx context.Context, name string) (overlay.RollbackResult, error) {
	return m.rollBack(ctx, "undo", name, overlay.RollbackOptions{}, func(b *checkpoint.Branch) (target, error) {
		c := m.undoPoint(b.Num)
		if c == nil {
			return target{}, errs.New(errs.Rollback, "undo", name, "there is no rollback to undo")
		}
		return target{id: c.ID, layer: c.Layer, head: c.Parent, c: c}, nil
	})
}

// target is a state that a branch had.
type target struct {
	id    string // of the checkpoint
	layer uint64 // 0 is main's state
	head  string // the checkpoint that the state comes from
	c     *checkpoint.BranchCheckpoint

	message string // of the undo checkpoint; "" for the usual one
}

// target resolves the name of a state of a branch: "" is the checkpoint that the live state comes from, or else the fork point. The caller
// holds mu.
func (m *Manager) target(op string, b *checkpoint.Branch, id string) (target, error) {
	if id == "" {
		id = b.ForkPoint
		if c := m.newest(b); c != nil {
			id = c.ID
		}
	}
	if id == b.ForkPoint {
		return target{id: id, layer: b.Fork}, nil
	}
	c := m.checkpoints[id]
	if c == nil || c.BranchNum != b.Num {
		return target{}, errs.New(errs.NotFound, op, id, "the branch %s has no such checkpoint", b.Name).WithHint("`hyperfs list` shows them")
	}
	head := c.ID
	if c.CreatedBy == createdByRollback {
		head = c.Parent
	}
	return target{id: c.ID, layer: c.Layer, head: head, c: c}, usable(op, &c.Checkpoint)
}

// newest gives the checkpoint that the live state comes from, and where that is not active any more the nearest before it that is; nil where there
// is none, so that it comes from the fork point. The caller holds mu.
func (m *Manager) newest(b *checkpoint.Branch) *checkpoint.BranchCheckpoint {
	c := m.checkpoints[b.Head]
	for n := 0; c != nil && c.BranchNum == b.Num && n <= len(m.checkpoints); n++ {
		if c.Status == checkpoint.Active && c.CreatedBy != createdByRollback {
			return c
		}
		c = m.checkpoints[c.Parent]
	}
	return nil
}

// undoPoint gives the checkpoint of the state before the last rollback. The caller holds mu.
func (m *Manager) undoPoint(branch uint64) *checkpoint.BranchCheckpoint {
	return m.latest(branch, func(c *checkpoint.BranchCheckpoint) bool { return c.CreatedBy == createdByRollback })
}

func (m *Manager) latest(branch uint64, which func(*checkpoint.BranchCheckpoint) bool) *checkpoint.BranchCheckpoint {
	var best *checkpoint.BranchCheckpoint
	for _, c := range m.checkpoints {
		if c.BranchNum == branch && c.Status == checkpoint.Active && which(c) && (best == nil || c.Seq > best.Seq) {
			best = c
		}
	}
	return best
}

func (m *Manager) rollBack(ctx context.Context, op, name string, o overlay.RollbackOptions, where func(*checkpoint.Branch) (target, error)) (overlay.RollbackResult, error) {
	fail := func(err error) (overlay.RollbackResult, error) {
		return overlay.RollbackResult{}, errs.Ensure(op, name, err)
	}
	start := time.Now()
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
	res, told, err := m.applyRollback(v, op, o, where)
	v.mu.Unlock()
	if err != nil {
		return fail(err)
	}
	crash.Point("branch-rolled-back")
	v.tell(told)
	res.Duration = time.Since(start)
	m.collectSoon()
	return res, nil
}

// applyRollback changes the layer and the state, and gives what the kernel has to forget. The caller holds v.mu alone.
func (m *Manager) applyRollback(v *Volume, op string, o overlay.RollbackOptions, where func(*checkpoint.Branch) (target, error)) (res overlay.RollbackResult, told *forgets, err error) {
	if err := v.prepareLocked(); err != nil {
		return res, nil, err
	}
	m.mu.Lock()
	b := *m.branches[v.key.branch]
	to, err := where(&b)
	m.mu.Unlock()
	if err != nil {
		return res, nil, err
	}
	next, err := m.loadState(v.epoch, to.layer)
	if err != nil {
		return res, nil, err
	}
	if err := m.verify(op, to.id, next); err != nil {
		next.base.Close()
		return res, nil, err
	}
	undo, changed, err := m.undoCheckpoint(v, &b, to, o)
	if err != nil {
		next.base.Close()
		return res, nil, err
	}
	top, err := m.next()
	if err == nil {
		told, err = v.compareStates(next, &res)
	}
	if err == nil {
		err = m.switchTo(v, checkpoint.Layer{Num: top, Parent: to.layer, Epoch: v.epoch}, to.head, changed, o.Commit)
	}
	if err != nil {
		next.base.Close()
		return res, nil, err
	}
	v.replaceState(next, told)
	res.Checkpoint, res.Undo = to.id, undo
	return res, told, nil
}

// undoCheckpoint gives the records that a rollback commits: the undo checkpoint's, and those of older ones, which it ends. The caller holds
// v.mu alone.
func (m *Manager) undoCheckpoint(v *Volume, b *checkpoint.Branch, to target, o overlay.RollbackOptions) (id string, changed []*checkpoint.BranchCheckpoint, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, c := range m.checkpoints {
		if c.BranchNum == b.Num && c.CreatedBy == createdByRollback && c.Status == checkpoint.Active {
			next := *c
			next.Status, next.UpdatedAt = checkpoint.Disposed, now // only the last rollback can be undone
			changed = append(changed, &next)
		}
	}
	if o.Discard {
		return "", changed, nil
	}
	id = m.cfg.Reserve()
	return id, append(changed, &checkpoint.BranchCheckpoint{BranchNum: b.Num, Layer: v.layer, Checkpoint: checkpoint.Checkpoint{
		ID: id, Parent: b.Head, Branch: b.Name, Subagent: b.Subagent, Agent: b.Agent,
		CreatedBy: createdByRollback, CreatedAt: now, UpdatedAt: now, Status: checkpoint.Active, Session: m.cfg.Session, Epoch: b.Epoch,
		Message: cmp.Or(to.message, "before the rollback to "+to.id), RollbackOf: to.id,
	}}), nil
}

// verify fails with INTEGRITY where the pool lacks an inode of a state.
func (m *Manager) verify(op, id string, s *state) error {
	for inodeID, e := range s.inodes {
		for _, num := range []uint64{e.pool, e.data} {
			if num == 0 {
				continue
			}
			if _, err := m.pool.stat(num); err != nil {
				return errs.New(errs.Integrity, op, id, "inode %s is not in the pool as %s: %w", inodeID, poolName(num), err)
			}
		}
	}
	return nil
}

// forgets is what the kernel has to forget after a rollback, and what goes then. All nodes are pinned.
type forgets struct {
	names   []nameOf
	inodes  []*node
	discard []uint64 // in the pool
	effects []overlay.Effect
	fates   []fate
	moved   map[checkpoint.ID]checkpoint.ID // directories, each with the one that it is in
}

// nameOf is a name in a directory that somebody holds, and what it meant and means.
type nameOf struct {
	dir     *node
	name    string
	was, is checkpoint.LayerSlot
}

// tell has the kernel forget, and tells those who watch files. The caller holds no lock but admin's.
func (v *Volume) tell(f *forgets) {
	switch t := v.m.notify().(type) {
	case nil:
	case overlay.Teller:
		gone := f.gone()
		t.Tell(f.effects, func() {
			f.forgetAll(t, func(n nameOf) {
				if was := gone[n.was.ID]; was != nil {
					t.Removed(n.dir, n.name, was)
				} else {
					t.InvalEntry(n.dir, n.name)
				}
			})
		})
	default:
		f.forgetAll(t, func(n nameOf) { t.InvalEntry(n.dir, n.name) })
	}
	v.unpinAll(f)
	for _, num := range f.discard {
		v.m.discard(num)
	}
}

// forgetAll has the kernel forget: the names as forget does it.
func (f *forgets) forgetAll(t overlay.Notifier, forget func(nameOf)) {
	for _, n := range f.names {
		forget(n)
	}
	for _, n := range f.inodes {
		t.InvalInode(n)
	}
}

// fate is what becomes of a node in a rollback.
type fate struct {
	n     *node
	alive bool          // its inode has a name in the new state
	last  *overlay.Attr // where it has none any more: what it was like
}

// compareStates finds out what a rollback to next changes. It does all that can fail. The caller holds v.mu alone.
func (v *Volume) compareStates(next *state, res *overlay.RollbackResult) (f *forgets, err error) {
	f = &forgets{moved: map[checkpoint.ID]checkpoint.ID{}}
	defer func() {
		if err != nil {
			v.unpinAll(f)
		}
	}()
	if err := v.changedNames(f, next, res); err != nil {
		return f, err
	}
	names, err := next.countNames()
	if err != nil {
		return f, err
	}
	for _, n := range v.allNodes() {
		to := fate{n: n, alive: n == v.root}
		if !to.alive {
			if to.alive, err = next.hasName(n.id, names); err != nil {
				return f, err
			}
		}
		if !to.alive && n.orphan == nil {
			a, err := v.attr(n)
			if err != nil {
				return f, err
			}
			to.last = &a
		}
		f.fates = append(f.fates, to)
	}
	for id, e := range next.inodes {
		if v.st.inodes[id].pool != e.pool {
			res.Modified++
		}
	}
	for id := range v.st.inodes {
		if _, ok := next.inodes[id]; !ok && id.Birth != bornHere {
			res.Modified++
		}
	}
	return f, nil
}

// replaceState makes next the volume's state. Nodes of inodes that are in it stand for what they are there, also those that had lost their
// name; open files follow. The others become orphans, with what they had in the old state. The caller holds v.mu alone, so nobody looks at any
// state.
func (v *Volume) replaceState(next *state, f *forgets) {
	was := v.st
	listed := map[*node]bool{}
	for _, n := range f.names {
		listed[n.dir] = true
	}
	for _, to := range f.fates {
		n := to.n
		switch {
		case to.alive && n.orphan == nil:
			if next.inodes[n.id] == was.inodes[n.id] && !listed[n] {
				continue
			}
		case to.alive:
			if !v.revive(n, f) {
				continue
			}
		default:
			if n.orphan == nil {
				n.last = to.last
				v.orphanLocked(n, was.inodes[n.id])
			}
			continue
		}
		v.followContent(n, next)
		v.pin(n)
		f.inodes = append(f.inodes, n)
	}
	v.st = next
	v.place(f.moved)
	v.findEffects(f, was)
	was.base.Close()
}

func (v *Volume) allNodes() []*node {
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	nodes := slices.Collect(maps.Values(v.nodes))
	return slices.AppendSeq(nodes, maps.Keys(v.orphans))
}

// revive gives a node its inode back, and reports whether it could. A directory that a program has removed stays dead to the kernel: if it comes
// back, it is another node.
func (v *Volume) revive(n *node, f *forgets) bool {
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	if n.IsDir() || v.nodes[n.id] != nil {
		return false
	}
	if n.orphan.layer == private {
		f.discard = append(f.discard, n.orphan.pool)
	}
	n.orphan, n.last, n.tmp = nil, nil, false
	delete(v.orphans, n)
	v.nodes[n.id] = n
	return true
}

// followContent makes the open files of a node read what the new state has.
func (v *Volume) followContent(n *node, next *state) {
	n.contentMu.Lock()
	defer n.contentMu.Unlock()
	if n.content == nil {
		return
	}
	c, err := next.open(v.m.pool, n, next.inodes[n.id], false)
	if err != nil {
		v.m.log.Error("an open file can't follow a rollback, and can't be read any more", "err", err)
		c = closedContent()
	}
	n.content.release()
	n.content = c
}

// place notes where directories are now, so that a rename can tell what is above what. The caller holds mu alone.
func (v *Volume) place(moved map[checkpoint.ID]checkpoint.ID) {
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	for id, parent := range moved {
		if n := v.nodes[id]; n != nil && n != v.root {
			v.setParent(n, v.internLocked(checkpoint.LayerSlot{ID: parent, Type: unix.S_IFDIR}))
		}
	}
}

// changedNames finds the names that lead elsewhere in the new state, and counts them.
func (v *Volume) changedNames(f *forgets, next *state, res *overlay.RollbackResult) error {
	seen := map[checkpoint.Slot]bool{}
	for _, s := range []*state{v.st, next} {
		for dir, names := range s.slots {
			for name := range names {
				slot := checkpoint.Slot{Dir: dir, Name: name}
				if seen[slot] {
					continue
				}
				seen[slot] = true
				if err := v.changedName(f, next, slot, res); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (v *Volume) unpinAll(f *forgets) {
	for _, n := range f.names {
		v.unpin(n.dir)
	}
	for _, n := range f.inodes {
		v.unpin(n)
	}
}

func (v *Volume) changedName(f *forgets, next *state, slot checkpoint.Slot, res *overlay.RollbackResult) error {
	a, err := v.st.held(slot)
	if err != nil {
		return err
	}
	b, err := next.held(slot)
	if err != nil || a.ID == b.ID {
		return err
	}
	if !a.ID.IsZero() {
		res.Removed++
	}
	if !b.ID.IsZero() {
		res.Restored++
		if b.Type == unix.S_IFDIR {
			f.moved[b.ID] = slot.Dir
		}
	}
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	if dir := v.nodes[slot.Dir]; dir != nil {
		dir.pins++
		f.names = append(f.names, nameOf{dir, slot.Name, a, b})
	}
	return nil
}
