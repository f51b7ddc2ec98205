package strategy

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// segmentSize is how large a segment gets, in bytes. It is made with that size, as a hole: so what is appended does not change
// its size, which would be one more thing for the filesystem to log.
const segmentSize = 16 << 20

// maxOpenSegments is how many segments that nobody uses stay open.
const maxOpenSegments = 8

// segment is a file with many preimages. All of it but f is guarded by HotBuffer.mu.
type segment struct {
	number uint64
	f      file // open while users > 0, and perhaps longer
	opened bool
	users  int

	end      int64  // behind what was appended; written with HotBuffer.appending held too
	mirrored int64  // up to here the disk has it
	mem      []byte // the file, if it is mapped: see prepare
	ahead    int64  // up to here, from end on, the mapping has pages
	lost     bool   // the disk has failed to take it, or somebody has removed it

	known bool             // live has all that is alive
	live  map[uint32]int64 // sizes by offset
	bytes int64            // of live
	pages []uint16         // by page: how many of live have bytes in it
	freed []span           // what was removed, and whose room is to be freed
}

// span is the bytes from ≤ b < to.
type span struct{ from, to int64 }

func newSegment(number uint64) *segment { return &segment{number: number, live: map[uint32]int64{}} }

func segmentName(number uint64) string { return strconv.FormatUint(number, 16) }

// placeName is the name of a preimage: its segment, and its offset there. It is used for no other one.
func placeName(number uint64, off int64) string {
	b := make([]byte, 0, 24)
	b = strconv.AppendUint(b, number, 16)
	b = append(b, '.')
	return string(strconv.AppendInt(b, off, 16))
}

// placeOf is the reverse of placeName.
func placeOf(ref Ref) (number uint64, off int64, err error) {
	if ref.Tier != Hot || ref.Size < 0 || !ref.HasSum {
		return 0, 0, fmt.Errorf("not a preimage of the hot buffer: %w", fs.ErrInvalid)
	}
	return parsePlace(ref.Name)
}

func parsePlace(name string) (number uint64, off int64, err error) {
	seg, at, _ := strings.Cut(name, ".")
	number, err = strconv.ParseUint(seg, 16, 64)
	if err == nil {
		off, err = strconv.ParseInt(at, 16, 32)
	}
	if err != nil || off < 0 || placeName(number, off) != name {
		return 0, 0, fmt.Errorf("not a place in the hot buffer: %w", fs.ErrInvalid)
	}
	return number, off, nil
}

// findSegments notes what an earlier process has left. Nothing is appended to that.
func (h *HotBuffer) findSegments() error {
	return h.dir.each(func(name string, st stat) error {
		number, err := strconv.ParseUint(name, 16, 64)
		if err != nil || segmentName(number) != name || !st.regular {
			return nil
		}
		s := newSegment(number)
		s.end = st.size
		h.segments[number] = s
		h.last = max(h.last, number)
		return nil
	})
}

// makeSegment makes a segment that stays open until let.
func (h *HotBuffer) makeSegment(number uint64) (*segment, error) {
	name := segmentName(number)
	f, err := h.dir.create(name)
	if err != nil {
		return nil, err
	}
	err = resize(f, segmentSize)
	if err == nil && h.o.Sync {
		err = os.NewSyscallError("fsync directory", h.dir.sync())
	}
	if err != nil {
		_ = f.close()
		return nil, removeAfter(err, h.dir, name)
	}
	s := newSegment(number)
	s.f, s.opened, s.users, s.known = f, true, 1, true
	return s, nil
}

// hold opens a segment, if it isn't open, and keeps it so until let. The caller holds mu.
func (h *HotBuffer) hold(s *segment) error {
	if !s.opened {
		fd, err := h.dir.openat(segmentName(s.number), unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK)
		if err != nil {
			return err
		}
		s.f, s.opened = file{fd}, true
		h.openFds++
	}
	s.users++
	return nil
}

// let ends hold. The caller holds mu.
func (h *HotBuffer) let(s *segment) {
	s.users--
	if s.users == 0 && h.openFds > maxOpenSegments {
		h.closeSegment(s)
	}
}

func (h *HotBuffer) closeSegment(s *segment) {
	if s.opened {
		s.closeFile()
		h.openFds--
	}
}

func (s *segment) closeFile() {
	s.unmap()
	if s.opened {
		_ = s.f.close()
		s.opened = false
	}
}

// put notes a preimage. The caller holds mu.
func (s *segment) put(off, size int64) {
	s.live[uint32(off)] = size
	s.bytes += size
	first, last := pagesOf(off, size)
	for int64(len(s.pages)) < last {
		s.pages = append(s.pages, 0)
	}
	for i := first; i < last; i++ {
		s.pages[i]++
	}
}

// take is the reverse of put. The caller holds mu.
func (s *segment) take(off, size int64) {
	delete(s.live, uint32(off))
	s.bytes -= size
	first, last := pagesOf(off, size)
	for i := first; i < last; i++ {
		s.pages[i]--
	}
	s.freed = append(s.freed, span{off, off + size})
}

// pagesOf gives the pages from first < last that have bytes of a preimage.
func pagesOf(off, size int64) (first, last int64) {
	if size == 0 {
		return 0, 0
	}
	return off / blockSize, (off + size + blockSize - 1) / blockSize
}
