package session

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killFor is how long SIGKILL is tried for.
	killFor = 5 * time.Second
	// scanEvery is how often what is left is looked for where there is no PID namespace.
	scanEvery = 20 * time.Millisecond
)

// supervise waits for the end of the command, or the wish for it, passes signals on, and ends all that is left. Without
// requests the wish is there already; a channel that is closed is one too, as the caller is gone.
//
// All descendants end up as children of the helper, as the init or the subreaper, so none is left once it has no child any more.
func (h helper) supervise(pid int, group bool, requests <-chan request) reply {
	r := reply{Ended: true}
	exited := make(chan syscall.WaitStatus, 1)
	none := make(chan struct{})
	go reap(pid, exited, none)
	if requests != nil {
		waitOrPassOn(pid, group, requests, exited, &r)
	}
	h.end(none)
	if r.Status == 0 {
		select {
		case ws := <-exited:
			r.Status = uint32(ws)
		default:
		}
	}
	select {
	case <-none:
	default:
		r.Left = max(len(descendants(os.Getpid())), 1)
	}
	return r
}

// waitOrPassOn returns when the command has ended or is to be ended.
func waitOrPassOn(pid int, group bool, requests <-chan request, exited <-chan syscall.WaitStatus, r *reply) {
	for {
		select {
		case ws := <-exited:
			r.Status = uint32(ws)
			return
		case q, ok := <-requests:
			if !ok || q.End {
				go drain(requests)
				return
			}
			to := pid
			if group {
				to = -pid
			}
			_ = syscall.Kill(to, q.Signal) // it may have ended just now
		}
	}
}

// drain takes requests that come too late.
func drain(requests <-chan request) {
	for range requests {
	}
}

// reap takes the status of every child that ends: first of all those of the command. It closes none when there is no child left.
func reap(command int, exited chan<- syscall.WaitStatus, none chan<- struct{}) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WALL, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			close(none)
			return
		case pid == command:
			exited <- ws
		}
	}
}

// end ends all descendants: asks them, gives them the grace period, then kills them.
func (h helper) end(none <-chan struct{}) {
	select {
	case <-none:
		return
	case <-time.After(time.Millisecond): // what has just ended is being reaped
	}
	h.signalAll(unix.SIGTERM)
	h.signalAll(unix.SIGCONT) // what is stopped cannot end by itself
	select {
	case <-none:
		return
	case <-time.After(h.Grace):
	}
	for deadline := time.Now().Add(killFor); time.Now().Before(deadline); {
		h.signalAll(unix.SIGKILL) // again and again: some may be making others
		select {
		case <-none:
			return
		case <-time.After(scanEvery):
		}
	}
}

// signalAll sends a signal to every descendant.
func (h helper) signalAll(s unix.Signal) {
	if h.PIDs {
		_ = unix.Kill(-1, s) // all of the namespace but us
		return
	}
	for _, p := range descendants(os.Getpid()) {
		p.signal(s)
	}
}

// process is a process at one moment: its number may be another one's later, its start is its own.
type process struct {
	pid, parent int
	start       string // in ticks since boot
}

// descendants gives the processes below pid, as /proc shows them: parents before children.
func descendants(pid int) []process {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // a bad pattern is its only error
	children := map[int][]process{}
	for _, dir := range dirs {
		n, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if p, ok := lookUp(n); ok {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	var all []process
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			all = append(all, p)
			next = append(next, p.pid)
		}
	}
	return all
}

// lookUp reads what /proc knows of a process.
func lookUp(pid int) (process, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	// The name in parentheses may hold anything. Behind the last one: state, parent, and as the 20th the start.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 {
		return process{}, false
	}
	parent, err := strconv.Atoi(f[1])
	return process{pid: pid, parent: parent, start: f[19]}, err == nil
}

// signal sends a signal, unless the number belongs to another process by now.
func (p process) signal(s unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(fd)
	if now, ok := lookUp(p.pid); ok && now.start == p.start {
		_ = unix.PidfdSendSignal(fd, s, nil, 0) // whether it has an effect is seen by what is left
	}
}
