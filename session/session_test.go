package session_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
)

var background = context.Background()

// openHere opens a session on a new workspace with one file, in this process.
func openHere(t *testing.T) *session.Session {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "file", "old\n")
	s, err := session.Open(background, session.Config{Workspace: dir, Start: session.StartInProcess})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func TestWhatCannotBeOpenedSaysWhy(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	dir := t.TempDir()
	write(t, dir, "file", "")
	for _, tt := range []struct {
		name string
		cfg  session.Config
		code control.Code
		on   string
	}{
		{"no workspace", session.Config{}, control.Path, ""},
		{"missing workspace", session.Config{Workspace: filepath.Join(dir, "missing")}, control.Path, "missing"},
		{"file", session.Config{Workspace: filepath.Join(dir, "file")}, control.Path, "file"},
		{"no daemon", session.Config{Workspace: dir, Start: session.StartNothing}, control.NotFound, dir},
		{"no program", session.Config{Workspace: dir, Program: filepath.Join(dir, "none")}, control.NotFound, "none"},
		{"no such start", session.Config{Workspace: dir, Start: "later"}, control.Usage, "Start"},
		{"no such backend", session.Config{Workspace: dir, Backend: "zfs"}, control.Usage, "Backend"},
		{"own mount", session.Config{Workspace: dir, Start: session.StartInProcess, Backend: session.BackendFuse}, control.Unsupported, "Backend"},
		{"mountpoint", session.Config{Workspace: dir, Start: session.StartInProcess, Mountpoint: "/mnt"}, control.Usage, "Mountpoint"},
		{"negative number", session.Config{Workspace: dir, MaxCheckpoints: -1}, control.Usage, "MaxCheckpoints"},
		{"negative limit", session.Config{Workspace: dir, Hot: overlay.HotConfig{Files: -1}}, control.Usage, "Hot"},
		{"no such tier", session.Config{Workspace: dir, Start: session.StartInProcess, Tier: "tape"}, control.Unsupported, "tape"},
	} {
		s, err := session.Open(background, tt.cfg)
		if err == nil {
			s.Close()
		}
		var e *control.Error
		if control.CodeOf(err) != tt.code || !errors.As(err, &e) || !strings.Contains(err.Error(), tt.on) {
			t.Errorf("%s: %v (%s), want %s that mentions %q", tt.name, err, control.CodeOf(err), tt.code, tt.on)
		}
	}
}

func TestTwoSessionsInProcessAreTooMany(t *testing.T) {
	s := openHere(t)
	_, err := session.Open(background, session.Config{Workspace: s.Workspace(), Start: session.StartInProcess})
	if control.CodeOf(err) != control.Busy {
		t.Errorf("%v (%s)", err, control.CodeOf(err))
	}
}

func TestASessionKnowsItself(t *testing.T) {
	s := openHere(t)
	if s.Strategy() == "" || s.Branch() != overlay.MainBranch || s.Closed() || !filepath.IsAbs(s.Workspace()) {
		t.Errorf("%q, %q, %v, %q", s.Strategy(), s.Branch(), s.Closed(), s.Workspace())
	}
	if _, ok := s.LastReconcile(); ok {
		t.Error("there was no reconcile")
	}
	if _, ok := s.LastRollback(); ok {
		t.Error("there was no rollback")
	}
	k, err := s.Snapshot(background, overlay.SnapshotOptions{Message: "m"})
	must(t, err)
	write(t, s.Workspace(), "new", "")
	changed, err := s.Reconcile(background, "")
	must(t, err)
	changed.Created[0] = "changed by who asked"
	if last, ok := s.LastReconcile(); !ok || last.Checkpoint != k.ID || last.Created[0] != "new" {
		t.Errorf("the last reconcile is %+v", last)
	}
	r, err := s.Rollback(background, k.ID, overlay.RollbackOptions{})
	must(t, err)
	d, err := s.Diagnostics(background)
	must(t, err)
	if d.LastRollback == nil || *d.LastRollback != r.Duration || d.LastReconcile == nil || d.Tier != s.Strategy() || len(d.Active) != 2 || d.Attempts == nil {
		t.Errorf("the diagnostics are %+v", d)
	}
}

// mute is an error whose text can't be had.
type mute struct{ text string }

func (n *mute) Error() string { return n.text }

func TestAFailureGoesBackWhateverItsErrorSays(t *testing.T) {
	s := openHere(t)
	for name, failure := range map[string]error{
		"long":        errors.New(strings.Repeat("é", 1<<20)), // more than a request may have
		"empty":       errors.New(""),
		"not UTF-8":   errors.New("\xff\x00"),
		"panics":      (*mute)(nil),
		"joined":      errors.Join(os.ErrNotExist, context.Canceled),
		"one of ours": &control.Error{Code: control.NotFound, Op: "x", Err: os.ErrNotExist},
	} {
		r, err := session.RunAttempt(background, s, func(context.Context, *session.Attempt) (int, error) {
			write(t, s.Workspace(), "file", "changed")
			return 0, failure
		}, session.AttemptOptions{})
		if err != failure || !r.RolledBack || read(t, s.Workspace(), "file") != "old\n" {
			t.Errorf("%s: the error is the callback's: %v, %+v", name, err == failure, r)
		}
	}
}

