package test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/attempt"
)

// connections are the ways in which a session reaches its workspace.
var connections = []struct {
	name   string
	mounts bool
	config func(t *testing.T) session.Config
}{
	{"daemon", true, func(t *testing.T) session.Config {
		needMount(t)
		bin, err := checked.path()
		must(t, err)
		return session.Config{Program: bin, Backend: session.BackendFuse}
	}},
	{"in process", false, func(*testing.T) session.Config { return session.Config{Start: session.StartInProcess} }},
}

// tried is a session on a workspace of its own.
type tried struct {
	*session.Session
	t   *testing.T
	dir string
}

// eachConnection runs a test on each connection.
func eachConnection(t *testing.T, test func(t *testing.T, s *tried, mounts bool)) {
	for _, c := range connections {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test(t, openTried(t, c.config(t)), c.mounts)
		})
	}
}

func openTried(t *testing.T, cfg session.Config) *tried {
	t.Helper()
	cfg.Workspace = filepath.Join(memory(t), "workspace")
	must(t, os.Mkdir(cfg.Workspace, 0o755))
	script(t, cfg.Workspace, nil, `mkdir -p src/deep empty; echo one >src/one; echo two >src/two; echo three >src/deep/three; ln src/one src/deep/linked
		ln -s ../src empty/link; printf '#!/bin/sh\n' >run.sh; chmod 755 run.sh; chmod 700 empty; head -c 300000 /dev/zero | tr '\0' x >large`)
	s, err := session.Open(context.Background(), cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := within(hangAfter, s.Close); err != nil {
			t.Error(err)
			_ = detach(cfg.Workspace)
		}
	})
	return &tried{Session: s, t: t, dir: s.Workspace()}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *tried) capture() treestate.State {
	s.t.Helper()
	st, err := lowerState(s.dir)
	must(s.t, err)
	return st
}

// damage is what attempts do: one change of each kind.
const damage = `echo more >>src/one; echo other >src/two; mv src/deep moved; rm empty/link; ln -s nowhere link; chmod 600 run.sh; mkdir -p made/below
	echo new >made/below/new; dd if=/dev/urandom of=large bs=1000 seek=100 count=1 conv=notrunc status=none; touch -d 2001-02-03 made`

// shell is a command of a script.
func shell(text string) session.Command { return session.Command{Args: []string{"sh", "-euc", text}} }

var errSeeded = errors.New("seeded")

// attemptCase is how a callback ends, and what RunAttempt says then.
type attemptCase struct {
	name    string
	o       session.AttemptOptions
	cancels bool                                                // the context, a moment after the damage was done
	then    func(ctx context.Context, a *session.Attempt) error // after the damage was done
	is      []error
	code    errs.Code // "" is none of ours
	panics  any
	goexits bool
	kept    bool
}

var attemptCases = []attemptCase{
	{name: "success", then: func(context.Context, *session.Attempt) error { return nil }, kept: true},
	{name: "error", then: func(context.Context, *session.Attempt) error { return errSeeded }, is: []error{errSeeded}, code: errs.Internal},
	{name: "error that is kept", o: session.AttemptOptions{NoRollback: true}, then: func(context.Context, *session.Attempt) error { return errSeeded },
		is: []error{errSeeded}, code: errs.Internal, kept: true},
	{name: "panic", then: func(context.Context, *session.Attempt) error { panic(errSeeded) }, panics: errSeeded},
	{name: "end of the goroutine", then: func(context.Context, *session.Attempt) error { runtime.Goexit(); return nil }, goexits: true},
	{name: "cancelled context", cancels: true, then: func(ctx context.Context, a *session.Attempt) error {
		_, err := a.Exec(ctx, shell("echo started >started; sleep 600"))
		return err
	}, is: []error{context.Canceled}, code: errs.Exec},
	{name: "cancelled context, which the callback does not tell", cancels: true, then: func(ctx context.Context, _ *session.Attempt) error { <-ctx.Done(); return nil }, is: []error{context.Canceled}, code: errs.Internal},
	{name: "timeout of a command", then: func(ctx context.Context, a *session.Attempt) error {
		c := shell("echo started >started; sleep 600")
		c.Timeout = new(50 * time.Millisecond)
		_, err := a.Exec(ctx, c)
		return err
	}, code: errs.ExecTimeout},
	{name: "command that fails", then: func(ctx context.Context, a *session.Attempt) error {
		_, err := a.Exec(ctx, shell("echo x >x; exit 3"))
		var exit *session.ExitError
		if !errors.As(err, &exit) || exit.Result.ExitCode != 3 {
			return errors.Join(err, errors.New("that is not exit code 3"))
		}
		return err
	}, code: errs.Exec},
	{name: "command that is not there", then: func(ctx context.Context, a *session.Attempt) error {
		_, err := a.Exec(ctx, session.Command{Args: []string{"./no-such-program"}})
		return err
	}, code: errs.Exec},
}

