package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
)

func TestTheCommandReferenceIsCurrent(t *testing.T) {
	want, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if code := run([]string{"hyperfs", "docs"}, nil, &got, io.Discard); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if got.String() != string(want) {
		t.Error("docs/cli.md is old: run go generate ./cmd/hyperfs")
	}
}

func TestTheAPIReferenceHasEveryRoute(t *testing.T) {
	text, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range control.Routes() {
		if row := "| `" + r.Method + " " + r.Path + "` | " + r.Doc + " |\n"; !strings.Contains(string(text), row) {
			t.Errorf("docs/api.md has no row %q", row)
		}
	}
	if got := strings.Count(string(text), "| `GET /") + strings.Count(string(text), "| `POST /") + strings.Count(string(text), "| `DELETE /"); got != len(control.Routes()) {
		t.Errorf("docs/api.md has %d rows, the API %d routes", got, len(control.Routes()))
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	eachCommand(newApp(nil, io.Discard, io.Discard).Commands, func(name string, c *cli.Command) {
		if c.Hidden {
			return
		}
		var out bytes.Buffer
		if code := run(append([]string{"hyperfs", "help"}, strings.Fields(name)...), nil, &out, io.Discard); code != 0 {
			t.Errorf("help %s: exit code %d", name, code)
		}
		if _, example, ok := strings.Cut(out.String(), "Example:\n"); !ok || !strings.Contains(example, "hyperfs "+name) {
			t.Errorf("help %s has no example:\n%s", name, &out)
		}
	})
}
