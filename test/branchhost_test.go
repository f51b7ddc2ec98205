package test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"github.com/hyperfs/hyperfs/overlay/merge"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
)

// branchHost is a workspace with branches, however it is reached. A line is main, "", or a branch.
type branchHost interface {
	Enter(line string) (lineTree, error)
	// View gives what a line was at a checkpoint.
	View(id string) (treestate.State, error)
	// Explain gives the changes between two checkpoints of a line, and proves that they lead from one to the other.
	Explain(from, to string) ([]overlay.Change, error)
	Snapshot(line string) (id string, err error)
	// Rollback goes to where a rollback goes that names nothing if id is "". It gives the ID of the undo checkpoint.
	Rollback(line, id string, discard bool) (undo string, err error)
	Undo(line string) (undo string, err error)
	// Active gives the IDs of the active checkpoints of all lines.
	Active() ([]string, error)
	// Branches gives the names of the active branches.
	Branches() ([]string, error)
	Drop(id string) error
	Promote(id string) error
	Fork(name, from string) error
	Merge(name string, o overlay.MergeOptions) (overlay.MergeResult, error)
	DropBranch(name string) error
	GC() error
	Check() error
	// Restart ends what serves the workspace and starts it again. No line is entered.
	Restart() error
	Close() error
}

// lineTree is the live tree of a line.
type lineTree interface {
	Apply(o ops.Op) error
	CloseHandles() error
	Capture() (treestate.State, error)
	// Copy makes dir, which must not exist, like the tree.
	Copy(dir string) error
	Leave() error
}

// directHost is a workspace with branches without FUSE.
type directHost struct {
	dir   string
	o     treeOptions
	ws    *branch.Workspace
	trees notifyAll
}

func newDirectHost(dir string, o treeOptions) (*directHost, error) {
	h := &directHost{dir: dir, o: o}
	return h, h.open()
}

// open opens the workspace. A child that another test is just starting has a copy of every descriptor for a moment, also of the one that the store's lock is
// held by.
func (h *directHost) open() error {
	w, err := branch.Open(h.o.config(h.dir))
	for wait := time.Millisecond; errs.CodeOf(err) == errs.Busy && wait < 4*time.Second; wait *= 2 {
		time.Sleep(wait)
		w, err = branch.Open(h.o.config(h.dir))
	}
	if err != nil {
		return err
	}
	h.ws = w
	h.ws.Tree().SetNotifier(&h.trees)
	h.ws.Manager().SetNotifier(&h.trees)
	return nil
}

func (h *directHost) Enter(line string) (lineTree, error) {
	if line == "" {
		return h.enter(h.ws.Tree().Volume(), h.dir, func() {}), nil
	}
	vol, err := h.ws.Manager().Volume(line)
	if err != nil {
		return nil, err
	}
	return h.enter(vol, "", vol.Close), nil
}

func (h *directHost) enter(vol overlay.Volume, lower string, done func()) *directTree {
	fs := treefs.NewVolume(vol, h.o.Options)
	h.trees.add(fs)
	return &directTree{fs: fs, Executor: ops.NewExecutor(fs), lower: lower, done: func() { h.trees.remove(fs); done() }}
}

func (h *directHost) View(id string) (treestate.State, error) {
	vol, err := h.ws.Manager().At(id)
	if err != nil {
		return nil, err
	}
	t := h.enter(vol, "", vol.Close)
	s, err := t.Capture()
	return s, errors.Join(err, t.Leave())
}

func (h *directHost) Explain(from, to string) ([]overlay.Change, error) {
	ctx := context.Background()
	a, err := h.ws.Manager().At(from)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := h.ws.Manager().At(to)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	d, err := h.ws.Diff(ctx, from, to, true)
	if err != nil {
		return nil, err
	}
	p, err := merge.Make(ctx, merge.Input{Base: a, Ours: merge.Side{Volume: b, Changes: d.Changes}, Theirs: merge.Side{Volume: a}})
	if err != nil {
		return nil, fmt.Errorf("%w: %v", err, d.Changes)
	}
	defer p.Close()
	if len(p.Ops)+len(p.Conflicts) > 0 {
		return nil, fmt.Errorf("a merge of nothing does something: %v %v", p.Ops, p.Conflicts)
	}
	return d.Changes, nil
}