func TestAttempts(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		for _, c := range attemptCases {
			t.Run(c.name, func(t *testing.T) { (&tried{s.Session, t, s.dir}).try(c) })
		}
		if list, err := s.Client().Attempts(context.Background()); err != nil || len(list) > 0 {
			t.Errorf("%v are left, %v", list, err)
		}
	})
}

// try makes an attempt that damages the workspace, and compares all of it afterwards.
func (s *tried) try(c attemptCase) {
	before := s.capture()
	var damaged treestate.State
	var r session.AttemptResult[string]
	var err error
	panicked, returned := runs(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r, err = session.RunAttempt(ctx, s.Session, func(ctx context.Context, a *session.Attempt) (string, error) {
			if _, err := a.Exec(ctx, shell(damage)); err != nil {
				return "", err
			}
			if changed, ok := s.LastReconcile(); !ok || len(changed.Modified) == 0 || changed.Checkpoint != a.CheckpointID() {
				s.t.Errorf("after a command, what has changed is %+v", changed)
			}
			damaged = s.capture()
			if c.cancels {
				time.AfterFunc(100*time.Millisecond, cancel)
			}
			return "value", c.then(ctx, a)
		}, c.o)
	})
	s.judge(c, r, err, panicked, returned)
	want := before
	if c.kept {
		want = damaged
	}
	if diff := treestate.Diff(want, s.capture()); len(diff) > 0 {
		s.t.Errorf("the workspace is not what it should be:\n\t%s", strings.Join(diff, "\n\t"))
	}
	if c.kept { // for the next case
		_, err := s.Rollback(context.Background(), r.CheckpointID, overlay.RollbackOptions{})
		must(s.t, err)
		if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
			s.t.Errorf("after a rollback of what was kept:\n\t%s", strings.Join(diff, "\n\t"))
		}
	}
}

// judge looks at what RunAttempt gave.
func (s *tried) judge(c attemptCase, r session.AttemptResult[string], err error, panicked any, returned bool) {
	s.t.Helper()
	if panicked != c.panics || returned != (c.panics == nil && !c.goexits) {
		s.t.Errorf("it panics with %v, and returns: %v", panicked, returned)
	}
	if !returned {
		return
	}
	if errs.CodeOf(err) != c.code {
		s.t.Errorf("%v has the code %s, want %s", err, errs.CodeOf(err), c.code)
	}
	for _, target := range c.is {
		if !errors.Is(err, target) {
			s.t.Errorf("%v is not %v", err, target)
		}
	}
	if r.Value != "value" || r.RolledBack == c.kept || (r.Rollback != nil) != r.RolledBack || (r.Reconcile != nil) != (err == nil) {
		s.t.Errorf("the result is %+v", r)
	}
	if took, ok := s.LastRollback(); r.RolledBack && (!ok || took != r.Rollback.Duration || took <= 0) {
		s.t.Errorf("the last rollback took %v, that of the result %v", took, r.Rollback.Duration)
	}
	k, err := s.Get(context.Background(), r.CheckpointID)
	if err != nil || k.CreatedBy != "run-attempt" || (k.Status == checkpoint.Active) != c.kept {
		s.t.Errorf("the checkpoint is %+v, %v", k, err)
	}
}

// runs runs fn on a goroutine that it may end. It gives the value of a panic, and whether fn has returned.
func runs(fn func()) (panicked any, returned bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if !returned {
				panicked = recover()
			}
		}()
		fn()
		returned = true
	}()
	<-done
	return panicked, returned
}

func TestAFailedAttemptTakesBackWhatOutlivedItsParent(t *testing.T) {
	t.Parallel()
	writers := map[string]string{
		"child":                                 `echo changed >src/one; rm src/two`,
		"grandchild that outlives its parent":   `sh -c '(while :; do echo late >>src/one; date >>late; sleep 0.01; done) & sleep 0.05'; rm src/two`,
		"daemon with a session of its own":      `setsid sh -c 'cd /; (exec setsid sh -c "while :; do date >>$WS/daemon; date >>$WS/src/one; sleep 0.01; done" >/dev/null 2>&1 </dev/null &)'; until test -s daemon; do sleep 0.01; done`,
		"daemon that does not want to be ended": `(trap '' TERM; exec setsid sh -c "trap '' TERM; while :; do date >>daemon; sleep 0.01; done" >/dev/null 2>&1 </dev/null &); until test -s daemon; do sleep 0.01; done`,
	}
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		before := s.capture()
		for name, text := range writers {
			_, err := session.RunAttempt(context.Background(), s.Session, func(ctx context.Context, a *session.Attempt) (struct{}, error) {
				c := shell(text)
				c.Env, c.Grace = []string{"WS=" + a.Dir()}, 100*time.Millisecond
				_, err := a.Exec(ctx, c)
				return struct{}{}, errors.Join(err, errSeeded)
			}, session.AttemptOptions{})
			if !errors.Is(err, errSeeded) || errs.CodeOf(err) == errs.Exec {
				t.Errorf("%s: %v", name, err)
			}
			time.Sleep(50 * time.Millisecond) // what lives still would write
			if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
				t.Errorf("%s:\n\t%s", name, strings.Join(diff, "\n\t"))
			}
		}
	})
}

