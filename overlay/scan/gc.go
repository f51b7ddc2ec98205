package scan

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// inactiveMax is how many records of promoted and disposed checkpoints are kept for lineage.
const inactiveMax = 1024

// named gives the numbers of the backups that the manifests of all active checkpoints name, but for one that is left out.
func (w *Workspace) named(without string) (map[uint64]bool, error) {
	all := map[uint64]bool{}
	for _, c := range w.history.list(isActive) {
		if c.ID == without {
			continue
		}
		numbers, err := w.backupsOf(c.ID)
		if err != nil {
			return nil, err
		}
		for _, n := range numbers {
			all[n] = true
		}
	}
	return all, nil
}

// backupsOf reads the head of a manifest.
func (w *Workspace) backupsOf(id string) ([]uint64, error) {
	b, err := os.ReadFile(w.manifestPath(id))
	if err != nil {
		return nil, errs.New(errs.Integrity, "read manifest", id, "%w", plain(err))
	}
	numbers, err := decodeHead(b)
	if err != nil {
		return nil, errs.New(errs.Integrity, "read manifest", id, "it is corrupt: %w", err)
	}
	return numbers, nil
}

// free removes the manifests of checkpoints that are not active any more, and the backups that nobody else needs. What
// can't be removed now is left to GC: it does no harm.
func (w *Workspace) free(list []checkpoint.Checkpoint) {
	if len(list) == 0 {
		return
	}
	needed, err := w.named("")
	if err != nil {
		w.log.Warn("backups can't be freed", "err", err)
		return
	}
	for _, c := range list {
		numbers, err := w.backupsOf(c.ID)
		if err != nil {
			w.log.Warn("backups can't be freed", "err", err)
			continue
		}
		for _, n := range numbers {
			if needed[n] {
				continue
			}
			if err := w.backups.Remove(w.backups.refOf(backupName(n))); err != nil {
				w.log.Warn("a backup can't be removed", "err", err)
			}
		}
		w.removeManifest(c.ID)
	}
	crash.Point("scan-freed")
	w.forgetInactive()
}

// forgetInactive deletes the records of the longest disposed checkpoints.
func (w *Workspace) forgetInactive() int {
	old := w.history.list(isInactive)
	if len(old) <= inactiveMax+inactiveMax/8 { // so that it is not done for each one
		return 0
	}
	old = old[:len(old)-inactiveMax]
	for n, c := range old {
		if err := w.store.Update(func(tx *checkpoint.Tx) error { return tx.DeleteCheckpoint(c.ID) }); err != nil {
			w.log.Warn("a checkpoint's record can't be removed", "err", err)
			return n
		}
		w.history.remove(c.ID)
	}
	return len(old)
}

// Drop forgets an active checkpoint: nothing can be rolled back to it any more. Others keep what they need.
func (w *Workspace) Drop(ctx context.Context, id string) error {
	leave, err := w.enter(ctx, "drop")
	if err != nil {
		return err
	}
	defer leave()
	if w.damaged[id] != nil {
		return w.forgetDamaged(id)
	}
	_, err = w.retire(id, "drop", checkpoint.Disposed)
	return err
}

// forgetDamaged removes the record of a checkpoint that can't be read. What it had is left to GC. The caller has entered.
func (w *Workspace) forgetDamaged(id string) error {
	if err := w.store.Update(func(tx *checkpoint.Tx) error { return tx.DeleteCheckpoint(id) }); err != nil {
		return errs.Ensure("drop", id, err)
	}
	delete(w.damaged, id)
	return nil
}

// Promote accepts the live state: the checkpoint's backups are freed, its record stays. With a writer, what changed
// since the checkpoint is written to it as a patch first; if that fails, the checkpoint stays active.
func (w *Workspace) Promote(ctx context.Context, id string, patch io.Writer) (checkpoint.Checkpoint, error) {
	leave, err := w.enter(ctx, "promote")
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer leave()
	if patch != nil {
		if err := w.patch(ctx, id, "", patch); err != nil {
			return checkpoint.Checkpoint{}, err
		}
	}
	return w.retire(id, "promote", checkpoint.Promoted)
}

// retire ends the life of an active checkpoint. The caller has entered.
func (w *Workspace) retire(id, op string, status checkpoint.Status) (checkpoint.Checkpoint, error) {
	c, ok := w.history.get(id)
	if !ok {
		return c, errs.New(errs.NotFound, op, id, "there is no such checkpoint").WithHint("`hyperfs list` shows them")
	}
	if !isActive(&c) {
		return c, errs.New(errs.Rollback, op, id, "the checkpoint is %s", c.Status)
	}
	c.Status, c.UpdatedAt = status, time.Now()
	if err := w.store.Update(func(tx *checkpoint.Tx) error { return tx.PutCheckpoint(c) }); err != nil {
		return c, errs.Ensure(op, id, err)
	}
	w.history.put(w.history.current(), c)
	w.endContracts()
	w.send(op, id, c)
	w.free([]checkpoint.Checkpoint{c})
	return c, nil
}

