package scan

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/githead"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
)

// Reserve gives an ID that a later Snapshot can use.
func (w *Workspace) Reserve() string { return newID() }

// Snapshot makes a checkpoint: it walks the tree, and saves what has changed since the last one. What another program
// changes meanwhile is in it as it was at some instant of the walk. Errors: those of overlay.Workspace.Snapshot, and BUSY
// where the tree changes too fast.
func (w *Workspace) Snapshot(ctx context.Context, o overlay.SnapshotOptions) (checkpoint.Checkpoint, error) {
	leave, err := w.enter(ctx, "snapshot")
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer leave()
	c, err := w.history.fresh(o, w.cfg.MaxCheckpoints)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	s, err := w.shoot(ctx, c, nil)
	if err != nil {
		return checkpoint.Checkpoint{}, errs.Ensure("snapshot", "", err)
	}
	err = w.commit(s, func(tx *checkpoint.Tx) error {
		if o.Commit != nil {
			if err := o.Commit(tx); err != nil {
				return err
			}
		}
		return tx.PutMeta(metaHead, []byte(s.c.ID))
	})
	if err != nil {
		return checkpoint.Checkpoint{}, errs.Ensure("snapshot", "", err)
	}
	w.history.put(s.c.ID, s.c)
	w.send("snapshot", s.c.ID, s.c)
	return s.c, nil
}

// shot is a checkpoint that is not committed yet.
type shot struct {
	c     checkpoint.Checkpoint
	was   *checkpoint.Checkpoint // the one before, with what has changed since; nil if there is none
	m     *manifest
	saved []strategy.Ref
	cost  overlay.ScanStatus
}

// shoot scans the tree for the checkpoint c, and saves what no manifest has, at more tracked paths too. It ends in commit or in abandon.
func (w *Workspace) shoot(ctx context.Context, c checkpoint.Checkpoint, tracked []string) (*shot, error) {
	was, base, err := w.base()
	if err != nil {
		return nil, err
	}
	c.Tier, c.GitHead = string(w.backups.Kind()), githead.Read(w.readSmall)
	start := time.Now()
	s := &shot{c: c, was: was}
	if s.m, s.saved, err = w.scan(ctx, scanFor{base: base, save: true, scope: w.scope.with(tracked)}); err != nil {
		return nil, err
	}
	s.cost = s.m.cost(start)
	if was != nil {
		was.Dirty = 0
		if !s.m.asBase {
			was.Dirty = base.changes(s.m)
		}
	}
	crash.Point("scan-saved")
	return s, nil
}

// cost says what a scan was.
func (m *manifest) cost(start time.Time) overlay.ScanStatus {
	c := overlay.ScanStatus{Entries: len(m.entries), At: start, Duration: time.Since(start)}
	for i := range m.entries {
		if m.entries[i].flags&flagForeign != 0 {
			c.Unprotected = append(c.Unprotected, m.path(int32(i)))
		}
	}
	return c
}

// base gives the checkpoint that is most like the live tree, with its manifest; nil if there is none.
func (w *Workspace) base() (*checkpoint.Checkpoint, *manifest, error) {
	c, ok := w.history.newest()
	if !ok {
		if c, ok = w.history.undoPoint(); !ok {
			return nil, nil, nil
		}
	}
	m, err := w.manifest(c.ID)
	return &c, m, err
}

// commit writes the manifest, and the checkpoint together with what fn writes. If it fails, nothing stays behind.
func (w *Workspace) commit(s *shot, fn func(*checkpoint.Tx) error) error {
	if err := w.keepManifest(s); err != nil {
		w.abandon(s)
		return err
	}
	crash.Point("scan-manifest")
	cost, err := json.Marshal(s.cost)
	if err != nil {
		w.abandon(s)
		return err
	}
	err = w.store.Update(func(tx *checkpoint.Tx) error {
		if err := tx.PutCheckpoint(s.c); err != nil {
			return err
		}
		if s.was != nil {
			if err := tx.PutCheckpoint(*s.was); err != nil {
				return err
			}
		}
		if err := tx.PutNumber(metaBackups, w.backups.next.Load()); err != nil {
			return err
		}
		if err := tx.PutMeta(metaScan, cost); err != nil {
			return err
		}
		return fn(tx)
	})
	if err != nil {
		w.abandon(s)
		return err
	}
	w.lastScan.Store(&s.cost)
	if s.was != nil {
		w.history.put(w.history.current(), *s.was)
	}
	crash.Point("scan-committed")
	return nil
}

// abandon frees what a checkpoint that is not committed has made.
func (w *Workspace) abandon(s *shot) {
	w.removeManifest(s.c.ID)
	w.discard(s.saved)
}

// loadCost reads what the last scan has cost.
func (w *Workspace) loadCost() error {
	var b []byte
	err := w.store.View(func(tx *checkpoint.Tx) (err error) { b, err = tx.Meta(metaScan); return err })
	if err != nil || b == nil {
		return err
	}
	c := &overlay.ScanStatus{}
	if err := json.Unmarshal(b, c); err != nil {
		return errs.New(errs.Integrity, "read store", metaScan, "%w", err)
	}
	w.lastScan.Store(c)
	return nil
}

func (w *Workspace) manifestPath(id string) string {
	return filepath.Join(w.storeAt, manifestsName, id)
}

// keepManifest gives a checkpoint its manifest. Where nothing has changed that is the one of the checkpoint before: a file with
// a second name, which is never written to again.
func (w *Workspace) keepManifest(s *shot) error {
	if s.m.asBase && os.Link(w.manifestPath(s.was.ID), w.manifestPath(s.c.ID)) == nil {
		return w.syncDir(filepath.Join(w.storeAt, manifestsName))
	}
	return w.writeManifest(s.c.ID, s.m)
}

// writeManifest puts a manifest under its name, in the place of one that may be there.
func (w *Workspace) writeManifest(id string, m *manifest) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	tmp := w.manifestPath(id) + tempSuffix
	if err := w.writeFile(tmp, b); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	if err := os.Rename(tmp, w.manifestPath(id)); err != nil {
		return err
	}
	return w.syncDir(filepath.Join(w.storeAt, manifestsName))
}

// tempSuffix ends the names of manifests that are being written.
const tempSuffix = "~"

func (w *Workspace) writeFile(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && w.cfg.Sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes names last over a loss of power, if that is asked for.
func (w *Workspace) syncDir(name string) error {
	if !w.cfg.Sync {
		return nil
	}
	return syncDirectory(name)
}

// manifest reads the manifest of a checkpoint. One that is missing or corrupt is an integrity error.
func (w *Workspace) manifest(id string) (*manifest, error) {
	b, err := os.ReadFile(w.manifestPath(id))
	if err != nil {
		return nil, errs.New(errs.Integrity, "read manifest", id, "%w", plain(err)).WithHint("hyperfs drop " + id + " gives the checkpoint up")
	}
	m, err := decodeManifest(b)
	if err != nil {
		return nil, errs.New(errs.Integrity, "read manifest", id, "it is corrupt: %w", err).WithHint("hyperfs drop " + id + " gives the checkpoint up")
	}
	return m, nil
}

func (w *Workspace) removeManifest(id string) {
	if err := os.Remove(w.manifestPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		w.log.Warn("a manifest can't be removed", "checkpoint", id, "err", err)
	}
}