func TestCommandsThatACallbackLeavesEndBeforeTheRollback(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		before := s.capture()
		left := make(chan error, 1)
		var late *session.Attempt
		_, err := session.RunAttempt(context.Background(), s.Session, func(_ context.Context, a *session.Attempt) (struct{}, error) {
			late = a
			go func() {
				_, err := a.Exec(context.Background(), shell("while :; do date >>left; sleep 0.01; done"))
				left <- err
			}()
			for !exists(filepath.Join(s.dir, "left")) {
				time.Sleep(time.Millisecond)
			}
			return struct{}{}, errSeeded
		}, session.AttemptOptions{})
		if err != errSeeded { // as it is, not wrapped
			t.Error(err)
		}
		if err := <-left; errs.CodeOf(err) != errs.Exec {
			t.Errorf("the command ended with %v", err)
		}
		if _, err := late.Exec(context.Background(), shell("echo late >late")); errs.CodeOf(err) != errs.Disposed {
			t.Errorf("a command after the end gives %v", err)
		}
		if _, err := late.Reconcile(context.Background()); errs.CodeOf(err) != errs.Disposed {
			t.Errorf("a reconcile after the end gives %v", err)
		}
		if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
			t.Errorf("\t%s", strings.Join(diff, "\n\t"))
		}
	})
}

func TestADoubleFaultCarriesBothErrorsAndChangesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range connections {
		for _, panics := range []bool{false, true} {
			name := c.name
			if panics {
				name += ", panic"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				cfg := c.config(t)
				cfg.Store = filepath.Join(memory(t), "store") // not hidden by the mount
				cfg.Tier, cfg.Hot.Off = "pure-manifest", true
				s := openTried(t, cfg)
				var damaged treestate.State
				var id string
				var err error
				panicked, _ := runs(func() {
					_, err = session.RunAttempt(context.Background(), s.Session, func(ctx context.Context, a *session.Attempt) (struct{}, error) {
						id = a.CheckpointID()
						script(t, s.dir, nil, damage)
						spoil(t, filepath.Join(cfg.Store, "backup"))
						damaged = s.capture()
						if panics {
							panic(errSeeded)
						}
						return struct{}{}, errSeeded
					}, session.AttemptOptions{})
				})
				if panics {
					err, _ = panicked.(error)
				}
				var both *attempt.RollbackError
				if errs.CodeOf(err) != errs.AttemptRollback || !errors.Is(err, errSeeded) || !errors.As(err, &both) || errs.CodeOf(both.Rollback) != errs.Integrity || both.Checkpoint != id {
					t.Fatalf("the error is %v", err)
				}
				if k, err := s.Get(context.Background(), id); err != nil || k.Status != checkpoint.Active {
					t.Errorf("the checkpoint is %s, %v", k.Status, err)
				}
				if diff := treestate.Diff(damaged, s.capture()); len(diff) > 0 {
					t.Errorf("the workspace was touched:\n\t%s", strings.Join(diff, "\n\t"))
				}
			})
		}
	}
}

// spoil damages every preimage in a directory.
func spoil(t *testing.T, dir string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	must(t, err)
	spoiled := 0
	for _, f := range files {
		name := filepath.Join(dir, f.Name())
		b, err := os.ReadFile(name)
		if err != nil || len(b) == 0 || strings.HasPrefix(f.Name(), ".") {
			continue
		}
		b[len(b)/2] ^= 1
		must(t, os.Chmod(name, 0o600))
		must(t, os.WriteFile(name, b, 0o600))
		spoiled++
	}
	if spoiled == 0 {
		t.Fatal("there is no preimage")
	}
}

func TestEachErrorOfASessionHasItsCode(t *testing.T) {
	t.Parallel()
	for _, c := range connections {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := c.config(t)
			cfg.MaxCheckpoints = 3
			s := openTried(t, cfg)
			before := s.capture()
			s.refuse(c.mounts)
			if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
				t.Errorf("\t%s", strings.Join(diff, "\n\t"))
			}
		})
	}
}