// GC frees everything that no active checkpoint needs. Most of it is freed as soon as a checkpoint is dropped; this also
// finds what a crash left.
func (w *Workspace) GC(ctx context.Context) (overlay.GCResult, error) {
	leave, err := w.enter(ctx, "gc")
	if err != nil {
		return overlay.GCResult{}, err
	}
	defer leave()
	res, err := w.sweep()
	if err != nil {
		return res, errs.Ensure("gc", "", err)
	}
	res.Checkpoints = w.forgetInactive()
	w.send("gc", "", res)
	return res, nil
}

// sweep removes what nothing names.
func (w *Workspace) sweep() (overlay.GCResult, error) {
	var res overlay.GCResult
	needed, err := w.named("")
	if err != nil {
		return res, err
	}
	err = w.eachStray(needed, func(name string, size int64) error {
		res.Backups++
		res.Bytes += size
		return w.backups.Remove(w.backups.refOf(name))
	})
	if err != nil {
		return res, err
	}
	return res, w.eachStrayManifest(func(name string) error {
		res.Records++
		return os.Remove(filepath.Join(w.storeAt, manifestsName, name))
	})
}

// eachStray calls fn for every backup that is not needed.
func (w *Workspace) eachStray(needed map[uint64]bool, fn func(name string, size int64) error) error {
	return w.backups.List(func(name string, size int64) error {
		if n, err := backupNumber(name); err == nil && needed[n] {
			return nil
		}
		return fn(name, size)
	})
}

// eachStrayManifest calls fn for every manifest that belongs to no active checkpoint.
func (w *Workspace) eachStrayManifest(fn func(name string) error) error {
	list, err := os.ReadDir(filepath.Join(w.storeAt, manifestsName))
	if err != nil {
		return err
	}
	for _, f := range list {
		if c, ok := w.history.get(f.Name()); ok && isActive(&c) {
			continue
		}
		if err := fn(f.Name()); err != nil {
			return err
		}
	}
	return nil
}

// Fsck proves the store's invariants, and gives what does not hold: every checkpoint's record can be read, every active one has a manifest that can be
// read, every backup that one names is there and, with deep, has the bytes that were saved, nothing is there that
// nobody names, and the state of every completed turn can be read.
func (w *Workspace) Fsck(ctx context.Context, deep bool) ([]overlay.Problem, error) {
	leave, err := w.enter(ctx, "fsck")
	if err != nil {
		return nil, err
	}
	defer leave()
	f := &fsck{w: w, checked: map[string]bool{}, needed: map[uint64]bool{}}
	for _, id := range slices.Sorted(maps.Keys(w.damaged)) {
		f.found(id, "its record is damaged: %v", w.damaged[id])
	}
	for _, c := range w.history.list(isActive) {
		if err := ctx.Err(); err != nil {
			return f.problems, err
		}
		f.checkpoint(c.ID, deep)
	}
	if err := w.Turns().Check(ctx, func(where, what string) { f.found(where, "%s", what) }); err != nil {
		return f.problems, errs.Ensure("fsck", "", err)
	}
	if err := f.strays(); err != nil {
		return f.problems, errs.Ensure("fsck", "", err)
	}
	return f.problems, nil
}

type fsck struct {
	w        *Workspace
	checked  map[string]bool // backups, by name
	needed   map[uint64]bool
	problems []overlay.Problem
}

func (f *fsck) found(where, format string, args ...any) {
	f.problems = append(f.problems, overlay.Problem{Where: where, What: fmt.Sprintf(format, args...)})
}

// checkpoint checks a manifest and all that it names.
func (f *fsck) checkpoint(id string, deep bool) {
	m, err := f.w.manifest(id)
	if err != nil {
		f.found(id, "a rollback would fail: %v", err)
		return
	}
	for i := range m.entries {
		e := &m.entries[i]
		if !e.isRegular() || e.first != int32(i) || e.size == 0 {
			continue
		}
		if e.ref.Name == "" {
			if e.flags&(flagClosed|flagForeign) == 0 {
				f.found(id, "%s has no backup", m.path(int32(i)))
			}
			continue
		}
		n, err := backupNumber(e.ref.Name)
		if err != nil || e.ref.Size != e.size {
			f.found(id, "%s has the wrong backup %q", m.path(int32(i)), e.ref.Name)
			continue
		}
		f.needed[n] = true
		if !f.checked[e.ref.Name] {
			f.checked[e.ref.Name] = true
			f.backup(m.path(int32(i)), e, deep)
		}
	}
}

func (f *fsck) backup(path string, e *entry, deep bool) {
	var err error
	if deep {
		err = f.w.backups.Verify(e.ref)
	} else if file, oerr := f.w.backups.Open(e.ref); oerr != nil {
		err = oerr
	} else {
		_ = file.Close()
	}
	if err != nil {
		f.found("backup/"+e.ref.Name, "the content of %s can't be had back: %v", path, err)
	}
}

func (f *fsck) strays() error {
	err := f.w.eachStray(f.needed, func(name string, _ int64) error {
		f.found("backup/"+name, "no checkpoint names it; `hyperfs gc` frees it")
		return nil
	})
	if err != nil {
		return err
	}
	return f.w.eachStrayManifest(func(name string) error {
		f.found(manifestsName+"/"+strings.TrimSuffix(name, tempSuffix), "no active checkpoint has it; `hyperfs gc` frees it")
		return nil
	})
}
