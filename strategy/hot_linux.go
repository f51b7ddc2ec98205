package strategy

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/internal/crash"
)

// HotBuffer keeps small preimages: each is appended, by one write or by way of a mapping, to a file that is there already, a segment, and so is in the
// page cache. That is RAM which outlives the process. Soon after, a goroutine has the disk take it (see mirror). What is
// too large, has holes, or does not fit into the limits is left to a tier.
//
// A preimage has no header in its segment: its Ref says where it is, what it has for a checksum, and the undo log has the
// Ref. So the log alone decides what is alive: what it does not name after a crash, such as the tail that a death has
// torn, is free room (see Adopt).
//
// Its methods may be called concurrently.
type HotBuffer struct {
	dir dir
	o   HotOptions

	appending sync.Mutex // held while something is put into the current segment; before mu

	mu       sync.Mutex // guards what follows; held for moments: nothing is read, written or freed under it
	segments map[uint64]*segment
	current  *segment // nil until something is saved
	last     uint64   // number of the newest segment
	openFds  int
	madeFile bool  // a segment was made since the directory was synced
	failed   error // why nothing is saved any more
	stats    HotStats

	mirroring sync.Mutex // one round at a time; before appending
	records   uint64     // commits that name preimages; guarded by mu
	synced    uint64     // of records, those that are on the disk; guarded by mu
	kick      chan struct{}
	stop      chan struct{} // closed to end the goroutine
	stopped   sync.WaitGroup
}

// HotOptions say how to open a hot buffer.
type HotOptions struct {
	Limits HotLimits
	Sync   bool // a preimage is on the disk before Save returns

	// SyncRecords has the disk take what names the preimages, which is wanted for them to be found again after a loss of
	// power. nil means that there is nothing to do.
	SyncRecords func() error
	// Failed is told, once, why nothing can be saved any more. It may be called with locks of the caller of Save held.
	Failed func(error)
}

var errHotOff = errors.New("it is switched off")

// OpenHot opens the hot buffer whose segments are in dir, which stays the caller's and may be closed afterwards. What was
// saved before can be used also where the limits turn it off, and where the filesystem is not fit for it. Stats says so.
// Call Adopt before anything is removed for good, and Close at the end.
func OpenHot(dir *os.File, o HotOptions) (*HotBuffer, error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open the hot buffer: %w", err)
	}
	h := &HotBuffer{dir: d, o: o, segments: map[uint64]*segment{}, kick: make(chan struct{}, 1), stop: make(chan struct{})}
	if err := h.findSegments(); err != nil {
		_ = d.close()
		return nil, fmt.Errorf("open the hot buffer: %w", err)
	}
	if !o.Limits.on() {
		h.failed = errHotOff
	} else if err := tryHot(d); err != nil {
		h.failed = err
	}
	h.stopped.Add(1)
	go h.run()
	if len(h.segments) > 0 {
		h.wake() // an earlier process may have died before it had mirrored them
	}
	return h, nil
}

// tryHot finds out whether the room of single preimages can be freed here.
func tryHot(d dir) error {
	trialMu.Lock()
	defer trialMu.Unlock()
	_ = d.remove(trialSrc)
	err := createIn(d, trialSrc, func(f file) error {
		if err := write(f, make([]byte, 2*blockSize), 0); err != nil {
			return err
		}
		return punch(f, 0, blockSize)
	})
	if err != nil {
		return err
	}
	return d.remove(trialSrc)
}

// On reports whether preimages are taken.
func (h *HotBuffer) On() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed == nil
}

// Takes reports whether a preimage of size bytes would be taken, as far as that can be told without its bytes.
func (h *HotBuffer) Takes(size int64) bool { return size <= h.o.Limits.FileBytes && h.On() }

// Save puts the whole content of the regular file that is open for reading as fd, and has size bytes, away. ok is false where that is
// left to a tier: nothing was kept then. Save moves no file offset, and takes less if the file turns out to be shorter.
func (h *HotBuffer) Save(fd int, size int64) (ref Ref, ok bool) {
	if !h.o.Limits.on() {
		return Ref{}, false
	}
	ref, err := h.save(file{fd}, size)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.stats.Spills++
		return Ref{}, false
	}
	h.stats.Hits++
	return ref, true
}

// Reasons to leave a preimage to a tier.
var (
	errTooLarge = errors.New("too large for the hot buffer")
	errHoles    = errors.New("holes can't be kept in the hot buffer")
	errHotFull  = errors.New("the hot buffer is full")
)

func (h *HotBuffer) save(src file, size int64) (ref Ref, err error) {
	if !h.On() {
		return ref, errHotOff
	}
	if size > h.o.Limits.FileBytes {
		return ref, errTooLarge
	}
	if ref, ok, err := h.readIn(src, size); ok {
		h.wake()
		return ref, err
	}
	err = withBytes(size, func(p []byte) error {
		n, err := src.readAt(p, 0)
		if err != nil {
			return err
		}
		p = p[:n]
		if hasZeroBlock(p) && !isDense(src, int64(n)) {
			return errHoles
		}
		ref, err = h.add(p)
		return err
	})
	return ref, err
}