// refuse does what is refused, each with its code.
func (s *tried) refuse(mounts bool) {
	s.t.Helper()
	ctx := context.Background()
	fails := func(context.Context, *session.Attempt) (int, error) {
		return 0, errors.Join(os.WriteFile(filepath.Join(s.dir, "new"), nil, 0o644), errSeeded)
	}
	for range 5 { // more than there may be checkpoints
		if _, err := session.RunAttempt(ctx, s.Session, fails, session.AttemptOptions{}); !errors.Is(err, errSeeded) {
			s.t.Errorf("an attempt that fails gives %v", err)
		}
	}
	var ids []string
	wants := func(what string, code errs.Code, err error) {
		s.t.Helper()
		var e *errs.Error
		if errs.CodeOf(err) != code || !errors.As(err, &e) || e.Op == "" {
			s.t.Errorf("%s gives %v (%s), want %s", what, err, errs.CodeOf(err), code)
		}
	}
	for {
		k, err := s.Snapshot(ctx, overlay.SnapshotOptions{})
		if err != nil {
			wants("one checkpoint too many", errs.Capacity, err)
			break
		}
		ids = append(ids, k.ID)
	}
	_, err := session.RunAttempt(ctx, s.Session, fails, session.AttemptOptions{})
	wants("one attempt too many", errs.Capacity, err)
	must(s.t, s.Drop(ctx, ids[0]))
	_, err = s.Rollback(ctx, ids[0], overlay.RollbackOptions{})
	wants("a rollback to what was dropped", errs.Rollback, err)
	_, err = s.Rollback(ctx, "ckpt_nothing", overlay.RollbackOptions{})
	wants("a rollback to nothing", errs.NotFound, err)
	_, err = s.Snapshot(ctx, overlay.SnapshotOptions{ID: "mine"})
	wants("an ID that is none", errs.Usage, err)
	_, err = s.Snapshot(ctx, overlay.SnapshotOptions{Parent: ids[0]})
	wants("a parent that was dropped", errs.Disposed, err)
	_, err = s.Exec(ctx, session.Command{Args: []string{"true"}, Dir: "src"})
	wants("a directory that is not absolute", errs.Path, err)
	_, err = s.Exec(ctx, session.Command{Args: []string{"true"}, Timeout: new(time.Duration(-1))})
	wants("a negative timeout", errs.ExecOptions, err)
	_, err = s.Exec(ctx, session.Command{Args: []string{"sleep", "600"}, Timeout: new(20 * time.Millisecond)})
	wants("a timeout", errs.ExecTimeout, err)
	_, err = s.Exec(ctx, session.Command{Args: []string{"false"}})
	wants("a command that fails", errs.Exec, err)
	if !mounts {
		_, err = s.Fork(ctx, overlay.ForkOptions{Name: "b"})
		wants("a branch without a mount", errs.Unsupported, err)
		return
	}
	must(s.t, s.dropAll(ids[1:]))
	s.conflict(wants)
}

// dropAll drops checkpoints.
func (s *tried) dropAll(ids []string) (err error) {
	for _, id := range ids {
		err = errors.Join(err, s.Drop(context.Background(), id))
	}
	return err
}

// conflict changes a file in main and in a branch, and takes both back.
func (s *tried) conflict(wants func(string, errs.Code, error)) {
	s.t.Helper()
	ctx := context.Background()
	k, err := s.Snapshot(ctx, overlay.SnapshotOptions{})
	must(s.t, err)
	_, err = s.Fork(ctx, overlay.ForkOptions{Name: "b", From: k.ID})
	must(s.t, err)
	for _, dir := range []string{s.dir, filepath.Join(s.dir, overlay.StoreName, "branches/b")} {
		must(s.t, os.WriteFile(filepath.Join(dir, "src/two"), []byte(dir), 0o644))
	}
	m, err := s.PromoteBranch(ctx, "b", overlay.MergeOptions{})
	wants("a merge of what both have changed", errs.BranchConflict, err)
	if len(m.Conflicts) != 1 || m.Conflicts[0].Path != "src/two" {
		s.t.Errorf("the conflicts are %+v", m.Conflicts)
	}
	must(s.t, s.DropBranch(ctx, "b"))
	wants("a branch that is gone", errs.Disposed, s.gone("b"))
	_, err = s.Rollback(ctx, k.ID, overlay.RollbackOptions{})
	must(s.t, err)
}

// gone works in a branch.
func (s *tried) gone(name string) error {
	_, err := session.RunAttempt(context.Background(), s.Session, func(context.Context, *session.Attempt) (int, error) { return 0, nil }, session.AttemptOptions{Branch: name})
	return err
}

func TestAContextThatEndsAtAnyMomentLeavesNoAttempt(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		before := s.capture()
		one := filepath.Join(s.dir, "src/one")
		rolledBack := 0
		for n := range 60 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n)*100*time.Microsecond)
			r, err := session.RunAttempt(ctx, s.Session, func(context.Context, *session.Attempt) (int, error) {
				must(t, os.WriteFile(one, []byte("changed"), 0o644))
				return 0, errSeeded
			}, session.AttemptOptions{})
			cancel()
			if r.RolledBack {
				rolledBack++
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%d: %v", n, err)
			}
			if list, err := s.Client().Attempts(context.Background()); err != nil || len(list) > 0 {
				t.Fatalf("%d: %v is left, %v", n, list, err)
			}
		}
		list, err := s.List(context.Background(), overlay.ListOptions{})
		if diff := treestate.Diff(before, s.capture()); len(diff) > 0 || err != nil || len(list) > 1 { // the undo checkpoint
			t.Errorf("%d were rolled back; %d checkpoints are left, %v\n\t%s", rolledBack, len(list), err, strings.Join(diff, "\n\t"))
		}
	})
}

