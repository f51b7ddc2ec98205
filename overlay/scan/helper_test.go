//go:build linux || windows

package scan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
)

// The environment variables that make this test binary a victim, to be killed in what it does to the workspace.
const (
	envVictim = "HYPERFS_TEST_SCAN_VICTIM"
	envTarget = "HYPERFS_TEST_SCAN_TARGET" // what it rolls back to; "" makes a snapshot
	envTurn   = "HYPERFS_TEST_SCAN_TURN"   // the turn that ends with that, and the ID of the snapshot; "" means none
)

// envIdle makes this test binary a program that does nothing until its standard input ends.
const envIdle = "HYPERFS_TEST_SCAN_IDLE"

func TestMain(m *testing.M) {
	if os.Getenv(envIdle) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	if dir := os.Getenv(envVictim); dir != "" {
		if err := victim(dir, os.Getenv(envTarget)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func victim(dir, target string) error {
	w, err := Open(overlay.Config{Workspace: dir, SameIgnored: true})
	if err != nil {
		return err
	}
	var commit func(*checkpoint.Tx) error
	id := os.Getenv(envTurn)
	if id != "" {
		commit = func(tx *checkpoint.Tx) error { return tx.PutTurn(checkpoint.Turn{ID: id}) }
	}
	if target == "" {
		_, err = w.Snapshot(context.Background(), overlay.SnapshotOptions{ID: id, Commit: commit})
	} else {
		_, err = w.Rollback(context.Background(), target, overlay.RollbackOptions{Commit: commit})
	}
	return errors.Join(err, w.Close())
}

// kill runs a victim that dies at a point of internal/crash, and reports whether it did.
func kill(t *testing.T, dir, target, at string) bool {
	t.Helper()
	return killInTurn(t, dir, target, at, "")
}

// killInTurn is kill, with a turn.
func killInTurn(t *testing.T, dir, target, at, turn string) bool {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envVictim+"="+dir, envTarget+"="+target, envTurn+"="+turn, "HYPERFS_CRASH_AT="+at)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL && exit.ExitCode() != 128+int(syscall.SIGKILL) {
		t.Fatalf("the victim ended by itself: %v: %s", err, out)
	}
	return true
}

// fixture is a workspace under test.
type fixture struct {
	*testing.T
	dir    string
	ignore []string
	w      *Workspace
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureAt(t, t.TempDir())
}

func newFixtureAt(t *testing.T, parent string) *fixture {
	t.Helper()
	f := &fixture{T: t, dir: filepath.Join(parent, "workspace")}
	f.must(os.Mkdir(f.dir, 0o755))
	f.open()
	t.Cleanup(func() {
		f.must(f.w.Close())
		f.must(treestate.Remove(f.dir))
	})
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) open() {
	f.Helper()
	w, err := Open(overlay.Config{Workspace: f.dir, Ignore: f.ignore})
	f.must(err)
	f.w = w
}

func (f *fixture) reopen() {
	f.Helper()
	f.must(f.w.Close())
	f.open()
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) write(name, text string) {
	f.Helper()
	f.must(os.MkdirAll(filepath.Dir(f.path(name)), 0o755))
	f.must(os.WriteFile(f.path(name), []byte(text), 0o644))
}

func (f *fixture) read(name string) string {
	f.Helper()
	text, err := os.ReadFile(f.path(name))
	f.must(err)
	return string(text)
}

func (f *fixture) snapshot() string {
	f.Helper()
	c, err := f.w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	f.must(err)
	return c.ID
}

func (f *fixture) rollback(id string) overlay.RollbackResult {
	f.Helper()
	r, err := f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	f.must(err)
	return r
}

// holes says that holes are found out and compared.
const holes = runtime.GOOS == "linux"

func (f *fixture) capture() treestate.State {
	f.Helper()
	s, err := treestate.Capture(f.dir, treestate.Options{Holes: holes})
	f.must(err)
	return s
}

// is fails the test unless the tree is what it was when want was captured.
func (f *fixture) is(want treestate.State) {
	f.Helper()
	if diff := (treestate.Compare{Holes: holes}).Diff(want, f.capture()); len(diff) > 0 {
		f.Fatalf("the tree is not what it was:\n\t%s", strings.Join(diff, "\n\t"))
	}
}

// sound fails the test unless the store's invariants hold.
func (f *fixture) sound() {
	f.Helper()
	problems, err := f.w.Fsck(context.Background(), true)
	f.must(err)
	for _, p := range problems {
		f.Errorf("fsck: %s: %s", p.Where, p.What)
	}
}

// backupCount gives how many contents the store keeps.
func (f *fixture) backupCount() (n int) {
	f.Helper()
	f.must(f.w.backups.List(func(string, int64) error { n++; return nil }))
	return n
}

func (f *fixture) wantCode(err error, code errs.Code) {
	f.Helper()
	if err == nil || errs.CodeOf(err) != code {
		f.Fatalf("the error is %v, want one with the code %s", err, code)
	}
}
