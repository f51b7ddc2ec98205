//go:build linux

package branch

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/githead"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"
)

const createdByRollback = "rollback" // of an undo checkpoint

// Snapshot makes a checkpoint of a branch: its live layer is sealed, and a new one is put on top. It costs the same whatever the branch has changed. Errors:
// NOT_FOUND, and DISPOSED for a parent that can't be one, USAGE for an ID that is malformed or in use.
func (m *Manager) Snapshot(ctx context.Context, name string, o overlay.SnapshotOptions) (checkpoint.Checkpoint, error) {
	fail := func(err error) (checkpoint.Checkpoint, error) {
		return checkpoint.Checkpoint{}, errs.Ensure("snapshot", name, err)
	}
	v, leave, err := m.enterBranch("snapshot", name)
	if err != nil {
		return fail(err)
	}
	defer leave()
	v.flushMapped()
	c, err := m.newCheckpoint(name, o)
	if err != nil {
		return fail(err)
	}
	c.GitHead = githead.Read(v.readSmall)
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := m.seal(v, &c, o.Commit); err != nil {
		return fail(err)
	}
	crash.Point("branch-sealed")
	return c.Checkpoint, nil
}

// enterBranch begins administration of an active branch that others share; leave ends it.
func (m *Manager) enterBranch(op, name string) (v *Volume, leave func(), err error) {
	leaveAll, err := m.enter(op, true)
	if err != nil {
		return nil, nil, err
	}
	if v, err = m.hold(op, m.live(op, name)); err != nil {
		leaveAll()
		return nil, nil, err
	}
	v.admin.Lock()
	return v, func() {
		v.admin.Unlock()
		m.giveBack(v)
		leaveAll()
	}, nil
}

// newCheckpoint fills in a checkpoint record of an active branch, all but its layer.
func (m *Manager) newCheckpoint(name string, o overlay.SnapshotOptions) (checkpoint.BranchCheckpoint, error) {
	var none checkpoint.BranchCheckpoint
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.active[name]
	if b == nil {
		return none, noBranch("snapshot", name)
	}
	if o.Branch != "" && o.Branch != name {
		return none, errs.New(errs.Usage, "snapshot", name, "the tag names another branch, %s", o.Branch)
	}
	if o.ID == "" {
		o.ID = m.cfg.Reserve()
	} else if _, err := ulid.ParseStrict(strings.TrimPrefix(o.ID, "ckpt_")); err != nil || !strings.HasPrefix(o.ID, "ckpt_") {
		return none, errs.New(errs.Usage, "snapshot", o.ID, "the ID is not ckpt_ and 26 characters of a ULID")
	} else if m.checkpoints[o.ID] != nil {
		return none, errs.New(errs.Usage, "snapshot", o.ID, "a checkpoint has this ID already")
	}
	if o.Parent == "" {
		o.Parent = cmp.Or(b.Head, b.ForkPoint)
	} else if p := m.checkpoints[o.Parent]; p == nil || p.BranchNum != b.Num {
		return none, errs.New(errs.NotFound, "snapshot", o.Parent, "there is no such parent in the branch")
	} else if p.Status != checkpoint.Active {
		return none, errs.New(errs.Disposed, "snapshot", o.Parent, "the parent is %s", p.Status)
	}
	now := time.Now()
	return checkpoint.BranchCheckpoint{BranchNum: b.Num, Checkpoint: checkpoint.Checkpoint{
		ID: o.ID, Parent: o.Parent, Branch: name, Subagent: cmp.Or(o.Subagent, b.Subagent), Agent: cmp.Or(o.Agent, b.Agent),
		CreatedBy: cmp.Or(o.CreatedBy, "snapshot"), CreatedAt: now, UpdatedAt: now, Message: o.Message,
		Status: checkpoint.Active, Session: m.cfg.Session, Epoch: b.Epoch,
	}}, nil
}

// seal makes the live layer the one of a checkpoint, and puts a new one on top; see switchTo for commit. The caller holds v.mu alone.
func (m *Manager) seal(v *Volume, c *checkpoint.BranchCheckpoint, commit func(*checkpoint.Tx) error) error {
	if v.gone {
		return noBranch("snapshot", c.Branch)
	}
	top, err := m.next()
	if err != nil {
		return err
	}
	c.Layer = v.layer
	return m.switchTo(v, checkpoint.Layer{Num: top, Parent: v.layer, Epoch: v.epoch}, c.ID, []*checkpoint.BranchCheckpoint{c}, commit)
}

// switchTo makes a new layer the live one of a branch, and commits checkpoints, new and changed, with it, and what commit writes, if that is not nil. The caller holds
// v.mu alone, and loads the state anew where the layer does not stand on the one before.
func (m *Manager) switchTo(v *Volume, l checkpoint.Layer, head string, cs []*checkpoint.BranchCheckpoint, commit func(*checkpoint.Tx) error) error {
	if m.cfg.Sync {
		if err := unix.Syncfs(m.pool.fd); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b := *m.branches[v.key.branch]
	b.Layer, b.Head, b.UpdatedAt = l.Num, head, time.Now()
	for _, c := range cs {
		if c.Seq == 0 {
			m.seq++
			c.Seq = m.seq
		}
	}
	err := m.store.Update(func(tx *checkpoint.Tx) error {
		if commit != nil {
			if err := commit(tx); err != nil {
				return err
			}
		}
		if err := tx.PutLayer(l); err != nil {
			return err
		}
		for _, c := range cs {
			if err := tx.PutBranchCheckpoint(*c); err != nil {
				return err
			}
		}
		return tx.PutBranch(b)
	})
	if err != nil {
		return err
	}
	for _, c := range cs {
		have := *c
		m.checkpoints[c.ID] = &have
	}
	*m.branches[b.Num] = b
	m.layers[l.Num] = l
	v.layer = l.Num
	return nil
}

// flushMapped has dirty pages of shared mappings written back, so that a snapshot holds them. The caller holds no lock but admin's.
func (v *Volume) flushMapped() {
	t := v.m.notify()
	if t == nil {
		return
	}
	v.nodesMu.Lock()
	open := make([]*node, 0, len(v.open))
	for n := range v.open {
		n.pins++
		open = append(open, n)
	}
	v.nodesMu.Unlock()
	for _, n := range open {
		t.FlushInode(n)
		v.unpin(n)
	}
	overlay.FlushUnseen(t)
}

// smallMax is how much of a file readSmall reads, in bytes.
const smallMax = 64 << 10

// readSmall reads the beginning of a file of the branch, "" where there is none.
func (v *Volume) readSmall(path string) string {
	if v.prepare() != nil {
		return ""
	}
	f, done, err := v.openPath(path)
	if err != nil {
		return ""
	}
	defer done()
	buf := make([]byte, smallMax)
	n, err := f.ReadAt(buf, 0)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(buf[:n]))
}

