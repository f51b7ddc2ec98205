package runtime_test

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/runtime"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// eventually waits until what holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for start := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%s\n%s", what, stacks[:goruntime.Stack(stacks, true)])
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

// gone reports whether no process has the number any more.
func gone(t *testing.T, pid string) bool {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	must(t, err)
	return errors.Is(syscall.Kill(n, 0), syscall.ESRCH)
}

// It is not parallel: descriptors and goroutines of this process are counted.
func TestNothingIsLeftOfASession(t *testing.T) {
	for _, sub := range subjects {
		t.Run(sub.name, func(t *testing.T) {
			life := func(end func(s *tried)) {
				s, err := sub.open(background, runtime.Limits{})
				must(t, err)
				try := &tried{s, sub, t}
				must(t, s.SetGlobals(background, map[string]any{"echo": echo}))
				try.is(try.pick("await ", "")+"echo(1)", "1")
				child := ""
				if sub.process {
					child = try.run(try.pick("const c = require('child_process').spawn('setsid', ['sleep', '600'], {detached: true, stdio: 'ignore'}); c.pid",
						"import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True).pid"))
				}
				end(try)
				<-s.Done()
				if child != "" && !gone(t, child) {
					t.Error("what it has started goes on")
				}
				must(t, s.Close())
			}
			closed := func(s *tried) { must(t, s.Close()) }
			life(closed) // what is made once
			fds, goroutines := descriptors(t), goruntime.NumGoroutine()
			life(closed)
			life(func(s *tried) { // in the middle of a request
				_, err := s.Execute(soon(t), s.pick("while (true) ;", "while True: x = 1"))
				if errs.CodeOf(err) != errs.ExecTimeout {
					t.Error(err)
				}
				must(t, s.Close())
			})
			if sub.process {
				life(func(s *tried) {
					_, err := s.Execute(background, s.pick("process.exit(7)", "import os\nos._exit(7)"))
					var exit *session.ExitError
					var death *runtime.DeathError
					if !errors.As(err, &death) || !errors.As(err, &exit) || exit.Result.ExitCode != 7 {
						t.Errorf("an exit gives %v", err)
					}
				})
				life(func(s *tried) { // kill -9, and what was written before
					r, err := s.Execute(background, s.pick("console.log('last'); process.kill(process.pid, 'SIGKILL'); await new Promise(() => {})",
						"import os, signal\nprint('last')\nos.kill(os.getpid(), signal.SIGKILL)"))
					var exit *session.ExitError
					if !errors.As(err, &exit) || exit.Result.Signal != syscall.SIGKILL || string(r.Stdout) != "last\n" {
						t.Errorf("a kill gives %q, %v", r.Stdout, err)
					}
					if errs.CodeOf(s.Err()) != errs.Exec {
						t.Errorf("it says %v", s.Err())
					}
				})
			}
			eventually(t, "descriptors or goroutines are left", func() bool { return descriptors(t) <= fds && goruntime.NumGoroutine() <= goroutines })
		})
	}
}

// What sends the host something that is no message is ended.
func TestADriverThatIsNoneOfOursIsEnded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"not a runtime": "exit 0", "garbage": "printf 'garbage, and more of it' >&3; sleep 600", "too much": `printf '\377\377\377\377m' >&3; sleep 600`,
		"a reply to nobody": `printf '\0\0\0\007m{"id":9}' >&3; sleep 600`, "complains": "echo no such option >&2; exit 9", "says nothing": "sleep 600",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := fmt.Sprintf("%s/%s", dir, strings.ReplaceAll(name, " ", "-"))
			must(t, os.WriteFile(program, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
			ctx := background
			if name == "says nothing" {
				ctx = soon(t)
			}
			_, err := session.StartRuntime(ctx, runtime.CPython, session.RuntimeOptions{
				Program: program, Limits: runtime.Limits{Grace: 50 * time.Millisecond}, Command: session.Command{Dir: dir},
			})
			if errs.CodeOf(err) != errs.Exec || name == "complains" && !strings.Contains(err.Error(), "no such option") {
				t.Errorf("it gives %v", err)
			}
		})
	}
}
