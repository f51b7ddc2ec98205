package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

// indentedCommand matches an indented line of Markdown with a command of ours, without what is said about it.
var indentedCommand = regexp.MustCompile(`(?m)^    (?:\$ )?(hyperfs [^#\n]*?)\s*(?:#.*)?$`)

// commandsIn gives the indented commands of ours in a page, from the top to the bottom.
func commandsIn(t *testing.T, page string) (commands []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, err)
	for _, m := range indentedCommand.FindAllStringSubmatch(string(text), -1) {
		commands = append(commands, m[1])
	}
	if len(commands) == 0 {
		t.Fatalf("%s has no command", page)
	}
	return commands
}

// reader is somebody who does what a page says, in a mounted workspace.
type reader struct {
	*testing.T
	ws  string
	env []string
}

// newReader mounts a workspace with a file. Programs in the directory that it gives go before others of their name.
func newReader(t *testing.T) (r *reader, programs string) {
	t.Helper()
	needMount(t)
	for _, name := range []string{"jq", "curl", "make"} {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, err.Error())
		}
	}
	bin, err := checked.path()
	must(t, err)
	ws := filepath.Join(t.TempDir(), "workspace")
	must(t, os.Mkdir(ws, 0o755))
	must(t, os.WriteFile(filepath.Join(ws, "file"), []byte("old\n"), 0o644))
	t.Cleanup(func() { _ = treestate.Remove(ws) })
	programs = t.TempDir()
	r = &reader{t, ws, []string{"PATH=" + programs + ":" + filepath.Dir(bin) + ":" + os.Getenv("PATH"), "HYPERFS_WORKSPACE=", "HYPERFS_BRANCH="}}
	r.does("hyperfs mount")
	t.Cleanup(func() {
		if _, err := checked.run(nil, "unmount", ws); err != nil {
			t.Error(err)
		}
	})
	return r, programs
}

func (r *reader) does(text string) {
	r.Helper()
	must(r.T, within(hangAfter, func() error { return runExample(r.ws, r.env, text) }))
}

// What docs/sessions.md has for other languages keeps what a command did that succeeds, and rolls back one that fails.
func TestExamplesForSessionsWork(t *testing.T) {
	t.Parallel()
	r, programs := newReader(t)
	must(t, os.WriteFile(filepath.Join(programs, "npm"), []byte("#!/bin/sh -eu\necho \"$*\" >file; mkdir node_modules; exit ${FAIL-0}\n"), 0o755))
	for _, command := range commandsIn(t, "../docs/sessions.md") {
		r.does(`(export FAIL=3; code=0; ` + command + ` || code=$?; test $code = 3); test "$(cat file)" = old; test ! -e node_modules`)
		r.does(command + `; test "$(cat file)" = "install left-pad"; test -d node_modules; hyperfs rollback; test "$(cat file)" = old`)
	}
	r.does(`printf 'all:\n\techo made >file; test ! -e fail\n' >Makefile; touch fail`)
	for _, text := range blocksIn(t, "../docs/sessions.md", "sh") {
		text = "SOCKET=$(hyperfs status --json | jq -r .daemon.socket)\n" + text + `hyperfs attempt --list >list; test ! -s list; rm list; test -n "$id"; `
		r.does(text + `test "$(cat file)" = old; rm fail`)
		r.does(text + `test "$(cat file)" = made; hyperfs show "$id" | grep '^agent *planner$'; hyperfs rollback "$id"; test "$(cat file)" = old; touch fail`)
	}
}

// What docs/sessions.md has in Go is Go, in a function that gives an error.
func TestExamplesForSessionsInGoCompile(t *testing.T) {
	compiles(t, "../docs/sessions.md", "", "_ = r\n")
}

// compiles vets the Go of a page, with something before and after it, in a function that gives an error.
func compiles(t *testing.T, page, before, after string) {
	t.Helper()
	for _, text := range blocksIn(t, page, "go") {
		if strings.Contains(text, "genkit.") {
			continue // of a module of its own
		}
		compilesIn(t, "", before+text+after+"return err\n")
	}
}

// What docs/runtimes.md has in Go is Go, each piece where it has a session, or a turn.
func TestExamplesForRuntimesInGoCompile(t *testing.T) {
	pieces := blocksIn(t, "../docs/runtimes.md", "go")
	if len(pieces) != 2 {
		t.Fatalf("there are %d pieces of Go, not 2", len(pieces))
	}
	compilesIn(t, ", s *session.Session", pieces[0]+"_ = result\nreturn err\n")
	compilesIn(t, ", turn *session.Turn", pieces[1]+"return err\n")
}

