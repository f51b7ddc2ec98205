package scan

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// Status gives one screen of state. It scans nothing.
func (w *Workspace) Status() overlay.Status {
	s := overlay.Status{
		Workspace: w.root, Store: w.storeAt, Session: w.session, Tier: string(w.backups.Kind()),
		Backend: checkpoint.BackendScan, Checkpoints: len(w.history.list(isActive)),
		Ignore: w.ignoreStatus(),
	}
	if last := w.lastScan.Load(); last != nil {
		cost := *last
		cost.Unprotected = slices.Clone(cost.Unprotected)
		s.Scan = &cost
	}
	if u, ok := w.history.undoPoint(); ok {
		s.Undo = u.ID
	}
	if c, ok := w.history.newest(); ok {
		s.Newest, s.NewestAt = c.ID, c.CreatedAt
	}
	return s
}

// Diagnostics gives everything that the workspace knows about itself. It looks at no more than the store's own directories.
func (w *Workspace) Diagnostics() overlay.Diagnostics {
	d := overlay.Diagnostics{Status: w.Status(), Probes: slices.Clone(w.backups.probes), Active: w.history.list(isActive)}
	if w.volume != nil {
		v := *w.volume
		d.WindowsVolume = &v
	}
	w.admin.Lock()
	defer w.admin.Unlock()
	if w.check("diagnostics") != nil {
		return d
	}
	d.StoreBytes = w.store.Bytes() + bytesIn(filepath.Join(w.storeAt, manifestsName))
	_ = w.backups.List(func(_ string, size int64) error {
		d.Backups++
		d.StoreBytes += size
		return nil
	})
	return d
}

// bytesIn gives the size of the files in a directory.
func bytesIn(dir string) (total int64) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, f := range list {
		if info, err := f.Info(); err == nil {
			total += info.Size()
		}
	}
	return total
}

// List gives the checkpoints that the options let through, oldest first.
func (w *Workspace) List(o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	if err := w.usable("list"); err != nil {
		return nil, err
	}
	return w.history.list(func(c *checkpoint.Checkpoint) bool {
		return (o.IncludeInactive || isActive(c)) &&
			(o.Branch == "" || c.Branch == o.Branch) &&
			(o.Subagent == "" || c.Subagent == o.Subagent) &&
			(o.Agent == "" || c.Agent == o.Agent)
	}), nil
}

// Get gives one checkpoint, whatever its status. NOT_FOUND says that there is none.
func (w *Workspace) Get(id string) (checkpoint.Checkpoint, error) {
	if err := w.usable("show"); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	c, ok := w.history.get(id)
	if !ok {
		return c, errs.New(errs.NotFound, "find checkpoint", id, "there is no such checkpoint").WithHint("`hyperfs list` shows them")
	}
	return c, nil
}

// Lineage gives the checkpoint and its ancestors, oldest first, as far back as there are records.
func (w *Workspace) Lineage(id string) ([]checkpoint.Checkpoint, error) {
	if _, err := w.Get(id); err != nil {
		return nil, err
	}
	return w.history.lineage(id), nil
}

// Children gives the checkpoints whose parent it is, oldest first.
func (w *Workspace) Children(id string, includeInactive bool) ([]checkpoint.Checkpoint, error) {
	if _, err := w.Get(id); err != nil {
		return nil, err
	}
	return w.history.list(func(c *checkpoint.Checkpoint) bool {
		return c.Parent == id && (includeInactive || isActive(c))
	}), nil
}

// usable is check for a caller who does not hold w.admin.
func (w *Workspace) usable(op string) error {
	w.admin.Lock()
	defer w.admin.Unlock()
	return w.check(op)
}
