package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

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
	for _, c := range newApp(nil, io.Discard, io.Discard).Commands {
		if c.Hidden {
			continue
		}
		var out bytes.Buffer
		if code := run([]string{"hyperfs", "help", c.Name}, nil, &out, io.Discard); code != 0 {
			t.Errorf("help %s: exit code %d", c.Name, code)
		}
		if _, example, ok := strings.Cut(out.String(), "Example:\n"); !ok || !strings.Contains(example, "hyperfs "+c.Name) {
			t.Errorf("help %s has no example:\n%s", c.Name, &out)
		}
	}
}
