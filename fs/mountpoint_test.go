package fs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// failsWith ends the test unless err is one line with a code.
func failsWith(t *testing.T, err error, code errs.Code) {
	t.Helper()
	if errs.CodeOf(err) != code || strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %v (%s), want %s", err, errs.CodeOf(err), code)
	}
}

func tryMount(t *testing.T, mountpoint string) error {
	t.Helper()
	w, err := overlay.Open(overlay.Config{Workspace: t.TempDir()})
	must(t, err)
	defer w.Close()
	s, err := fs.Mount(w.Tree(), mountpoint, fs.Options{})
	if err == nil {
		must(t, s.Unmount(false))
	}
	return err
}

func TestMountRefusesWhatIsNoMountpoint(t *testing.T) {
	failsWith(t, tryMount(t, "/no/such/directory"), errs.Path)
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	failsWith(t, tryMount(t, file), errs.Path)
	m := mount(t, fs.Options{InPlace: true})
	failsWith(t, tryMount(t, m.dir), errs.Busy)
}

func TestIsMountedKnowsOddNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with space\tand \\ and \nand ü")
	must(t, os.Mkdir(dir, 0o755))
	if is, err := fs.IsMounted(dir); is || err != nil {
		t.Fatal(is, err)
	}
	m := mountDir(t, dir, fs.Options{InPlace: true})
	if is, err := fs.IsMounted(dir); !is || err != nil {
		t.Fatal(is, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	if is, err := fs.IsMounted(link); !is || err != nil {
		t.Fatal("through a symlink:", is, err)
	}
	must(t, m.server.Unmount(false))
	if is, err := fs.IsMounted(dir); is || err != nil {
		t.Fatal(is, err)
	}
}

func TestUnmountWaitsForUsersUnlessLazy(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true})
	f, err := os.OpenFile(m.write(t, "f", "x"), os.O_RDWR, 0)
	must(t, err)
	failsWith(t, m.server.Unmount(false), errs.Busy)
	if _, err := os.Stat(m.path("f")); err != nil {
		t.Fatal("a refused unmount has done harm:", err)
	}
	must(t, m.server.Unmount(true))
	_, err = f.WriteAt([]byte("still there"), 0)
	must(t, err)
	must(t, f.Close())
	m.server.Wait()
	got, err := os.ReadFile(filepath.Join(m.workspace, "f"))
	if err != nil || string(got) != "still there" {
		t.Fatalf("%q, %v", got, err)
	}
	must(t, m.server.Unmount(false)) // once more does nothing
}

func TestUnmountByOthersEndsTheServer(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true})
	m.write(t, "f", "x")
	must(t, unix.Unmount(m.dir, 0))
	m.server.Wait()
	if d := m.w.Diagnostics(); d.Handles != 0 || d.Nodes > 1 {
		t.Errorf("%d handles and %d nodes are left", d.Handles, d.Nodes)
	}
}

func TestADeadMountIsTakenAway(t *testing.T) {
	dir := t.TempDir()
	daemon := startHelper(t, 0, "daemon", dir, dir)
	if cleaned, err := fs.CleanDeadMount(dir); cleaned || err != nil {
		t.Fatal("a live mount is taken away:", cleaned, err)
	}
	held, err := os.Create(filepath.Join(dir, "f"))
	must(t, err)
	defer held.Close()
	must(t, daemon.Process.Kill())
	_ = daemon.Wait()
	if !fs.IsDead(dir) {
		t.Fatal("a dead mount is not known")
	}
	_, err = os.Stat(dir)
	want(t, err, unix.ENOTCONN)
	if is, err := fs.IsMounted(dir); !is || err != nil {
		t.Fatal(is, err)
	}
	if cleaned, err := fs.CleanDeadMount(dir); !cleaned || err != nil {
		t.Fatal(cleaned, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
		t.Fatal("the workspace:", err)
	}
	mountDir(t, dir, fs.Options{InPlace: true}).write(t, "g", "it can be mounted again")
}

func TestMountTakesADeadMountAwayItself(t *testing.T) {
	dir := t.TempDir()
	daemon := startHelper(t, 0, "daemon", dir, dir)
	must(t, daemon.Process.Kill())
	_ = daemon.Wait()
	// As the daemon's command does it: the workspace cannot be opened through a dead mount.
	_, err := fs.CleanDeadMount(dir)
	must(t, err)
	m := mountDir(t, dir, fs.Options{InPlace: true})
	m.write(t, "f", "x")
}

// nobody is a user with an account, which fusermount3 wants to see.
const nobody = 65534

// userMount has an ordinary user serve a workspace of their own, as root may not be there to help.
func userMount(t *testing.T, extra ...string) (dir string, daemon *process) {
	t.Helper()
	needRoot(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		lacking(t, err.Error())
	}
	must(t, os.Chmod("/dev/fuse", 0o666)) // as udev does
	dir = t.TempDir()
	openUp(t, dir)
	must(t, os.Chown(dir, nobody, nobody))
	return dir, startHelper(t, nobody, "daemon", append([]string{dir, dir}, extra...)...)
}

func TestAnOrdinaryUserCanMountAndUnmount(t *testing.T) {
	dir, daemon := userMount(t)
	p := filepath.Join(dir, "f")
	if out, err := runHelper(t, nobody, "create", p); err != nil {
		t.Fatal(out)
	}
	if out, err := runHelper(t, nobody, "append", p, ", twice"); err != nil {
		t.Fatal(out)
	}
	if _, err := os.Stat(p); err == nil { // not even root is let in
		t.Error("others are let in")
	}
	must(t, daemon.stop())
	var st unix.Stat_t
	must(t, unix.Stat(p, &st))
	got, err := os.ReadFile(p)
	if err != nil || string(got) != "made by somebody, twice" || st.Uid != nobody || st.Mode&0o777 != 0o640 {
		t.Fatalf("%q, %v, owner %d, mode %o", got, err, st.Uid, st.Mode)
	}
}

func TestAnOrdinaryUserIsToldWhatIsMissing(t *testing.T) {
	needRoot(t)
	must(t, os.Chmod("/dev/fuse", 0o666))
	dir := t.TempDir()
	openUp(t, dir)
	must(t, os.Chown(dir, nobody, nobody))
	said := func(env string, args ...string) string {
		cmd := helper(t, nobody, "daemon", append([]string{dir, dir}, args...)...)
		cmd.Env = append(cmd.Env, env)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if conf, _ := os.ReadFile("/etc/fuse.conf"); !strings.Contains("\n"+string(conf), "\nuser_allow_other") {
		if out := said("", "allow-other"); !strings.Contains(out, "/etc/fuse.conf") || strings.Count(out, "\n") != 1 {
			t.Error("allow_other:", out)
		}
	}
	must(t, os.Chmod("/dev/fuse", 0o600))
	defer os.Chmod("/dev/fuse", 0o666)
	if out := said(""); !strings.Contains(out, "/dev/fuse") || strings.Count(out, "\n") != 1 {
		t.Error("no right to /dev/fuse:", out)
	}
}

func TestFdsAreNotLeaked(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true})
	for range 50 {
		m.write(t, "f", "x")
		names(t, m.dir)
	}
	eventually(t, "all handles are released", func() bool { return m.w.Diagnostics().Handles <= 1 }) // a listing may be kept
	if f := m.server.Features(); !f.InPlace || f.MaxWrite != 1<<20 || len(f.Capabilities) == 0 {
		t.Errorf("%+v", f)
	}
}
