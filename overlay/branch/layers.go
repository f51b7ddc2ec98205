//go:build linux

package branch

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// uses tells what stands on layers: who names one, and which of them have layers on top. The caller holds mu.
type uses struct {
	named  map[uint64]bool   // by active branches and checkpoints, and volumes in use
	live   map[uint64]bool   // of these, whose changes go on
	upper  map[uint64]uint64 // the only layer on top; 0 where there are several
	needed map[uint64]bool   // named, or below one that is
}

func (m *Manager) usesLocked() uses {
	u := uses{named: map[uint64]bool{}, live: map[uint64]bool{}, upper: map[uint64]uint64{}, needed: map[uint64]bool{}}
	for _, b := range m.active {
		u.live[b.Layer], u.named[b.Layer] = true, true
		u.named[b.Fork] = true // it is what the branch is compared with
	}
	for _, c := range m.checkpoints {
		if c.Status == checkpoint.Active {
			u.named[c.Layer] = true
		}
	}
	for _, v := range m.volumes { // switchTo changes their layers with mu held
		u.named[v.layer] = true
		u.live[v.layer] = u.live[v.layer] || !v.readonly
	}
	for num := range u.named {
		for ; num != 0 && !u.needed[num]; num = m.layers[num].Parent {
			u.needed[num] = true
		}
	}
	for num, l := range m.layers {
		if _, several := u.upper[l.Parent]; !u.needed[num] {
			continue
		} else if several {
			num = 0
		}
		u.upper[l.Parent] = num
	}
	return u
}

// unneeded gives the layers that nobody stands on.
func (m *Manager) unneeded() (gone []checkpoint.Layer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.usesLocked()
	for num, l := range m.layers {
		if !u.needed[num] {
			gone = append(gone, l)
		}
	}
	return gone
}

// foldable gives a layer that nobody names, and the only one on top of it, which is sealed; tried has those that could not be folded.
func (m *Manager) foldable(tried map[uint64]bool) (below, above checkpoint.Layer, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.usesLocked()
	for num := range u.needed {
		if top := u.upper[num]; !u.named[num] && !tried[num] && top != 0 && !u.live[top] {
			return m.layers[num], m.layers[top], true
		}
	}
	return below, above, false
}

// free removes the layers that nobody needs, and then what they had in the pool; and has those that only one other stands on taken over by that, so
// that chains do not grow with checkpoints that were dropped. The caller holds admin alone, or nobody else has the manager.
func (m *Manager) free() (overlay.GCResult, error) {
	var res overlay.GCResult
	defer m.store.Urgent()()
	if err := m.remove(m.unneeded(), &res); err != nil {
		return res, err
	}
	tried := map[uint64]bool{}
	for {
		below, above, ok := m.foldable(tried)
		if !ok {
			return res, nil
		}
		tried[below.Num] = true
		folded, err := m.store.FoldLayer(below, above)
		if err != nil {
			return res, err
		}
		if !folded {
			continue
		}
		crash.Point("branch-folded")
		above.Parent, below.Into = below.Parent, above.Num
		m.mu.Lock()
		m.layers[above.Num] = above
		m.mu.Unlock()
		if err := m.remove([]checkpoint.Layer{below}, &res); err != nil {
			return res, err
		}
	}
}

// remove removes layers that nobody stands on.
func (m *Manager) remove(gone []checkpoint.Layer, res *overlay.GCResult) error {
	if len(gone) == 0 {
		return nil
	}
	pool, err := m.store.DropLayers(gone)
	if err != nil {
		return err
	}
	crash.Point("branch-freed")
	m.mu.Lock()
	unpinned := false
	for _, l := range gone {
		unpinned = unpinned || l.Parent == 0
		delete(m.layers, l.Num)
	}
	m.mu.Unlock()
	if unpinned && m.cfg.Unpinned != nil {
		if err := m.cfg.Unpinned(m.PinnedEpochs()); err != nil {
			return err
		}
		crash.Point("branch-unpinned")
	}
	for _, num := range pool {
		res.Bytes += m.allocated(num)
		m.discard(num)
		res.Backups++
	}
	res.Records += len(pool)
	return nil
}

func (m *Manager) allocated(num uint64) int64 {
	a, err := m.pool.stat(num)
	if err != nil {
		return 0
	}
	return a.Blocks * 512
}

// named gives the numbers that inode records name, each with its layer.
func (m *Manager) named() (map[uint64]uint64, error) {
	named := map[uint64]uint64{}
	err := m.store.View(func(tx *checkpoint.Tx) error {
		return tx.EachInodeOfLayers(func(layer uint64, _ checkpoint.ID, i checkpoint.LayerInode) error {
			named[i.Pool] = layer
			return nil
		})
	})
	return named, err
}

// unnamed gives what is in the pool that no record names and nobody is working on. The pool comes first, then who is busy, then the records:
// so what is being recorded meanwhile is seen in one of them.
func (m *Manager) unnamed() ([]uint64, error) {
	var there []uint64
	if err := m.pool.each(func(n uint64) error { there = append(there, n); return nil }); err != nil {
		return nil, err
	}
	m.pool.mu.Lock()
	there = slices.DeleteFunc(there, func(n uint64) bool { _, busy := m.pool.busy[n]; return busy })
	m.pool.mu.Unlock()
	named, err := m.named()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(there, func(n uint64) bool { _, ok := named[n]; return ok }), nil
}

// sweep removes what a death has left in the pool.
func (m *Manager) sweep() (overlay.GCResult, error) {
	var res overlay.GCResult
	left, err := m.unnamed()
	for _, n := range left {
		res.Bytes += m.allocated(n)
		m.discard(n)
		res.Backups++
	}
	return res, err
}

