//go:build linux

package overlay

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/githead"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"
)

// Reserve gives an ID that a later Snapshot can use.
func (w *Workspace) Reserve() string { return NewID() }

// Snapshot makes a checkpoint of the live state. It costs the same whatever the size of the workspace; what is open for
// writing past the daemon is the exception: it is saved at once. Errors: CAPACITY when there are too many active
// checkpoints, NOT_FOUND and DISPOSED for a parent that can't be one, USAGE for an ID that is malformed or in use.
func (w *Workspace) Snapshot(ctx context.Context, o SnapshotOptions) (checkpoint.Checkpoint, error) {
	leave, err := w.enter("snapshot", true)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer leave()
	w.tree.flushMapped()
	c, err := w.newCheckpoint(o)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	if err := ctx.Err(); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	w.tree.mu.Lock()
	err = w.commitSnapshot(&c, o.Commit)
	w.tree.mu.Unlock()
	if err != nil {
		return checkpoint.Checkpoint{}, errs.Ensure("snapshot", "", err)
	}
	w.done.snapshots.Add(1)
	w.events.send(Event{Type: "snapshot", Checkpoint: c.ID, Data: c})
	return c, nil
}

// newCheckpoint fills in a checkpoint record, all but what the instant of the snapshot decides.
func (w *Workspace) newCheckpoint(o SnapshotOptions) (checkpoint.Checkpoint, error) {
	w.list.RLock()
	defer w.list.RUnlock()
	if o.ID == "" {
		o.ID = w.Reserve()
	} else if _, err := ulid.ParseStrict(strings.TrimPrefix(o.ID, idPrefix)); err != nil || !strings.HasPrefix(o.ID, idPrefix) {
		return checkpoint.Checkpoint{}, errs.New(errs.Usage, "snapshot", o.ID, "the ID is not %s and 26 characters of a ULID", idPrefix)
	} else if w.checkpoints[o.ID] != nil || w.damaged[o.ID] != nil {
		return checkpoint.Checkpoint{}, errs.New(errs.Usage, "snapshot", o.ID, "a checkpoint has this ID already")
	}
	if o.Parent == "" {
		o.Parent = w.head
	} else if p := w.checkpoints[o.Parent]; p == nil {
		return checkpoint.Checkpoint{}, errs.New(errs.NotFound, "snapshot", o.Parent, "there is no such parent")
	} else if p.Status != checkpoint.Active {
		return checkpoint.Checkpoint{}, errs.New(errs.Disposed, "snapshot", o.Parent, "the parent is %s", p.Status)
	}
	if active := w.countActive(); active >= w.cfg.MaxCheckpoints {
		return checkpoint.Checkpoint{}, errs.New(errs.Capacity, "snapshot", "", "there are %d active checkpoints, and no more are allowed", active).
			WithHint("drop or promote some, or mount with a higher --max-checkpoints")
	}
	now := time.Now()
	return checkpoint.Checkpoint{
		ID: o.ID, Parent: o.Parent, Branch: cmp.Or(o.Branch, "main"), Subagent: o.Subagent, Agent: o.Agent,
		CreatedBy: cmp.Or(o.CreatedBy, "snapshot"), CreatedAt: now, UpdatedAt: now, Message: o.Message,
		Status: checkpoint.Active, Tier: string(w.tiers.Kind()), Session: w.session, GitHead: githead.Read(w.readSmall),
	}, nil
}

// countActive counts the active checkpoints. The caller holds w.list.
func (w *Workspace) countActive() int {
	active := 0
	for _, c := range w.checkpoints {
		if c.Status == checkpoint.Active {
			active++
		}
	}
	return active
}

