package fs_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// mounted is a workspace with a mount that a test uses.
type mounted struct {
	dir       string // the mount
	workspace string // the lower; the same as dir in place, and then not reachable
	w         *overlay.Workspace
	server    *fs.Server
}

// variant is a way to mount that a test is run with.
type variant struct {
	name string
	opts fs.Options
}

var inPlace = variant{"in place with passthrough", fs.Options{InPlace: true, Passthrough: true}}
var cached = variant{"in place", fs.Options{InPlace: true}}
var elsewhere = variant{"elsewhere", fs.Options{}}

// eachVariant runs a test on a mount of each kind.
func eachVariant(t *testing.T, test func(t *testing.T, m *mounted)) {
	for _, v := range []variant{inPlace, cached, elsewhere} {
		t.Run(v.name, func(t *testing.T) { test(t, mount(t, v.opts)) })
	}
}

// needRoot ends a test that only root can run.
func needRoot(t testing.TB) {
	t.Helper()
	if unix.Geteuid() != 0 {
		lacking(t, "needs root")
	}
}

// lacking ends a test where the machine lacks something: it fails where everything should be there, as in CI, and is skipped otherwise.
func lacking(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// mount mounts a new workspace. It is unmounted when the test ends.
func mount(t testing.TB, o fs.Options) *mounted { return mountDir(t, t.TempDir(), o) }

// mountDir mounts an existing directory as a workspace.
func mountDir(t testing.TB, dir string, o fs.Options) *mounted {
	t.Helper()
	needRoot(t)
	w, err := overlay.Open(overlay.Config{Workspace: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error("close the workspace:", err)
		}
	})
	m := &mounted{dir: dir, workspace: dir, w: w}
	if !o.InPlace {
		m.dir = t.TempDir()
	}
	if os.Getenv("HYPERFS_TEST_URING") != "" && !o.NoURing { // or there would be none
		o.OpenRequests = true
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	if m.server, err = fs.Mount(w.Tree(), m.dir, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.server.Unmount(false); err != nil {
			t.Error(err)
			_ = m.server.Unmount(true)
		}
		m.server.Wait()
	})
	noPolling(t, m.dir)
	return m
}

// noPolling has the kernel find out that the mount does not answer POLL: else the Go runtime polls files of this process'
// own mount, with a thread that is then missing to serve it. Any file will do.
func noPolling(t testing.TB, dir string) {
	t.Helper()
	fd, err := unix.Open(filepath.Join(dir, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("daemon: %s", p)
	return len(p), nil
}

// path is a path in the mount.
func (m *mounted) path(elem ...string) string {
	return filepath.Join(append([]string{m.dir}, elem...)...)
}

func (m *mounted) write(t testing.TB, name, content string) string {
	t.Helper()
	p := m.path(name)
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// must ends the test when err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want ends the test when a call did not fail with errno.
func want(t testing.TB, err error, errno unix.Errno) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Fatalf("got %v, want %v", err, errno)
	}
}
