package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// hyperfs builds the program once and gives its path. Under the race detector the daemon has it too.
var hyperfs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "hyperfs-bin-")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "hyperfs")
	args := []string{"build", "-o", bin}
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "github.com/hyperfs/hyperfs/cmd/hyperfs")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bin, nil
})

// removeBinary takes what hyperfs built away again.
func removeBinary() {
	if built {
		bin, _ := hyperfs()
		_ = os.RemoveAll(filepath.Dir(bin))
	}
}

// built says that hyperfs was called.
var built bool

// command runs the program with args and gives what it prints. env is added to the environment.
func command(env []string, args ...string) (string, error) {
	built = true
	bin, err := hyperfs()
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