func (h *directHost) Snapshot(line string) (string, error) {
	c, err := h.ws.Snapshot(context.Background(), overlay.SnapshotOptions{Branch: line})
	return c.ID, err
}

func (h *directHost) Rollback(line, id string, discard bool) (string, error) {
	r, err := h.ws.Rollback(context.Background(), id, overlay.RollbackOptions{Branch: line, Discard: discard})
	return r.Undo, err
}

func (h *directHost) Undo(line string) (string, error) {
	in, err := h.ws.In(line)
	if err != nil {
		return "", err
	}
	r, err := in.Undo(context.Background())
	return r.Undo, err
}

func (h *directHost) Active() ([]string, error) {
	list, err := h.ws.List(overlay.ListOptions{})
	return idsOf(list), err
}

func (h *directHost) Branches() (names []string, err error) {
	list, err := h.ws.Branches(false)
	for _, b := range list {
		names = append(names, b.Name)
	}
	return names, err
}

func (h *directHost) Drop(id string) error { return h.ws.Drop(context.Background(), id) }

func (h *directHost) Promote(id string) error {
	_, err := h.ws.Promote(context.Background(), id, nil)
	return err
}

func (h *directHost) Fork(name, from string) error {
	_, err := h.ws.Fork(context.Background(), overlay.ForkOptions{Name: name, From: from})
	return err
}

func (h *directHost) Merge(name string, o overlay.MergeOptions) (overlay.MergeResult, error) {
	return h.ws.Merge(context.Background(), name, o)
}

func (h *directHost) DropBranch(name string) error {
	return h.ws.DropBranch(context.Background(), name)
}

func (h *directHost) GC() error {
	_, err := h.ws.GC(context.Background())
	return err
}

func (h *directHost) Check() error {
	problems, err := h.ws.Fsck(context.Background(), true)
	return errors.Join(err, asError(problems))
}

func (h *directHost) Restart() error {
	if err := h.ws.Close(); err != nil {
		return err
	}
	return h.open()
}

func (h *directHost) Close() error { return h.ws.Close() }

// directTree is a line without FUSE.
type directTree struct {
	fs *treefs.FS
	*ops.Executor
	lower string // of main: the directory that must always equal it
	done  func()
}

func (t *directTree) Capture() (treestate.State, error) {
	if t.lower != "" {
		return captureBoth(t.fs, t.lower)
	}
	return t.fs.Capture()
}

func (t *directTree) Copy(dir string) error {
	if t.lower != "" {
		t.fs.Flush()
		return treestate.Copy(t.lower, dir)
	}
	_, err := t.fs.Copy(dir)
	return err
}

func (t *directTree) Leave() error {
	err := t.CloseHandles()
	t.fs.Drop()
	t.done()
	return err
}

// mountHost is a workspace with branches as users have it: through the kernel and the client.
type mountHost struct{ main *mountSubject }

func newMountHost(dir string, o mountOptions) (*mountHost, error) {
	main, err := newMountSubject(dir, o)
	return &mountHost{main}, err
}

func (h *mountHost) client() *control.Client { return h.main.client }

func (h *mountHost) shelf(kind, name string) string {
	return filepath.Join(h.main.dir, overlay.StoreName, kind, name)
}

func (h *mountHost) Enter(line string) (lineTree, error) {
	dir := h.main.dir
	if line != "" {
		dir = h.shelf(branch.KindBranches, line)
	}
	hands, err := newHands(dir)
	return &mountTree{hands, dir}, err
}

func (h *mountHost) View(id string) (treestate.State, error) {
	return treestate.Capture(h.shelf(branch.KindCheckpoints, id), treestate.Options{})
}