// openPath opens a file for reading. It follows no symlink.
func (v *Volume) openPath(path string) (f overlay.File, done func(), err error) {
	var dir overlay.Inode = v.root
	for name := range strings.SplitSeq(path, "/") {
		next, a, err := v.Lookup(dir, name)
		if dir != overlay.Inode(v.root) {
			v.Forget(dir, 1)
		}
		if err != nil {
			return nil, nil, err
		}
		if a.Mode&unix.S_IFMT == unix.S_IFLNK {
			v.Forget(next, 1)
			return nil, nil, unix.ELOOP
		}
		dir = next
	}
	f, err = v.Open(dir, unix.O_RDONLY, false, nil)
	if err != nil {
		v.Forget(dir, 1)
		return nil, nil, err
	}
	return f, func() { f.Release(); v.Forget(dir, 1) }, nil
}

// List gives the checkpoints of a branch, oldest first. Options.Branch means nothing.
func (m *Manager) List(name string, o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	b, err := m.Get(name)
	if err != nil {
		return nil, err
	}
	return m.listed(func(c *checkpoint.BranchCheckpoint) bool { return c.BranchNum == b.Num }, o), nil
}

// ListAll gives the checkpoints of all branches that the options let through, oldest first.
func (m *Manager) ListAll(o overlay.ListOptions) []checkpoint.Checkpoint {
	return m.listed(func(c *checkpoint.BranchCheckpoint) bool { return o.Branch == "" || c.Branch == o.Branch }, o)
}

// listed gives the checkpoints for which that is to be, and that the options let through but for their branch.
func (m *Manager) listed(is func(*checkpoint.BranchCheckpoint) bool, o overlay.ListOptions) []checkpoint.Checkpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := []checkpoint.Checkpoint{}
	for _, c := range m.checkpoints {
		if is(c) && (o.IncludeInactive || c.Status == checkpoint.Active) &&
			(o.Subagent == "" || c.Subagent == o.Subagent) && (o.Agent == "" || c.Agent == o.Agent) {
			list = append(list, recoverable(c.Checkpoint))
		}
	}
	slices.SortFunc(list, func(a, b checkpoint.Checkpoint) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

// recoverable fills in what a reboot would do to a checkpoint: the pool is on disk.
func recoverable(c checkpoint.Checkpoint) checkpoint.Checkpoint {
	if c.Status == checkpoint.Active {
		c.Recoverable = checkpoint.RecoverableAlways
	}
	return c
}

// Checkpoint gives a checkpoint of any branch, whatever its status. NOT_FOUND says that no branch has it; main may.
func (m *Manager) Checkpoint(id string) (checkpoint.Checkpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.checkpoints[id]
	if c == nil {
		return checkpoint.Checkpoint{}, noCheckpoint("find checkpoint", id)
	}
	return recoverable(c.Checkpoint), nil
}

// DropCheckpoint forgets an active checkpoint of a branch. Others, and branches that were forked from it, keep what they need.
func (m *Manager) DropCheckpoint(ctx context.Context, id string) error {
	_, err := m.endCheckpoint(ctx, "drop", id, checkpoint.Disposed)
	return err
}

// Promote accepts the live state of a branch: the checkpoint can't be rolled back to any more, its record stays. With a writer, what
// changed since is written to it as a patch first; if that fails, the checkpoint stays active.
func (m *Manager) Promote(ctx context.Context, id string, patch io.Writer) (checkpoint.Checkpoint, error) {
	if patch != nil {
		c, err := m.Checkpoint(id)
		if err != nil {
			return c, err
		}
		if err := m.Patch(ctx, c.Branch, id, "", patch); err != nil {
			return c, err
		}
	}
	return m.endCheckpoint(ctx, "promote", id, checkpoint.Promoted)
}

func (m *Manager) endCheckpoint(ctx context.Context, op, id string, status checkpoint.Status) (checkpoint.Checkpoint, error) {
	leave, err := m.enter(op, false)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer leave()
	defer m.store.Urgent()()
	if err := ctx.Err(); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.checkpoints[id]
	if c == nil {
		return checkpoint.Checkpoint{}, noCheckpoint(op, id)
	}
	if err := usable(op, &c.Checkpoint); err != nil {
		return c.Checkpoint, err
	}
	next := *c
	next.Status, next.UpdatedAt = status, time.Now()
	if err := m.store.Update(func(tx *checkpoint.Tx) error { return tx.PutBranchCheckpoint(next) }); err != nil {
		return c.Checkpoint, errs.Ensure(op, id, err)
	}
	*c = next
	m.collectSoon()
	return next.Checkpoint, nil
}
