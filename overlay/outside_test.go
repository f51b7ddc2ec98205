//go:build linux

package overlay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

func TestRollbackRefusesWhatWasChangedWhileNobodyWatched(t *testing.T) {
	changes := map[string]struct {
		named  string
		change func(dir string) error
	}{
		"a write":    {"b.txt", func(dir string) error { return os.WriteFile(dir+"/b.txt", []byte("outside"), 0o644) }},
		"a new file": {"dir/sub", func(dir string) error { return os.WriteFile(dir+"/dir/sub/new", nil, 0o644) }},
		"a removal":  {"dir/sub", func(dir string) error { return os.Remove(dir + "/dir/sub/d.txt") }},
		"a rename":   {".", func(dir string) error { return os.Rename(dir+"/dir", dir+"/dir2") }},
		"a chmod":    {"dir/c.txt", func(dir string) error { return os.Chmod(dir+"/dir/c.txt", 0o600) }},
	}
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, fillSmall)
			id := s.snapshot()
			s.write("plain", "p")
			s.ok(s.w.Close())
			s.ok(c.change(s.dir))
			s.open()
			changed := s.state()
			_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			wantCode(t, err, errs.Integrity)
			if !strings.Contains(err.Error(), "rollback "+c.named+":") {
				t.Errorf("the error does not name %s: %v", c.named, err)
			}
			later := s.snapshot()
			s.write("later", "l")
			s.rollback(later)
			s.sameTree(changed)
		})
	}
}

func TestWhatHasAPreimageMayChangeWhileNobodyWatches(t *testing.T) {
	s := newSpace(t, fillSmall)
	before := s.state()
	id := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	s.mkdir("n")
	s.ok(s.w.Close())
	s.ok(os.WriteFile(filepath.Join(s.dir, "b.txt"), []byte("outside"), 0o644))
	s.ok(os.WriteFile(filepath.Join(s.dir, "n/new"), []byte("outside"), 0o644))
	s.open()
	s.rollback(id)
	s.same(before)
}

// TestWhatIsSavedLaterDoesNotMakeUpForAnOutsideChange in the same epoch or the next, whole or by blocks: it has that change in it.
func TestWhatIsSavedLaterDoesNotMakeUpForAnOutsideChange(t *testing.T) {
	for _, name := range []string{"b.txt", "large"} {
		for _, snapshot := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", with a checkpoint before: ", snapshot), func(t *testing.T) {
				s := largeSpace(t, "pure-manifest")
				first := s.snapshot()
				s.ok(s.w.Close())
				time.Sleep(15 * time.Millisecond)
				f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_WRONLY, 0)
				s.ok(err)
				_, err = f.WriteAt([]byte("out"), 0)
				s.ok(errors.Join(err, f.Close()))
				s.open()
				second, atSecond := "", s.state()
				if snapshot {
					second = s.snapshot()
				}
				s.overwrite(name, "in", 1)
				_, err = s.w.Rollback(context.Background(), first, overlay.RollbackOptions{})
				wantCode(t, err, errs.Integrity)
				if snapshot {
					s.rollback(second)
					s.sameTree(atSecond)
				}
			})
		}
	}
}

func TestAReopenedWorkspaceSuspectsNothingOfItsOwn(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	before := s.state()
	s.rename("dir/c.txt", "c", 0)
	s.link("b.txt", "b2")
	_, err := s.tr.SetAttr(s.at("dir/sub/d.txt"), nil, &overlay.SetAttr{Valid: overlay.SetMtimeNow})
	s.ok(err)
	s.reopen()
	s.reopen()
	time.Sleep(15 * time.Millisecond)
	s.rollback(id)
	s.same(before)
	s.reopen()
	s.rollback(id)
	s.same(before)
}

// TestADiffDoesNotChangeWhatMayChangeWhileNobodyWatches though it begins an epoch: what was created after the checkpoint is no part of that.
func TestADiffDoesNotChangeWhatMayChangeWhileNobodyWatches(t *testing.T) {
	for _, diff := range []bool{false, true} {
		t.Run(fmt.Sprint("with a diff ", diff), func(t *testing.T) {
			s := newSpace(t, fillSmall)
			before := s.state()
			id := s.snapshot()
			s.overwrite("b.txt", "X", 0)
			s.mkdir("n")
			s.write("f", "new")
			if diff {
				_, err := s.w.Diff(context.Background(), id, "", false)
				s.ok(err)
			}
			s.ok(s.w.Close())
			s.ok(os.WriteFile(filepath.Join(s.dir, "b.txt"), []byte("outside"), 0o644))
			s.ok(os.WriteFile(filepath.Join(s.dir, "n/new"), []byte("outside"), 0o644))
			s.ok(os.WriteFile(filepath.Join(s.dir, "f"), []byte("outside"), 0o644))
			s.open()
			s.rollback(id)
			s.sameTree(before)
		})
	}
}
