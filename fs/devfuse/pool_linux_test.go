package devfuse

import (
	"bytes"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// kernel is the other end of a pool: a socket, which like /dev/fuse has whole messages and wakes one reader for each.
type kernel struct {
	t                  *testing.T
	fd                 int
	pool               *Pool
	gate, stall        chan struct{} // let the requests go that wait
	waiting, forgotten atomic.Int32
}

// What the handler does, by the opcode.
const (
	opEcho   = iota + 101 // answers with what comes after the header
	opWait                // waits for the gate
	opForget              // gives no answer
	opFail                // gives no answer but EIO
	opStall               // waits for the end of the test
)

func newKernel(t *testing.T) *kernel {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	k := &kernel{t: t, fd: fds[0], gate: make(chan struct{}), stall: make(chan struct{})}
	if k.pool, err = Start(fds[1], 1<<16, k.handle, nil, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(k.fd)
		k.pool.Wait()
		_ = unix.Close(fds[1])
		if p := k.pool; p.reading != 0 || p.working != 0 {
			t.Errorf("in the end %d read and %d work", p.reading, p.working)
		}
	})
	return k
}

func (k *kernel) handle(in, out [][]byte) (int, fuse.Status) {
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0][0]))
	switch h.Opcode {
	case opForget:
		k.forgotten.Add(1)
		return 0, fuse.OK
	case opFail:
		return 0, fuse.EIO
	case opWait, opcodeWrite, opcodeSetattr:
		k.waiting.Add(1)
		<-k.gate
	case opStall:
		k.waiting.Add(1)
		<-k.stall
	}
	n := sizeOfOutHeader + copy(out[0][sizeOfOutHeader:], in[0][sizeOfInHeader:])
	*(*fuse.OutHeader)(unsafe.Pointer(&out[0][0])) = fuse.OutHeader{Length: uint32(n), Unique: h.Unique}
	return n, fuse.OK
}

func (k *kernel) send(opcode uint32, unique uint64, thread uint32, payload string) {
	k.t.Helper()
	h := fuse.InHeader{Length: uint32(sizeOfInHeader + len(payload)), Opcode: opcode, Unique: unique}
	h.Pid = thread
	b := append(unsafe.Slice((*byte)(unsafe.Pointer(&h)), sizeOfInHeader), payload...)
	if _, err := unix.Write(k.fd, b); err != nil {
		k.t.Fatal(err)
	}
}

// answer gives the next one.
func (k *kernel) answer() (h fuse.OutHeader, payload string) {
	k.t.Helper()
	b := make([]byte, 1<<16)
	n, err := unix.Read(k.fd, b)
	if err != nil || n < sizeOfOutHeader {
		k.t.Fatal(n, err)
	}
	return *(*fuse.OutHeader)(unsafe.Pointer(&b[0])), string(bytes.Clone(b[sizeOfOutHeader:n]))
}

// ask makes a request of a thread, and waits for its answer.
func (k *kernel) ask(unique uint64, thread uint32) {
	k.t.Helper()
	k.send(opEcho, unique, thread, "what")
	if h, got := k.answer(); h.Unique != unique || h.Status != 0 || got != "what" {
		k.t.Fatalf("%+v, %q", h, got)
	}
}

func (k *kernel) isNarrow() bool {
	k.pool.mu.Lock()
	defer k.pool.mu.Unlock()
	return k.pool.narrow
}

// until does something again and again, until something is so.
func (k *kernel) until(what string, is func() bool, do func(i uint64)) {
	k.t.Helper()
	end := time.Now().Add(time.Minute)
	for i := uint64(1); !is(); i++ {
		if time.Now().After(end) {
			k.t.Fatal("never: ", what)
		}
		do(i)
	}
}

func (k *kernel) makeNarrow() {
	k.t.Helper()
	k.until("it is narrow", k.isNarrow, func(i uint64) { k.ask(i, 7) })
}

func sleep(uint64) { time.Sleep(time.Millisecond) }

