package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

// exampleDir is where the example of a tree search is.
const exampleDir = "../examples/treesearch"

// searched is a workspace for the example, with its agent in it, and what it was.
type searched struct {
	*mountSubject
	before treestate.State
	path   string // of programs
}

func newSearched(t *testing.T) searched {
	t.Helper()
	needMount(t)
	s := searched{path: os.Getenv("PATH")}
	for _, p := range []*program{checked, search} {
		bin, err := p.path()
		if err != nil {
			t.Fatal(err)
		}
		s.path = filepath.Dir(bin) + ":" + s.path
	}
	ws := filepath.Join(memory(t), "workspace")
	script(t, exampleDir, []string{"WS=" + ws}, `cp -r testdata/workspace "$WS"; cp -r testdata/agent "$WS/agent"`)
	s.mountSubject = mountForTest(t, ws, mountOptions{})
	s.before = captureOf(t, s)
	return s
}

// search runs the example in the workspace, and gives what it prints.
func (s searched) search(args ...string) (string, error) {
	bin, err := search.path()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(bin, args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "PATH="+s.path, "GOFLAGS=", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// noBranches fails if one is left.
func (s searched) noBranches(t *testing.T) {
	t.Helper()
	list, err := s.client.Branches(context.Background(), false)
	if err != nil || len(list) > 0 {
		t.Errorf("%v are left: %v", list, err)
	}
}

func TestATreeSearchMergesTheSmallestRepair(t *testing.T) {
	t.Parallel()
	s := newSearched(t)
	out, err := s.search("agent/attempt.sh", "agent/test.sh")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range []string{`-0\tfailed\t`, `-1\tpassed\tpaths changed: 1\t`, `-2\tpassed\tpaths changed: 4\t`, `-3\tfailed\t`, `^merged search-\d+-1, paths changed: 1$`} {
		if !regexp.MustCompile(`(?m)` + line).MatchString(out) {
			t.Errorf("it does not say %s:\n%s", line, out)
		}
	}
	s.noBranches(t)

	// The same repair by hand, in a plain directory.
	want := filepath.Join(memory(t), "want")
	if err := treestate.Copy(s.dir, want); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Undo(); err != nil {
		t.Fatal(err)
	}
	mustBe(t, s, s.before, "after the merge was undone")
	if _, err := s.Undo(); err != nil {
		t.Fatal(err)
	}
	merged := captureOf(t, s)
	script(t, want, []string{"ATTEMPT_NUMBER=1"}, `agent/attempt.sh`)
	repaired := treestate.Compare{Mtime: func(a, b treestate.Entry) bool { // the file has a new one, and so may its directory
		return a.Mtime == b.Mtime || a.Path == "median.go" || a.Path == "."
	}}
	if diff := repaired.Diff(plainState(t, want), merged); len(diff) > 0 {
		t.Errorf("main is not the workspace with the repair:\n\t%s", strings.Join(diff, "\n\t"))
	}
	if merged["median.go"].Sum == s.before["median.go"].Sum {
		t.Error("nothing was repaired")
	}
	script(t, s.dir, []string{"GOFLAGS="}, "agent/test.sh")
}

func TestATreeSearchThatFindsNothingChangesNothing(t *testing.T) {
	t.Parallel()
	s := newSearched(t)
	for _, args := range [][]string{
		{"-n", "1", "agent/attempt.sh", "agent/test.sh"}, // whose repair is wrong
		{"agent/attempt.sh", "false"},
		{"nothing-of-this-name", "true"},
		{"-hyperfs", "nothing-of-this-name", "agent/attempt.sh", "true"},
	} {
		out, err := s.search(args...)
		if err == nil || !strings.Contains(out, "treesearch: ") {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
		s.noBranches(t)
		mustBe(t, s, s.before, strings.Join(args, " "))
	}
}

// The commands that the example tells its reader to type, but for those that build it.
func TestTheCommandsOfTheTreeSearchWork(t *testing.T) {
	t.Parallel()
	s := newSearched(t)
	text, err := os.ReadFile(filepath.Join(exampleDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	build, commands, ok := strings.Cut(block, "export PATH=$PWD/bin:$PATH\n")
	if !ok || build != "make build\ngo build -o bin/treesearch ./examples/treesearch\n" {
		t.Fatalf("the commands are not what this test knows:\n%s", block)
	}
	env := []string{"PATH=" + s.path, "TMPDIR=" + memory(t), "GOFLAGS=", "GOWORK=off"}
	script(t, "..", env, strings.Replace(commands, "hyperfs -C \"$project\" undo\n",
		`test "$(hyperfs -C "$project" diff)" = "M	median.go"; hyperfs -C "$project" undo; test -z "$(hyperfs -C "$project" diff)"`+"\n", 1))
}