func TestASessionStartsWhatItNeedsAndEndsIt(t *testing.T) {
	t.Parallel()
	bin, err := checked.path()
	must(t, err)
	s := openTried(t, session.Config{Program: bin, Backend: session.BackendScan, MaxCheckpoints: 7, KeepDaemon: true})
	ctx := context.Background()
	before := s.capture()
	_, err = session.RunAttempt(ctx, s.Session, func(context.Context, *session.Attempt) (int, error) {
		script(t, s.dir, nil, damage)
		return 0, errSeeded
	}, session.AttemptOptions{})
	if diff := treestate.Diff(before, s.capture()); !errors.Is(err, errSeeded) || len(diff) > 0 {
		t.Errorf("%v\n\t%s", err, strings.Join(diff, "\n\t"))
	}
	must(t, s.Close())
	again, err := session.Open(ctx, session.Config{Workspace: s.dir, Start: session.StartNothing})
	must(t, err)
	d, err := again.Diagnostics(ctx)
	if err != nil || d.Backend != session.BackendScan || d.Daemon.PID == os.Getpid() {
		t.Errorf("%+v, %v", d, err)
	}
	_, err = again.Client().Unmount(ctx, control.UnmountOptions{})
	must(t, err)
	must(t, again.Close())

	// A daemon that is not to be kept ends with the session, so that the store is free at once.
	s.Session, err = session.Open(ctx, session.Config{Workspace: s.dir, Program: bin})
	must(t, err)
	must(t, s.Close())
	s.Session, err = session.Open(ctx, session.Config{Workspace: s.dir, Start: session.StartInProcess})
	for wait := time.Millisecond; errs.CodeOf(err) == errs.Busy && wait < 4*time.Second; wait *= 2 { // a child that is being started has a copy of the lock
		time.Sleep(wait)
		s.Session, err = session.Open(ctx, session.Config{Workspace: s.dir, Start: session.StartInProcess})
	}
	must(t, err)
	must(t, s.Close())
}

func TestASessionWorksAtAnotherMountpoint(t *testing.T) {
	t.Parallel()
	cfg := connections[0].config(t)
	cfg.Mountpoint = filepath.Join(memory(t), "mountpoint")
	must(t, os.Mkdir(cfg.Mountpoint, 0o755))
	s := openTried(t, cfg)
	if s.dir != cfg.Mountpoint {
		t.Fatalf("it works in %s", s.dir)
	}
	ctx := context.Background()
	_, err := s.Fork(ctx, overlay.ForkOptions{Name: "try"})
	must(t, err)
	before := s.capture()
	for _, branch := range []string{"", "try"} {
		_, err := session.RunAttempt(ctx, s.Session, func(ctx context.Context, a *session.Attempt) (int, error) {
			if _, err := a.Exec(ctx, shell(damage)); err != nil {
				return 0, err
			}
			if now, err := lowerState(a.Dir()); err != nil || len(treestate.Diff(before, now)) == 0 {
				t.Errorf("%q: nothing has changed in %s, %v", branch, a.Dir(), err)
			}
			return 0, errSeeded
		}, session.AttemptOptions{Branch: branch})
		if !errors.Is(err, errSeeded) {
			t.Errorf("%q: %v", branch, err)
		}
		if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
			t.Errorf("%q:\n\t%s", branch, strings.Join(diff, "\n\t"))
		}
	}
}

// envInBranch makes the test binary attemptInBranch, of the workspace that it names.
const envInBranch = "HYPERFS_TEST_IN_BRANCH"

// attemptInBranch makes attempts in a process that finds the branch try at the workspace's path: one that is kept, and one that isn't.
func attemptInBranch(dir string) error {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{Workspace: dir, Start: session.StartNothing})
	if err != nil {
		return err
	}
	defer s.Close()
	if s.Branch() != "try" {
		return errors.New("the session is of " + s.Branch())
	}
	for _, failure := range []error{nil, errSeeded} {
		_, err = session.RunAttempt(ctx, s, func(ctx context.Context, a *session.Attempt) (int, error) {
			_, err := a.Exec(ctx, shell("echo $HYPERFS_BRANCH >>src/one; rm -f src/two"))
			return 0, errors.Join(err, failure)
		}, session.AttemptOptions{})
		if !errors.Is(err, failure) || failure == nil && err != nil {
			return err
		}
	}
	_, err = session.RunAttempt(ctx, s, func(context.Context, *session.Attempt) (int, error) { return 0, nil }, session.AttemptOptions{Branch: overlay.MainBranch})
	if errs.CodeOf(err) != errs.Unsupported {
		return errors.Join(errors.New("an attempt in main, which can't be seen from here, is no error"), err)
	}
	k, err := s.Snapshot(ctx, overlay.SnapshotOptions{})
	if err == nil && k.Branch != "try" {
		err = errors.New("a checkpoint is of " + k.Branch)
	}
	return err
}

