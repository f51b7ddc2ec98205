//go:build linux

package branch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// Workspace is a workspace that can be forked: main, and its branches. What is given the ID of a checkpoint works with those of branches as with main's.
// Its methods may be called concurrently.
type Workspace struct {
	*overlay.Workspace // main
	branches           *Manager
	dir                *os.File
	noJournals         bool // see overlay.Config

	merging sync.Mutex // one merge at a time; before all other locks

	mu      sync.Mutex
	changed func(kind, name string) // guarded by mu; see SetChanged; nil is nobody
}

// Open opens a workspace and its branches. The errors are those of overlay.Open, and INTEGRITY where what the store says of branches makes no sense.
func Open(cfg overlay.Config) (*Workspace, error) {
	w, err := overlay.Open(cfg)
	if err != nil {
		return nil, err
	}
	f := &Workspace{Workspace: w, noJournals: cfg.NoJournals}
	if err := f.open(cfg); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Workspace) open(cfg overlay.Config) (err error) {
	w := f.Workspace
	if f.dir, err = w.StoreDir("branches"); err != nil {
		return err
	}
	f.branches, err = New(Config{
		Store: w.Store(), Dir: f.dir,
		State: w.OpenState, Ignored: w.IgnoredSince, Checkpoint: w.Find, Pin: f.pin, Unpinned: f.unpin,
		NewNum: w.Tree().NewNum, Reserve: w.Reserve, Session: w.Session(), Log: cfg.Logger, Sync: cfg.Sync,
	})
	if err != nil {
		return err
	}
	return f.unpin(f.branches.PinnedEpochs())
}

// pinOwner owns the pins of all branches: one for each epoch that layers lie over.
const pinOwner = "branches"

func (f *Workspace) pin(id string, fn func(*checkpoint.Tx, checkpoint.Checkpoint) error) error {
	return f.Workspace.Pin(id, pinOwner, fn)
}

// unpin gives the pins up that no layer needs any more. The Manager calls it too, while it is being opened.
func (f *Workspace) unpin(needed []checkpoint.Epoch) (err error) {
	for _, p := range f.Pins() {
		if p.Owner == pinOwner && !slices.Contains(needed, p.Epoch) {
			err = errors.Join(err, f.Unpin(p, func(*checkpoint.Tx) error { return nil }))
		}
	}
	return err
}

// Close ends all work. It is idempotent.
func (f *Workspace) Close() error {
	var err error
	if f.branches != nil {
		err = f.branches.Close()
	}
	err = errors.Join(err, f.Workspace.Close())
	if f.dir != nil {
		_ = f.dir.Close() // which nobody has written to
	}
	return err
}

// Manager gives the branches as such.
func (f *Workspace) Manager() *Manager { return f.branches }

// Kinds of names that SetChanged tells of.
const (
	KindBranches    = "branches"
	KindCheckpoints = "checkpoints"
)

