package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
)

// subject is a workspace under test, however it is reached.
type subject interface {
	// Apply executes an operation on the tree. An error that is no errno is a defect.
	Apply(o ops.Op) error
	// CloseHandles closes what operations left open.
	CloseHandles() error
	// Capture gives the live tree as it is seen through the subject.
	Capture() (treestate.State, error)
	Snapshot() (id string, err error)
	// Rollback gives the ID of the undo checkpoint, "" if there is none.
	Rollback(id string, discard bool) (undo string, err error)
	Undo() (undo string, err error)
	Drop(id string) error
	Promote(id string) error
	// Explain gives what changed from a checkpoint to now, and has a patch of it made.
	Explain(id string) ([]overlay.Change, error)
	GC() error
	// Active gives the IDs of the active checkpoints, undo checkpoints among them.
	Active() ([]string, error)
	// Check has the store's invariants proven.
	Check(deep bool) error
	// Restart ends what serves the workspace and starts it again. No handle is open.
	Restart() error
	Close() error
}

// treeSubject is a workspace without FUSE: operations go straight to its overlay.Tree.
type treeSubject struct {
	dir string
	o   treeOptions
	ws  *overlay.Workspace
	fs  *treefs.FS
	*ops.Executor
}

// treeOptions of a treeSubject.
type treeOptions struct {
	treefs.Options
	Tier   string // with " hot" behind it, the hot buffer is in front
	Ignore []string
	Large  bool // files from lowLargeMin on are kept block by block
}

// What is large, and how large a block is, in tests of that: most files of random trees are smaller than what it is for users.
const (
	lowLargeMin  = 8 << 10
	lowBlockSize = 4 << 10
)

func (o treeOptions) config(dir string) overlay.Config {
	tier, hot := strings.CutSuffix(o.Tier, " hot")
	cfg := overlay.Config{Workspace: dir, Tier: tier, Hot: overlay.HotConfig{Off: !hot}, Ignore: o.Ignore}
	if o.Large {
		cfg.LargeMin, cfg.BlockSize = lowLargeMin, lowBlockSize
	}
	return cfg
}

func newTreeSubject(dir string, o treeOptions) (*treeSubject, error) {
	s := &treeSubject{dir: dir, o: o}
	return s, s.open()
}

func (s *treeSubject) open() error {
	ws, err := overlay.Open(s.o.config(s.dir))
	if err != nil {
		return err
	}
	s.ws = ws
	s.fs = treefs.New(ws.Tree(), s.o.Options)
	s.Executor = ops.NewExecutor(s.fs)
	return nil
}

// Capture compares what the tree tells with what is on the lower (invariant I1), and gives it.
func (s *treeSubject) Capture() (treestate.State, error) { return captureBoth(s.fs, s.dir) }

func captureBoth(fs *treefs.FS, dir string) (treestate.State, error) {
	through, err := fs.Capture()
	if err != nil {
		return nil, err
	}
	lower, err := treestate.Capture(dir, treestate.Options{Holes: true})
	if err != nil {
		return nil, err
	}
	if diff := treestate.Diff(lower, through); len(diff) > 0 {
		return nil, fmt.Errorf("the tree shows something else than the workspace holds:\n\t%s", strings.Join(diff, "\n\t"))
	}
	for p, e := range through { // the number of links on the lower counts names in the trash
		l := lower[p]
		l.Nlink = e.Nlink
		lower[p] = l
	}
	return lower, nil
}

func (s *treeSubject) Snapshot() (string, error) {
	c, err := s.ws.Snapshot(context.Background(), overlay.SnapshotOptions{})
	return c.ID, err
}

func (s *treeSubject) Rollback(id string, discard bool) (string, error) {
	r, err := s.ws.Rollback(context.Background(), id, overlay.RollbackOptions{Discard: discard})
	return r.Undo, err
}

func (s *treeSubject) Undo() (string, error) {
	r, err := s.ws.Undo(context.Background())
	return r.Undo, err
}

func (s *treeSubject) Drop(id string) error { return s.ws.Drop(context.Background(), id) }

func (s *treeSubject) Promote(id string) error {
	_, err := s.ws.Promote(context.Background(), id, nil)
	return err
}

func (s *treeSubject) Explain(id string) ([]overlay.Change, error) { return explainBy(s.ws, id) }

// explainer is what a workspace can tell of changes, however it keeps them.
type explainer interface {
	Diff(ctx context.Context, from, to string, expand bool) (overlay.Diff, error)
	Patch(ctx context.Context, from, to string, out io.Writer) error
}

func explainBy(ws explainer, id string) ([]overlay.Change, error) {
	d, err := ws.Diff(context.Background(), id, "", true)
	return d.Changes, errors.Join(err, ws.Patch(context.Background(), id, "", io.Discard))
}

func (s *treeSubject) GC() error {
	_, err := s.ws.GC(context.Background())
	return err
}

func (s *treeSubject) Active() ([]string, error) {
	list, err := s.ws.List(overlay.ListOptions{})
	return idsOf(list), err
}

func (s *treeSubject) Check(deep bool) error {
	problems, err := s.ws.Fsck(context.Background(), deep)
	return errors.Join(err, asError(problems))
}

func (s *treeSubject) Restart() error {
	s.fs.Drop()
	if err := s.ws.Close(); err != nil {
		return err
	}
	return s.open()
}

func (s *treeSubject) Close() error {
	err := s.CloseHandles()
	s.fs.Drop()
	return errors.Join(err, s.ws.Close())
}

// exists reports whether something has that name.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func idsOf(list []checkpoint.Checkpoint) []string {
	var ids []string
	for _, c := range list {
		ids = append(ids, c.ID)
	}
	return ids
}

// asError is nil where fsck has found nothing.
func asError(problems []overlay.Problem) error {
	var errs []error
	for _, p := range problems {
		errs = append(errs, fmt.Errorf("fsck: %s: %s", p.Where, p.What))
	}
	return errors.Join(errs...)
}
