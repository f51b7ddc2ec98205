package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"github.com/hyperfs/hyperfs/test/dirstate"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
	"github.com/oklog/ulid/v2"
)

// mainEpoch is that of the only checkpoint of main that there is in tests of branches.
const mainEpoch = 7

// forest is the branches of a directory that nobody changes, which stands for main's past.
type forest struct {
	main     *dirstate.Dir
	storeDir string
	store    *checkpoint.Store
	m        *branch.Manager
	nums     atomic.Uint64
	subjects map[string]*branchSubject // by name
}

func newForest(main, storeDir string) (*forest, error) {
	f := &forest{storeDir: storeDir, subjects: map[string]*branchSubject{}}
	var err error
	if f.main, err = dirstate.Open(main); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(storeDir, "branches"), 0o700); err != nil {
		return nil, err
	}
	return f, f.open()
}

func (f *forest) open() error {
	var err error
	if f.store, err = checkpoint.Open(f.storeDir, checkpoint.Options{}); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Join(f.storeDir, "branches"))
	if err != nil {
		return err
	}
	defer dir.Close()
	only := checkpoint.Checkpoint{ID: "ckpt_main", Epoch: mainEpoch, Status: checkpoint.Active}
	f.m, err = branch.New(branch.Config{
		Store: f.store, Dir: dir, State: f.main.State,
		Checkpoint: func(string) (checkpoint.Checkpoint, error) { return only, nil },
		Pin: func(_ string, fn func(*checkpoint.Tx, checkpoint.Checkpoint) error) error {
			return f.store.Update(func(tx *checkpoint.Tx) error { return fn(tx, only) })
		},
		NewNum:  func() uint64 { return f.nums.Add(1) },
		Reserve: func() string { return "ckpt_" + ulid.Make().String() },
		Idle:    20 * time.Millisecond,
	})
	if err == nil {
		f.m.SetNotifier(f)
	}
	return err
}

// InvalEntry implements overlay.Notifier. An inode's number says which volume it is of only to the one that made it, so all are told.
func (f *forest) InvalEntry(dir overlay.Inode, name string) {
	for _, s := range f.subjects {
		s.fs.InvalEntry(dir, name)
	}
}

// InvalInode implements overlay.Notifier.
func (f *forest) InvalInode(overlay.Inode) {}

// FlushInode implements overlay.Notifier.
func (f *forest) FlushInode(n overlay.Inode) {
	for _, s := range f.subjects {
		s.fs.FlushInode(n)
	}
}

func (f *forest) close() error {
	for _, s := range f.subjects {
		s.leave()
	}
	err := errors.Join(f.m.Close(), f.store.Close())
	if n := f.main.Users(); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d users of main's state are left", n))
	}
	return err
}

// restart closes everything and opens it again.
func (f *forest) restart() error {
	if err := f.close(); err != nil {
		return err
	}
	if err := f.open(); err != nil {
		return err
	}
	for _, s := range f.subjects {
		if err := s.enter(); err != nil {
			return err
		}
	}
	return nil
}

// check has the store checked.
func (f *forest) check() error {
	problems, err := f.m.Fsck(context.Background())
	return errors.Join(err, asError(problems))
}

// fork makes a branch of a checkpoint, "" being main's, and a subject of the branch.
func (f *forest) fork(name, from string, o treefs.Options) (*branchSubject, error) {
	if _, err := f.m.Fork(context.Background(), name, from, branch.ForkOptions{}); err != nil {
		return nil, err
	}
	s := &branchSubject{f: f, name: name, o: o}
	return s, s.enter()
}

// branchSubject is a branch without FUSE.
type branchSubject struct {
	f    *forest
	name string
	o    treefs.Options
	vol  *branch.Volume
	fs   *treefs.FS
	*ops.Executor
	last bool // the forest ends with it
}

func (s *branchSubject) enter() error {
	var err error
	if s.vol, err = s.f.m.Volume(s.name); err != nil {
		return err
	}
	s.fs = treefs.NewVolume(s.vol, s.o)
	s.Executor = ops.NewExecutor(s.fs)
	s.f.subjects[s.name] = s
	return nil
}

func (s *branchSubject) leave() {
	s.fs.Drop()
	s.vol.Close()
}

// Capture compares what the branch tells with what a diff to the fork point tells of it.
func (s *branchSubject) Capture() (treestate.State, error) { return s.fs.Capture() }

func (s *branchSubject) Snapshot() (string, error) {
	c, err := s.f.m.Snapshot(context.Background(), s.name, overlay.SnapshotOptions{})
	return c.ID, err
}

func (s *branchSubject) Rollback(id string, discard bool) (string, error) {
	r, err := s.f.m.Rollback(context.Background(), s.name, id, overlay.RollbackOptions{Discard: discard})
	return r.Undo, err
}

func (s *branchSubject) Undo() (string, error) {
	r, err := s.f.m.Undo(context.Background(), s.name)
	return r.Undo, err
}

func (s *branchSubject) Drop(id string) error {
	return s.f.m.DropCheckpoint(context.Background(), id)
}

func (s *branchSubject) Promote(id string) error {
	_, err := s.f.m.Promote(context.Background(), id, nil)
	return err
}

func (s *branchSubject) Explain(id string) ([]overlay.Change, error) {
	d, err := s.f.m.Diff(context.Background(), s.name, id, "", true)
	return d.Changes, errors.Join(err, s.f.m.Patch(context.Background(), s.name, id, "", io.Discard))
}

func (s *branchSubject) GC() error {
	_, err := s.f.m.GC(context.Background())
	return err
}

func (s *branchSubject) Active() ([]string, error) {
	list, err := s.f.m.List(s.name, overlay.ListOptions{})
	return idsOf(list), err
}

func (s *branchSubject) Check(bool) error { return s.f.check() }

func (s *branchSubject) Restart() error { return s.f.restart() }

func (s *branchSubject) Close() error {
	err := s.CloseHandles()
	if s.last {
		return errors.Join(err, s.f.close())
	}
	s.leave()
	delete(s.f.subjects, s.name)
	return err
}