func TestASessionInABranchIsAboutThatBranch(t *testing.T) {
	t.Parallel()
	s := openTried(t, connections[0].config(t))
	_, err := s.Fork(context.Background(), overlay.ForkOptions{Name: "try"})
	must(t, err)
	before := s.capture()
	self, err := os.Executable()
	must(t, err)
	if _, err := checked.run(nil, "-C", s.dir, "exec", "--branch", "try", "--env", envInBranch+"="+s.dir, "--", self); err != nil {
		t.Error(err)
	}
	if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
		t.Errorf("main has changed:\n\t%s", strings.Join(diff, "\n\t"))
	}
	dir := filepath.Join(s.dir, overlay.StoreName, "branches/try/src")
	if text, err := os.ReadFile(filepath.Join(dir, "one")); string(text) != "one\ntry\n" || exists(filepath.Join(dir, "two")) {
		t.Errorf("the branch has %q, %v", text, err)
	}
	if list, err := s.Client().Attempts(context.Background()); err != nil || len(list) > 0 {
		t.Errorf("%v is left, %v", list, err)
	}
}

func TestAnAttemptWhoseDaemonDiesGoesBackLater(t *testing.T) {
	t.Parallel()
	cfg := connections[0].config(t)
	s := openTried(t, cfg)
	ctx := context.Background()
	before := s.capture()
	st, err := s.Client().Status(ctx)
	must(t, err)
	_, err = session.RunAttempt(ctx, s.Session, func(context.Context, *session.Attempt) (int, error) {
		script(t, s.dir, nil, damage)
		must(t, syscall.Kill(st.Daemon.PID, syscall.SIGKILL))
		return 0, errSeeded
	}, session.AttemptOptions{})
	var both *attempt.RollbackError
	if errs.CodeOf(err) != errs.AttemptRollback || !errors.Is(err, errSeeded) || !errors.As(err, &both) {
		t.Fatal(err)
	}
	for wait := time.Millisecond; wait < 4*time.Second; wait *= 2 { // until nobody listens any more
		if _, err := s.Client().Status(ctx); errs.CodeOf(err) == errs.NotFound {
			break
		}
		time.Sleep(wait)
	}
	must(t, s.Close())
	cfg.Workspace = s.dir // a dead mount
	again, err := session.Open(ctx, cfg)
	for wait := time.Millisecond; errs.CodeOf(err) == errs.Busy && wait < 4*time.Second; wait *= 2 { // until the kernel has closed all that was the daemon's
		time.Sleep(wait)
		again, err = session.Open(ctx, cfg)
	}
	must(t, err)
	defer func() { must(t, again.Close()) }()
	if list, err := again.Client().Attempts(ctx); err != nil || len(list) > 0 {
		t.Errorf("%v is under way, %v", list, err)
	}
	_, err = again.Rollback(ctx, both.Checkpoint, overlay.RollbackOptions{})
	must(t, err)
	if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
		t.Errorf("\t%s", strings.Join(diff, "\n\t"))
	}
}

func TestASecondAttemptFailsAtOnce(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		ctx := context.Background()
		r, err := session.RunAttempt(ctx, s.Session, func(ctx context.Context, a *session.Attempt) (bool, error) {
			_, err := session.RunAttempt(ctx, s.Session, func(context.Context, *session.Attempt) (bool, error) {
				t.Error("it runs")
				return true, nil
			}, session.AttemptOptions{Branch: "a-tag"})
			var e *errs.Error
			if errs.CodeOf(err) != errs.AttemptInProgress || !errors.As(err, &e) || e.On != a.CheckpointID() || e.Hint == "" {
				t.Errorf("the second one gives %v", err)
			}
			return true, os.WriteFile(filepath.Join(a.Dir(), "first"), []byte("first"), 0o644)
		}, session.AttemptOptions{})
		if err != nil || !r.Value || !exists(filepath.Join(s.dir, "first")) {
			t.Errorf("the first one gives %+v, %v", r, err)
		}
		if _, err := session.RunAttempt(ctx, s.Session, func(context.Context, *session.Attempt) (bool, error) { return true, nil }, session.AttemptOptions{}); err != nil {
			t.Errorf("one afterwards gives %v", err)
		}
	})
}

func TestClosingASessionRollsItsAttemptBack(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		before := s.capture()
		closing := make(chan error, 1)
		_, err := session.RunAttempt(context.Background(), s.Session, func(ctx context.Context, a *session.Attempt) (struct{}, error) {
			script(t, s.dir, nil, damage)
			go func() { closing <- s.Close() }()
			_, err := a.Exec(ctx, shell("sleep 600"))
			return struct{}{}, err
		}, session.AttemptOptions{})
		if !errors.Is(err, &errs.Error{Code: errs.Disposed}) && errs.CodeOf(err) != errs.Disposed {
			t.Errorf("the attempt gives %v", err)
		}
		if err := <-closing; err != nil {
			t.Errorf("Close gives %v", err)
		}
		if diff := treestate.Diff(before, s.capture()); len(diff) > 0 {
			t.Errorf("\t%s", strings.Join(diff, "\n\t"))
		}
		s.isClosed()
	})
}

