//go:build linux

package overlay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
)

// envVictim makes this test binary roll a workspace back, and die in that, instead of running tests. Its value is five lines: the
// workspace, the tier, the directory in RAM, the checkpoint, and one that is empty to turn the hot buffer off.
const envVictim = "HYPERFS_TEST_ROLLBACK"

func TestMain(m *testing.M) {
	if of := os.Getenv(envEditor); of != "" {
		editAndDie(of)
	}
	if of := os.Getenv(envKilled); of != "" {
		workAndDie(of)
	}
	if of := os.Getenv(envTurn); of != "" {
		endTurnAndDie(of)
	}
	if of := os.Getenv(envVictim); of != "" {
		lines := strings.Split(of, "\n")
		w, err := overlay.Open(overlay.Config{Workspace: lines[0], Tier: lines[1], TmpfsDir: lines[2], LargeMin: testLargeMin, BlockSize: testBlockSize,
			Hot: overlay.HotConfig{Off: lines[4] == ""}})
		if err == nil {
			_, err = w.Rollback(context.Background(), lines[3], overlay.RollbackOptions{})
		}
		fmt.Println("alive:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// cutPoints are the steps of a rollback. Each is tried with few changes, which are recorded in one commit, and with many.
var cutPoints = []string{"rollback-apply:1", "rollback-put:1", "rollback-inode:1", "rollback-inode:2", "rollback-applied:1", "epoch-saved:2", "rollback-done:1"}

// blockPoints are those of putting blocks back.
var blockPoints = []string{"blocks-applied:1", "blocks-applied:3", "content-restored:1"}

// TestACutRollbackIsFinished where a file that was moved away and back, so that its slot has a record too, was changed as well.
func TestACutRollbackIsFinished(t *testing.T) {
	for _, tier := range []string{"pure-manifest", "posix-link", "tmpfs", "pure-manifest hot"} {
		for _, at := range slices.Concat(cutPoints, blockPoints) {
			t.Run(tier+" "+at, func(t *testing.T) { finishCutRollback(t, tier, at, 0) })
		}
	}
	for _, at := range cutPoints {
		t.Run("many changes "+at, func(t *testing.T) { finishCutRollback(t, "pure-manifest", at, 100) })
		t.Run("many changes hot "+at, func(t *testing.T) { finishCutRollback(t, "pure-manifest hot", at, 100) })
	}
}

// TestARollbackThatWasCutBeforeItsRecordsIsTakenBack as it has changed nothing.
func TestARollbackThatWasCutBeforeItsRecordsIsTakenBack(t *testing.T) {
	s, id, _ := cutSpace(t, "pure-manifest", 100)
	changed := s.state()
	s.killedAt(id, "rollback-intent:1")
	s.open()
	s.same(changed)
	if list, err := s.w.List(overlay.ListOptions{}); err != nil || len(list) != 2 {
		t.Errorf("List = %v, %v, want the two checkpoints that were made", list, err)
	}
}

func finishCutRollback(t *testing.T, tier, at string, more int) {
	s, id, before := cutSpace(t, tier, more)
	changed := s.state()
	s.killedAt(id, at)
	s.open()
	s.same(before)
	s.undo()
	s.same(changed)
}

// cutSpace makes a workspace with a tier, and with the hot buffer in front if " hot" is behind its name. It makes a checkpoint, gives its state
// there, and changes it in few places and in more files. Its large file is changed before and after another checkpoint.
func cutSpace(t *testing.T, tier string, more int) (*space, string, treestate.State) {
	dir := t.TempDir()
	fillSmall(dir)
	fillLarge(dir)
	tier, hot := strings.CutSuffix(tier, " hot")
	s := spaceWith(t, overlay.Config{Workspace: dir, Tier: tier, LargeMin: testLargeMin, BlockSize: testBlockSize, Hot: overlay.HotConfig{Off: !hot}})
	s.write("gone", "gone")
	for i := range more {
		s.write(fmt.Sprint("more", i), "old")
	}
	id := s.snapshot()
	before := s.state()
	s.overwrite("large", "CHANGED", 5000)
	s.fallocate("large", punchHole, 16*4096, 8192)
	s.snapshot()
	s.overwrite("large", "CHANGED", 6*4096)
	s.truncate("large", 18*4096)
	s.rename("b.txt", "x", 0)
	s.rename("x", "b.txt", 0)
	s.overwrite("b.txt", "CHANGED", 0)
	s.overwrite("dir/c.txt", "CHANGED", 0)
	s.unlink("gone")
	for i := range more {
		s.overwrite(fmt.Sprint("more", i), "new", 0)
	}
	return s, id, before
}

// killedAt closes the workspace and has another process that dies at a point roll it back to a checkpoint.
func (s *space) killedAt(id, at string) {
	s.Helper()
	s.ok(s.w.Close())
	cmd := exec.Command(os.Args[0])
	hot := "hot"
	if s.cfg.Hot.Off {
		hot = ""
	}
	cmd.Env = append(os.Environ(), envVictim+"="+strings.Join([]string{s.dir, s.cfg.Tier, s.cfg.TmpfsDir, id, hot}, "\n"), crash.EnvAt+"="+at)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		s.Fatalf("it was not killed: %v: %s", err, out)
	}
}
