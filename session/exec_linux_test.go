package session_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
)

func TestACommandRunsWithArgumentsAndNoShell(t *testing.T) {
	c := session.Command{Args: []string{"printf", "%s|", "a b", "$HOME", "*", "", "\xff"}, Workspace: tempDir(t)}
	expect(t, c, "a b|$HOME|*||\xff|")
}

func TestACommandStartsWhereItIsTold(t *testing.T) {
	dir := tempDir(t)
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	expect(t, shell(dir, "pwd -P"), dir)
	c := shell(dir, "echo $PWD; pwd -P")
	c.Dir = filepath.Join(dir, "sub")
	expect(t, c, c.Dir+"\n"+c.Dir)
}

func TestTheEnvironmentIsTheCallersAndWhatIsAdded(t *testing.T) {
	t.Setenv("INHERITED", "yes")
	t.Setenv("CHANGED", "no")
	c := shell(tempDir(t), `echo $INHERITED $CHANGED $NEW; env | grep -c ^CHANGED=`)
	c.Env = []string{"CHANGED=once", "NEW=a=b", "CHANGED=twice"}
	expect(t, c, "yes twice a=b\n1")
	c.Unset = []string{"INHERITED", "CHANGED"}
	expect(t, c, "twice a=b\n1")
}

func TestACommandOutsideOfAnAttemptDoesNotReconcile(t *testing.T) {
	s := openHere(t)
	_, err := s.Snapshot(background, overlay.SnapshotOptions{})
	must(t, err)
	_, err = s.Exec(background, session.Command{Args: []string{"sh", "-c", "echo new >file"}})
	must(t, err)
	if last, ok := s.LastReconcile(); ok {
		t.Errorf("it found %+v", last)
	}
	r, err := session.RunAttempt(background, s, func(context.Context, *session.Attempt) (int, error) { return 7, nil }, session.AttemptOptions{NoReconcile: true})
	if err != nil || r.Value != 7 || r.Reconcile != nil {
		t.Errorf("an attempt that does not either gives %+v, %v", r, err)
	}
	if last, ok := s.LastReconcile(); ok {
		t.Errorf("the attempt found %+v", last)
	}
}

func TestStandardStreamsAreTheCallers(t *testing.T) {
	var out, errOut bytes.Buffer
	c := shell(tempDir(t), "cat; echo bad >&2")
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(strings.Repeat("input\n", 100000)), &out, &errOut
	r, err := c.Run(context.Background())
	must(t, err)
	if out.Len() != 600000 || errOut.String() != "bad\n" || len(r.Stdout) != 600000 || string(r.Stderr) != "bad\n" {
		t.Errorf("copied %d and %q, captured %d and %q", out.Len(), &errOut, len(r.Stdout), r.Stderr)
	}
}

func TestInputThatIsNotReadDoesNotHoldTheCommand(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	c := shell(tempDir(t), "exit 0")
	c.Stdin = struct{ *os.File }{r} // no *os.File: it is copied, and never ends
	_, err = c.Run(context.Background())
	must(t, err)
}

func TestOutputThatIsCutIsSaidToBe(t *testing.T) {
	c := shell(tempDir(t), "yes | head -c 100000; echo $? >done")
	c.CaptureLimit = 1000
	r, err := c.Run(context.Background())
	wantCode(t, err, errs.Exec)
	if !errors.Is(err, session.ErrCut) || len(r.Stdout) != 1000 || read(t, c.Workspace, "done") != "0\n" {
		t.Errorf("%v, %d bytes, the command said %q", err, len(r.Stdout), read(t, c.Workspace, "done"))
	}
	c = shell(c.Workspace, "yes | head -c 1000")
	c.CaptureLimit = 1000
	if r, err := c.Run(context.Background()); err != nil || len(r.Stdout) != 1000 {
		t.Errorf("exactly as much as fits: %v, %d bytes", err, len(r.Stdout))
	}
}

func TestTheExitCodeOrSignalIsKnown(t *testing.T) {
	dir := tempDir(t)
	for _, x := range []struct {
		script string
		code   int
		signal syscall.Signal
		shell  int
	}{{"exit 3", 3, 0, 3}, {"kill -9 $$", -1, syscall.SIGKILL, 137}, {"kill $$", -1, syscall.SIGTERM, 143}} {
		r, err := shell(dir, x.script).Run(context.Background())
		wantCode(t, err, errs.Exec)
		var exit *session.ExitError
		if !errors.As(err, &exit) || r.ExitCode != x.code || r.Signal != x.signal || r.ShellCode() != x.shell {
			t.Errorf("%s: %v, %d, %v, %d", x.script, err, r.ExitCode, r.Signal, r.ShellCode())
		}
		c := shell(dir, x.script)
		c.AcceptFailure = true
		if r, err := c.Run(context.Background()); err != nil || r.ShellCode() != x.shell {
			t.Errorf("%s, accepted: %v, %d", x.script, err, r.ShellCode())
		}
	}
}