// isClosed calls everything once.
func (s *tried) isClosed() {
	s.t.Helper()
	ctx := context.Background()
	_, attempted := session.RunAttempt(ctx, s.Session, func(context.Context, *session.Attempt) (int, error) { return 0, nil }, session.AttemptOptions{})
	_, ran := session.RunInBranch(ctx, s.Session, "b", func(context.Context, *session.BranchRun) (int, error) { return 0, nil })
	calls := map[string]error{"RunAttempt": attempted, "RunInBranch": ran}
	note := func(name string) func(any, error) { return func(_ any, err error) { calls[name] = err } }
	note("Exec")(s.Exec(ctx, shell("true")))
	note("Snapshot")(s.Snapshot(ctx, overlay.SnapshotOptions{}))
	note("Fork")(s.Fork(ctx, overlay.ForkOptions{Name: "b"}))
	note("Reconcile")(s.Reconcile(ctx, ""))
	note("Rollback")(s.Rollback(ctx, "ckpt_x", overlay.RollbackOptions{}))
	note("Lineage")(s.Lineage(ctx, "ckpt_x"))
	note("BranchHeads")(s.BranchHeads(ctx, overlay.ListOptions{}))
	note("Diagnostics")(s.Diagnostics(ctx))
	note("Recover")(s.Recover(ctx))
	note("Track")(s.Track(ctx, "x"))
	calls["Drop"], calls["DropBranch"] = s.Drop(ctx, "ckpt_x"), s.DropBranch(ctx, "b")
	for name, err := range calls {
		if errs.CodeOf(err) != errs.Disposed {
			s.t.Errorf("%s of a closed session gives %v", name, err)
		}
	}
	if !s.Closed() || s.Close() != nil {
		s.t.Error("it is not closed, or can't be closed twice")
	}
}

func TestAnAttemptTakesOverItsParentsTags(t *testing.T) {
	t.Parallel()
	eachConnection(t, func(t *testing.T, s *tried, _ bool) {
		ctx := context.Background()
		p, err := s.Snapshot(ctx, overlay.SnapshotOptions{Branch: "tag", Subagent: "tester", Agent: "planner"})
		must(t, err)
		nothing := func(context.Context, *session.Attempt) (int, error) { return 1, nil }
		r, err := session.RunAttempt(ctx, s.Session, nothing, session.AttemptOptions{Parent: p.ID, Agent: "other", Message: "m"})
		must(t, err)
		k, err := s.Get(ctx, r.CheckpointID)
		if err != nil || k.Parent != p.ID || k.Branch != "tag" || k.Subagent != "tester" || k.Agent != "other" || k.Message != "m" || k.CreatedBy != "run-attempt" {
			t.Errorf("%+v, %v", k, err)
		}
		if list, err := s.Children(ctx, p.ID, false); err != nil || len(list) != 1 || list[0].ID != k.ID {
			t.Errorf("the children are %v, %v", list, err)
		}
		if heads, err := s.SubagentHeads(ctx, overlay.ListOptions{Agent: "other"}); err != nil || len(heads) != 1 || heads[0].ID != k.ID {
			t.Errorf("the heads are %v, %v", heads, err)
		}
		must(t, s.Drop(ctx, p.ID))
		if _, err := session.RunAttempt(ctx, s.Session, nothing, session.AttemptOptions{Parent: p.ID}); errs.CodeOf(err) != errs.Disposed {
			t.Errorf("a parent that was dropped gives %v", err)
		}
	})
}

func TestAttemptsInBranchesAndMainGoOnAtOnce(t *testing.T) {
	t.Parallel()
	s := openTried(t, connections[0].config(t))
	ctx := context.Background()
	_, err := s.Fork(ctx, overlay.ForkOptions{Name: "try", Agent: "planner"})
	must(t, err)
	before := s.capture()
	_, err = session.RunAttempt(ctx, s.Session, func(ctx context.Context, a *session.Attempt) (int, error) {
		inBranch, err := session.RunAttempt(ctx, s.Session, func(ctx context.Context, b *session.Attempt) (string, error) {
			c := shell(`echo branch >src/two; echo "$HYPERFS_BRANCH"; pwd`)
			c.Capture = true
			r, err := b.Exec(ctx, c)
			return string(r.Stdout), errors.Join(err, errSeeded)
		}, session.AttemptOptions{Branch: "try"})
		if !errors.Is(err, errSeeded) || !inBranch.RolledBack || inBranch.Value != "try\n"+s.dir+"\n" {
			t.Errorf("the attempt in the branch gives %+v, %v", inBranch, err)
		}
		return 0, os.WriteFile(filepath.Join(s.dir, "main"), nil, 0o644)
	}, session.AttemptOptions{})
	must(t, err)
	r, err := session.RunInBranch(ctx, s.Session, "try", func(ctx context.Context, b *session.BranchRun) (int, error) {
		if text, err := os.ReadFile(filepath.Join(b.Dir(), "src/two")); string(text) != "two\n" {
			t.Errorf("the branch was not rolled back: %q, %v", text, err)
		}
		_, err := b.Exec(ctx, shell("echo fixed >src/two; echo new >new"))
		return 7, err
	})
	if err != nil || r.Value != 7 || len(r.Dirty.Created) != 1 || len(r.Dirty.Modified) == 0 {
		t.Errorf("the branch gives %+v, %v", r, err)
	}
	if k, err := s.Get(ctx, r.Checkpoint); err != nil || k.CreatedBy != "run-in-branch" || k.Branch != "try" {
		t.Errorf("its checkpoint is %+v, %v", k, err)
	}
	must(t, os.Remove(filepath.Join(s.dir, "main")))
	m, err := s.PromoteBranch(ctx, "try", overlay.MergeOptions{})
	if text, e := os.ReadFile(filepath.Join(s.dir, "src/two")); err != nil || !m.Merged || string(text) != "fixed\n" {
		t.Errorf("the merge gives %+v, %v, and src/two is %q, %v", m, err, text, e)
	}
	_, err = s.Undo(ctx, "")
	must(t, err)
	after := s.capture()
	delete(before, ".") // a file has come and gone
	delete(after, ".")
	if diff := treestate.Diff(before, after); len(diff) > 0 {
		t.Errorf("\t%s", strings.Join(diff, "\n\t"))
	}
}

