package ignore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func compile(t testing.TB, lines ...string) *Rules {
	t.Helper()
	r, err := Compile(lines)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPatternsMatchAsInGitignore(t *testing.T) {
	for _, c := range []struct {
		lines   string // separated by |
		path    string // with a slash at its end: a directory
		ignored bool
	}{
		{"node_modules/", "node_modules/", true},
		{"node_modules/", "a/b/node_modules/", true},
		{"node_modules/", "node_modules", false},
		{"node_modules/", "node_modules/x/y", true},
		{"/a/cache", "a/cache", true},
		{"/a/cache", "b/a/cache", false},
		{"a/cache", "b/a/cache", false},
		{"*.log", "x/y.log", true},
		{"*.log|!keep.log", "x/keep.log", false},
		{"d/|!d/x", "d/x", true}, // nothing below an ignored directory can be had back
		{"d/*|!d/x", "d/x", false},
		{"*|!*/", "d/c", true},
		{"c|!/a/b", "a/b/c", true},
		{"**/b", "b", true},
		{"**/b", "x/y/b", true},
		{"a/**", "a", false},
		{"a/**", "a/x/y", true},
		{"a/**/b", "a/b", true},
		{"a/**/b", "a/x/y/b", true},
		{"a**b", "a/b", false},
		{"# x", "# x", false},
		{`\# x`, "# x", true},
		{`x\ `, "x ", true},
		{"x  ", "x", true},
		{"[a-c]x", "bx", true},
		{"[!a-c]x", "bx", false},
		{"[[:digit:]]", "7", true},
		{"[", "[", false},
		{"?", "\xc3\xa9", false},
		{"??", "\xc3\xa9", true},
		{"", "x", false},
	} {
		r := compile(t, strings.Split(c.lines, "|")...)
		path, isDir := strings.CutSuffix(c.path, "/")
		if got := r.Ignored(path, isDir); got != c.ignored {
			t.Errorf("%q with %q: %v", c.path, c.lines, got)
		}
	}
}

func TestALineThatIsNoneIsRefused(t *testing.T) {
	for _, line := range []string{"a\x00b", "a\nb"} {
		if _, err := Compile([]string{line}); err == nil {
			t.Errorf("%q was taken", line)
		}
	}
}

// TestRandomPatternsMatchAsGitSays asks git of random paths that there are, with random patterns.
func TestRandomPatternsMatchAsGitSays(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	seed := rand.Uint64()
	if os.Getenv("CI") == "true" {
		seed = 1
	}
	rounds := 60
	if n, err := strconv.Atoi(os.Getenv("HYPERFS_STEPS")); err == nil {
		rounds = max(rounds, n/100)
	}
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	git(t, dir, nil, "init", "-q")
	paths := randomTree(t, r, dir)
	for range rounds {
		lines := make([]string, 1+r.IntN(4))
		for i := range lines {
			lines[i] = randomLine(r)
		}
		want := checkIgnore(t, dir, lines, paths)
		rules := compile(t, lines...)
		for _, p := range paths {
			path, isDir := strings.CutSuffix(p, "/")
			if got := rules.Ignored(path, isDir); got != want[p] {
				t.Errorf("seed %d: %q with %q: %v, git says %v", seed, p, lines, got, want[p])
			}
		}
		if t.Failed() {
			return
		}
	}
}

var names = []string{"a", "b", "ab", "a.b", "b-a", "[a]", "a b", "-", "!a", "#b", "é", "A1", "_", "x]"}

// randomTree makes files and directories, and gives their paths, those of directories with a slash at the end.
func randomTree(t *testing.T, r *rand.Rand, dir string) []string {
	dirs, seen := []string{""}, map[string]bool{}
	var paths []string
	for range 120 {
		p := dirs[r.IntN(len(dirs))] + names[r.IntN(len(names))]
		if seen[p] || strings.Count(p, "/") > 3 {
			continue
		}
		seen[p] = true
		var err error
		if r.IntN(2) == 0 {
			err = os.Mkdir(filepath.Join(dir, p), 0o755)
			p += "/"
			dirs = append(dirs, p)
		} else {
			err = os.WriteFile(filepath.Join(dir, p), nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, p)
	}
	return paths
}

func randomLine(r *rand.Rand) string {
	atoms := append([]string{"*", "**", "?", "/", "/**/", "**/", "/**", "[a-b]", "[!a]", "[^b]", "[[:alpha:]]", "[[:x:]]", "[]-]", "[a", `\`, `\*`, `\!`, "***", " ", "[]", `[\]]`, "[--/]", "."}, names...)
	var b strings.Builder
	if r.IntN(4) == 0 {
		b.WriteByte('!')
	}
	if r.IntN(4) == 0 {
		b.WriteByte('/')
	}
	for range 1 + r.IntN(4) {
		b.WriteString(atoms[r.IntN(len(atoms))])
	}
	if r.IntN(4) == 0 {
		b.WriteByte('/')
	}
	return b.String()
}

// checkIgnore gives what git ignores of paths.
func checkIgnore(t *testing.T, dir string, lines, paths []string) map[string]bool {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, ".git", "info", "exclude"), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var in bytes.Buffer
	for _, p := range paths {
		fmt.Fprintf(&in, "%s\x00", strings.TrimSuffix(p, "/"))
	}
	out := git(t, dir, &in, "check-ignore", "-z", "--no-index", "--stdin")
	ignored := map[string]bool{}
	said := map[string]bool{}
	for p := range strings.SplitSeq(out, "\x00") {
		said[p] = true
	}
	for _, p := range paths {
		ignored[p] = said[strings.TrimSuffix(p, "/")]
	}
	return ignored
}

func git(t *testing.T, dir string, in *bytes.Buffer, args ...string) string {
	t.Helper()
	c := exec.Command("git", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if in != nil {
		c.Stdin = in
	}
	var out, failed bytes.Buffer
	c.Stdout, c.Stderr = &out, &failed
	if err := c.Run(); err != nil {
		if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 1 || failed.Len() > 0 { // 1 says that nothing is ignored
			t.Fatal(err, failed.String())
		}
	}
	return out.String()
}
