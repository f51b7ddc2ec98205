package session_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/runtime"
)

// python starts a Python session, or ends the test where there is none.
func python(t *testing.T, start func(ctx context.Context, kind runtime.Kind, o session.RuntimeOptions) (runtime.CodeSession, error), o session.RuntimeOptions) runtime.CodeSession {
	t.Helper()
	if _, err := exec.LookPath(string(runtime.CPython)); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	r, err := start(background, runtime.CPython, o)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

func TestARuntimeRunsWhereItsCommandSays(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	r := python(t, session.StartRuntime, session.RuntimeOptions{Command: session.Command{Dir: dir, Env: []string{"GREETING=hi"}, Network: session.NetworkNone}})
	got, err := r.Execute(background, "import os, socket\nopen('made', 'w').write('x')\n[os.getcwd(), os.environ['GREETING'], [n for _, n in socket.if_nameindex()]]")
	if err != nil || string(got.Value.Value) != `["`+dir+`","hi",["lo"]]` || read(t, dir, "made") != "x" {
		t.Errorf("%s, %v", got.Value.Value, err)
	}
	for _, c := range []session.Command{{Args: []string{"x"}}, {Capture: true}, {Stdin: strings.NewReader("")}, {Timeout: new(session.DefaultTimeout)}} {
		c.Dir = dir
		if _, err := session.StartRuntime(background, runtime.CPython, session.RuntimeOptions{Command: c}); errs.CodeOf(err) != errs.ExecOptions {
			t.Errorf("%+v gives %v", c, err)
		}
	}
	ctx, cancel := context.WithCancel(background)
	cancel()
	if _, err := session.StartRuntime(ctx, runtime.CPython, session.RuntimeOptions{Command: session.Command{Dir: dir}}); errs.CodeOf(err) != errs.Exec {
		t.Errorf("a start with a context that has ended gives %v", err)
	}
	if _, err := session.StartRuntime(background, "perl", session.RuntimeOptions{Command: session.Command{Dir: dir}}); errs.CodeOf(err) != errs.Usage {
		t.Errorf("an unknown kind gives %v", err)
	}
}

// The backend scan has no mount: a runtime works in the plain directory, and its changes are rolled back all the same.
func TestARuntimeEndsWithItsAttempt(t *testing.T) {
	t.Parallel()
	s := openHere(t)
	var r runtime.CodeSession
	done, err := session.RunAttempt(background, s, func(ctx context.Context, a *session.Attempt) (int, error) {
		r = python(t, a.StartRuntime, session.RuntimeOptions{})
		_, err := r.Execute(ctx, "open('made', 'w').write('x')")
		must(t, err)
		if read(t, s.Workspace(), "made") != "x" {
			t.Error("it does not work in the workspace")
		}
		if _, err := a.StartRuntime(ctx, runtime.CPython, session.RuntimeOptions{Branch: "b"}); errs.CodeOf(err) != errs.ExecOptions {
			t.Errorf("another branch gives %v", err)
		}
		return 0, os.ErrInvalid
	}, session.AttemptOptions{})
	if err != os.ErrInvalid || !done.RolledBack || read(t, s.Workspace(), "made") != "" {
		t.Errorf("%+v, %v", done, err)
	}
	<-r.Done()
	if _, err := r.Execute(background, "1"); errs.CodeOf(err) != errs.Disposed {
		t.Errorf("afterwards it gives %v", err)
	}
	ends := python(t, s.StartRuntime, session.RuntimeOptions{})
	must(t, s.Close())
	<-ends.Done()
	if _, err := s.StartRuntime(background, runtime.CPython, session.RuntimeOptions{}); errs.CodeOf(err) != errs.Disposed {
		t.Errorf("a closed session gives %v", err)
	}
}

func TestARuntimeNeedsTheBranchThatItNames(t *testing.T) {
	t.Parallel()
	s := openHere(t)
	if _, err := s.StartRuntime(background, runtime.CPython, session.RuntimeOptions{Branch: "none"}); err == nil {
		t.Error("it starts in a branch that is not there")
	}
	if _, err := s.Reconcile(background, ""); errs.CodeOf(err) == errs.Disposed {
		t.Error(err)
	}
	if _, err := s.Snapshot(background, overlay.SnapshotOptions{}); err != nil {
		t.Error(err)
	}
}