func TestCheckpointsHaveRelatives(t *testing.T) {
	s := openHere(t)
	first, err := s.Snapshot(background, overlay.SnapshotOptions{Subagent: "one"})
	must(t, err)
	second, err := s.Snapshot(background, overlay.SnapshotOptions{Subagent: "two", Agent: "planner"})
	must(t, err)
	line, err := s.Lineage(background, second.ID)
	if err != nil || len(line) != 2 || line[0].ID != first.ID {
		t.Errorf("the lineage is %v, %v", line, err)
	}
	heads, err := s.SubagentHeads(background, overlay.ListOptions{})
	if err != nil || len(heads) != 2 {
		t.Errorf("the heads are %v, %v", heads, err)
	}
	if heads, err = s.BranchHeads(background, overlay.ListOptions{Agent: "planner"}); err != nil || len(heads) != 1 || heads[0].ID != second.ID {
		t.Errorf("the planner's head is %v, %v", heads, err)
	}
	must(t, s.Drop(background, second.ID))
	if list, err := s.Children(background, first.ID, false); err != nil || len(list) != 0 {
		t.Errorf("active children are %v, %v", list, err)
	}
	if list, err := s.Children(background, first.ID, true); err != nil || len(list) != 1 {
		t.Errorf("all children are %v, %v", list, err)
	}
}

func TestAPatchIsExportedAndPromoted(t *testing.T) {
	s := openHere(t)
	k, err := s.Snapshot(background, overlay.SnapshotOptions{})
	must(t, err)
	write(t, s.Workspace(), "file", "new\n")
	var patch bytes.Buffer
	must(t, s.ExportPatch(background, k.ID, &patch))
	if !strings.Contains(patch.String(), "-old\n+new\n") {
		t.Errorf("the patch is %s", &patch)
	}
	r, err := s.Promote(background, k.ID, control.PromoteOptions{Patch: true})
	if err != nil || r.Patch != patch.String() || r.Checkpoint.Status != checkpoint.Promoted {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.Rollback(background, k.ID, overlay.RollbackOptions{}); control.CodeOf(err) != control.Rollback {
		t.Errorf("a rollback to what was promoted gives %v", err)
	}
}

func TestWhatABackendLacksIsUnsupported(t *testing.T) {
	s := openHere(t)
	_, forked := s.Fork(background, overlay.ForkOptions{Name: "b"})
	_, ran := session.RunInBranch(background, s, "b", func(context.Context, *session.BranchRun) (int, error) { return 0, nil })
	_, merged := s.PromoteBranch(background, "b", overlay.MergeOptions{})
	for _, err := range []error{forked, ran, merged, s.DropBranch(background, "b")} {
		if control.CodeOf(err) != control.Unsupported {
			t.Errorf("%v (%s)", err, control.CodeOf(err))
		}
	}
}

func TestOptionsOfCommandsAreChecked(t *testing.T) {
	s := openHere(t)
	for _, timeout := range []time.Duration{-1, session.MaxTimeout + 1} {
		_, err := s.Exec(background, session.Command{Args: []string{"true"}, Timeout: &timeout})
		if control.CodeOf(err) != control.ExecOptions {
			t.Errorf("a timeout of %v gives %v", timeout, err)
		}
	}
}

func TestAContextEndsACall(t *testing.T) {
	s := openHere(t)
	ctx, cancel := context.WithCancel(background)
	cancel()
	if _, err := s.Snapshot(ctx, overlay.SnapshotOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	called := false
	_, err := session.RunAttempt(ctx, s, func(context.Context, *session.Attempt) (int, error) { called = true; return 0, nil }, session.AttemptOptions{})
	if !errors.Is(err, context.Canceled) || called {
		t.Errorf("%v, called: %v", err, called)
	}
	if _, err := s.Snapshot(background, overlay.SnapshotOptions{}); err != nil {
		t.Error(err)
	}
}

func TestManyGoroutinesShareASession(t *testing.T) {
	s := openHere(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := session.RunAttempt(background, s, func(ctx context.Context, a *session.Attempt) (int, error) {
				_, err := a.Reconcile(ctx)
				return 0, err
			}, session.AttemptOptions{})
			if err != nil && control.CodeOf(err) != control.AttemptInProgress {
				t.Error(err)
			}
			_, err = s.Diagnostics(background)
			if err != nil && control.CodeOf(err) != control.Disposed {
				t.Error(err)
			}
			_, _ = s.LastReconcile()
		})
	}
	all.Wait()
	for range 4 {
		all.Go(func() { _ = s.Close() })
		all.Go(func() {
			if _, err := s.Snapshot(background, overlay.SnapshotOptions{}); err != nil && control.CodeOf(err) != control.Disposed {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := os.Stat(filepath.Join(s.Workspace(), "file")); err != nil {
		t.Error(err)
	}
}
