//go:build linux

package overlay

import (
	"os"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/strategy"
)

// statusMax is how far changes are counted for a status.
const statusMax = 1 << 20

// Status gives one screen of state.
func (w *Workspace) Status() Status {
	s := Status{Workspace: w.root, Store: w.storeAt, Session: w.session, Tier: string(w.tiers.Kind()), Backend: checkpoint.BackendFuse}
	if w.check("status") != nil {
		return s
	}
	w.list.RLock()
	s.Checkpoints = w.countActive()
	if w.halfway != nil {
		s.Halfway = w.halfway.Error()
	}
	w.list.RUnlock()
	s.Ignore = w.ignoreStatus()
	hot := w.tiers.hot.Stats()
	s.Hot = &hot
	if u, ok := w.undoPoint(); ok {
		s.Undo = u.ID
	}
	if c, ok := w.newest(); ok {
		s.Newest, s.NewestAt = c.ID, c.CreatedAt
		slots, inodes, err := w.store.Count(c.Epoch, statusMax)
		if err != nil {
			w.log.Error("the undo log can't be counted", "err", err)
		}
		s.Slots, s.Inodes = slots, inodes
	}
	return s
}

// Diagnostics gives everything that the workspace knows about itself. It scans no more than the store's own directories.
func (w *Workspace) Diagnostics() Diagnostics {
	d := Diagnostics{Status: w.Status()}
	if w.check("diagnostics") != nil {
		return d
	}
	t := w.tree
	t.mu.RLock()
	d.Epoch = t.epoch
	t.mu.RUnlock()
	d.Probes, d.Degraded = slices.Clone(w.tiers.probes), w.tiers.degrades()
	d.Active = w.all(func(c *checkpoint.Checkpoint) bool { return c.Status == checkpoint.Active })
	if err := w.describe(d.Active); err != nil {
		w.log.Error("the undo log can't be read", "err", err)
	}
	d.StoreBytes = w.store.Bytes()
	_ = eachName(t.trashFd, func(string) error { d.TrashFiles++; return nil })
	_ = w.tiers.list(func(ref strategy.Ref, _ int64) error {
		d.Backups++
		if ref.Tier.Volatile() {
			d.InRAM++
		}
		return nil
	})
	t.nodesMu.RLock()
	d.Nodes = len(t.nodes)
	t.nodesMu.RUnlock()
	d.Handles = int(t.handleCount.Load())
	d.Descriptors = openDescriptors()
	d.Limits = Limits{Descriptors: FileLimit(), DirCache: t.dirs.max}
	if t.ignore != nil {
		d.Ignored = t.ignore.writes.recent()
	}
	return d
}

func openDescriptors() int {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return 0
	}
	return len(names) - 1 // without the one that reads
}
