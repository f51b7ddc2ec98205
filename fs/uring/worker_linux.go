package uring

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// worker serves one entry of a queue, by a ring of its own. It is for one goroutine on one thread.
type worker struct {
	pool  *Pool
	queue uint16

	fd             int
	rings, entries []byte // mapped: the indices and completions, and the submission
	sq             *sqe
	sqHead, sqTail *uint32
	cqHead, cqTail *uint32
	cqes           []cqe

	memory  []byte // mapped: what the kernel reads and writes
	h       *header
	payload []byte
	scratch []byte // a copy of a request's payload, in whose place the answer is written
	in, out [][]byte
}

// wantedSetup is tried first: a kernel that lacks one of these flags takes the plain ones.
const wantedSetup = setupSQE128 | setupSubmitAll | setupSingleIssuer | setupDeferTaskrun

// open makes the ring and the memory. With setupSingleIssuer only the thread that made a ring may use it.
func (w *worker) open() (err error) {
	pr := params{flags: wantedSetup}
	if w.fd, err = setup(1, &pr); errors.Is(err, unix.EINVAL) {
		pr = params{flags: setupSQE128}
		w.fd, err = setup(1, &pr)
	}
	if err != nil {
		return fmt.Errorf("io_uring: %w", err)
	}
	unix.CloseOnExec(w.fd)
	if pr.features&featSingleMmap == 0 {
		return errors.New("io_uring is older than Linux 5.4")
	}
	size := max(pr.sq.arrayOrFlags+4*pr.sqEntries, pr.cq.droppedOrCQEs+uint32(unsafe.Sizeof(cqe{}))*pr.cqEntries)
	if w.rings, err = unix.Mmap(w.fd, offSQRing, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return err
	}
	if w.entries, err = unix.Mmap(w.fd, offSQEs, sqeSize*int(pr.sqEntries), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return err
	}
	w.sq = (*sqe)(unsafe.Pointer(&w.entries[0]))
	w.sqHead, w.sqTail = w.index(pr.sq.head), w.index(pr.sq.tail)
	w.cqHead, w.cqTail = w.index(pr.cq.head), w.index(pr.cq.tail)
	w.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&w.rings[pr.cq.droppedOrCQEs])), pr.cqEntries)
	return w.allocate()
}

func (w *worker) index(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&w.rings[off])) }

// page is where the payload begins, behind the header and the two iovecs.
const page = 4096

