//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// TestARollbackThatStopsHalfwayLetsNothingChange has the filesystem refuse one of the changes of a rollback. What was made of it stays, nothing else can change, and
// it is finished by whatever comes first: else the next start would take away what was changed meanwhile.
func TestARollbackThatStopsHalfwayLetsNothingChange(t *testing.T) {
	for name, c := range map[string]struct {
		finish func(s *space, id string) error
		undone bool // the state is that of before the rollback then
	}{
		"rollback": {func(s *space, id string) error {
			_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			return err
		}, false},
		"rollback of a turn": {func(s *space, id string) error {
			err := endTurn(s.w, id, overlay.SnapshotOptions{})
			if err == nil && !s.ended() {
				s.Error("the turn has not ended")
			}
			return err
		}, false},
		"undo":        {func(s *space, _ string) error { _, err := s.w.Undo(context.Background()); return err }, true},
		"drop":        {func(s *space, id string) error { return s.w.Drop(context.Background(), id) }, false},
		"a new start": {func(s *space, _ string) error { s.reopen(); return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(testfs.Ext4(t, 64<<20), "workspace")
			fillSmall(dir)
			for i := range 10 {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("gone-", i)), []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s := spaceAt(t, dir)
			before, id := s.state(), s.snapshot()
			for i := range 10 {
				s.unlink(fmt.Sprint("gone-", i))
				s.write(fmt.Sprint("new-", i), "new")
			}
			after := s.state()
			open, err := s.tr.Open(s.at("new-1"), unix.O_WRONLY, false, nil)
			s.ok(err)
			defer open.Release()
			refused := filepath.Join(dir, "new-5")
			immutable(t, refused, true)
			for range 2 { // the second time it is tried to be finished
				if _, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{}); errs.CodeOf(err) != errs.Rollback {
					t.Fatalf("a rollback that can't be made says %v", err)
				}
				s.stuck(open, id)
			}
			immutable(t, refused, false)
			s.stuck(open, id)
			s.ok(c.finish(s, id))
			if want := before; c.undone {
				s.same(after)
			} else {
				s.same(want)
			}
			if st := s.w.Status(); st.Halfway != "" {
				t.Errorf("the status still says: %s", st.Halfway)
			}
			s.write("more", "more")
			if name != "undo" {
				s.unlink("more")
				s.undo()
				s.same(after)
			}
		})
	}
}

// stuck finds that nothing can be changed, nor any checkpoint be made, and that this is told.
func (s *space) stuck(open *overlay.Handle, id string) {
	s.Helper()
	root := s.tr.Root()
	if _, err := open.WriteAt([]byte("x"), 0); err != unix.EROFS {
		s.Errorf("a write to an open file says %v", err)
	}
	if _, _, _, err := s.tr.Create(root, "fresh", unix.O_WRONLY, 0o600, false, nil); err != unix.EROFS {
		s.Errorf("a create says %v", err)
	}
	if _, _, _, err := s.tr.Tmpfile(root, unix.O_WRONLY, 0o600, false, nil); err != unix.EROFS {
		s.Errorf("a file without a name: %v", err)
	}
	if _, err := s.tr.Open(s.at("a.txt"), unix.O_WRONLY, true, nil); err != unix.EROFS {
		s.Errorf("an open for writing says %v", err)
	}
	if _, err := s.tr.SetAttr(root, nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o700}); err != unix.EROFS {
		s.Errorf("a change of a mode says %v", err)
	}
	if err := s.tr.SetXattr(root, "user.x", []byte("x"), 0); err != unix.EROFS {
		s.Errorf("a change of an xattr says %v", err)
	}
	for name, err := range map[string]error{
		"unlink": s.tr.Unlink(root, "a.txt"), "rmdir": s.tr.Rmdir(root, "dir"), "rename": s.tr.Rename(root, "a.txt", root, "b", 0),
	} {
		if err != unix.EROFS {
			s.Errorf("%s says %v", name, err)
		}
	}
	if _, err := s.w.Snapshot(context.Background(), overlay.SnapshotOptions{}); errs.CodeOf(err) != errs.Rollback {
		s.Errorf("a snapshot says %v", err)
	}
	if _, err := s.w.Diff(context.Background(), id, "", false); errs.CodeOf(err) != errs.Rollback {
		s.Errorf("a diff says %v", err)
	}
	if s.w.Status().Halfway == "" {
		s.Error("the status says nothing")
	}
}