// withBytes calls fn with size bytes, which are nobody's after it.
func withBytes(size int64, fn func(p []byte) error) error {
	if size > largeSize {
		return fn(make([]byte, size))
	}
	return withBuffer(size, func(buf []byte) error { return fn(buf[:size]) })
}

// isDense reports whether the first size bytes of f have no hole among them.
func isDense(f file, size int64) bool {
	l, ok := layoutOf(source{file: f})
	if !ok {
		return false
	}
	defer l.close()
	start, end, err := l.next(0, size)
	return err == nil && start == 0 && end == size
}

// sumBytes is the checksum of a preimage that has the bytes p.
func sumBytes(p []byte) uint64 {
	s := newSummer()
	s.add(p, 0)
	return s.sum(int64(len(p)))
}

// add appends a preimage to the current segment.
func (h *HotBuffer) add(p []byte) (Ref, error) {
	sum, size := sumBytes(p), int64(len(p))
	h.appending.Lock()
	s, off, err := h.append(p)
	h.appending.Unlock()
	if err == nil && h.o.Sync {
		err = h.syncNow(s)
	}
	if err != nil {
		return Ref{}, err
	}
	h.wake()
	return refOf(s, off, size, sum), nil
}

func refOf(s *segment, off, size int64, sum uint64) Ref {
	return Ref{Tier: Hot, Name: placeName(s.number, off), Size: size, Sum: sum, HasSum: true}
}

// append writes p behind what the current segment holds. The caller holds appending.
func (h *HotBuffer) append(p []byte) (s *segment, off int64, err error) {
	size := int64(len(p))
	if !h.hasRoom(size) {
		h.wake()
		return nil, 0, errHotFull
	}
	if s, err = h.segmentFor(size); err != nil {
		return nil, 0, h.fail(err)
	}
	off = s.end
	if err := write(s.f, p, off); err != nil {
		return nil, 0, h.fail(err)
	}
	h.appended(s, off, size)
	return s, off, nil
}

// appended notes what was put at the end of the current segment. The caller holds appending.
func (h *HotBuffer) appended(s *segment, off, size int64) {
	crash.Point("hot-appended")
	h.mu.Lock()
	defer h.mu.Unlock()
	s.end = off + max(size, 1) // so that every preimage has a place of its own
	s.put(off, size)
	h.stats.PendingFiles++
	h.stats.PendingBytes += size
}

// hasRoom reports whether the limits leave room for a preimage of size bytes.
func (h *HotBuffer) hasRoom(size int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fits(size)
}

// fits is hasRoom for who holds mu.
func (h *HotBuffer) fits(size int64) bool {
	l := h.o.Limits
	return h.failed == nil && h.stats.PendingFiles < l.Files && h.stats.PendingBytes+size <= l.TotalBytes
}

// segmentFor gives the segment that has room for size bytes at its end, and makes it if there is none. The caller holds appending.
func (h *HotBuffer) segmentFor(size int64) (*segment, error) {
	h.mu.Lock()
	s, last := h.current, h.last
	h.mu.Unlock()
	if s != nil && s.end+size <= segmentSize {
		return s, nil
	}
	number := max(last+1, uint64(time.Now().UnixMilli())) // so that none is ever used twice, whatever was removed
	next, err := h.makeSegment(number)
	if err != nil {
		return nil, err
	}
	crash.Point("hot-segment")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.segments[number], h.current, h.last, h.madeFile = next, next, number, true
	h.openFds++
	if s != nil {
		h.let(s) // it was held open to be appended to
	}
	return next, nil
}

// fail ends all saving because of err, and returns it.
func (h *HotBuffer) fail(err error) error {
	h.mu.Lock()
	first := h.failed == nil
	if first {
		h.failed = err
	}
	h.mu.Unlock()
	if first && h.o.Failed != nil {
		h.o.Failed(err)
	}
	return err
}

// Stats gives the counters.
func (h *HotBuffer) Stats() HotStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.On, s.Limits, s.Segments = h.failed == nil, h.o.Limits, len(h.segments)
	if h.failed != nil {
		s.Reason = h.failed.Error()
	}
	for _, seg := range h.segments {
		s.Files += len(seg.live)
		s.Bytes += seg.bytes
	}
	return s
}

// Close mirrors what is left and releases everything. Nothing may be called after it.
func (h *HotBuffer) Close() error {
	close(h.stop)
	h.stopped.Wait()
	err := h.mirror()
	h.free(true)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.segments {
		s.closeFile()
	}
	return errors.Join(err, h.dir.close())
}
