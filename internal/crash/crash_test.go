package crash

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// envChild makes this test binary pass a point three times and say so, instead of running tests.
const envChild = "HYPERFS_CRASH_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		for range 3 {
			Point("here")
			Point("there")
			os.Stdout.WriteString("passed\n")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestProcessDiesAtTheNthPassOfThePoint(t *testing.T) {
	for _, c := range []struct {
		at     string
		passed int
		killed bool
	}{
		{"here:1", 0, true}, {"here", 0, true}, {"here:3", 2, true}, {"there:2", 1, true},
		{"here:4", 3, false}, {"elsewhere:1", 3, false}, {"", 3, false},
	} {
		t.Run(c.at, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), envChild+"=1", EnvAt+"="+c.at)
			out, err := cmd.Output()
			var exit *exec.ExitError
			killed := errors.As(err, &exit) && (exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL ||
				runtime.GOOS == "windows" && exit.ExitCode() == 128+int(syscall.SIGKILL))
			if n := strings.Count(string(out), "passed"); n != c.passed || killed != c.killed {
				t.Errorf("passed %d times and killed: %v (%v), want %d and %v", n, killed, err, c.passed, c.killed)
			}
		})
	}
}

func TestPassesAreCountedOnlyWhenTraced(t *testing.T) {
	defer configure("", "")
	Point("a")
	if n := len(Passes()); n != 0 {
		t.Errorf("%d points were counted without being asked for", n)
	}
	configure("", "1")
	Point("a")
	Point("a")
	Point("b")
	if p := Passes(); p["a"] != 2 || p["b"] != 1 || len(p) != 2 {
		t.Errorf("counted %v", p)
	}
}
