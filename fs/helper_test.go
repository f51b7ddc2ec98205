package fs_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// helpers are what this program does when a test starts it as another process, by the value of helperEnv.
var helpers = map[string]func(args []string) error{
	"daemon":     helpDaemon,
	"flock":      helpFlock,
	"recordlock": helpRecordLock,
	"append":     helpAppend,
	"holdwrite":  helpHoldWrite,
	"listxattr":  helpListXattr,
	"create":     helpCreate,
	"scribble":   helpScribble,
	"echodaemon": helpEchoDaemon,
	"map":        helpMap,
	"truncate":   func(args []string) error { return os.Truncate(args[0], 0) },
}

const helperEnv = "HYPERFS_TEST_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers[name](os.Args[1:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if sharedDir != "" {
		_ = os.RemoveAll(sharedDir)
	}
	os.Exit(code)
}

// helper makes a command that runs a helper as another user, or as root for 0.
func helper(t testing.TB, uid uint32, name string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	if uid != 0 {
		exe, err = sharedCopy()
		must(t, err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	return cmd
}

// sharedDir is where this program is for other users to run.
var sharedDir string

// sharedCopy puts this program where others may run it, once.
var sharedCopy = sync.OnceValues(func() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		return "", err
	}
	if sharedDir, err = os.MkdirTemp("", "hyperfs-helper-"); err != nil {
		return "", err
	}
	if err := os.Chmod(sharedDir, 0o755); err != nil {
		return "", err
	}
	to := filepath.Join(sharedDir, "helper")
	return to, os.WriteFile(to, b, 0o755)
})

// openUp lets others pass through the directories that a test has of its own.
func openUp(t testing.TB, dir string) {
	t.Helper()
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
}

// runHelper runs a helper to its end and gives what it wrote.
func runHelper(t testing.TB, uid uint32, name string, args ...string) (string, error) {
	t.Helper()
	out, err := helper(t, uid, name, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// process is a helper that goes on until it is told to stop.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startHelper starts a helper and waits for the line that it is ready with.
func startHelper(t testing.TB, uid uint32, name string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: helper(t, uid, name, args...)}
	in, err := p.StdinPipe()
	must(t, err)
	out, err := p.StdoutPipe()
	must(t, err)
	p.Stderr = os.Stderr
	must(t, p.Start())
	p.in, p.out = in, bufio.NewReader(out)
	t.Cleanup(func() {
		_ = p.in.Close()
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	if line, err := p.out.ReadString('\n'); err != nil || strings.HasPrefix(line, "error:") {
		t.Fatalf("helper %s: %s%v", name, line, err)
	}
	return p
}

// stop ends it by closing its input, and gives its error.
func (p *process) stop() error {
	_ = p.in.Close()
	return p.Wait()
}

// ready says that a helper is, and waits for the end of its input.
func ready() error {
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// helpDaemon serves a workspace (its first argument) at a mountpoint (the second), until its input ends.
func helpDaemon(args []string) error {
	w, err := overlay.Open(overlay.Config{Workspace: args[0]})
	if err != nil {
		return err
	}
	o := fs.Options{InPlace: args[0] == args[1], AllowOther: slices.Contains(args, "allow-other")}
	s, err := fs.Mount(w.Tree(), args[1], o)
	if err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	if err := s.Unmount(false); err != nil {
		return err
	}
	return w.Close()
}

func helpFlock(args []string) error {
	fd, err := unix.Open(args[0], unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
}

func helpRecordLock(args []string) error {
	fd, err := unix.Open(args[0], unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 5})
}

func helpAppend(args []string) error {
	f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(args[1])
	return err
}

func helpHoldWrite(args []string) error {
	if _, err := os.OpenFile(args[0], os.O_WRONLY, 0); err != nil {
		return err
	}
	return ready()
}

func helpListXattr(args []string) error {
	b := make([]byte, 4096)
	n, err := unix.Listxattr(args[0], b)
	fmt.Printf("%q\n", b[:max(n, 0)])
	return err
}

func helpCreate(args []string) error {
	unix.Umask(0o027)
	return os.WriteFile(args[0], []byte("made by somebody"), 0o666)
}
