package devfuse

import (
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Handler answers a request, as fuse.ProtocolServer.HandleRequest does: the bytes written to out, and a status where there is no answer.
type Handler func(in, out [][]byte) (int, fuse.Status)

// Clone gives another descriptor of the same connection, which does not block. Who gets it closes it.
type Clone func() (int, error)

// Pool serves a connection.
type Pool struct {
	fd      int
	payload int // bytes of the largest request or answer
	handle  Handler
	log     *slog.Logger
	wide    int           // how many may read at once
	clone   Clone         // nil: there is to be no near worker
	brought atomic.Uint64 // bytes of requests, since the watch has last looked
	given   atomic.Uint64 // bytes of answers, since then
	wake    chan struct{} // gives a spare worker its turn; closed when the connection has ended
	busy    chan struct{} // ends the watch's sleep; closed when the connection has ended
	all     sync.WaitGroup

	mu      sync.Mutex // guards what follows
	narrow  bool       // nobody is to read while a request is worked on
	reading int        // workers that read, or are on their way
	working int        // workers that have a request
	spare   int        // workers that wait for their turn
	watched bool       // the watch does not sleep
	over    bool
	near    *near  // nil until it is wanted
	wanted  bool   // near is to read
	pending bool   // in the last tick there was a request that it had not read
	taken   uint64 // requests, since the watch has last looked
	total   uint64 // requests, ever
	turns   uint64 // of these, such as were of another thread than the one before
	stats   Stats  // all but NearAble
	caller  uint32 // the thread whose request was the last one
	workers map[*worker]struct{}
}

const (
	// tick is how often the watch looks.
	tick = time.Millisecond
	// wakes is how many requests wake the watch.
	wakes = 32
	// maxSpare is how many workers may wait for their turn; more end.
	maxSpare = 16
)

// Start serves the connection whose INIT has been answered. fd is its descriptor of /dev/fuse, which must stay open until Wait has returned; payload is the size of the largest request
// and answer in bytes, without their headers. Without clone no worker is near the program.
func Start(fd, payload int, handle Handler, clone Clone, log *slog.Logger) (*Pool, error) {
	p := &Pool{fd: fd, payload: payload, handle: handle, clone: clone, log: log, wide: min(max(runtime.NumCPU(), 2), 16)}
	p.wake, p.busy = make(chan struct{}, maxSpare), make(chan struct{}, 1)
	w, err := p.newWorker()
	if err != nil {
		return nil, err
	}
	p.reading, p.workers = 1, map[*worker]struct{}{w: {}}
	p.all.Go(w.run)
	p.all.Go(p.watch)
	return p, nil
}

// Wait returns when the connection has ended and no request is worked on any more.
func (p *Pool) Wait() { p.all.Wait() }

// another has one more worker read. p.mu is held. If there can't be one, requests wait until one has been answered.
func (p *Pool) another() {
	if p.over {
		return
	}
	if p.spare > 0 {
		p.spare--
		p.reading++
		p.wake <- struct{}{}
		return
	}
	w, err := p.newWorker()
	if err != nil {
		p.log.Warn("requests from /dev/fuse: no more workers", "err", err)
		return
	}
	p.reading++
	p.workers[w] = struct{}{}
	p.all.Go(w.run)
}

// took notes that a worker has read a request of a thread, of n bytes.
func (p *Pool) took(w *worker, caller uint32, n int) {
	p.brought.Add(uint64(n))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading--
	p.working++
	p.taken++
	switch {
	case p.near != nil && p.near.worker == w:
		p.near.reads = false
		p.stats.Near++
	case p.narrow:
		p.stats.Alone++
	}
	p.total++
	if caller != p.caller && caller != 0 {
		p.caller = caller
		p.turns++
	}
	if p.reading == 0 && !p.narrow {
		p.another()
	}
	if !p.watched && !p.over && p.taken >= wakes {
		p.watched = true
		p.taken, p.turns = 0, 0
		p.busy <- struct{}{}
	}
}

// answered notes that a worker has given its answer, and reports whether it is to read again. It may wait for its turn.
func (p *Pool) answered() bool {
	p.mu.Lock()
	p.working--
	limit := p.wide
	if p.narrow {
		limit = 1
	}
	if p.wanted && p.reading == 0 && !p.over {
		p.giveNear()
	}
	switch {
	case p.over:
		p.mu.Unlock()
		return false
	case p.reading < limit:
		p.reading++
		p.mu.Unlock()
		return true
	case p.spare == maxSpare:
		p.mu.Unlock()
		return false
	}
	p.spare++
	p.mu.Unlock()
	_, more := <-p.wake
	return more
}

// ended notes that the connection has.
func (p *Pool) ended() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading--
	if !p.over {
		p.over = true
		close(p.wake)
		close(p.busy)
		if p.near != nil {
			close(p.near.wake)
		}
	}
}

