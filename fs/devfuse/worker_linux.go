package devfuse

import (
	"errors"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// worker reads requests and answers them, one at a time.
type worker struct {
	pool    *Pool
	fd      int    // of /dev/fuse
	memory  []byte // mapped: the request, then the answer
	request []byte
	answer  []byte
	in, out [][]byte

	answering func() // called when an answer is about to be given; nil for most

	reading atomic.Bool   // it may have a request that is not counted in taken yet
	taken   atomic.Uint64 // requests
	resting atomic.Bool   // nothing is left to do for its request but to give the answer
	writing atomic.Bool   // the last one that was taken is a WRITE, or keeps some back, and is worked on
}

const (
	opcodeSetattr   = 4  // FUSE_SETATTR
	opcodeWrite     = 16 // FUSE_WRITE
	page            = 4096
	sizeOfInHeader  = int(unsafe.Sizeof(fuse.InHeader{}))
	sizeOfOutHeader = int(unsafe.Sizeof(fuse.OutHeader{}))
	sizeOfWriteIn   = int(unsafe.Sizeof(fuse.WriteIn{})) // with the header
)

// newWorker makes a worker, of which no memory is used but what requests and answers have needed. What a write brings begins at a page.
func (p *Pool) newWorker() (*worker, error) {
	m, err := unix.Mmap(-1, 0, 3*page+2*p.payload, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	end := 2*page + p.payload
	w := &worker{pool: p, fd: p.fd, memory: m, request: m[page-sizeOfWriteIn : end], answer: m[end:]}
	w.in, w.out = [][]byte{nil}, [][]byte{w.answer}
	return w, nil
}

func (w *worker) run() {
	defer func() {
		w.reading.Store(false)
		w.pool.left(w)
		_ = unix.Munmap(w.memory)
	}()
	for more := true; more; more = w.pool.answered() {
		w.reading.Store(true)
		n, err := w.read()
		if err != nil {
			if !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ECONNABORTED) {
				w.pool.log.Error("requests from /dev/fuse", "err", err)
			}
			w.pool.ended()
			return
		}
		w.work(n)
	}
}

// work has the request handled that has just been read, and answers it. It is of n bytes.
func (w *worker) work(n int) {
	h := w.header()
	w.writing.Store(h.Opcode == opcodeWrite || h.Opcode == opcodeSetattr) // a file's dirty pages stay where they are while it's being cut
	w.taken.Add(1)
	w.reading.Store(false)
	w.pool.took(w, h.Pid, n)
	w.serve(w.request[:n], h.Unique)
	w.writing.Store(false)
}

// header is that of the last request.
func (w *worker) header() *fuse.InHeader { return (*fuse.InHeader)(unsafe.Pointer(&w.request[0])) }

var errShort = errors.New("a request without a header")

// read waits for a request, by package syscall, as the race detector takes what a process does by that for seen by what another one then asks for. ENODEV is the end of the connection, ECONNABORTED one that somebody wanted.
func (w *worker) read() (int, error) {
	for {
		if n, err := w.tryRead(); !isTransient(err) {
			return n, err
		}
	}
}

func (w *worker) tryRead() (int, error) {
	n, err := syscall.Read(w.fd, w.request)
	if err == nil && n < sizeOfInHeader {
		return 0, errShort
	}
	return n, err
}

// isTransient reports whether there may be something to read after an error. ENOENT says that who made the request wants it no more.
func isTransient(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAGAIN)
}

// serve has a request handled, and writes the answer if there is to be one.
func (w *worker) serve(request []byte, unique uint64) {
	w.in[0] = request
	n, status := w.pool.handle(w.in, w.out)
	if status != fuse.OK {
		*(*fuse.OutHeader)(unsafe.Pointer(&w.answer[0])) = fuse.OutHeader{Length: uint32(sizeOfOutHeader), Status: -int32(status), Unique: unique}
		n = sizeOfOutHeader
	}
	if n == 0 {
		return
	}
	w.pool.given.Add(uint64(n))
	w.resting.Store(true)
	defer w.resting.Store(false)
	if w.answering != nil {
		w.answering()
	}
	_, err := syscall.Write(w.fd, w.answer[:n])
	for errors.Is(err, unix.EINTR) {
		_, err = syscall.Write(w.fd, w.answer[:n])
	}
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EPERM) { // ENOENT: nobody waits for it any more
		w.pool.log.Warn("an answer to /dev/fuse is not taken", "err", err)
	}
}
