package runtime_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/runtime"
)

// processes are the runtimes that are programs.
var processes = []struct {
	name     string
	kind     runtime.Kind
	language string
}{{"Node.js", runtime.Node, runtime.JavaScript}, {"Python", runtime.CPython, runtime.Python}}

func TestMain(m *testing.M) {
	os.Setenv("GORACE", "atexit_sleep_ms=10") // its default makes each process that ends take a second
	for _, p := range processes {
		if _, err := exec.LookPath(string(p.kind)); err != nil && os.Getenv("CI") != "true" {
			continue // in CI all must be there
		}
		subjects = append(subjects, subject{p.name, p.language, true, func(ctx context.Context, l runtime.Limits) (runtime.CodeSession, error) {
			return session.StartRuntime(ctx, p.kind, session.RuntimeOptions{Limits: l, Command: session.Command{Dir: os.TempDir()}})
		}})
	}
	os.Exit(m.Run())
}
