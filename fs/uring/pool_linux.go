package uring

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Handler answers a request, as fuse.ProtocolServer.HandleRequest does: the bytes written to out, and a status where there is no answer.
type Handler func(in, out [][]byte) (int, fuse.Status)

// Pool serves all queues of a connection.
type Pool struct {
	fd      int
	payload int // bytes of the largest request or answer
	handle  Handler
	log     *slog.Logger
	queues  []queue
	start   chan struct{} // closed when the workers are to begin, or to end
	nudge   func()        // makes a request
	over    atomic.Bool
	workers sync.WaitGroup
	all     atomic.Int64
	first   chan error // what the kernel said of the entries of the beginning
}

// queue is what one CPU's workers share.
type queue struct {
	waiting  atomic.Int32 // workers that have no request
	starting atomic.Bool  // a worker is
	_        [56]byte     // a cache line for each
}

// taken notes that a worker has a request, and gives the queue another one where few are left that wait.
func (p *Pool) taken(n int) {
	if p.queues[n].waiting.Add(-1) < spare {
		p.another(n)
	}
}

const (
	// spare is how many workers of a queue wait, at least, before it gets another one.
	spare = 2
	// atFirst is how many there are in the beginning.
	atFirst = 3
)

// maxQueues bounds the threads that are there from the beginning, of which each has a descriptor.
const maxQueues = 256

// Prepare makes a worker for each CPU that there may be, so that only the kernel's FUSE can still refuse. payload is the size of the largest request and answer
// in bytes, without their headers. The caller begins, or closes it.
func Prepare(payload int, log *slog.Logger) (*Pool, error) {
	if why := Enabled(); why != "" {
		return nil, errors.New(why)
	}
	n, err := possibleCPUs()
	if err != nil {
		return nil, err
	}
	if n > maxQueues {
		return nil, fmt.Errorf("there may be %d CPUs, and each would need a thread of its own", n)
	}
	p := &Pool{payload: payload, log: log, queues: make([]queue, n), start: make(chan struct{}), first: make(chan error, atFirst*n)}
	ready := make(chan error, atFirst*n)
	for i := range atFirst * n {
		p.add(i%n, func(err error) { ready <- err }, func(err error) { p.first <- err })
	}
	for range atFirst * n {
		if e := <-ready; e != nil {
			err = e
		}
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Pool) add(q int, ready, begun func(error)) {
	p.workers.Add(1)
	p.all.Add(1)
	w := &worker{pool: p, queue: uint16(q), fd: -1}
	go func() {
		defer p.workers.Done()
		defer p.all.Add(-1)
		if err := w.run(ready, begun); err != nil && !p.over.Load() {
			p.log.Warn("requests by io_uring: a thread ends", "queue", q, "err", err)
		}
	}()
}

// Begin registers the entries with the connection whose descriptor of /dev/fuse is fd, which must stay open until the connection ends. From when the answer to
// INIT has had CapOverIOUring the kernel holds all requests back until that is done; so after an error the connection is of no use. nudge makes a request that is answered
// at once. It is called by a thread that has nothing else to do.
func (p *Pool) Begin(fd int, handle Handler, nudge func()) (err error) {
	p.fd, p.handle, p.nudge = fd, handle, nudge
	close(p.start)
	for range atFirst * len(p.queues) {
		if e := <-p.first; e != nil {
			err = fmt.Errorf("the kernel takes no io_uring for FUSE: %w", e)
		}
	}
	return err
}

// another adds a worker to a queue, one at a time. If that can't be, requests wait until one has been answered.
func (p *Pool) another(n int) {
	q := &p.queues[n]
	if !q.starting.CompareAndSwap(false, true) {
		return
	}
	failed := func(err error) {
		p.log.Warn("requests by io_uring: no more threads", "queue", n, "err", err)
		q.starting.Store(false)
	}
	p.add(n, func(err error) {
		if err != nil {
			failed(err)
		}
	}, func(err error) {
		if err != nil {
			failed(err)
			return
		}
		q.starting.Store(false)
		go p.drain(n)
	})
}

// drain has the kernel give a queue's requests to a worker that was added after they were made, if there are any. It does so only when an answer is committed in that
// queue, and all who have requests may be waiting for just these.
func (p *Pool) drain(n int) {
	runtime.LockOSThread() // for good, as it is bound
	bind(n)
	p.nudge()
}

// Close ends a pool that has not begun.
func (p *Pool) Close() {
	p.over.Store(true)
	close(p.start)
	p.workers.Wait()
}

// Wait returns when the connection has ended and no request is worked on any more.
func (p *Pool) Wait() { p.workers.Wait() }

// Workers is how many threads there are.
func (p *Pool) Workers() int { return int(p.all.Load()) }