func TestRequestsAreAnswered(t *testing.T) {
	k := newKernel(t)
	k.ask(1, 7)
	k.send(opForget, 2, 7, "")
	k.until("it is forgotten", func() bool { return k.forgotten.Load() == 1 }, sleep)
	k.send(opFail, 3, 7, "")
	if h, got := k.answer(); h.Unique != 3 || h.Status != -int32(fuse.EIO) || h.Length != uint32(sizeOfOutHeader) || got != "" {
		t.Errorf("%+v, %q", h, got)
	}
}

func TestANarrowPoolBecomesWideForSeveralThreads(t *testing.T) {
	k := newKernel(t)
	k.makeNarrow()
	k.until("it is wide", func() bool { return !k.isNarrow() }, func(i uint64) { k.ask(i, uint32(7+i%2)) })
}

func TestAPoolWithNothingToDoIsWideAndNobodyWatches(t *testing.T) {
	k := newKernel(t)
	k.makeNarrow()
	k.until("the watch sleeps", func() bool {
		k.pool.mu.Lock()
		defer k.pool.mu.Unlock()
		return !k.pool.watched && !k.pool.narrow && k.pool.reading > 0
	}, sleep)
	k.makeNarrow() // it wakes
}

// TestANarrowPoolHasOneReader has the others that were there wait for their turn.
func TestANarrowPoolHasOneReader(t *testing.T) {
	k := newKernel(t)
	for i := range uint32(20) {
		k.send(opEcho, uint64(i), i, "")
	}
	for range 20 {
		k.answer()
	}
	k.until("one is left", func() bool {
		k.pool.mu.Lock()
		defer k.pool.mu.Unlock()
		return k.pool.narrow && k.pool.reading+k.pool.working == 1
	}, func(i uint64) { k.ask(i, 7) })
}

// TestWhatWaitsInANarrowPoolDelaysNoOthers has a hundred wait at once, each of which is the only one that reads.
func TestWhatWaitsInANarrowPoolDelaysNoOthers(t *testing.T) {
	const many = 100
	k := newKernel(t)
	for i := range int32(many) {
		if i%10 == 0 {
			k.makeNarrow()
		}
		k.send(opWait, uint64(1000+i), 7, "")
		k.until("it waits", func() bool { return k.waiting.Load() == i+1 }, sleep)
		k.ask(1, 7)
	}
	close(k.gate)
	seen := map[uint64]bool{}
	for range many {
		h, _ := k.answer()
		seen[h.Unique] = true
	}
	if len(seen) != many {
		t.Errorf("%d were answered", len(seen))
	}
	k.makeNarrow()
	k.until("spare workers have ended", func() bool {
		k.pool.mu.Lock()
		defer k.pool.mu.Unlock()
		return k.pool.working == 0 && k.pool.spare <= maxSpare
	}, sleep)
}

// TestTheWatchHasSomebodyReadWhileOneRequestTakesLong looks itself, as otherwise the pool would be wide again some ticks later anyway.
func TestTheWatchHasSomebodyReadWhileOneRequestTakesLong(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	p := &Pool{fd: fds[1], payload: 1 << 16, log: slog.New(slog.DiscardHandler), wide: 2, wake: make(chan struct{}, maxSpare), busy: make(chan struct{}, 1), workers: map[*worker]struct{}{}}
	p.narrow, p.working, p.watched, p.taken = true, 1, true, 1
	r := regime{narrow: true}
	for i, want := range []int{0, 1} { // in the first tick it was taken
		p.look(&r)
		p.mu.Lock()
		if p.reading != want || p.narrow != (want == 0) {
			t.Errorf("after tick %d %d read, narrow: %v", i, p.reading, p.narrow)
		}
		p.mu.Unlock()
	}
	_ = unix.Close(fds[0])
	p.Wait()
}

func TestADescriptorThatIsNoConnectionEndsThePool(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := Start(int(f.Fd()), 1<<16, func(in, out [][]byte) (int, fuse.Status) { return 0, fuse.ENOSYS }, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p.Wait()
	if !p.over || p.reading != 0 {
		t.Errorf("over: %v, %d read", p.over, p.reading)
	}
}
