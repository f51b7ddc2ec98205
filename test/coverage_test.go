package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every row of docs/coverage.md says where something is and what shows it, and all that it names is there.
func TestTheTableOfCoverageNamesWhatThereIs(t *testing.T) {
	page, err := os.ReadFile("../docs/coverage.md")
	must(t, err)
	c := newCovered(t)
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "---") || strings.HasPrefix(cells[1], " there ") {
			continue
		}
		rows++
		c.where(t, cells[2])
		c.shownBy(t, cells[3])
	}
	if rows < 60 {
		t.Errorf("there are only %d rows", rows)
	}
}

// covered is what the table may name.
type covered struct {
	tests    map[string]bool
	symbols  map[string]map[string]bool // by directory
	commands string                     // docs/cli.md
	routes   string                     // docs/api.md
}

func newCovered(t *testing.T) *covered {
	t.Helper()
	c := &covered{tests: map[string]bool{}, symbols: map[string]map[string]bool{}}
	must(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "testdata" {
			return filepath.SkipDir // its tests are about something else
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil {
				c.tests[d.Name.Name] = true
			}
		}
		return nil
	}))
	for page, text := range map[string]*string{"cli": &c.commands, "api": &c.routes} {
		b, err := os.ReadFile("../docs/" + page + ".md")
		must(t, err)
		*text = string(b)
	}
	return c
}

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	goSymbol = regexp.MustCompile(`^([a-z]+(?:/[a-z]+)*)\.(\w+(?:\.\w+)?)$`)
	testName = regexp.MustCompile(`^(Test|Example|Benchmark)[A-Z]`)
)

// where checks what a cell names of hyperfs.
func (c *covered) where(t *testing.T, cell string) {
	t.Helper()
	if strings.TrimSpace(cell) == "" {
		t.Error("a row does not say where it is")
	}
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		name := m[1]
		symbol := goSymbol.FindStringSubmatch(name)
		switch {
		case symbol != nil:
			if !c.declares(t, "../"+symbol[1], symbol[2]) {
				t.Errorf("there is no %s", name)
			}
		case strings.HasPrefix(name, "hyperfs "):
			if !strings.Contains(c.commands, "\n## "+strings.TrimPrefix(name, "hyperfs ")+"\n") {
				t.Errorf("there is no command %s", name)
			}
		case strings.HasPrefix(name, "GET ") || strings.HasPrefix(name, "POST ") || strings.HasPrefix(name, "PUT ") || strings.HasPrefix(name, "DELETE "):
			if !strings.Contains(c.routes, "| `"+name+"` |") {
				t.Errorf("there is no route %s", name)
			}
		default:
			t.Errorf("%q names neither a Go symbol nor a command nor a route", name)
		}
	}
}

func (c *covered) declares(t *testing.T, dir, name string) bool {
	t.Helper()
	if c.symbols[dir] == nil {
		c.symbols[dir] = declaredIn(t, dir)
	}
	return c.symbols[dir][name]
}

// shownBy checks that a cell names tests that there are, or says behind a dash why there is none.
func (c *covered) shownBy(t *testing.T, cell string) {
	t.Helper()
	names := quoted.FindAllStringSubmatch(cell, -1)
	if len(names) == 0 && len(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(cell), "—"))) < 10 {
		t.Errorf("a row names no test, and says not why: %q", cell)
	}
	for _, m := range names {
		if !testName.MatchString(m[1]) || !c.tests[m[1]] {
			t.Errorf("there is no test %s", m[1])
		}
	}
}
