package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// program is a build of one of our commands, made when it is first wanted.
type program struct {
	pkg  string // within the module
	race bool   // with the race detector, if the tests have it
	test bool   // its tests
	path func() (string, error)
	made atomic.Bool
}

var (
	checked = newProgram("cmd/hyperfs", raceEnabled) // what the tests run
	plain   = newProgram("cmd/hyperfs", false)       // what users run, for tests of how much it takes
	search  = newProgram("examples/treesearch", raceEnabled)
	agentic = newProgram("examples/agent", raceEnabled)

	unchecked = newTestProgram("test") // these tests without the race detector
)

func newProgram(pkg string, race bool) *program {
	p := &program{pkg: pkg, race: race}
	p.path = sync.OnceValues(p.build)
	return p
}

func newTestProgram(pkg string) *program {
	p := newProgram(pkg, false)
	p.test = true
	return p
}

func (p *program) build() (string, error) {
	dir, err := os.MkdirTemp("", "hyperfs-bin-")
	if err != nil {
		return "", err
	}
	p.made.Store(true)
	bin := filepath.Join(dir, filepath.Base(p.pkg))
	args := []string{"build", "-o", bin}
	if p.test {
		args = []string{"test", "-c", "-o", bin}
	}
	env := "CGO_ENABLED=0"
	if p.race {
		args = append(args, "-race")
		env = "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", append(args, "github.com/hyperfs/hyperfs/"+p.pkg)...)
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go %s: %w\n%s", args[0], err, out)
	}
	return bin, err
}

// remove takes away what was built.
func (p *program) remove() {
	if p.made.Load() {
		bin, _ := p.path()
		_ = os.RemoveAll(filepath.Dir(bin))
	}
}

// run runs the program with args and gives what it prints. env is added to the environment.
func (p *program) run(env []string, args ...string) (string, error) {
	bin, err := p.path()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = os.TempDir() // not a directory that it is to unmount
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("hyperfs %q: %w: %s", args, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// needMount makes sure that this machine can mount. With CI=true it must.
func needMount(t testing.TB) {
	t.Helper()
	why := ""
	if runtime.GOOS != "linux" {
		why = "only Linux has FUSE"
	} else if _, err := os.Stat("/dev/fuse"); err != nil {
		why = err.Error()
	} else if _, err := exec.LookPath("fusermount3"); err != nil && os.Getuid() != 0 {
		why = err.Error()
	}
	missing(t, why)
}

// missing ends a test whose precondition does not hold; why says which, and is empty if it does.
func missing(t testing.TB, why string) {
	t.Helper()
	if why == "" {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("this test cannot run: %s", why)
	}
	t.Skip(why)
}
