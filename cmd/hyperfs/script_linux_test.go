package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/control"
)

// TestMain lets the test binary be the program itself, in scripts and as the daemon that it starts.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hyperfs": main})
}

// TestScripts runs what a user would type. Beside testscript's own commands there are
//
//	exits CODE CMD…   runs CMD, which must end with CODE
//	fails CODE CMD…   the same, and it must say why in one line on stderr, and nothing on stdout
//	keep NAME         puts the output of the last command into a variable
//	daemonkill DIR    kills the daemon of a workspace, as kill -9 does
//	gone DIR          fails if DIR is a mountpoint
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/script",
		Setup: setUp,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":      exits,
			"fails":      fails,
			"keep":       keep,
			"daemonkill": daemonKill,
			"gone":       gone,
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, errors.New("unknown condition")
		},
	})
}

// setUp gives a script a place for sockets, and takes away what it left mounted.
func setUp(env *testscript.Env) error {
	run, err := os.MkdirTemp("", "hyperfs") // a socket's path must be short
	if err != nil {
		return err
	}
	work, err := filepath.EvalSymlinks(env.WorkDir)
	if err != nil {
		return err
	}
	env.Setenv("XDG_RUNTIME_DIR", run)
	env.Setenv("GORACE", "atexit_sleep_ms=10") // its default makes each command take a second
	env.Setenv("WORK", work)
	env.Cd = work
	env.Defer(func() {
		endDaemons(filepath.Join(run, "hyperfs"))
		unmountBelow(work)
		os.RemoveAll(run)
	})
	return nil
}

// endDaemons ends the daemons that answer on the sockets in dir, and waits until they have let go of their stores.
func endDaemons(dir string) {
	sockets, _ := filepath.Glob(filepath.Join(dir, "*.sock")) // a bad pattern is its only error
	for _, s := range sockets {
		client := control.NewClient(s)
		_, _ = client.Unmount(context.Background(), control.UnmountOptions{Force: true}) // the dead do not answer
		client.Close()
	}
}

// unmountBelow detaches all mounts below dir: those of dead daemons, and of such as have lost their socket, which end by that.
func unmountBelow(dir string) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	for l := range strings.Lines(string(text)) {
		f := strings.Fields(l)
		if len(f) < 5 || !strings.HasPrefix(f[4]+"/", dir+"/") {
			continue
		}
		if unix.Unmount(f[4], unix.MNT_DETACH) != nil {
			exec.Command("fusermount3", "-uz", f[4]).Run()
		}
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE CMD…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func fails(ts *testscript.TestScript, neg bool, args []string) {
	exits(ts, neg, args)
	if text := ts.ReadFile("stderr"); !strings.HasPrefix(text, "hyperfs: ") || strings.Index(text, "\n") != len(text)-1 {
		ts.Fatalf("the error is not one line")
	}
	if ts.ReadFile("stdout") != "" {
		ts.Fatalf("the error came with data")
	}
}

func keep(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: keep NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

func daemonKill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: daemonkill DIR")
	}
	socket := filepath.Join(ts.Getenv("XDG_RUNTIME_DIR"), "hyperfs", control.SocketName(ts.MkAbs(args[0])))
	client := control.NewClient(socket)
	defer client.Close()
	s, err := client.Status(context.Background())
	ts.Check(err)
	p, err := unix.PidfdOpen(s.Daemon.PID, 0)
	ts.Check(err)
	defer unix.Close(p)
	ts.Check(unix.PidfdSendSignal(p, unix.SIGKILL, nil, 0))
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(p), Events: unix.POLLIN}}, -1)
	ts.Check(err)
}

var mountLine = regexp.MustCompile(`(?m)^(?:\S+ ){4}(\S+) `)

func gone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: gone DIR")
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	ts.Check(err)
	for _, m := range mountLine.FindAllStringSubmatch(string(text), -1) {
		if m[1] == ts.MkAbs(args[0]) {
			ts.Fatalf("%s is mounted", m[1])
		}
	}
}
