package main

import (
	"os"
	"os/exec"
	"runtime"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// takeStderr makes f what the process writes to stderr, as the Go runtime does when it dies.
func takeStderr(f *os.File) error { return unix.Dup3(int(f.Fd()), 2, 0) }

// ourProgram names the program that this process runs, also when its file has been replaced.
func ourProgram() (string, error) { return "/proc/self/exe", nil }

// timerSlack is how much later than it wants to the kernel may wake a thread of a daemon, in nanoseconds. Go's runtime has a thread that looks every 20 µs whether a system call
// keeps another one, as long as there are calls; where a program makes a request now and then, that would be most of what the daemon does. Who needs to be exact says so: see fs/devfuse.
const timerSlack = 500_000

// startDaemonProcess starts cmd with that slack, which a process has from the thread that starts it (prctl(2)).
func startDaemonProcess(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil && unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0) == nil {
		defer unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(was), 0, 0, 0)
	}
	return cmd.Start()
}

// manyDescriptors are more than most daemons have.
const manyDescriptors = 4096

// runDaemonProcess prepares the process for a daemon with a mount. In Go's runtime two threads may wait in the kernel, for a request and for the next look at who does, without keeping a third one from its turn.
// The kernel's table of descriptors becomes large at once: each time that it grows, who needs the descriptor waits for some 10 ms (synchronize_rcu in expand_fdtable of fs/file.c). The mount need not.
func runDaemonProcess() {
	go func() {
		if fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, min(overlay.FileLimit(), manyDescriptors)-1); err == nil {
			_ = unix.Close(fd)
		}
	}()
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
	}
}
