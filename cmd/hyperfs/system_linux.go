package main

import (
	"os"
	"os/exec"
	"runtime"
	"sync"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// takeStderr makes f what the process writes to stderr, as the Go runtime does when it dies.
func takeStderr(f *os.File) error { return unix.Dup3(int(f.Fd()), 2, 0) }

// ourProgram names the program that this process runs, also when its file has been replaced.
func ourProgram() (string, error) { return "/proc/self/exe", nil }

// How much later than it wants to the kernel may wake a thread of a daemon, in nanoseconds. Go's runtime has a thread that looks every 20 µs whether a system call keeps another one from
// its turn, as long as there are calls: with a request now and then that would be most of what the daemon does. It is the first one that the runtime starts, and can only be told by inheritance.
// All others get what the kernel gives by default, once they can be told.
const (
	patientSlack = 4_000_000
	timerSlack   = 50_000
)

// daemonSlice is for how long a thread of a daemon may go on once it runs, in nanoseconds. The less, the sooner it does: who waits for an answer waits as long as others compute on both CPUs (EEVDF, since Linux
// 6.12; before that it means nothing). It is the least that the kernel grants.
const daemonSlice = 100_000

// startDaemonProcess starts cmd with patientSlack and daemonSlice, which a process has from the thread that starts it (prctl(2), sched(7)).
func startDaemonProcess(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil && unix.Prctl(unix.PR_SET_TIMERSLACK, patientSlack, 0, 0, 0) == nil {
		defer unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(was), 0, 0, 0)
	}
	if a, err := unix.SchedGetAttr(0, 0); err == nil && a.Policy == unix.SCHED_NORMAL {
		const byDefault = 0
		if setSlice(*a, daemonSlice) == nil {
			defer setSlice(*a, byDefault)
		}
	}
	return cmd.Start()
}

// setSlice has the calling thread have what a says, but another slice.
func setSlice(a unix.SchedAttr, slice uint64) error {
	a.Runtime = slice
	return unix.SchedSetAttr(0, &a, 0)
}

// manyDescriptors are more than most daemons have.
const manyDescriptors = 4096

// runDaemonProcess prepares the process for a daemon with a mount. In Go's runtime a thread that waits in the kernel keeps its turn for up to 10 ms where nobody else needs it, and longer where the one that
// looks for that is patient. So there are enough for all that wait, for requests or for the next look at who makes them.
// The kernel's table of descriptors becomes large at once: each time that it grows, who needs the descriptor waits for some 10 ms (synchronize_rcu in expand_fdtable of fs/file.c). The mount need not.
func runDaemonProcess() {
	go func() {
		if fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, min(overlay.FileLimit(), manyDescriptors)-1); err == nil {
			_ = unix.Close(fd)
		}
	}()
	if os.Getenv("GOMAXPROCS") == "" {
		n := runtime.GOMAXPROCS(0)
		runtime.GOMAXPROCS(n + min(n, 16) + 4)
	}
}

// becomeExact has each thread that runs goroutines have timerSlack, and those that are made from now on, as they have it from them. It is called before anything else: there are few yet, and none waits for
// anything but goroutines.
func becomeExact() {
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || slack != patientSlack {
		return
	}
	exact := func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0) }
	exact() // before a thread is made from which others inherit it, as the first LockOSThread does
	var tasks unix.Stat_t
	if err := unix.Stat("/proc/self/task", &tasks); err != nil {
		return
	}
	var all sync.WaitGroup
	all.Add(int(tasks.Nlink)) // two more than there are threads
	for range tasks.Nlink {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			exact()
			all.Done()
			all.Wait() // so each has a thread of its own
		}()
	}
	all.Wait()
}
