package test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/scan"
	"github.com/hyperfs/hyperfs/test/ops"
)

// scanSubject is a workspace of the backend scan: operations go to the plain directory, past everything of ours.
type scanSubject struct {
	dir string
	ws  *scan.Workspace
	fs  *ops.DirFS
	*ops.Executor
}

func newScanSubject(dir string) (*scanSubject, error) {
	s := &scanSubject{dir: dir}
	return s, s.open()
}

func (s *scanSubject) open() (err error) {
	if s.ws, err = scan.Open(overlay.Config{Workspace: s.dir}); err != nil {
		return err
	}
	if s.fs, err = ops.OpenDirFS(s.dir); err == nil {
		s.Executor = ops.NewExecutor(s.fs)
	}
	return err
}

func (s *scanSubject) Capture() (treestate.State, error) {
	return treestate.Capture(s.dir, treestate.Options{Holes: true})
}

func (s *scanSubject) Snapshot() (string, error) {
	c, err := s.ws.Snapshot(context.Background(), overlay.SnapshotOptions{})
	return c.ID, err
}

func (s *scanSubject) Rollback(id string, discard bool) (string, error) {
	r, err := s.ws.Rollback(context.Background(), id, overlay.RollbackOptions{Discard: discard})
	return r.Undo, err
}

func (s *scanSubject) Undo() (string, error) {
	r, err := s.ws.Undo(context.Background())
	return r.Undo, err
}

func (s *scanSubject) Drop(id string) error { return s.ws.Drop(context.Background(), id) }

func (s *scanSubject) Promote(id string) error {
	_, err := s.ws.Promote(context.Background(), id, nil)
	return err
}

func (s *scanSubject) Explain(id string) ([]overlay.Change, error) { return explainBy(s.ws, id) }

func (s *scanSubject) GC() error {
	_, err := s.ws.GC(context.Background())
	return err
}

func (s *scanSubject) Active() ([]string, error) {
	list, err := s.ws.List(overlay.ListOptions{})
	return idsOf(list), err
}

func (s *scanSubject) Check(deep bool) error {
	problems, err := s.ws.Fsck(context.Background(), deep)
	return errors.Join(err, asError(problems))
}

func (s *scanSubject) Restart() error {
	if err := errors.Join(s.fs.Close(), s.ws.Close()); err != nil {
		return err
	}
	return s.open()
}

func (s *scanSubject) Close() error {
	return errors.Join(s.CloseHandles(), s.fs.Close(), s.ws.Close())
}

func TestDifferentialScanIsLikeAPlainDirectory(t *testing.T) {
	gen := func() *ops.Generator {
		return &ops.Generator{Root: os.Getuid() == 0, Checkpoints: true, Explain: true, NoHandles: true}
	}
	for _, l := range lowers {
		t.Run(l.name, func(t *testing.T) {
			l.share = max(l.share/3, 1)
			property{lower: l, gen: gen, open: func(ws string, _ uint32) (subject, error) { return newScanSubject(ws) }}.run(t)
		})
	}
}
