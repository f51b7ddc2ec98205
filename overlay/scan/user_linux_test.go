package scan

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

const someUser = 54321

// asOrdinaryUser runs the test again as an ordinary user if this one is root, and reports whether it is up to the caller.
func asOrdinaryUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	dir, err := os.MkdirTemp("", "hyperfs-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = treestate.Remove(dir) })
	if err := os.Chown(dir, someUser, someUser); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "test")
	copyProgram(t, program)
	cmd := exec.Command(program, "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: someUser, Gid: someUser}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as user %d: %v\n%s", someUser, err, out)
	}
	return false
}

func copyProgram(t *testing.T, to string) {
	t.Helper()
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAPatchHasWhatItsOwnerHasShut(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	f := newFixture(t)
	for _, name := range []string{"shut/in/a", "unreadable", "unsearchable/b"} {
		f.write(name, "old\n")
	}
	id := f.snapshot()
	for _, name := range []string{"shut/in/a", "unreadable", "unsearchable/b"} {
		f.write(name, "new "+name+"\n")
	}
	for _, name := range []string{"unreadable", "shut/in/a", "shut/in", "shut"} {
		f.must(os.Chmod(f.path(name), 0o000))
	}
	f.must(os.Chmod(f.path("unsearchable"), 0o600))
	want := f.capture()
	var out bytes.Buffer
	f.must(f.w.Patch(context.Background(), id, "", &out))
	for _, name := range []string{"shut/in/a", "unreadable", "unsearchable/b"} {
		if !strings.Contains(out.String(), "\n+new "+name+"\n") {
			t.Errorf("the patch does not have %s:\n%s", name, out.String())
		}
	}
	f.is(want)
	if _, err := os.Stat(f.w.lifts.path); !os.IsNotExist(err) {
		t.Errorf("what was lifted is still written down: %v", err)
	}
}

func TestWhatItsOwnerHasShutIsProtectedToo(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	f := newFixture(t)
	f.write("shut/in/a", "one")
	f.write("readonly/b", "two")
	f.write("unreadable", "three")
	f.write("unsearchable/c", "four")
	shut := func() {
		f.must(os.Chmod(f.path("unreadable"), 0o000))
		f.must(os.Chmod(f.path("shut/in"), 0o000))
		f.must(os.Chmod(f.path("shut"), 0o100))
		f.must(os.Chmod(f.path("readonly"), 0o555))
		f.must(os.Chmod(f.path("unsearchable"), 0o600))
	}
	open := func() {
		for _, name := range []string{"shut", "shut/in", "readonly", "unsearchable"} {
			f.must(os.Chmod(f.path(name), 0o755))
		}
		f.must(os.Chmod(f.path("unreadable"), 0o644))
	}
	want := f.capture()
	shut()
	shutWant := f.capture()
	id := f.snapshot()
	f.is(shutWant)
	open()
	f.write("shut/in/a", "changed")
	f.must(os.Remove(f.path("readonly/b")))
	f.write("readonly/new", "x")
	f.write("unreadable", "changed")
	f.must(os.Remove(f.path("unsearchable/c")))
	f.must(os.Chmod(f.path("readonly"), 0o555))
	f.must(os.Chmod(f.path("shut/in"), 0o000))
	f.rollback(id)
	f.is(shutWant)
	open()
	for p, e := range want { // the modes alone were changed since
		now := f.capture()[p]
		if now.Sum != e.Sum || now.Unreadable != "" {
			t.Errorf("%s: its content is another one", p)
		}
	}
	f.sound()
}
