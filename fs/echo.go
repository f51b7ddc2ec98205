package fs

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
)

// The kernel tells programs that watch files of what programs do, and of nothing else: a notification drops what it has cached, and raises no inotify
// event. So what a rollback, an undo or a merge changes is done once more by a program, the echo: a process of ours which makes, through the mount, the
// calls that would have changed the same. They raise the events. To the echo, which is known by its process ID, the filesystem answers as
// if each of them had something to do, and does nothing (see echoed).
//
// What is made or removed by an echo is a stand-in that nobody else ever sees: an inode with a number of its own, which the kernel may not believe
// in for any time. What means something to others, be it an entry, a size or a page, is not touched.
//
// The daemon itself must not enter its mount, and waits for no echo: a request may wait for what the echo has under way in the
// same directory, for no longer than for any other process.

const (
	// echoPatience is how long who has rolled back waits for the events to be raised.
	echoPatience = 25 * time.Millisecond
	// echoIdle is how long an echo without work lives.
	echoIdle = 10 * time.Second
	// echoFailures is after how many failures in a row no echo is started again.
	echoFailures = 3
	// echoEnd is how long an echo that was killed is waited for.
	echoEnd = 2 * time.Second
)

// echo has errands done by the process.
type echo struct {
	s          *filesystem
	mountpoint string
	log        *slog.Logger
	raised     *atomic.Uint64 // counts events

	pid     atomic.Uint32          // of the process; 0 is none. It is cleared before another process can get the number
	task    atomic.Pointer[errand] // that it is on
	pending atomic.Int64           // errands that are not done, and calls of tell

	mu       sync.Mutex
	queue    []*errand     // guarded by mu
	acts     int           // in queue; guarded by mu
	idle     chan struct{} // closed when the worker has ended; nil where there is none; guarded by mu
	wake     chan struct{} // tells the worker that there is work, or that it is to end; guarded by mu
	process  *echoProcess  // guarded by mu
	failures int           // guarded by mu
	off      string        // why no echo is started; guarded by mu
}

func newEcho(s *filesystem, mountpoint string, log *slog.Logger) *echo {
	return &echo{s: s, mountpoint: mountpoint, log: log, raised: &s.meter.events[eventEcho]}
}

// tell has the kernel forget, and programs that watch files told of effects. It waits a moment.
//
// From before the kernel forgets to the end, it is not told for good that there is nothing: it would not let the echo ask then.
func (e *echo) tell(effects []overlay.Effect, forget func()) {
	e.pending.Add(1)
	defer e.pending.Add(-1)
	forget()
	errands := e.s.errandsOf(effects)
	if len(errands) == 0 {
		return
	}
	last := errands[len(errands)-1]
	last.done = make(chan struct{})
	if !e.enqueue(errands) {
		return
	}
	patience := time.NewTimer(echoPatience)
	defer patience.Stop()
	select {
	case <-last.done:
	case <-patience.C:
	}
}

// enqueue gives work to the worker, and starts that. It is false where there can be no echo, or it is too far behind: what it has still to do then
// is more than programs could take in anyway.
func (e *echo) enqueue(errands []*errand) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.off != "" || e.acts > maxActs {
		return false
	}
	for _, x := range errands {
		e.queue = append(e.queue, x)
		e.acts += len(x.acts)
	}
	e.pending.Add(int64(len(errands)))
	if e.idle == nil {
		e.idle, e.wake = make(chan struct{}), make(chan struct{}, 1)
		go e.work(e.idle, e.wake)
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return true
}

// work does what is in the queue, and ends when there was nothing for a while.
func (e *echo) work(idle chan<- struct{}, wake <-chan struct{}) {
	defer close(idle)
	timer := time.NewTimer(echoIdle)
	defer timer.Stop()
	for {
		for x := e.next(); x != nil; x = e.next() {
			e.run(x)
			e.finish(x)
		}
		timer.Reset(echoIdle)
		select {
		case <-wake:
			if e.why() == "" {
				continue
			}
		case <-timer.C:
		}
		if e.retire() {
			return
		}
	}
}

// next takes an errand from the queue.
func (e *echo) next() *errand {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		return nil
	}
	x := e.queue[0]
	e.queue = e.queue[1:]
	e.acts -= len(x.acts)
	return x
}

// retire ends the process and the worker, unless there is work.
func (e *echo) retire() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) > 0 {
		return false
	}
	if e.process != nil {
		e.process.end()
		e.process = nil
	}
	e.idle = nil
	return true
}

// run has one errand done.
func (e *echo) run(x *errand) {
	p := e.started()
	if p == nil {
		return
	}
	e.task.Store(x)
	r, err := p.do(x.order(e.mountpoint))
	e.task.Store(nil)
	if err == nil && r.Fault == "" {
		e.raised.Add(uint64(r.Raised))
		e.count(nil)
		return
	}
	if err == nil {
		err = echoFault(r.Fault)
	}
	if e.drop(p) {
		e.count(err)
	}
}

type echoFault string

func (f echoFault) Error() string { return string(f) }

// started gives the process, and starts it if there is none.
func (e *echo) started() *echoProcess {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.process != nil || e.off != "" {
		return e.process
	}
	p, err := startEcho(&e.pid)
	if err != nil {
		e.failed(err)
		return nil
	}
	e.process = p
	return p
}

// drop gives up a process that has failed, and what it should have done. It is false if it was ended on purpose.
func (e *echo) drop(p *echoProcess) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p.end()
	if e.process != p {
		return false
	}
	e.process = nil
	e.clear()
	return true
}

// count notes how an errand went.
func (e *echo) count(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.failures = 0
		return
	}
	e.failed(err)
}

// failed notes a failure. The caller holds mu.
func (e *echo) failed(err error) {
	e.log.Debug("programs that watch files were not told of all changes", "error", err)
	if e.failures++; e.failures >= echoFailures {
		e.off = err.Error()
		e.clear()
	}
}

// finish notes that an errand is done or given up.
func (e *echo) finish(x *errand) {
	e.pending.Add(-1)
	if x.done != nil {
		close(x.done)
	}
}

// clear empties the queue. The caller holds mu.
func (e *echo) clear() {
	for _, x := range e.queue {
		e.finish(x)
	}
	e.queue, e.acts = nil, 0
}

// stop ends the process, so that it is not in the way of an unmount, and gives up what it should have done. What comes after that starts another one.
func (e *echo) stop() {
	e.mu.Lock()
	p := e.process
	e.process = nil
	e.clear()
	e.mu.Unlock()
	if p != nil {
		p.end()
		p.wait(echoEnd)
	}
}

// close is stop for good.
func (e *echo) close() {
	e.mu.Lock()
	e.off = "it is unmounted"
	if e.idle != nil {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
	e.mu.Unlock()
	e.stop()
}

// why says why no program is told, or nothing.
func (e *echo) why() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.off
}
