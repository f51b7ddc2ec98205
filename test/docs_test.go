package test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

// codeBlock matches a block of code in Markdown, with its language.
var codeBlock = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```\n")

// blocksIn gives the blocks of code in a page that are in a language.
func blocksIn(t *testing.T, page, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, err)
	for _, m := range codeBlock.FindAllStringSubmatch(string(text), -1) {
		if m[1] == language {
			blocks = append(blocks, m[2])
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no block of %s", page, language)
	}
	return blocks
}

const agentsPage = "../docs/agents.md"

// What docs/agents.md has for a shell does what it says, from the top to the bottom of the page.
func TestExamplesForAgentsWork(t *testing.T) {
	t.Parallel()
	needMount(t)
	for _, name := range []string{"jq", "curl"} {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, err.Error())
		}
	}
	ws := filepath.Join(t.TempDir(), "workspace")
	must(t, os.Mkdir(ws, 0o755))
	t.Cleanup(func() { _ = treestate.Remove(ws) })
	script(t, ws, nil, `mkdir src; echo 'export const a = "one"' > src/a.ts; echo 'export const b = "two"' > src/b.ts`)
	bin, err := checked.path()
	must(t, err)
	hooks, err := filepath.Abs("../examples/hooks")
	must(t, err)
	temp := t.TempDir()
	env := []string{
		"PATH=" + filepath.Dir(bin) + ":" + os.Getenv("PATH"), "HOOKS=" + hooks, "HYPERFS_HOOK_NOTES=" + filepath.Join(temp, "notes"), "HYPERFS_WORKSPACE=", "HYPERFS_BRANCH=",
	}
	t.Cleanup(func() {
		if _, err := checked.run(nil, "unmount", ws); err != nil {
			t.Error(err)
		}
	})
	for _, text := range blocksIn(t, agentsPage, "sh") {
		text = "trap 'kill ${events:-} 2> /dev/null || :' EXIT\n" + strings.ReplaceAll(text, "/tmp/", temp+"/")
		must(t, within(hangAfter, func() error { return runExample(ws, env, text) }))
	}
	for path, want := range map[string]string{
		"src/a.ts": "export const a = \"1\"\n", "src/b.ts": "export const b = \"2\"\nexport const two = true\n", "src/c.ts": "export const c = 3\n",
	} {
		if got, err := os.ReadFile(filepath.Join(ws, path)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", path, got, err)
		}
	}
}

// runExample runs a shell script until it has ended; what it leaves in the background may go on.
func runExample(dir string, env []string, text string) error {
	out, err := os.CreateTemp("", "example")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := exec.Command("sh", "-euc", text)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), out, out
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%w\n%s\n%s", err, text, said)
	}
	return nil
}

// hookSettings is as much of an agent's settings as hooks are.
type hookSettings struct {
	Hooks map[string][]struct {
		Hooks []struct{ Type, Command string }
	}
}

// The settings in docs/agents.md name the hooks that there are, and a hook lets nothing through that is not protected.
func TestHooksForAgentsKeepUnprotectedCallsBack(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		missing(t, err.Error())
	}
	var settings hookSettings
	must(t, json.Unmarshal([]byte(blocksIn(t, agentsPage, "json")[0]), &settings))
	var named []string
	for _, list := range settings.Hooks {
		for _, h := range list[0].Hooks {
			named = append(named, strings.TrimPrefix(h.Command, "$HOOKS/"))
		}
	}
	slices.Sort(named)
	if !slices.Equal(named, []string{"after", "before", "failed"}) {
		t.Errorf("the settings name %q", named)
	}
	bin, err := checked.path()
	must(t, err)
	ws := t.TempDir() // which is not mounted
	for name, want := range map[string]int{"before": 2, "after": 0, "failed": 0} {
		cmd := exec.Command(filepath.Join("../examples/hooks", name))
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(bin)+":"+os.Getenv("PATH"), "HYPERFS_HOOK_NOTES="+filepath.Join(t.TempDir(), "notes"),
			"HYPERFS_BACKEND=fuse")
		cmd.Stdin = strings.NewReader(`{"session_id": "../../x", "cwd": "` + ws + `", "tool_name": "Bash"}`)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%s ends with %d, want %d: %s", name, got, want, out)
		}
	}
}

// The Go programs in docs/agents.md are those in examples/, which are built and vetted with everything else.
func TestExamplesForAgentsInGoAreThoseThatAreBuilt(t *testing.T) {
	blocks := blocksIn(t, agentsPage, "go")
	for i, name := range []string{"attempt", "client"} {
		text, err := os.ReadFile(filepath.Join("../examples", name, "main.go"))
		must(t, err)
		if i >= len(blocks) || blocks[i] != string(text) {
			t.Errorf("the page does not have examples/%s as it is", name)
		}
	}
}

// The Go programs in docs/agents.md do what the page says of them, in the current directory.
func TestExamplesForAgentsInGoWork(t *testing.T) {
	t.Parallel()
	r, programs := newReader(t)
	must(t, os.WriteFile(filepath.Join(programs, "npm"), []byte("#!/bin/sh -eu\necho \"$*\" >file; mkdir new; exit ${FAIL-0}\n"), 0o755))
	for name, p := range examples {
		bin, err := p.path()
		must(t, err)
		must(t, os.Symlink(bin, filepath.Join(programs, name)))
	}
	r.does(`export FAIL=3; attempt >../said; cat ../said; grep '^ckpt_.* true exec npm: it ended with exit code 3$' ../said; test "$(cat file)" = old; test ! -e new`)
	r.does(`attempt >../said; cat ../said; grep '^ckpt_.* false <nil>$' ../said; test "$(cat file)" = test; test -d new`)
	r.does(`client >../said; cat ../said; test "$(cat ../said)" = '0 <nil>'; hyperfs list | grep 'builder *before the build$'`)
}

// examples are the programs of docs/agents.md, as a reader builds them.
var examples = map[string]*program{"attempt": newProgram("examples/attempt", false), "client": newProgram("examples/client", false)}

// declaredIn gives what a directory's Go files declare, for all systems, tests among them: functions, types, constants and variables by name, methods, fields and
// the methods of interfaces as Type.Name.
func declaredIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(t, err)
	all := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		must(t, err)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				all[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					addSpec(all, s)
				}
			}
		}
	}
	return all
}

// receiver gives the type of a method with a dot behind it.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	expr := d.Recv.List[0].Type
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	if index, ok := expr.(*ast.IndexExpr); ok {
		expr = index.X
	}
	if ident, ok := expr.(*ast.Ident); ok {
		return ident.Name + "."
	}
	return ""
}

func addSpec(all map[string]bool, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			all[name.Name] = true
		}
	case *ast.TypeSpec:
		all[s.Name.Name] = true
		var fields *ast.FieldList
		switch x := s.Type.(type) {
		case *ast.StructType:
			fields = x.Fields
		case *ast.InterfaceType:
			fields = x.Methods
		default:
			return
		}
		for _, f := range fields.List {
			for _, name := range f.Names {
				all[s.Name.Name+"."+name.Name] = true
			}
		}
	}
}