// watch sees to it that a narrow pool keeps nobody waiting.
func (p *Pool) watch() {
	var r regime
	for range p.busy {
		for pause(tick); p.look(&r); pause(r.pause()) {
		}
	}
}

// pause sleeps in the kernel. Go's own timers would have a thread woken that looks for work first, and is in the program's way meanwhile.
func pause(d time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(d/8), 0, 0, 0) // of whatever thread this is: it may have much
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil)
}

// look is what the watch does in a tick. It reports whether there are to be more.
func (p *Pool) look(r *regime) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	t := tally{taken: p.taken, turns: p.turns, brought: p.brought.Swap(0), given: p.given.Swap(0)}
	n := p.near
	t.near = n != nil && !n.idle
	switch waits := t.near && (n.reads || n.worker.resting.Load()); {
	case p.taken > 0:
		p.pending = false
	case waits: // nothing is stuck unless there is something to read, and has been for a while
		pending := n.hasPending()
		t.stuck, p.pending = pending && p.pending, pending
	default:
		t.stuck, p.pending = p.reading == 0, false
	}
	p.taken, p.turns = 0, 0
	if t.stuck && t.near {
		p.stats.Starved++
	}
	was := r.near
	p.watched = r.tick(t)
	r.near = r.near && p.nearIsThere()
	p.narrow, p.wanted = r.narrow, r.near
	if was && !r.near {
		p.near.free()
	}
	if read := p.reading; read == 0 && (!p.narrow || t.stuck) || read == 1 && p.near != nil && p.near.reads && !r.near {
		p.another()
	}
	return p.watched
}

// left notes that a worker ends.
func (p *Pool) left(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.workers, w)
}

// Settle returns when every WRITE and SETATTR has been answered that the kernel had for us when it was called, read or not. nudge makes a request and waits for its answer. It must not be called from a request.
//
// The kernel gives requests out in order. So once a nudge was answered, those that were there before it have been read; only whether a worker that seems to wait for a request does so, or has one and has not
// said so yet, can't be seen. That shows when it takes the next: of those that sleep the kernel wakes the one that has slept for longest, so that takes no more nudges than there are workers.
// What a worker had taken before the first nudge says nothing of that: it may have taken another one since, and then a WRITE.
//
// It tells how many requests were worked on meanwhile: if fewer than the kernel gives out of those that nobody waits for, it has kept none of these back.
func (p *Pool) Settle(nudge func()) (requests uint64) {
	p.mu.Lock()
	before := p.total - uint64(p.working)
	p.mu.Unlock()
	nudge()
	p.mu.Lock()
	taken := make(map[*worker]uint64, len(p.workers)) // who comes later has none of those requests
	sleeping := 0
	for w := range p.workers {
		taken[w] = w.taken.Load()
		if w.reading.Load() {
			sleeping++
		}
	}
	p.mu.Unlock()
	var nudges sync.WaitGroup
	for range sleeping { // at once, as to wake a worker takes a while
		nudges.Go(nudge)
	}
	nudges.Wait()
	for w, was := range taken {
		for w.reading.Load() && w.taken.Load() == was && !p.isOver() {
			nudge()
		}
	}
	for w := range taken {
		was := w.taken.Load()
		for wait := 10 * time.Microsecond; w.writing.Load() && w.taken.Load() == was; wait = min(2*wait, time.Millisecond) {
			pause(wait)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total - before
}

// Stats tell who has read the requests of a connection. All others were read while several were to read.
type Stats struct {
	Near     uint64 // requests that the near worker has read
	Alone    uint64 // requests that another one has read while nobody else was to
	Starved  uint64 // how often somebody else took over from the near worker
	NearAble bool   // there is a near worker, or may be, as far as that is known
}

// Stats tells who has read the requests since Start.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.NearAble = p.clone != nil
	if p.near != nil {
		s.NearAble = !p.near.unable
	}
	return s
}

func (p *Pool) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}