// commitSnapshot begins a new epoch, and makes c the checkpoint before it; commit, if it is not nil, writes what else is to be committed. The caller holds tree.mu
// alone.
func (w *Workspace) commitSnapshot(c *checkpoint.Checkpoint, commit func(*checkpoint.Tx) error) error {
	w.list.RLock()
	head := w.head
	w.list.RUnlock()
	return w.beginEpoch(func(tx *checkpoint.Tx, e checkpoint.Epoch) error {
		if commit != nil {
			if err := commit(tx); err != nil {
				return err
			}
		}
		w.list.Lock()
		defer w.list.Unlock()
		w.seq++
		c.Epoch, c.Seq = e, w.seq
		w.checkpoints[c.ID] = c
		w.head = c.ID
		if err := tx.PutMeta(metaHead, []byte(c.ID)); err != nil {
			return err
		}
		return tx.PutCheckpoint(*c)
	}, func() {
		w.list.Lock()
		defer w.list.Unlock()
		delete(w.checkpoints, c.ID)
		w.head = head
	})
}

// beginEpoch makes a new epoch the current one, and commits what fn writes together with it. Files that somebody may
// write to without the daemon seeing it get their preimage now. If it fails, undo is called, and at most an epoch
// without a checkpoint has begun. The caller holds tree.mu alone.
func (w *Workspace) beginEpoch(fn func(*checkpoint.Tx, checkpoint.Epoch) error, undo func()) error {
	t := w.tree
	old, wasProtecting := t.epoch, t.protecting
	direct := t.directNodes()
	if len(direct) > 0 {
		// The epoch must be known as begun before it has records.
		if err := w.setEpoch(old + 1); err != nil {
			undo()
			return err
		}
	}
	tracked, err := w.saveTracked(w.protectedPaths(), old+1)
	if err != nil {
		undo()
		return err
	}
	t.epoch, t.protecting = old+1, true
	w.store.BeginEpoch(t.epoch)
	err = t.saveDirect(direct)
	crash.Point("epoch-saved")
	defer crash.Point("epoch-begun")
	if err == nil {
		err = w.store.Update(func(tx *checkpoint.Tx) error {
			if err := fn(tx, t.epoch); err != nil {
				return err
			}
			if err := putTracked(tx, t.epoch, tracked); err != nil {
				return err
			}
			if err := putSeen(tx); err != nil {
				return err
			}
			return tx.PutNumber(metaEpoch, uint64(t.epoch))
		})
	}
	if err == nil {
		w.noteTracked(t.epoch, tracked)
		return nil
	}
	undo()
	t.protecting = wasProtecting
	if len(direct) == 0 {
		t.epoch = old
	}
	return err
}

func (w *Workspace) setEpoch(e checkpoint.Epoch) error {
	return w.store.Update(func(tx *checkpoint.Tx) error { return tx.PutNumber(metaEpoch, uint64(e)) })
}

// directNodes gives the files that may be written to past the daemon and that a state of the tree holds.
func (t *Tree) directNodes() []*Node {
	t.openMu.Lock()
	var nodes []*Node
	for n := range t.openFiles {
		if n.direct > 0 {
			nodes = append(nodes, n)
		}
	}
	t.openMu.Unlock()
	return slices.DeleteFunc(nodes, t.isNameless)
}

// isNameless reports whether no state of the tree holds the inode.
func (t *Tree) isNameless(n *Node) bool {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	return n.dead || n.parent == nil && !n.trashed
}

// saveDirect makes the content of the files safe. The caller holds t.mu alone.
func (t *Tree) saveDirect(nodes []*Node) error {
	for _, n := range nodes {
		if err := t.protectContent(n); err != nil && !t.isNameless(n) { // it may just have been freed from the trash
			return err
		}
	}
	return nil
}

// flushMapped has dirty pages of shared mappings written back, so that a snapshot holds them. The caller holds no lock of
// the tree.
func (t *Tree) flushMapped() {
	if t.notifier == nil {
		return
	}
	t.openMu.Lock()
	nodes := slices.Collect(maps.Keys(t.openFiles))
	t.openMu.Unlock()
	for _, n := range nodes {
		t.notifier.FlushInode(n)
	}
	FlushUnseen(t.notifier)
}

// readSmall reads the beginning of a file of the workspace.
func (w *Workspace) readSmall(path string) string {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(w.tree.rootFd, path, &how)
	if err != nil {
		return ""
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	buf := make([]byte, 64<<10)
	n, _ := f.ReadAt(buf, 0)
	return strings.TrimSpace(string(buf[:n]))
}