// GC frees what no active branch or checkpoint needs. Most of it is freed as soon as a branch is dropped; this also finds what a crash left, and
// forgets the records of branches and checkpoints that are no more.
func (m *Manager) GC(ctx context.Context) (overlay.GCResult, error) {
	leave, err := m.enter("gc", false)
	if err != nil {
		return overlay.GCResult{}, err
	}
	defer leave()
	defer m.store.Urgent()()
	if err := ctx.Err(); err != nil {
		return overlay.GCResult{}, err
	}
	res, err := m.free()
	if err != nil {
		return res, errs.Ensure("gc", "", err)
	}
	swept, err := m.sweep()
	res.Backups += swept.Backups
	res.Bytes += swept.Bytes
	if err != nil {
		return res, errs.Ensure("gc", "", err)
	}
	forgotten, err := m.forgetEnded()
	res.Checkpoints += forgotten
	return res, errs.Ensure("gc", "", err)
}

// inactiveMax is how many records of promoted and disposed checkpoints are kept for lineage.
const inactiveMax = 1024

// forgetEnded removes the records of branches that ended, unless an active one descends from them, and of their checkpoints, and the oldest
// of inactive checkpoints.
func (m *Manager) forgetEnded() (checkpoints int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted := map[uint64]bool{}
	for _, b := range m.active {
		for ; b != nil && !wanted[b.Num]; b = m.branches[b.ParentNum] {
			wanted[b.Num] = true
		}
	}
	var branches []uint64
	for num := range m.branches {
		if !wanted[num] {
			branches = append(branches, num)
		}
	}
	var ids []string
	var inactive []*checkpoint.BranchCheckpoint
	for id, c := range m.checkpoints {
		if !wanted[c.BranchNum] {
			ids = append(ids, id)
		} else if c.Status != checkpoint.Active {
			inactive = append(inactive, c)
		}
	}
	slices.SortFunc(inactive, func(a, b *checkpoint.BranchCheckpoint) int { return cmp.Compare(b.Seq, a.Seq) })
	for _, c := range inactive[min(inactiveMax, len(inactive)):] {
		ids = append(ids, c.ID)
	}
	err = m.store.Update(func(tx *checkpoint.Tx) error {
		for _, num := range branches {
			if err := tx.DeleteBranch(num); err != nil {
				return err
			}
		}
		for _, id := range ids {
			if err := tx.DeleteBranchCheckpoint(id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, num := range branches {
		delete(m.branches, num)
	}
	for _, id := range ids {
		delete(m.checkpoints, id)
	}
	return len(ids), nil
}

// Fsck checks what must hold: every layer stands on one that is there; every branch and checkpoint has its layer; every inode record has a
// pool inode of its own, and every pool inode a record.
func (m *Manager) Fsck(ctx context.Context) ([]overlay.Problem, error) {
	leave, err := m.enter("fsck", false)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if _, err := m.free(); err != nil { // what is about to be freed is no problem
		return nil, errs.Ensure("fsck", "", err)
	}
	problems := m.checkLayers()
	more, err := m.checkPool()
	return append(problems, more...), errs.Ensure("fsck", "", err)
}

func (m *Manager) checkLayers() (problems []overlay.Problem) {
	m.mu.Lock()
	defer m.mu.Unlock()
	missing := func(where string, num uint64) {
		if _, ok := m.layers[num]; !ok {
			problems = append(problems, overlay.Problem{Where: where, What: fmt.Sprintf("layer %d is missing", num)})
		}
	}
	for num, l := range m.layers {
		if l.Parent != 0 {
			missing(fmt.Sprintf("layer %d", num), l.Parent)
		}
	}
	for name, b := range m.active {
		missing("branch "+name, b.Layer)
	}
	for id, c := range m.checkpoints {
		if c.Status == checkpoint.Active {
			missing("checkpoint "+id, c.Layer)
		}
	}
	return problems
}

func (m *Manager) checkPool() (problems []overlay.Problem, err error) {
	unnamed, err := m.unnamed()
	if err != nil {
		return nil, err
	}
	for _, n := range unnamed {
		problems = append(problems, overlay.Problem{Where: poolName(n), What: "no record names it"})
	}
	layers := map[uint64]bool{}
	m.mu.Lock()
	for num := range m.layers {
		layers[num] = true
	}
	m.mu.Unlock()
	type owner struct {
		layer uint64
		id    checkpoint.ID
	}
	owners := map[uint64]owner{}
	var gone []uint64
	err = m.store.View(func(tx *checkpoint.Tx) error {
		return tx.EachInodeOfLayers(func(layer uint64, id checkpoint.ID, i checkpoint.LayerInode) error {
			say := func(format string, args ...any) {
				problems = append(problems, overlay.Problem{Where: fmt.Sprintf("inode %s of layer %d", id, layer), What: fmt.Sprintf(format, args...)})
			}
			if !layers[layer] {
				say("the layer is missing")
			}
			if o, ok := owners[i.Pool]; ok {
				say("%s is also inode %s of layer %d", poolName(i.Pool), o.id, o.layer)
			}
			owners[i.Pool] = owner{layer, id}
			if _, err := m.pool.stat(i.Pool); err != nil {
				gone = append(gone, i.Pool)
			}
			return nil
		})
	})
	if err != nil || len(gone) == 0 {
		return problems, err
	}
	named, err := m.named() // a copy-up may have replaced it meanwhile
	for _, n := range gone {
		if layer, ok := named[n]; ok {
			problems = append(problems, overlay.Problem{Where: poolName(n), What: fmt.Sprintf("it is missing; layer %d names it", layer)})
		}
	}
	return problems, err
}