// compilesIn vets Go as the body of a function that has a context, and further parameters, and gives an error.
func compilesIn(t *testing.T, parameters, body string) {
	t.Helper()
	imports := "\t\"context\"\n\n\t\"github.com/hyperfs/hyperfs/session\"\n"
	for prefix, path := range map[string]string{"json.": "encoding/json", "runtime.": "github.com/hyperfs/hyperfs/session/runtime"} {
		if strings.Contains(body, prefix) {
			imports += "\t\"" + path + "\"\n"
		}
	}
	text := "package main\n\nimport (\n" + imports + ")\n\nvar _ *session.Session\n\nfunc main() {}\n\nvar _ = example\n\nfunc example(ctx context.Context" + parameters + ") error {\n" + body + "}\n"
	file := filepath.Join(t.TempDir(), "main.go")
	must(t, os.WriteFile(file, []byte(text), 0o644))
	if out, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s\nof\n%s", err, out, text)
	}
}

// What docs/turns.md has for a shell and for other languages commits files and conversation of what succeeds, and puts both back where it fails.
func TestExamplesForTurnsWork(t *testing.T) {
	t.Parallel()
	r, _ := newReader(t)
	r.does(`printf 'all:\n\techo made >file; echo log >make.log; test ! -e fail\n' >Makefile; touch fail`)
	const page = "../docs/turns.md"
	for _, command := range commandsIn(t, page) {
		r.does(`code=0; ` + command + ` || code=$?; test $code -ne 0; test "$(cat file)" = old`)
		r.does(`rm fail; ` + command + `; test "$(cat file)" = made; hyperfs turns list | grep -q ' completed .* fix '; hyperfs turns delete fix; touch fail; echo old >file; rm make.log`)
	}
	for _, text := range blocksIn(t, page, "sh") {
		text = "SOCKET=$(hyperfs status --json | jq -r .daemon.socket)\n" + strings.ReplaceAll(text, "hyperfs turns show --state", ": ") + "rm -f update.json; "
		r.does(text + `test "$(cat file)" = old; hyperfs turns show "$id" | grep '^status *failed'; hyperfs turns list --status pending >../list; test ! -s ../list`)
		r.does(`rm fail; ` + text + `test "$(cat file)" = made; hyperfs turns show --state "$id" | jq -e '.custom.step == 1 and .messages[0].content == "Make it build"'; ` +
			`hyperfs turns delete fix; touch fail; echo old >file; rm make.log`)
	}
}

// What docs/turns.md has in Go is Go.
func TestExamplesForTurnsInGoCompile(t *testing.T) {
	compiles(t, "../docs/turns.md", "inputs := make(chan session.Message)\n", "_ = result\n")
}

// What docs/recovery.md says lists and takes over what a daemon that was killed has left.
func TestExamplesForRecoveryWork(t *testing.T) {
	t.Parallel()
	r, _ := newReader(t)
	session := `hyperfs show "$(cat ../id)" --json | jq -r .session`
	r.does(`hyperfs snapshot >../id; echo new >file; ` + session + ` >../session; grep -q . ../session; hyperfs status --json | jq .daemon.pid | xargs kill -9`)
	r.does(`hyperfs mount "$PWD"`)
	for _, command := range commandsIn(t, "../docs/recovery.md") {
		r.does(`id=$(cat ../id); ` + strings.ReplaceAll(command, "ID", `"$id"`) + ` >../said; grep "$id" ../said`)
	}
	r.does(`test "$(` + session + `)" != "$(cat ../session)"; hyperfs rollback "$(cat ../id)"; test "$(cat file)" = old`)
}

// What docs/watching.md says of the feature is there, and can be turned off.
func TestExamplesForWatchingWork(t *testing.T) {
	t.Parallel()
	r, _ := newReader(t)
	text, err := os.ReadFile("../docs/watching.md")
	must(t, err)
	for _, said := range []string{"`hyperfs status --json` has the feature `inotify`", "`hyperfs mount --no-inotify` turns it off"} {
		if !strings.Contains(string(text), said) {
			t.Fatalf("the page does not say that %s", said)
		}
	}
	r.does(`hyperfs status --json | jq -e '.. | objects | select(.name? == "inotify") | .on or .reason'`)
	r.does(`ws=$PWD; cd ..; hyperfs unmount "$ws"; hyperfs mount --no-inotify "$ws"; cd "$ws"; hyperfs status --json | jq -e '.. | objects | select(.name? == "inotify") | .on | not'`)
}
