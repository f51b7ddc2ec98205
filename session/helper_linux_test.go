package session_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session"
)

// actEnv makes this program do something else than tests: it names one of acts.
const actEnv = "HYPERFS_TEST_ACT"

// acts are what this program does as a command.
var acts = map[string]func() error{
	"getwd": func() error {
		dir, err := os.Getwd()
		fmt.Println(dir)
		return err
	},
	"daemon": func() error {
		c := shell(os.Getenv("DIR"), daemon+"sleep 100")
		c.Network, c.Grace = session.Network(os.Getenv("NETWORK")), 100*time.Millisecond
		_, err := c.Run(context.Background())
		return err
	},
	"branch": func() error {
		ws, source := os.Getenv("DIR"), os.Getenv("DIR")+"/source"
		for _, sandbox := range []*session.Sandbox{nil, {}} {
			c := inBranch(ws, source, daemon+"echo >>ran; pwd -P")
			c.Sandbox, c.Grace = sandbox, 100*time.Millisecond
			r, err := c.Run(context.Background())
			fmt.Printf("%s%s\n", r.Stdout, errs.CodeOf(err))
			if err != nil && !strings.Contains(err.Error(), "\n") {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		return nil
	},
	"terminal": func() error {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt) // the command decides
		c := shell(os.Getenv("DIR"), `trap 'echo caught; exit 5' INT; echo "name?"; read name; echo "hello $name"; while :; do sleep 0.05; done`)
		c.Network, c.AcceptFailure, c.Capture = session.Network(os.Getenv("NETWORK")), true, false
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		r, err := c.Run(context.Background())
		fmt.Println("code", r.ExitCode)
		return err
	},
}

// noLandlockEnv makes this program one on a kernel without Landlock.
const noLandlockEnv = "HYPERFS_TEST_NO_LANDLOCK"

// withoutLandlock lets no thread of this process, and nothing that it starts, use Landlock.
func withoutLandlock() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_LANDLOCK_CREATE_RULESET, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	if _, _, errno = unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != unix.ENOSYS {
		return fmt.Errorf("Landlock answers %v", errno)
	}
	return nil
}

func TestMain(m *testing.M) {
	os.Setenv("GORACE", "atexit_sleep_ms=10") // its default makes each helper take a second
	if os.Getenv(noLandlockEnv) != "" {
		if err := withoutLandlock(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	if name := os.Getenv(actEnv); name != "" {
		if err := acts[name](); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// nobody is an ordinary user with an account, which fusermount3 wants to see.
const nobody = 65534

// eachUser runs a test as root and as an ordinary user: that one in a process of its own. Where the tests have no root, only as
// whoever they run as.
func eachUser(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		test(t)
		return
	}
	t.Run("root", test)
	t.Run("nobody", func(t *testing.T) { elsewhere(t, "TMPDIR=/tmp") })
}

// eachWall runs a test of a sandbox as eachUser does, and once more where there is no Landlock.
func eachWall(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	eachUser(t, test)
	if os.Geteuid() == 0 {
		t.Run("nobody without Landlock", func(t *testing.T) { elsewhere(t, noLandlockEnv+"=1") })
	}
}

// elsewhere runs the test t as an ordinary user, in a process of its own.
func elsewhere(t *testing.T, env string) {
	t.Helper()
	top, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+top+"$", "-test.v", "-test.timeout=2m")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "HOME=/nonexistent", "TMPDIR=/tmp", env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "--- SKIP: "+top) {
		t.Skip(string(out))
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+top) {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
}

// missing ends the test because this machine can't run it.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// tempDir gives a new directory as the kernel names it.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

// shell makes a command of a script.
func shell(dir, text string) session.Command {
	return session.Command{Args: []string{"sh", "-c", text}, Workspace: dir, Capture: true}
}

// output runs a command that must succeed, and gives what it wrote to stdout.
func output(t testing.TB, c session.Command) string {
	t.Helper()
	c.Capture = true
	r, err := c.Run(context.Background())
	if errs.CodeOf(err) == errs.Unsupported {
		missing(t, "%v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// expect compares what a command prints.
func expect(t testing.TB, c session.Command, want string) {
	t.Helper()
	if got := output(t, c); got != want {
		t.Errorf("%q prints %q, want %q", c.Args, got, want)
	}
}

func wantCode(t testing.TB, err error, code errs.Code) {
	t.Helper()
	if errs.CodeOf(err) != code {
		t.Errorf("error %v (%s), want %s", err, errs.CodeOf(err), code)
	}
}
