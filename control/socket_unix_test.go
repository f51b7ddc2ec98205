//go:build unix

package control

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inRuntimeDir gives a workspace, with the sockets in a directory of the test.
func inRuntimeDir(t *testing.T) (workspace, runtimeDir string) {
	t.Helper()
	runtimeDir, err := os.MkdirTemp("", "rt") // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(runtimeDir) })
	t.Setenv("XDG_RUNTIME_DIR", runtimeDir)
	return t.TempDir(), runtimeDir
}

// listen listens for a workspace and serves it.
func listen(t *testing.T, workspace, mountpoint string) net.Listener {
	t.Helper()
	l, err := Listen(workspace, mountpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(Options{Workspace: &fakeWorkspace{}})
	go s.Serve(l)
	t.Cleanup(func() { s.Close(nil) })
	return l
}

func TestTheSocketIsFoundFromTheWorkspaceAlone(t *testing.T) {
	w, rt := inRuntimeDir(t)
	listen(t, w, w)
	c, err := Dial(ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Status(ctx); err != nil {
		t.Error(err)
	}
	path := filepath.Join(rt, "hyperfs", SocketName(w))
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket %s: %v, %v", path, st, err)
	}
	if st, err := os.Stat(filepath.Dir(path)); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("its directory: %v, %v", st, err)
	}
	_, err = Dial(ctx, t.TempDir())
	wantCode(t, err, NotFound, "no daemon")
}

func TestTheWorkspaceIsFoundByWhateverNameItHas(t *testing.T) {
	w, _ := inRuntimeDir(t)
	listen(t, w, w)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(w, link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(w))
	for _, name := range []string{filepath.Base(w), link, link + "/.", w + "/"} {
		c, err := Dial(ctx, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c.Close()
	}
	t.Chdir(w)
	if c, err := Dial(ctx, "."); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	_, err := Dial(ctx, "nothing")
	wantCode(t, err, NotFound, "no daemon")
}

func TestAMountpointElsewhereLeadsToTheSocketToo(t *testing.T) {
	w, rt := inRuntimeDir(t)
	m := t.TempDir()
	l := listen(t, w, m)
	if c, err := Dial(ctx, m); err != nil {
		t.Error(err)
	} else if _, err := c.Status(ctx); err != nil {
		t.Error(err)
	}
	l.Close()
	if left, _ := os.ReadDir(filepath.Join(rt, "hyperfs")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTheSocketOfADeadDaemonIsReplaced(t *testing.T) {
	w, rt := inRuntimeDir(t)
	path := filepath.Join(rt, "hyperfs", SocketName(w))
	os.Mkdir(filepath.Dir(path), 0o700)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	listen(t, w, w)
}

func TestTheSocketOfALiveDaemonIsNot(t *testing.T) {
	w, _ := inRuntimeDir(t)
	listen(t, w, w)
	_, err := Listen(w, w, nil)
	wantCode(t, err, Busy, "another daemon")
	if _, err := Dial(ctx, w); err != nil {
		t.Errorf("the first daemon is gone: %v", err)
	}
}

func TestADirectoryThatOthersCanEnterIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	for name, prepare := range map[string]func(path string) error{
		"open to others": func(p string) error { os.Mkdir(p, 0o700); return os.Chmod(p, 0o755) },
		"a symlink":      func(p string) error { return os.Symlink(t.TempDir(), p) },
		"a file":         func(p string) error { return os.WriteFile(p, nil, 0o600) },
	} {
		path := filepath.Join(dir, name)
		if err := prepare(path); err != nil {
			t.Fatal(err)
		}
		wantCode(t, privateDir(path), Path, path)
	}
	ours := filepath.Join(dir, "ours")
	if err := privateDir(ours); err != nil {
		t.Error(err)
	}
	wantCode(t, checkPrivate(ours, os.Geteuid()+1), Path, "belongs to user")
}

func TestSocketsAreOutsideTheWorkspaceAndShortEnough(t *testing.T) {
	for _, tt := range []struct {
		name, workspace, runtimeDir string
		uid                         int
		dirs                        []string
	}{
		{"an ordinary user", "/home/u/p", "/run/user/7", 7, []string{"/run/user/7/hyperfs", "/tmp/hyperfs-7"}},
		{"without a session", "/home/u/p", "", 7, []string{"/run/user/7/hyperfs", "/tmp/hyperfs-7"}},
		{"root", "/srv", "", 0, []string{"/run/user/0/hyperfs", "/run/hyperfs", "/tmp/hyperfs-0"}},
		{"a relative runtime directory", "/p", "run", 7, []string{"/run/user/7/hyperfs", "/tmp/hyperfs-7"}},
		{"a runtime directory that is too long", "/p", "/" + strings.Repeat("x", 61), 7, []string{"/run/user/7/hyperfs", "/tmp/hyperfs-7"}},
		{"a workspace around it", "/tmp", "/tmp/rt", 7, []string{"/run/user/7/hyperfs"}},
		{"everything is the workspace", "/", "/run/user/7", 7, nil},
		{"a name that only begins the same", "/tmp/hyper", "", 7, []string{"/run/user/7/hyperfs", "/tmp/hyperfs-7"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var dirs []string
			for _, s := range socketsOf(tt.workspace, tt.uid, tt.runtimeDir) {
				if len(s) > maxSocketPath {
					t.Errorf("%s has %d bytes", s, len(s))
				}
				dirs = append(dirs, filepath.Dir(s))
			}
			if !slices.Equal(dirs, tt.dirs) {
				t.Errorf("got %q, want %q", dirs, tt.dirs)
			}
		})
	}
}