func TestAProgramThatCannotBeStartedIsToldFromOneThatFails(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		dir := tempDir(t)
		write(t, dir, "text", "no program")
		write(t, dir, "garbage", "\x7fELF")
		must(t, os.Chmod(filepath.Join(dir, "garbage"), 0o755))
		shut := filepath.Join(dir, "shut") // as ~/bin of root is in the PATH of whoever su leaves it to
		must(t, os.Mkdir(shut, 0))
		t.Setenv("PATH", shut+":"+os.Getenv("PATH")+":"+dir)
		for name, notFound := range map[string]bool{
			"no-such-program": true, "text": false, "./nope": true, "text/below": true, "./text": false, "./garbage": false, "/": false,
		} {
			_, err := session.Command{Args: []string{name}, Workspace: dir}.Run(context.Background())
			wantCode(t, err, errs.Exec)
			var start *session.StartError
			if !errors.As(err, &start) || start.NotFound != notFound {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestWrongOptionsAreRefused(t *testing.T) {
	dir := tempDir(t)
	write(t, dir, "file", "")
	for name, x := range map[string]struct {
		change func(c *session.Command)
		code   errs.Code
	}{
		"no program":         {func(c *session.Command) { c.Args = nil }, errs.ExecOptions},
		"empty program":      {func(c *session.Command) { c.Args = []string{""} }, errs.ExecOptions},
		"NUL":                {func(c *session.Command) { c.Args = []string{"a\x00b"} }, errs.ExecOptions},
		"negative timeout":   {func(c *session.Command) { c.Timeout = new(-time.Second) }, errs.ExecOptions},
		"absurd timeout":     {func(c *session.Command) { c.Timeout = new(session.MaxTimeout + 1) }, errs.ExecOptions},
		"negative grace":     {func(c *session.Command) { c.Grace = -1 }, errs.ExecOptions},
		"environment":        {func(c *session.Command) { c.Env = []string{"novalue"} }, errs.ExecOptions},
		"environment's name": {func(c *session.Command) { c.Env = []string{"=x"} }, errs.ExecOptions},
		"capture limit":      {func(c *session.Command) { c.CaptureLimit = -1 }, errs.ExecOptions},
		"network":            {func(c *session.Command) { c.Network = "some" }, errs.ExecOptions},
		"no directory":       {func(c *session.Command) { c.Workspace = "" }, errs.ExecOptions},
		"relative directory": {func(c *session.Command) { c.Dir = "a" }, errs.Path},
		"missing workspace":  {func(c *session.Command) { c.Workspace = filepath.Join(dir, "nope") }, errs.Path},
		"workspace is file":  {func(c *session.Command) { c.Workspace = filepath.Join(dir, "file") }, errs.Path},
		"missing source":     {func(c *session.Command) { c.Source = filepath.Join(dir, "nope") }, errs.Path},
		"missing dir":        {func(c *session.Command) { c.Dir = filepath.Join(dir, "nope") }, errs.Path},
		"dir is file":        {func(c *session.Command) { c.Dir = filepath.Join(dir, "file") }, errs.Path},
		"missing write": {func(c *session.Command) {
			c.Sandbox = &session.Sandbox{Write: []string{filepath.Join(dir, "nope")}}
		}, errs.Path},
		"relative write": {func(c *session.Command) { c.Sandbox = &session.Sandbox{Write: []string{"a"}} }, errs.Path},
	} {
		c := shell(dir, "touch ran")
		x.change(&c)
		if _, err := c.Run(context.Background()); errs.CodeOf(err) != x.code {
			t.Errorf("%s: %v (%s), want %s", name, err, errs.CodeOf(err), x.code)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("a command ran")
	}
}

// daemon is a script that leaves a daemon behind: the child of a child, in a session of its own, that ignores SIGTERM and writes
// into a file as long as it lives.
const daemon = `setsid sh -c '(trap "" TERM HUP INT; echo >born; while [ ! -e stop ]; do date +%N >>alive; sleep 0.05; done) >/dev/null 2>&1 </dev/null & exit 0' & while [ ! -e born ]; do sleep 0.01; done; `

// stopped fails if something still writes.
func stopped(t *testing.T, dir string) {
	t.Helper()
	before := read(t, dir, "alive")
	if before == "" && read(t, dir, "born") == "" {
		t.Fatal("there was no daemon")
	}
	time.Sleep(200 * time.Millisecond)
	if read(t, dir, "alive") != before {
		t.Error("the daemon lives on")
	}
}

// privately runs a test with a plain command, and with one in namespaces of its own.
func privately(t *testing.T, test func(t *testing.T, network session.Network)) {
	eachUser(t, func(t *testing.T) {
		for _, n := range []session.Network{session.NetworkHost, session.NetworkNone} {
			t.Run(string(n), func(t *testing.T) { test(t, n) })
		}
	})
}

func TestATimeoutEndsDaemonsToo(t *testing.T) {
	privately(t, func(t *testing.T, n session.Network) {
		c := shell(tempDir(t), daemon+"sleep 100")
		c.Network = n
		c.Timeout, c.Grace = new(time.Second), 200*time.Millisecond
		start := time.Now()
		r, err := c.Run(context.Background())
		wantCode(t, err, errs.ExecTimeout)
		if took := time.Since(start); took > 10*time.Second || r.Signal != syscall.SIGTERM {
			t.Errorf("it took %v, and ended by %v", took, r.Signal)
		}
		stopped(t, c.Workspace)
	})
}

func TestTheEndOfACommandEndsWhatItLeaves(t *testing.T) {
	privately(t, func(t *testing.T, n session.Network) {
		c := shell(tempDir(t), daemon+"exit 7")
		c.Network, c.Grace, c.AcceptFailure = n, 100*time.Millisecond, true
		r, err := c.Run(context.Background())
		if err != nil || r.ExitCode != 7 {
			t.Errorf("%v, exit code %d", err, r.ExitCode)
		}
		stopped(t, c.Workspace)
	})
}

func TestACancelledContextEndsTheCommand(t *testing.T) {
	privately(t, func(t *testing.T, n session.Network) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c := shell(tempDir(t), daemon+"sleep 100")
		c.Network, c.Grace = n, 100*time.Millisecond
		p, err := c.Start(ctx)
		must(t, err)
		for read(t, c.Workspace, "born") == "" {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
		_, err = p.Wait()
		wantCode(t, err, errs.Exec)
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		stopped(t, c.Workspace)
		if _, err := c.Start(ctx); !errors.Is(err, context.Canceled) {
			t.Error("a context that is over starts a command:", err)
		}
	})
}

func TestAContextThatEndsWhileACommandStartsEndsTheStart(t *testing.T) {
	dir := tempDir(t)
	for wait := time.Duration(0); wait < 10*time.Millisecond; wait += time.Millisecond {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		ended := make(chan error, 1)
		go func() {
			_, err := shell(dir, "sleep 600").Run(ctx)
			ended <- err
		}()
		select {
		case err := <-ended:
			wantCode(t, err, errs.Exec)
		case <-time.After(20 * time.Second):
			t.Fatalf("a context that ended after %v does not end it", wait)
		}
		cancel()
	}
}

func TestWhatEndsByItselfHasTimeTo(t *testing.T) {
	c := shell(tempDir(t), `trap 'sleep 0.2; echo >clean; exit 0' TERM; echo >ready; while :; do sleep 0.02; done`)
	c.Timeout = new(300 * time.Millisecond)
	r, err := c.Run(context.Background())
	wantCode(t, err, errs.ExecTimeout)
	if read(t, c.Workspace, "clean") == "" || r.ExitCode != 0 {
		t.Errorf("it was killed: %v", r)
	}
}

func TestSignalsReachTheCommandsGroup(t *testing.T) {
	privately(t, func(t *testing.T, n session.Network) {
		c := shell(tempDir(t), `trap 'echo >parent; exit 5' INT; sh -c 'trap "echo >child; exit 0" INT; echo >ready; while :; do sleep 0.02; done'; exit 6`)
		c.Network, c.AcceptFailure = n, true
		p, err := c.Start(context.Background())
		must(t, err)
		for read(t, c.Workspace, "ready") == "" {
			time.Sleep(10 * time.Millisecond)
		}
		must(t, p.Signal(syscall.SIGINT))
		r, err := p.Wait()
		must(t, err)
		if r.ExitCode != 5 || read(t, c.Workspace, "child") == "" {
			t.Errorf("exit code %d, the child was reached: %t", r.ExitCode, read(t, c.Workspace, "child") != "")
		}
		if err := p.Signal(syscall.SIGINT); err != nil {
			t.Error("a signal for what has ended:", err)
		}
	})
}

func TestNoDescriptorButTheStreamsIsPassedOn(t *testing.T) {
	f, err := os.Open("/")
	must(t, err)
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd())) // stays open over exec
	must(t, err)
	defer syscall.Close(fd)
	if list := output(t, shell(tempDir(t), "ls -l /proc/self/fd | grep -c -- '-> /$'; true")); list != "0" {
		t.Errorf("%s descriptors of the root directory", list)
	}
	if list := output(t, shell(tempDir(t), "ls /proc/self/fd")); list != "0\n1\n2\n3" { // the last is of ls itself
		t.Errorf("descriptors: %q", list)
	}
}

// helperOf finds a helper that this process has started.
func helperOf(t *testing.T) int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, dir := range dirs {
		name, _ := os.ReadFile(dir + "/cmdline")
		status, _ := os.ReadFile(dir + "/status")
		if strings.HasPrefix(string(name), "hyperfs-exec-helper\x00") && strings.Contains(string(status), "\nPPid:\t"+strconv.Itoa(os.Getpid())+"\n") {
			pid, err := strconv.Atoi(filepath.Base(dir))
			must(t, err)
			return pid
		}
	}
	t.Fatal("there is no helper")
	return 0
}

func TestADeadHelperIsNoSuccess(t *testing.T) {
	privately(t, func(t *testing.T, n session.Network) {
		c := shell(tempDir(t), daemon+"while :; do date >>main; sleep 0.05; done")
		c.Network = n
		p, err := c.Start(context.Background())
		must(t, err)
		for read(t, c.Workspace, "main") == "" {
			time.Sleep(10 * time.Millisecond)
		}
		must(t, syscall.Kill(helperOf(t), syscall.SIGKILL))
		_, err = p.Wait()
		wantCode(t, err, errs.Exec)
		before := read(t, c.Workspace, "main")
		time.Sleep(200 * time.Millisecond)
		if read(t, c.Workspace, "main") != before {
			t.Error("the command lives on")
		}
		if n == session.NetworkNone {
			stopped(t, c.Workspace)
			return
		}
		write(t, c.Workspace, "stop", "") // what no namespace holds, and now has no supervisor either
		for last := ""; last != read(t, c.Workspace, "alive"); {
			last = read(t, c.Workspace, "alive")
			time.Sleep(200 * time.Millisecond)
		}
	})
}

func TestTheEndOfTheCallerIsThatOfTheCommand(t *testing.T) {
	privately(t, func(t *testing.T, n session.Network) {
		dir := tempDir(t)
		caller := exec.Command("/proc/self/exe")
		caller.Env = append(os.Environ(), actEnv+"=daemon", "DIR="+dir, "NETWORK="+string(n))
		must(t, caller.Start())
		for read(t, dir, "alive") == "" {
			time.Sleep(10 * time.Millisecond)
		}
		must(t, caller.Process.Kill())
		_ = caller.Wait()
		time.Sleep(500 * time.Millisecond) // the grace period, and some
		stopped(t, dir)
	})
}

func TestATerminalIsTheCommands(t *testing.T) {
	for _, n := range []session.Network{session.NetworkHost, session.NetworkNone} {
		master, slave := terminal(t)
		caller := exec.Command("/proc/self/exe")
		caller.Env = append(os.Environ(), actEnv+"=terminal", "DIR="+tempDir(t), "NETWORK="+string(n))
		caller.Stdin, caller.Stdout, caller.Stderr = slave, slave, slave
		caller.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		must(t, caller.Start())
		slave.Close()
		timer := time.AfterFunc(20*time.Second, func() { _ = caller.Process.Kill() })
		said := bufio.NewReader(master)
		var all strings.Builder
		for _, step := range []struct{ await, then string }{{"name?", "somebody\n"}, {"hello somebody", "\x03"}, {"caught", ""}, {"code 5", ""}} {
			for !strings.Contains(all.String(), step.await) {
				line, err := said.ReadString('\n')
				if err != nil {
					t.Fatalf("%s: %v after %q", n, err, all.String())
				}
				all.WriteString(line)
			}
			_, err := master.WriteString(step.then)
			must(t, err)
		}
		timer.Stop()
		must(t, caller.Wait())
		master.Close()
	}
}

// terminal makes a new one.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	return master, slave
}

func TestManyCommandsAtOnce(t *testing.T) {
	dir := tempDir(t)
	errsOf := make(chan error)
	for i := range 16 {
		go func() {
			c := shell(dir, "echo $N")
			c.Env = []string{"N=" + strconv.Itoa(i)}
			r, err := c.Run(context.Background())
			if err == nil && string(r.Stdout) != strconv.Itoa(i)+"\n" {
				err = errors.New("another's output: " + string(r.Stdout))
			}
			errsOf <- err
		}()
	}
	for range 16 {
		if err := <-errsOf; err != nil {
			t.Error(err)
		}
	}
}
