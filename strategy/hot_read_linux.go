package strategy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// read calls fn with the bytes of a preimage, which are what was saved and nobody's after it.
func (h *HotBuffer) read(op string, ref Ref, fn func(p []byte) error) error {
	s, off, err := h.holdFor(ref)
	if err == nil {
		err = withBytes(ref.Size, func(p []byte) error {
			if err := s.read(ref, p, off); err != nil {
				return err
			}
			return fn(p)
		})
		h.mu.Lock()
		h.let(s)
		h.mu.Unlock()
	}
	return failed(op, ref.Name, err)
}

// holdFor finds the segment of a preimage, and keeps it open until let.
func (h *HotBuffer) holdFor(ref Ref) (s *segment, off int64, err error) {
	number, off, err := placeOf(ref)
	if err != nil {
		return nil, 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s = h.segments[number]
	if s == nil {
		return nil, 0, ErrMissing
	}
	if size, ok := s.live[uint32(off)]; s.known && (!ok || size != ref.Size) {
		return nil, 0, ErrMissing
	}
	if off+ref.Size > segmentSize {
		return nil, 0, fmt.Errorf("%w: it would not fit into its segment", ErrCorrupt)
	}
	err = h.hold(s)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, ErrMissing
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO):
		return nil, 0, fmt.Errorf("%w: its segment is not a regular file", ErrCorrupt)
	}
	return s, off, err
}

// read fills p with a preimage, and proves that it is what was saved. The caller holds the segment open.
func (s *segment) read(ref Ref, p []byte, off int64) error {
	if s.isGone() {
		return ErrMissing
	}
	n, err := s.f.readAt(p, off)
	switch {
	case err != nil:
		return fmt.Errorf("%w: read: %w", ErrCorrupt, err)
	case n < len(p):
		return fmt.Errorf("%w: it has %d bytes, %d were saved", ErrCorrupt, n, ref.Size)
	}
	return sameSum(ref, sumBytes(p))
}

// isGone reports whether somebody has removed the file: what it holds ends with the process.
func (s *segment) isGone() bool {
	var st unix.Stat_t
	return unix.Fstat(s.f.fd, &st) != nil || st.Nlink == 0
}

// Verify is Strategy.Verify.
func (h *HotBuffer) Verify(ref Ref) error {
	return h.read("verify", ref, func([]byte) error { return nil })
}

// Restore is Strategy.Restore. It finds all damage before it changes dst.
func (h *HotBuffer) Restore(ref Ref, dst *os.File) error {
	defer runtime.KeepAlive(dst)
	f := fileOf(dst)
	return h.read("restore", ref, func(p []byte) error {
		st, err := f.stat()
		if err != nil {
			return err
		}
		if st.size != ref.Size {
			if err := resize(f, ref.Size); err != nil {
				return err
			}
		}
		return write(f, p, 0)
	})
}

// Materialize is Strategy.Materialize. The new file is always independent: the buffer has no file to share.
func (h *HotBuffer) Materialize(ref Ref, dirfd int, name string, _ bool) error {
	if err := checkEntry(name); err != nil {
		return failed("materialize", ref.Name, err)
	}
	to, done, err := dirOf(dirfd)
	if err != nil {
		return failed("materialize", ref.Name, err)
	}
	defer done()
	return h.read("materialize", ref, func(p []byte) error {
		return createIn(to, name, func(dst file) error { return write(dst, p, 0) })
	})
}

// Open is Strategy.Open, but for that it proves what Verify does. The file is a copy in memory.
func (h *HotBuffer) Open(ref Ref) (f *os.File, err error) {
	err = h.read("open", ref, func(p []byte) error {
		fd, err := unix.MemfdCreate("preimage", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return os.NewSyscallError("memfd_create", err)
		}
		m := file{fd}
		if err := write(m, p, 0); err != nil {
			_ = m.close()
			return err
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
			_ = m.close()
			return os.NewSyscallError("fcntl", err)
		}
		f = m.osFile(ref.Name)
		return nil
	})
	return f, err
}

// Mirrored reports whether the disk has a preimage, and everything that was recorded until now.
func (h *HotBuffer) Mirrored(ref Ref) bool {
	number, off, err := placeOf(ref)
	if err != nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.segments[number]
	return s != nil && !s.lost && off+ref.Size <= s.mirrored && h.records == h.synced
}

// Has reports whether a preimage is there, without looking at its bytes.
func (h *HotBuffer) Has(ref Ref) bool {
	s, _, err := h.holdFor(ref)
	if err != nil {
		return false
	}
	gone := s.isGone()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.let(s)
	return !gone
}
