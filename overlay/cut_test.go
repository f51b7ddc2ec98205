//go:build linux

package overlay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/overlay"
)

// envVictim makes this test binary roll a workspace back, and die in that, instead of running tests. Its value is three lines: the
// workspace, the tier, the directory in RAM.
const envVictim = "HYPERFS_TEST_ROLLBACK"

func TestMain(m *testing.M) {
	if of := os.Getenv(envVictim); of != "" {
		lines := strings.Split(of, "\n")
		w, err := overlay.Open(overlay.Config{Workspace: lines[0], Tier: lines[1], TmpfsDir: lines[2]})
		if err == nil {
			_, err = w.Rollback(context.Background(), "", overlay.RollbackOptions{})
		}
		fmt.Println("alive:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestACutRollbackIsFinished where a file that was moved away and back, so that its slot has a record too, was changed as well.
func TestACutRollbackIsFinished(t *testing.T) {
	points := []string{"rollback-apply:1", "rollback-put:1", "rollback-inode:1", "rollback-inode:2", "rollback-applied:1", "epoch-saved:2", "rollback-done:1"}
	for _, tier := range []string{"pure-manifest", "posix-link", "tmpfs"} {
		for _, at := range points {
			t.Run(tier+" "+at, func(t *testing.T) {
				dir := t.TempDir()
				fillSmall(dir)
				s := spaceWith(t, overlay.Config{Workspace: dir, Tier: tier})
				s.write("gone", "gone")
				s.snapshot()
				before := s.state()
				s.rename("b.txt", "x", 0)
				s.rename("x", "b.txt", 0)
				s.overwrite("b.txt", "CHANGED", 0)
				s.overwrite("dir/c.txt", "CHANGED", 0)
				s.unlink("gone")
				s.ok(s.w.Close())
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), envVictim+"="+strings.Join([]string{dir, tier, s.cfg.TmpfsDir}, "\n"), crash.EnvAt+"="+at)
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("it was not killed: %v: %s", err, out)
				}
				s.open()
				s.same(before)
				s.undo()
				for _, name := range []string{"b.txt", "dir/c.txt"} {
					if got, _ := os.ReadFile(dir + "/" + name); string(got[:min(len(got), 7)]) != "CHANGED" {
						t.Errorf("after the undo %s holds %q", name, got)
					}
				}
			})
		}
	}
}