func (h *mountHost) Explain(from, to string) ([]overlay.Change, error) {
	d, err := h.client().Diff(context.Background(), control.Between{From: from, To: to}, true)
	return d.Changes, err
}

func (h *mountHost) Snapshot(line string) (string, error) {
	c, err := h.client().Snapshot(context.Background(), overlay.SnapshotOptions{Branch: line})
	return c.ID, err
}

func (h *mountHost) Rollback(line, id string, discard bool) (string, error) {
	if id == "" { // the client names what it goes to
		var err error
		if id, err = h.defaultOf(line); err != nil {
			return "", err
		}
	}
	r, err := h.client().Rollback(context.Background(), id, overlay.RollbackOptions{Branch: line, Discard: discard})
	return r.Undo, err
}

// defaultOf gives the checkpoint that a diff of a line begins at, as the command line does.
func (h *mountHost) defaultOf(line string) (string, error) {
	d, err := h.client().Diff(context.Background(), control.Between{Branch: line}, false)
	return d.From, err
}

func (h *mountHost) Undo(line string) (string, error) {
	r, err := h.client().Undo(context.Background(), line)
	return r.Undo, err
}

func (h *mountHost) Active() ([]string, error) { return h.main.Active() }

func (h *mountHost) Branches() (names []string, err error) {
	list, err := h.client().Branches(context.Background(), false)
	for _, b := range list {
		names = append(names, b.Name)
	}
	return names, err
}

func (h *mountHost) Drop(id string) error    { return h.main.Drop(id) }
func (h *mountHost) Promote(id string) error { return h.main.Promote(id) }

func (h *mountHost) Fork(name, from string) error {
	_, err := h.client().Fork(context.Background(), overlay.ForkOptions{Name: name, From: from})
	return err
}

func (h *mountHost) Merge(name string, o overlay.MergeOptions) (overlay.MergeResult, error) {
	return h.client().Merge(context.Background(), name, o)
}

func (h *mountHost) DropBranch(name string) error {
	return h.client().DropBranch(context.Background(), name)
}

func (h *mountHost) GC() error      { return h.main.GC() }
func (h *mountHost) Check() error   { return h.main.Check(true) }
func (h *mountHost) Restart() error { return h.main.Restart() }
func (h *mountHost) Close() error   { return h.main.Close() }

// mountTree is a line as a directory of the mount.
type mountTree struct {
	*hands
	dir string
}

func (t *mountTree) Capture() (treestate.State, error) {
	return treestate.Capture(t.dir, treestate.Options{})
}

func (t *mountTree) Copy(dir string) error { return treestate.Copy(t.dir, dir) }

func (t *mountTree) Leave() error { return t.Close() }

// notifyAll tells all trees. An inode is of one of them only, so that it says nothing to the others.
type notifyAll struct {
	mu    sync.Mutex
	trees map[*treefs.FS]bool
}

func (a *notifyAll) add(fs *treefs.FS) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.trees == nil {
		a.trees = map[*treefs.FS]bool{}
	}
	a.trees[fs] = true
}

func (a *notifyAll) remove(fs *treefs.FS) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.trees, fs)
}

// each calls fn without the lock, as a flush is a write to the tree.
func (a *notifyAll) each(fn func(*treefs.FS)) {
	a.mu.Lock()
	all := slices.Collect(maps.Keys(a.trees))
	a.mu.Unlock()
	for _, fs := range all {
		fn(fs)
	}
}

// InvalEntry implements overlay.Notifier.
func (a *notifyAll) InvalEntry(dir overlay.Inode, name string) {
	a.each(func(fs *treefs.FS) { fs.InvalEntry(dir, name) })
}

// InvalInode implements overlay.Notifier.
func (a *notifyAll) InvalInode(overlay.Inode) {}

// FlushInode implements overlay.Notifier.
func (a *notifyAll) FlushInode(n overlay.Inode) {
	a.each(func(fs *treefs.FS) { fs.FlushInode(n) })
}