// SetChanged sets who is told of names on the shelf that have come or gone, or mean another tree than before. It is called without any lock.
func (f *Workspace) SetChanged(fn func(kind, name string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = fn
}

// tell tells of names; empty ones are left out.
func (f *Workspace) tell(kind string, names ...string) {
	f.mu.Lock()
	fn := f.changed
	f.mu.Unlock()
	if fn == nil {
		return
	}
	for _, name := range names {
		if name != "" {
			fn(kind, name)
		}
	}
}

// Fork makes a branch. Where what is forked has no checkpoint, one is made.
func (f *Workspace) Fork(ctx context.Context, o overlay.ForkOptions) (checkpoint.Branch, error) {
	if o.From == "" && o.Branch != "" && o.Branch != Main {
		var err error
		if o.From, err = f.newestOf(ctx, o); err != nil {
			return checkpoint.Branch{}, err
		}
	}
	b, err := f.fork(ctx, o)
	if errs.CodeOf(err) == errs.NotFound && o.From == "" {
		if _, err := f.Workspace.Snapshot(ctx, overlay.SnapshotOptions{CreatedBy: "fork", Message: beforeFork(o.Name)}); err != nil {
			return b, err
		}
		b, err = f.fork(ctx, o)
	}
	if err != nil {
		return b, err
	}
	f.tell(KindBranches, b.Name)
	f.Announce(overlay.Event{Type: "fork", Checkpoint: b.ForkPoint, Data: b})
	return b, nil
}

// newestOf gives the checkpoint that the state of a branch comes from, and makes one where that is no checkpoint of its own.
func (f *Workspace) newestOf(ctx context.Context, o overlay.ForkOptions) (string, error) {
	if id := f.branches.newestID(o.Branch); id != "" {
		return id, nil
	}
	h, err := f.In(o.Branch)
	if err != nil {
		return "", err
	}
	c, err := h.Snapshot(ctx, overlay.SnapshotOptions{CreatedBy: "fork", Message: beforeFork(o.Name)})
	return c.ID, err
}

// beforeFork is the message of a checkpoint that is made to be forked.
func beforeFork(name string) string { return "before the fork of " + name }

func (f *Workspace) fork(ctx context.Context, o overlay.ForkOptions) (checkpoint.Branch, error) {
	return f.branches.Fork(ctx, o.Name, o.From, ForkOptions{Subagent: o.Subagent, Agent: o.Agent, Message: o.Message})
}

// Branches lists the branches, in the order in which they were made.
func (f *Workspace) Branches(all bool) ([]checkpoint.Branch, error) {
	return f.branches.Branches(Filter{IncludeInactive: all}), nil
}

// Branch gives one branch.
func (f *Workspace) Branch(name string) (checkpoint.Branch, error) { return f.branches.Get(name) }

// DropBranch discards a branch. BUSY says that others were forked from it.
func (f *Workspace) DropBranch(ctx context.Context, name string) error {
	if err := f.branches.Drop(ctx, name); err != nil {
		return err
	}
	f.ended("drop-branch", name)
	return nil
}

// ended tells everybody that a branch is no more.
func (f *Workspace) ended(event, name string) {
	f.tell(KindBranches, name)
	b, err := f.branches.Get(name)
	if err == nil {
		f.Announce(overlay.Event{Type: event, Checkpoint: b.ForkPoint, Data: b})
	}
}

// of gives the branch that a checkpoint is of, "" for main.
func (f *Workspace) of(ids ...string) string {
	for _, id := range ids {
		if c, err := f.branches.Checkpoint(id); err == nil {
			return c.Branch
		}
	}
	return ""
}

// In gives the history of one branch, also of main.
func (f *Workspace) In(name string) (overlay.History, error) {
	if name == "" || name == Main {
		return f, nil
	}
	if b, err := f.branches.Get(name); err != nil {
		return nil, err
	} else if b.Status != checkpoint.BranchActive {
		return nil, errs.New(errs.Disposed, "find branch", name, "it was %s", b.Status)
	}
	return history{f, name}, nil
}

// spoolDir is where merged texts are kept while a merge is made.
func (f *Workspace) spoolDir() string { return fmt.Sprintf("/proc/self/fd/%d", f.dir.Fd()) }

// Snapshot makes a checkpoint of the branch that o names, and of main if there is no such branch: then that is a tag.
func (f *Workspace) Snapshot(ctx context.Context, o overlay.SnapshotOptions) (checkpoint.Checkpoint, error) {
	if f.branches.isActive(o.Branch) {
		return history{f, o.Branch}.Snapshot(ctx, o)
	}
	if o.ID != "" && f.branches.knows(o.ID) {
		return checkpoint.Checkpoint{}, errs.New(errs.Usage, "snapshot", o.ID, "a checkpoint has this ID already")
	}
	c, err := f.Workspace.Snapshot(ctx, o)
	if err == nil {
		f.tell(KindCheckpoints, c.ID)
	}
	return c, err
}

// rolledBack tells of what a rollback of main has changed: its target's state is the live one now, and the undo checkpoint before has served.
func (f *Workspace) rolledBack(undo string, r overlay.RollbackResult, err error) (overlay.RollbackResult, error) {
	if err == nil {
		f.tell(KindCheckpoints, r.Checkpoint, r.Undo, undo)
	}
	return r, err
}

// Undo takes the last rollback of main back.
func (f *Workspace) Undo(ctx context.Context) (overlay.RollbackResult, error) {
	undo := f.Workspace.Status().Undo
	r, err := f.Workspace.Undo(ctx)
	return f.rolledBack(undo, r, err)
}

// Rollback makes main, or the branch that the checkpoint is of, what it was.
func (f *Workspace) Rollback(ctx context.Context, id string, o overlay.RollbackOptions) (overlay.RollbackResult, error) {
	name := f.of(id)
	if o.Branch != "" {
		name = o.Branch
	}
	h, err := f.In(name)
	if err != nil {
		return overlay.RollbackResult{}, err
	}
	if h != overlay.History(f) {
		return h.Rollback(ctx, id, o)
	}
	undo := f.Workspace.Status().Undo
	r, err := f.Workspace.Rollback(ctx, id, o)
	return f.rolledBack(undo, r, err)
}

// List gives the checkpoints of main and of all branches that the options let through, in the order in which they were made.
func (f *Workspace) List(o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	list, err := f.Workspace.List(o)
	if err != nil {
		return nil, err
	}
	return merged(list, f.branches.ListAll(o)), nil
}

// merged gives both lists, oldest first.
func merged(a, b []checkpoint.Checkpoint) []checkpoint.Checkpoint {
	list := append(slices.Clip(a), b...)
	slices.SortStableFunc(list, func(a, b checkpoint.Checkpoint) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return list
}

// Get gives one checkpoint, of main or of a branch.
func (f *Workspace) Get(id string) (checkpoint.Checkpoint, error) {
	if c, err := f.branches.Checkpoint(id); err == nil {
		return c, nil
	}
	return f.Workspace.Get(id)
}

// Find is Get without what has to be found out.
func (f *Workspace) Find(id string) (checkpoint.Checkpoint, error) {
	if c, err := f.branches.Checkpoint(id); err == nil {
		return c, nil
	}
	return f.Workspace.Find(id)
}

// Lineage gives the checkpoint and its ancestors, oldest first; those of a branch go on with what it was forked from.
func (f *Workspace) Lineage(id string) ([]checkpoint.Checkpoint, error) {
	var line []checkpoint.Checkpoint
	for {
		c, err := f.branches.Checkpoint(id)
		if err != nil {
			break
		}
		line = append(line, c)
		id = c.Parent
	}
	slices.Reverse(line)
	if len(line) > 0 && id == "" {
		return line, nil
	}
	main, err := f.Workspace.Lineage(id)
	if err != nil && len(line) > 0 { // as far back as there are records
		return line, nil
	}
	return append(main, line...), err
}

// Children gives the checkpoints whose parent it is, also those of branches that were forked from it.
func (f *Workspace) Children(id string, all bool) ([]checkpoint.Checkpoint, error) {
	if _, err := f.Get(id); err != nil {
		return nil, err
	}
	list := []checkpoint.Checkpoint{}
	if f.of(id) == "" {
		var err error
		if list, err = f.Workspace.Children(id, all); err != nil {
			return nil, err
		}
	}
	for _, c := range f.branches.ListAll(overlay.ListOptions{IncludeInactive: all}) {
		if c.Parent == id {
			list = append(list, c)
		}
	}
	return merged(list, nil), nil
}

// Diff gives what differs between two states of main, or of the branch that one of the checkpoints is of.
func (f *Workspace) Diff(ctx context.Context, from, to string, expand bool) (overlay.Diff, error) {
	if name := f.of(from, to); name != "" {
		return history{f, name}.Diff(ctx, from, to, expand)
	}
	return f.Workspace.Diff(ctx, from, to, expand)
}

// Patch writes it as a patch.
func (f *Workspace) Patch(ctx context.Context, from, to string, out io.Writer) error {
	if name := f.of(from, to); name != "" {
		return history{f, name}.Patch(ctx, from, to, out)
	}
	return f.Workspace.Patch(ctx, from, to, out)
}

// Reconcile gives what changed since a checkpoint.
func (f *Workspace) Reconcile(ctx context.Context, id string) (overlay.ReconcileResult, error) {
	if name := f.of(id); name != "" {
		return history{f, name}.Reconcile(ctx, id)
	}
	return f.Workspace.Reconcile(ctx, id)
}

// Promote accepts the live state.
func (f *Workspace) Promote(ctx context.Context, id string, patch io.Writer) (checkpoint.Checkpoint, error) {
	if name := f.of(id); name != "" {
		return history{f, name}.Promote(ctx, id, patch)
	}
	c, err := f.Workspace.Promote(ctx, id, patch)
	f.tell(KindCheckpoints, id)
	return c, err
}

// Drop forgets a checkpoint.
func (f *Workspace) Drop(ctx context.Context, id string) error {
	if name := f.of(id); name != "" {
		return history{f, name}.Drop(ctx, id)
	}
	err := f.Workspace.Drop(ctx, id)
	f.tell(KindCheckpoints, id)
	return err
}

// Unchanged reports whether it is known that nothing has changed since a checkpoint: in main, or in the branch that it is of.
func (f *Workspace) Unchanged(id string) bool {
	if name := f.of(id); name != "" {
		return history{f, name}.Unchanged(id)
	}
	return f.Workspace.Unchanged(id)
}

// GC frees what nothing refers to.
func (f *Workspace) GC(ctx context.Context) (overlay.GCResult, error) {
	b, err := f.branches.GC(ctx)
	if err != nil {
		return b, err
	}
	res, err := f.Workspace.GC(ctx) // after that of branches, which may give pins up
	res.Records += b.Records
	res.Backups += b.Backups
	res.Trash += b.Trash
	res.Checkpoints += b.Checkpoints
	res.Bytes += b.Bytes
	return res, err
}

// Fsck lists the invariants that do not hold.
func (f *Workspace) Fsck(ctx context.Context, deep bool) ([]overlay.Problem, error) {
	list, err := f.Workspace.Fsck(ctx, deep)
	if err != nil {
		return nil, err
	}
	more, err := f.branches.Fsck(ctx)
	return append(list, more...), err
}

// Status gives one screen of state.
func (f *Workspace) Status() overlay.Status {
	s := f.Workspace.Status()
	s.Branches = len(f.branches.Branches(Filter{}))
	return s
}

// Diagnostics gives everything that the workspace knows about itself.
func (f *Workspace) Diagnostics() overlay.Diagnostics {
	d := f.Workspace.Diagnostics()
	d.Branches = len(f.branches.Branches(Filter{}))
	d.Active = merged(d.Active, f.branches.ListAll(overlay.ListOptions{}))
	return d
}

// history is the checkpoints of one branch.
type history struct {
	f    *Workspace
	name string
}

func (h history) send(typ, id string, data any) {
	h.f.tell(KindCheckpoints, id)
	h.f.Announce(overlay.Event{Type: typ, Checkpoint: id, Data: data})
}

func (h history) Snapshot(ctx context.Context, o overlay.SnapshotOptions) (checkpoint.Checkpoint, error) {
	o.Branch = ""
	if _, err := h.f.Workspace.Find(cmp.Or(o.ID, "none")); err == nil {
		return checkpoint.Checkpoint{}, errs.New(errs.Usage, "snapshot", o.ID, "a checkpoint has this ID already")
	}
	c, err := h.f.branches.Snapshot(ctx, h.name, o)
	if err == nil {
		h.send("snapshot", c.ID, c)
	}
	return c, err
}

func (h history) Rollback(ctx context.Context, id string, o overlay.RollbackOptions) (overlay.RollbackResult, error) {
	r, err := h.f.branches.Rollback(ctx, h.name, id, o)
	r.Branch = h.name
	if err == nil {
		h.f.tell(KindCheckpoints, r.Undo)
		h.send("rollback", r.Checkpoint, r)
	}
	return r, err
}

func (h history) Undo(ctx context.Context) (overlay.RollbackResult, error) {
	r, err := h.f.branches.Undo(ctx, h.name)
	r.Branch = h.name
	if err == nil {
		h.f.tell(KindCheckpoints, r.Undo)
		h.send("undo", r.Checkpoint, r)
	}
	return r, err
}

func (h history) List(o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	return h.f.branches.List(h.name, o)
}

func (h history) Get(id string) (checkpoint.Checkpoint, error) { return h.f.Get(id) }

func (h history) Lineage(id string) ([]checkpoint.Checkpoint, error) { return h.f.Lineage(id) }

func (h history) Children(id string, all bool) ([]checkpoint.Checkpoint, error) {
	return h.f.Children(id, all)
}

func (h history) Diff(ctx context.Context, from, to string, expand bool) (overlay.Diff, error) {
	return h.f.branches.Diff(ctx, h.name, from, to, expand)
}

func (h history) Patch(ctx context.Context, from, to string, out io.Writer) error {
	return h.f.branches.Patch(ctx, h.name, from, to, out)
}

func (h history) Reconcile(ctx context.Context, id string) (overlay.ReconcileResult, error) {
	d, err := h.Diff(ctx, id, "", false)
	return d.Reconcile(), err
}

func (h history) Promote(ctx context.Context, id string, patch io.Writer) (checkpoint.Checkpoint, error) {
	c, err := h.f.branches.Promote(ctx, id, patch)
	if err == nil {
		h.send("promote", id, c)
	}
	return c, err
}

func (h history) Drop(ctx context.Context, id string) error {
	err := h.f.branches.DropCheckpoint(ctx, id)
	if err == nil {
		h.send("drop", id, nil)
	}
	return err
}

func (h history) Unchanged(id string) bool { return h.f.branches.Unchanged(h.name, id) }