func (w *worker) allocate() (err error) {
	w.memory, err = unix.Mmap(-1, 0, page+w.pool.payload, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	w.h = (*header)(unsafe.Pointer(&w.memory[0]))
	w.payload = w.memory[page:]
	w.in, w.out = make([][]byte, 0, 3), make([][]byte, 0, 2)
	return nil
}

func (w *worker) close() {
	for _, m := range [][]byte{w.rings, w.entries, w.memory} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	if w.fd >= 0 {
		_ = unix.Close(w.fd)
	}
}

// prepare fills the ring's only submission.
func (w *worker) prepare(cmd uint32, commit uint64) {
	*w.sq = sqe{opcode: opURingCmd, fd: int32(w.pool.fd), cmd: cmd, request: cmdRequest{commit: commit, queue: w.queue}}
	if cmd == cmdRegister {
		iov := (*[2]unix.Iovec)(unsafe.Pointer(&w.memory[page/2]))
		iov[0] = unix.Iovec{Base: &w.memory[0], Len: uint64(unsafe.Sizeof(*w.h))}
		iov[1] = unix.Iovec{Base: &w.payload[0], Len: uint64(len(w.payload))}
		w.sq.addr, w.sq.len = uint64(uintptr(unsafe.Pointer(iov))), 2
	}
	atomic.AddUint32(w.sqTail, 1) // the ring's array has its index 0 already, the only one
}

// submit gives the kernel the submission, and waits for a completion if it is told to.
func (w *worker) submit(wait uint32) error {
	for {
		todo := atomic.LoadUint32(w.sqTail) - atomic.LoadUint32(w.sqHead)
		if todo == 0 && (wait == 0 || w.completed()) {
			return nil
		}
		_, err := enter(w.fd, todo, wait, enterGetEvents)
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

func (w *worker) completed() bool { return atomic.LoadUint32(w.cqTail) != atomic.LoadUint32(w.cqHead) }

// completion takes the one completion that there can be.
func (w *worker) completion() error {
	err := w.result()
	atomic.AddUint32(w.cqHead, 1)
	return err
}

// result gives what the completion says, which there must be.
func (w *worker) result() error {
	if res := w.cqes[atomic.LoadUint32(w.cqHead)&uint32(len(w.cqes)-1)].res; res < 0 {
		return unix.Errno(-res)
	}
	return nil
}

// refused says why the kernel does not take the entry that it was just given. A completion without an error is a request already.
func (w *worker) refused() error {
	if w.completed() {
		return w.result()
	}
	return nil
}

// serve takes requests until the connection ends. The entry has been registered.
func (w *worker) serve() error {
	q := &w.pool.queues[w.queue]
	for {
		if err := w.submit(1); err != nil {
			return err
		}
		switch err := w.completion(); {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			atomic.AddUint32(w.sqTail, 1) // once more
			continue
		case errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECANCELED):
			return nil
		case err != nil:
			return err
		}
		w.pool.taken(int(w.queue))
		raceRead()
		w.answer()
		raceWrite()
		q.waiting.Add(1)
		w.prepare(cmdCommitAndFetch, w.h.entry.commit)
	}
}

// answer puts the answer where the request is.
func (w *worker) answer() {
	in := (*fuse.InHeader)(unsafe.Pointer(&w.h.inOut[0]))
	unique := in.Unique
	const size = int(unsafe.Sizeof(fuse.InHeader{}))
	payload := min(int(w.h.entry.payload), len(w.payload))
	op := min(max(int(in.Length)-size-payload, 0), len(w.h.op))
	w.in = append(w.in[:0], w.h.inOut[:size], w.h.op[:op])
	if payload > 0 {
		w.in = append(w.in, w.payloadOf(in.Opcode, payload))
	}
	w.out = append(w.out[:0], w.h.inOut[:sizeOfOutHeader], w.payload)
	n, status := w.pool.handle(w.in, w.out)
	if status != fuse.OK || n < sizeOfOutHeader {
		*(*fuse.OutHeader)(unsafe.Pointer(&w.h.inOut[0])) = fuse.OutHeader{Length: uint32(sizeOfOutHeader), Status: -int32(status), Unique: unique}
		n = sizeOfOutHeader
	}
	w.h.entry.payload = uint32(n - sizeOfOutHeader)
}

const (
	sizeOfOutHeader = int(unsafe.Sizeof(fuse.OutHeader{}))
	opWrite         = 16 // FUSE_WRITE
)

// payloadOf gives a request's payload. The answer is written into the same memory while the request is worked on, so that it has to be copied,
// but for a write, which is answered by a few bytes in the end.
func (w *worker) payloadOf(opcode uint32, n int) []byte {
	if opcode == opWrite {
		return w.payload[:n]
	}
	w.scratch = append(w.scratch[:0], w.payload[:n]...)
	return w.scratch
}

// run is the worker's goroutine. It tells by ready whether it has what it needs, waits until it is to begin, and tells by begun whether the kernel takes its entry.
func (w *worker) run(ready, begun func(error)) error {
	runtime.LockOSThread() // for good: the thread is bound to a CPU, and ends with the goroutine
	bind(int(w.queue))
	err := w.open()
	defer w.close()
	ready(err)
	if err != nil {
		return err
	}
	<-w.pool.start
	if w.pool.over.Load() {
		return nil
	}
	waiting := &w.pool.queues[w.queue].waiting
	waiting.Add(1)
	w.prepare(cmdRegister, 0)
	err = w.submit(0)
	if err == nil {
		err = w.refused()
	}
	begun(err)
	if err == nil {
		err = w.serve()
	}
	waiting.Add(-1)
	return err
}

// bind binds the thread to a CPU, where it may run there.
func bind(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
}
