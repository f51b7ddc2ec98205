package strategy

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// On a tmpfs most of what it takes to append is making the page, and entering the kernel. So the current segment is mapped there, with pages that were made
// while nobody waited, and a preimage is read right into it. As before it is in the page cache, which outlives the process. On a disk a mapping
// gains nothing: a page that the disk was given is protected until it is written to again, and one that was made in advance would
// be written to the disk for nothing.
const (
	aheadSize = 2 << 20   // bytes that have their pages before they are wanted
	aheadStep = 128 << 10 // that are made at a time
	aheadRoom = 32        // times aheadSize: where less is free, others need it more
)

// prepare makes pages for what will be appended next. What goes wrong is of no interest: what has no pages is written as elsewhere.
func (h *HotBuffer) prepare() {
	h.mirroring.Lock() // once at a time
	defer h.mirroring.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.current
	for _, other := range h.segments {
		if other != s {
			other.unmap()
		}
	}
	if s == nil || h.failed != nil || h.o.Sync || h.hold(s) != nil {
		return
	}
	defer h.let(s)
	from := max(s.ahead, s.end/blockSize*blockSize)
	to := min((s.end+aheadSize)/blockSize*blockSize, segmentSize)
	h.mu.Unlock()
	mem := s.mem
	if from < to && s.onSpaciousTmpfs() {
		if mem == nil {
			mem, _ = unix.Mmap(s.f.fd, 0, segmentSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		for mem != nil && from < to && unix.Madvise(mem[from:min(from+aheadStep, to)], unix.MADV_POPULATE_WRITE) == nil {
			from = min(from+aheadStep, to)
		}
	}
	h.mu.Lock()
	s.mem, s.ahead = mem, from
}

func (s *segment) onSpaciousTmpfs() bool {
	var fs unix.Statfs_t
	err := unix.Fstatfs(s.f.fd, &fs)
	return err == nil && fs.Type == unix.TMPFS_MAGIC && (fs.Blocks == 0 || int64(fs.Bavail)*fs.Bsize >= aheadRoom*aheadSize)
}

// unmap ends the mapping. Nobody puts anything into the segment any more. The caller holds HotBuffer.mu.
func (s *segment) unmap() {
	if s.mem != nil {
		_ = unix.Munmap(s.mem)
		s.mem = nil
	}
}

// readIn saves a preimage by reading it right into the current segment. ok is false where that has no pages for it; nothing was kept then.
func (h *HotBuffer) readIn(src file, size int64) (ref Ref, ok bool, err error) {
	h.appending.Lock()
	defer h.appending.Unlock()
	s, off, p := h.pagesFor(size)
	if p == nil {
		return ref, false, nil
	}
	n, err := src.readAt(p, 0)
	if err == unix.EFAULT { // somebody has cut the segment
		return ref, false, nil
	}
	if err != nil {
		return ref, true, err
	}
	sum, zeros, err := sumMapped(p[:n])
	switch {
	case err != nil:
		return ref, false, nil
	case zeros && !isDense(src, int64(n)):
		return ref, true, errHoles
	}
	h.appended(s, off, int64(n))
	return refOf(s, off, int64(n), sum), true, nil
}

// pagesFor gives the bytes of the current segment that a preimage of size bytes would be appended to; nil where not all have pages. The caller holds
// appending.
func (h *HotBuffer) pagesFor(size int64) (s *segment, off int64, p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s = h.current
	if s == nil || s.mem == nil || size == 0 || s.end+size > s.ahead || !h.fits(size) {
		return nil, 0, nil
	}
	return s, s.end, s.mem[s.end : s.end+size]
}

// sumMapped gives the checksum of what is mapped, and whether a block of it is all zeros. Where the file is cut meanwhile, it fails instead of
// ending the process.
func sumMapped(p []byte) (sum uint64, zeros bool, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(interface{ Addr() uintptr }); !fault {
				panic(r)
			}
			err = errSegmentGone
		}
	}()
	return sumBytes(p), hasZeroBlock(p), nil
}
