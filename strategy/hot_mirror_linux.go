package strategy

import (
	"errors"
	"os"
	"time"

	"github.com/hyperfs/hyperfs/internal/crash"
	"golang.org/x/sys/unix"
)

// mirrorDelay is how long a round waits for more to come. It must stay well below the second within which a preimage is
// promised to be on the disk.
const mirrorDelay = 200 * time.Millisecond

// wake has a round follow soon.
func (h *HotBuffer) wake() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// Recorded says that records which name preimages were committed, so that they are mirrored too. It may be called at any
// time, and costs next to nothing.
func (h *HotBuffer) Recorded() {
	if h.o.SyncRecords == nil {
		return
	}
	h.mu.Lock()
	h.records++
	h.mu.Unlock()
	h.wake()
}

// run mirrors, and frees room, until the buffer is closed.
func (h *HotBuffer) run() {
	defer h.stopped.Done()
	for {
		select {
		case <-h.stop:
			return
		case <-h.kick:
		}
		select {
		case <-h.stop:
			return
		case <-time.After(mirrorDelay):
		}
		_ = h.mirror() // it was told to Failed
		h.free(false)
		h.prepare()
	}
}

// round is what one call of mirror has to have on the disk.
type round struct {
	segments []*segment
	ends     []int64
	files    int
	bytes    int64
	dir      bool
	records  uint64
}

// mirror has the disk take all preimages that were saved until now, and then the records that name them: a record on the
// disk whose preimage is not would stop a rollback.
func (h *HotBuffer) mirror() error {
	h.mirroring.Lock()
	defer h.mirroring.Unlock()
	r, err := h.beginRound()
	if err == nil {
		err = h.syncRound(&r)
	}
	h.endRound(r, err)
	if err != nil {
		return h.fail(err)
	}
	return nil
}

// beginRound notes what there is to do, and holds the segments open.
func (h *HotBuffer) beginRound() (r round, err error) {
	h.appending.Lock() // nobody is in the middle of a write
	defer h.appending.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.segments {
		if s.mirrored >= s.end || s.lost {
			continue
		}
		if s.known && len(s.live) == 0 { // all of it was removed again
			s.mirrored = s.end
			continue
		}
		if err := h.hold(s); err != nil {
			s.lost = true
			return r, err
		}
		if s == h.current { // what comes next must not touch a page that is on its way to the disk
			s.end = min((s.end+blockSize-1)/blockSize*blockSize, segmentSize)
		}
		r.segments, r.ends = append(r.segments, s), append(r.ends, s.end)
	}
	r.files, r.bytes, r.dir = h.stats.PendingFiles, h.stats.PendingBytes, h.madeFile
	h.madeFile = false
	return r, nil
}

func (h *HotBuffer) syncRound(r *round) error {
	for _, s := range r.segments {
		if err := s.sync(); err != nil {
			return err
		}
	}
	if r.dir {
		if err := h.dir.sync(); err != nil {
			return os.NewSyscallError("fsync directory", err)
		}
	}
	crash.Point("hot-synced")
	h.mu.Lock()
	r.records = h.records
	todo := r.records != h.synced
	h.mu.Unlock()
	if !todo {
		return nil
	}
	return h.o.SyncRecords()
}

// endRound puts down what the disk has now.
func (h *HotBuffer) endRound(r round, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, s := range r.segments {
		if err == nil {
			s.mirrored = max(s.mirrored, r.ends[i])
		} else {
			s.lost = true // a second attempt would go well without having written anything: fsync(2)
		}
		h.let(s)
	}
	if err != nil {
		return
	}
	h.synced = r.records
	h.stats.PendingFiles -= r.files
	h.stats.PendingBytes -= r.bytes
	h.stats.Mirrored += uint64(r.files)
	if len(r.segments) > 0 {
		crash.Point("hot-mirrored")
	}
}

var errSegmentGone = errors.New("somebody has removed a file of the hot buffer")

func (s *segment) sync() error {
	if s.isGone() {
		return errSegmentGone
	}
	_, err := retry(func() (int, error) { return 0, unix.Fdatasync(s.f.fd) })
	return os.NewSyscallError("fdatasync", err)
}

// syncNow has the disk take what was appended to s until now.
func (h *HotBuffer) syncNow(s *segment) error {
	h.mu.Lock()
	end := s.end
	err := h.hold(s)
	h.mu.Unlock()
	if err == nil {
		err = s.sync()
		h.mu.Lock()
		if err == nil {
			s.mirrored = max(s.mirrored, end)
		} else {
			s.lost = true
		}
		h.let(s)
		h.mu.Unlock()
	}
	if err != nil {
		return h.fail(err)
	}
	return nil
}
