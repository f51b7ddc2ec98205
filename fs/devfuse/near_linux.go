package devfuse

import (
	"bytes"
	"errors"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// near is a worker whose thread is on the CPU of the program that makes the requests, and of the policy SCHED_IDLE. So neither of the two has to be woken on another
// CPU, which sleeps: the kernel wakes a program where it was if nothing but such threads runs there (sched_idle_cpu in kernel/sched/fair.c), and has it go on at once. By the time that the worker
// gets to run again, the program has made its next request.
//
// Such a thread gets hardly any CPU while others want it. So the watch looks for that, and where nobody else can read, nothing is waited for that only it can do.
type near struct {
	pool   *Pool
	worker *worker
	wake   chan struct{} // its turn; closed when the connection has ended
	bell   bell          // has it stop waiting for a request
	tid    atomic.Int32

	cpu   atomic.Int32 // the only one that it may run on; nowhere if that's all
	freed atomic.Bool  // it is to be near the program again

	idle   bool // it waits for its turn; guarded by Pool.mu
	reads  bool // it waits for a request; guarded by Pool.mu
	ended  bool // its descriptors are closed; guarded by Pool.mu
	unable bool // its thread is like any other; set by its own goroutine, with Pool.mu held

	allowed unix.CPUSet // where the process may run

	// Only its own goroutine uses what follows.
	caller uint32    // the thread that it is near
	stat   int       // /proc/caller/stat; -1 if it can't be had
	looked time.Time // when it was looked where the caller is
	kick   int       // the CPU that the program is to leave with its next answer; nowhere if it may stay
	kicks  int       // how often it was to, in a row
	kicker *kicker
}

const (
	// slice is for how long it may go on once it runs; the shorter, the sooner it does. Kernels before 6.12 do not take it: one other thread that never sleeps might keep it from its
	// CPU for a second then, so there is none.
	slice = 100 * time.Microsecond
	// lookEvery is how often it looks at most where the program is.
	lookEvery = 50 * time.Microsecond
	// maxKicks is how often it has the program come back before it goes where that is.
	maxKicks = 3
	// nowhere is no CPU.
	nowhere = -1
)

// nearIsThere makes the near worker where there is none, and reports whether there is one. p.mu is held.
func (p *Pool) nearIsThere() bool {
	if p.near != nil || p.clone == nil {
		return p.near != nil && !p.near.unable
	}
	n, err := p.newNear()
	if err != nil {
		p.log.Debug("requests from /dev/fuse: no worker is near the program", "err", err)
		p.clone = nil
		return false
	}
	p.near = n
	p.workers[n.worker] = struct{}{}
	p.all.Go(n.run)
	return true
}

func (p *Pool) newNear() (*near, error) {
	if runtime.NumCPU() == 1 {
		return nil, errOneCPU
	}
	n := &near{pool: p, wake: make(chan struct{}, 1), idle: true, stat: -1, kick: nowhere}
	n.cpu.Store(nowhere)
	if err := unix.SchedGetaffinity(0, &n.allowed); err != nil {
		return nil, err
	}
	fd, err := p.clone()
	if err != nil {
		return nil, err
	}
	w, err := p.newWorker()
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if n.bell, err = newBell(unix.EFD_NONBLOCK); err != nil {
		_, _ = unix.Munmap(w.memory), unix.Close(fd)
		return nil, err
	}
	if n.kicker, err = p.newKicker(); err != nil {
		_, _, _ = unix.Munmap(w.memory), unix.Close(fd), n.bell.close()
		return nil, err
	}
	w.fd, n.worker, w.answering = fd, w, n.bringBack
	return n, nil
}

var errOneCPU = errors.New("there is one CPU")

// giveNear gives the near worker its turn, if it waits for that. p.mu is held.
func (p *Pool) giveNear() {
	if n := p.near; n.idle {
		n.idle, n.reads = false, true
		p.reading++
		n.wake <- struct{}{}
	}
}

func (n *near) run() {
	runtime.LockOSThread() // for good: the thread, which is not like others any more, ends with the goroutine
	n.tid.Store(int32(unix.Gettid()))
	defer func() {
		n.kicker.end()
		n.pool.left(n.worker)
		n.unfollow()
		_ = unix.Munmap(n.worker.memory)
		n.pool.mu.Lock()
		defer n.pool.mu.Unlock()
		n.ended = true
		_, _ = unix.Close(n.worker.fd), n.bell.close()
	}()
	if err := beIdle(); err != nil {
		n.pool.log.Debug("requests from /dev/fuse: no worker is near the program", "err", err)
		n.pool.mu.Lock()
		n.unable = true
		n.pool.mu.Unlock()
	}
	for range n.wake {
		if !n.serve() {
			return
		}
	}
}

// serve answers requests until others are to. It reports whether the connection goes on.
func (n *near) serve() bool {
	for more := true; more; more = n.answered() {
		size, err := n.read()
		switch {
		case err != nil:
			n.pool.ended()
			return false
		case size == 0:
			n.leave()
			return true
		}
		n.worker.work(size)
	}
	return true
}

// read waits for a request. If it's of 0 bytes, there was none, and others are to read.
func (n *near) read() (int, error) {
	w := n.worker
	for {
		w.reading.Store(true)
		size, err := w.tryRead()
		if err == nil {
			return size, nil // work says that it does not read any more
		}
		w.reading.Store(false)
		switch {
		case !isTransient(err):
			return 0, err
		case !errors.Is(err, unix.EAGAIN):
			continue
		}
		n.follow() // else it would be there by now
		polled := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}, {Fd: int32(n.bell), Events: unix.POLLIN}}
		if _, err := unix.Ppoll(polled, nil, nil); err == nil && polled[1].Revents != 0 && polled[0].Revents == 0 {
			n.bell.hear()
			return 0, nil
		}
	}
}