func TestAnAttemptOfAProgramThatWasKilledIsInNobodysWay(t *testing.T) {
	t.Parallel()
	s := openTried(t, connections[0].config(t))
	bin, err := checked.path()
	must(t, err)
	started := filepath.Join(s.dir, "started")
	cmd := exec.Command(bin, "-C", s.dir, "attempt", "--", "sh", "-c", "echo changed >src/one; echo $$ >started.tmp; mv started.tmp started; exec sleep 600")
	must(t, cmd.Start())
	for start := time.Now(); !exists(started); time.Sleep(time.Millisecond) {
		if time.Since(start) > hangAfter {
			t.Fatal("it does not start")
		}
	}
	list, err := s.Client().Attempts(context.Background())
	if err != nil || len(list) != 1 || list[0].PID != cmd.Process.Pid {
		t.Fatalf("under way are %+v, %v", list, err)
	}
	nothing := func(context.Context, *session.Attempt) (int, error) { return 1, nil }
	if _, err := session.RunAttempt(context.Background(), s.Session, nothing, session.AttemptOptions{}); errs.CodeOf(err) != errs.AttemptInProgress {
		t.Errorf("another one gives %v", err)
	}
	must(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	pid, err := os.ReadFile(started)
	must(t, err)
	for start := time.Now(); exists("/proc/" + strings.TrimSpace(string(pid))); time.Sleep(time.Millisecond) { // its helper ends it
		if time.Since(start) > hangAfter {
			t.Fatal("the command lives on")
		}
	}
	if _, err := session.RunAttempt(context.Background(), s.Session, nothing, session.AttemptOptions{}); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(s.dir, "src/one")); string(text) != "changed\n" {
		t.Errorf("nobody has asked for a rollback, and src/one is %q, %v", text, err)
	}
	if k, err := s.Get(context.Background(), list[0].ID); err != nil || k.Status != checkpoint.Active {
		t.Errorf("its checkpoint is %+v, %v", k, err)
	}
}

// TestASessionDeclaresOutputsAndTracksPaths: a failed attempt takes back what was declared or tracked, and leaves all else that is ignored.
func TestASessionDeclaresOutputsAndTracksPaths(t *testing.T) {
	ctx := context.Background()
	for _, c := range connections {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := c.config(t)
			if c.mounts {
				cfg.Ignore = []string{"src/deep/"}
			}
			s := openTried(t, cfg)
			tracked, err := s.Track(ctx, "src/deep/three", "src/deep/later")
			if err != nil || !slices.Equal(tracked, []string{"src/deep/later", "src/deep/three"}) {
				t.Fatal(tracked, err)
			}
			contract := overlay.OutputContract{Tool: "cc", Outputs: []overlay.Output{{Path: "src/deep/out"}, {Path: "src/deep/map", Optional: true}}}
			declared, err := s.DeclareOutputs(ctx, contract)
			if err != nil || declared.Tool != "cc" || len(declared.Outputs) != 2 || !declared.Outputs[1].Optional {
				t.Fatalf("%+v, %v", declared, err)
			}
			before := s.capture()
			_, err = session.RunAttempt(ctx, s.Session, func(context.Context, *session.Attempt) (int, error) {
				script(t, s.dir, nil, `echo other >src/deep/three; echo made >src/deep/out; echo made >src/deep/later; echo made >src/deep/free; echo other >src/two`)
				return 0, errors.New("no")
			}, session.AttemptOptions{})
			if err == nil {
				t.Fatal("the attempt did not fail")
			}
			after := s.capture()
			if _, left := after["src/deep/free"]; left != c.mounts {
				t.Errorf("what is ignored is there: %v", left)
			}
			delete(after, "src/deep/free")
			for _, d := range (treestate.Compare{Mtime: func(a, b treestate.Entry) bool { return a.IsDir() || a.Mtime == b.Mtime }}).Diff(before, after) {
				t.Error(d)
			}
			list, err := s.Outputs(ctx, "")
			if err != nil || len(list) != 1 || !list[0].Outputs[0].Missing {
				t.Errorf("%+v, %v", list, err)
			}
			if all, err := s.Tracked(ctx); err != nil || len(all) != 2 {
				t.Error(all, err)
			}
		})
	}
}
