package wine

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

// workspace is a directory in which commands are run.
type workspace struct {
	*testing.T
	exe string
	dir string
}

// result is what a command did.
type result struct {
	code           int
	stdout, stderr string
}

// newWorkspace makes one with a few files. A daemon that a test leaves is ended.
func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	exe := os.Getenv("HYPERFS_EXE")
	if exe == "" {
		t.Fatal("HYPERFS_EXE names no hyperfs.exe: run test/wine/run.sh")
	}
	w := &workspace{t, exe, filepath.Join(t.TempDir(), "work space")}
	w.write("a.txt", "one\r\n")
	w.write(`src\main.go`, "package main\n")
	w.write(`src\old.go`, "package old\n")
	w.write(`docs\Readme.md`, "# readme, which is long enough to be told again\n")
	t.Cleanup(func() {
		_ = w.hyperfs("unmount", "--force")
		if err := treestate.Remove(w.dir); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *workspace) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *workspace) path(name string) string { return filepath.Join(w.dir, name) }

func (w *workspace) write(name, text string) {
	w.Helper()
	w.must(os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
	w.must(os.WriteFile(w.path(name), []byte(text), 0o644))
}

// hyperfs runs a command of ours in the workspace.
func (w *workspace) hyperfs(args ...string) result { return w.run(exec.Command(w.exe, args...)) }

func (w *workspace) run(cmd *exec.Cmd) result {
	w.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = w.dir, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// fine runs a command of ours that must end with 0, and gives what it printed.
func (w *workspace) fine(args ...string) string {
	w.Helper()
	r := w.hyperfs(args...)
	if r.code != 0 {
		w.Fatalf("hyperfs %s ends with %d: %s", strings.Join(args, " "), r.code, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// fails runs a command of ours that must end with a code, and one line that says why.
func (w *workspace) fails(code int, why string, args ...string) {
	w.Helper()
	r := w.hyperfs(args...)
	if r.code != code || !strings.Contains(r.stderr, why) || strings.Count(r.stderr, "\n") != 1 || r.stdout != "" {
		w.Errorf("hyperfs %s ends with %d, want %d with %q: %s%s", strings.Join(args, " "), r.code, code, why, r.stdout, r.stderr)
	}
}

// shell has cmd.exe run a line in the workspace.
func (w *workspace) shell(line string) {
	w.Helper()
	if r := w.run(exec.Command("cmd.exe", "/d", "/c", line)); r.code != 0 {
		w.Fatalf("%s ends with %d: %s%s", line, r.code, r.stdout, r.stderr)
	}
}

func (w *workspace) capture() treestate.State {
	w.Helper()
	s, err := treestate.Capture(w.dir, treestate.Options{})
	w.must(err)
	return s
}

// is fails the test unless the tree is what it was when want was captured.
func (w *workspace) is(want treestate.State) {
	w.Helper()
	if diff := treestate.Diff(want, w.capture()); len(diff) > 0 {
		w.Fatalf("the tree is not what it was:\n\t%s", strings.Join(diff, "\n\t"))
	}
}