// hasPending reports whether there is a request that nobody has read. Pool.mu is held.
func (n *near) hasPending() bool {
	if n.ended {
		return false
	}
	polled := []unix.PollFd{{Fd: int32(n.worker.fd), Events: unix.POLLIN}}
	ready, err := unix.Poll(polled, 0)
	return ready > 0 && err == nil
}

// leave has others read.
func (n *near) leave() {
	p := n.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading--
	n.rest()
}

// answered notes that it has given its answer, and reports whether it is to read again.
func (n *near) answered() bool {
	p := n.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.working--
	if p.wanted && p.reading == 0 && !p.over {
		p.reading++
		n.reads = true
		return true
	}
	n.rest()
	return false
}

// rest notes that it waits for its turn. p.mu is held.
func (n *near) rest() {
	n.idle, n.reads = true, false
	if n.pool.reading == 0 {
		n.pool.another()
	}
}

// follow goes where the program is whose request was the last one.
func (n *near) follow() {
	now := time.Now()
	if n.unable {
		return
	}
	if n.freed.Swap(false) {
		n.looked, n.kick, n.kicks = time.Time{}, nowhere, 0
		_ = setPolicy(0, unix.SCHED_IDLE)
	}
	if now.Sub(n.looked) < lookEvery {
		return
	}
	n.looked = now
	if caller := n.worker.header().Pid; caller != n.caller && caller != 0 { // nobody's are those that are not waited for
		n.unfollow()
		n.caller = caller
		if fd, err := unix.Open("/proc/"+strconv.FormatUint(uint64(caller), 10)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			n.stat = fd
		}
	}
	cpu, err := cpuOf(n.stat)
	if err != nil || !n.allowed.IsSet(cpu) {
		return
	}
	switch home := int(n.cpu.Load()); {
	case cpu == home:
		n.kicks = 0
	case home != nowhere && n.kicks < maxKicks:
		n.kick = cpu
		n.kicks++
	case bind(0, cpu) == nil:
		n.cpu.Store(int32(cpu))
		n.kicks = 0
	}
}

// bringBack has the program that waits for an answer be woken where the near worker is.
func (n *near) bringBack() {
	if n.kick != nowhere {
		n.kicker.kick(n.kick)
		n.kick = nowhere
	}
}

// bind has a thread run on one CPU only. 0 is the one that calls.
func bind(tid, cpu int) error {
	var one unix.CPUSet
	one.Set(cpu)
	return unix.SchedSetaffinity(tid, &one)
}

func (n *near) unfollow() {
	if n.stat >= 0 {
		_ = unix.Close(n.stat)
		n.stat = -1
	}
}

// free has its thread leave the program's CPU and stop waiting for requests, until it is its turn again. From then on it may run anywhere, and like others where we may say so. Pool.mu is held.
func (n *near) free() {
	if n.reads && !n.ended {
		n.bell.ring()
	}
	tid := int(n.tid.Load())
	if tid == 0 {
		return
	}
	n.cpu.Store(nowhere)
	_ = unix.SchedSetaffinity(tid, &n.allowed)
	_ = setPolicy(tid, unix.SCHED_NORMAL)
	n.freed.Store(true)
}

// cpuOf reads the CPU that a thread has run on last, from its stat in /proc.
func cpuOf(stat int) (int, error) {
	var b [1024]byte
	n, err := unix.Pread(stat, b[:], 0)
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b[:n], ')')+1 : n])
	const processor = 39 - 3 // of proc_pid_stat(5), which counts from 1; the third is the first one behind the name
	if len(fields) <= processor {
		return 0, errShort
	}
	return strconv.Atoi(string(fields[processor]))
}

// beIdle makes the thread one of SCHED_IDLE, with a slice of its own. That can only be set for a thread of SCHED_NORMAL, and is kept then.
func beIdle() error {
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return err
	}
	a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: int32(20 - priority), Runtime: uint64(slice)}
	if err := unix.SchedSetAttr(0, &a, 0); err != nil {
		return err
	}
	if has, err := unix.SchedGetAttr(0, 0); err != nil || has.Runtime != a.Runtime {
		return errNoSlice
	}
	return setPolicy(0, unix.SCHED_IDLE)
}

var errNoSlice = errors.New("the kernel gives no thread a slice of its own")

func setPolicy(tid, policy int) error {
	var param struct{ priority int32 }
	if _, _, errno := syscall.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), uintptr(policy), uintptr(unsafe.Pointer(&param))); errno != 0 {
		return errno
	}
	return nil
}
