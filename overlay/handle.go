//go:build linux

package overlay

import (
	"golang.org/x/sys/unix"
)

// ReadAt reads as pread(2) does: 0 bytes at the end, no io.EOF.
func (h *Handle) ReadAt(p []byte, off int64) (n int, err error) {
	err = ignoringEINTR(func() (err error) { n, err = unix.Pread(h.fd, p, off); return err })
	return max(n, 0), err
}

// change runs fn, which changes no old bytes but those in s, with these made safe before. What is safe already waits for nobody.
func (h *Handle) change(s span, fn func() error) error {
	t, n := h.t, h.node
	t.mu.RLock()
	defer t.mu.RUnlock()
	if err := t.beginChange(); err != nil {
		return err
	}
	if !t.isSafe(n, s) {
		n.mu.Lock()
		err := t.protectSpan(n, s, opened{fd: h.fd, readable: h.readable})
		n.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return fn()
}

// WriteAt writes as pwrite(2) does.
func (h *Handle) WriteAt(p []byte, off int64) (n int, err error) {
	err = h.change(spanOf(off, int64(len(p))), func() error {
		return ignoringEINTR(func() (err error) { n, err = unix.Pwrite(h.fd, p, off); return err })
	})
	return max(n, 0), err
}

// Fsync makes what was written durable.
func (h *Handle) Fsync(datasync bool) error {
	if datasync {
		return unix.Fdatasync(h.fd)
	}
	return unix.Fsync(h.fd)
}

// Fallocate is fallocate(2), with all modes that the lower has.
func (h *Handle) Fallocate(mode uint32, off, length int64) error {
	s := allocates(mode, off, length)
	if s == noBytes {
		s = h.holesIn(spanOf(off, length)) // they get blocks, and a rollback makes them holes again
	}
	return h.change(s, func() error {
		return ignoringEINTR(func() error { return unix.Fallocate(h.fd, mode, off, length) })
	})
}

// allocates gives the bytes that fallocate(2) changes: with most modes none but those that it adds. What a mode does that is not known
// here, it may do to all.
func allocates(mode uint32, off, length int64) span {
	switch mode &^ unix.FALLOC_FL_KEEP_SIZE {
	case 0, unix.FALLOC_FL_UNSHARE_RANGE:
		return noBytes
	case unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE:
		return spanOf(off, length)
	case unix.FALLOC_FL_COLLAPSE_RANGE, unix.FALLOC_FL_INSERT_RANGE:
		return span{max(off, 0), toEnd}
	}
	return allBytes
}

// holesIn gives the shortest span that has all holes within s, up to the end of the file.
func (h *Handle) holesIn(s span) span {
	holes := noBytes
	var st unix.Stat_t
	if err := unix.Fstat(h.fd, &st); err != nil {
		return s
	}
	s = s.within(st.Size) // where the file ends there seems to be a hole
	for at := s.from; at < s.to; {
		from, err := unix.Seek(h.fd, at, unix.SEEK_HOLE)
		if err != nil || from >= s.to {
			break
		}
		to, err := unix.Seek(h.fd, from, unix.SEEK_DATA)
		if err != nil { // ENXIO: no data behind it
			to = s.to
		}
		if holes == noBytes {
			holes.from = from
		}
		holes.to, at = min(to, s.to), to
	}
	return holes
}

// Lseek is lseek(2), for SEEK_DATA and SEEK_HOLE. The offset of the handle means nothing.
func (h *Handle) Lseek(off int64, whence int) (int64, error) {
	return unix.Seek(h.fd, off, whence)
}

// CopyFileRange is copy_file_range(2) from h to out, a handle of the same tree.
func (h *Handle) CopyFileRange(offIn int64, out File, offOut int64, length, flags int) (n int, err error) {
	to, ok := out.(*Handle)
	if !ok || to.t != h.t {
		return 0, unix.EXDEV
	}
	length, err = h.available(offIn, length)
	if err != nil {
		return 0, err
	}
	err = to.change(spanOf(offOut, int64(length)), func() error {
		return ignoringEINTR(func() (err error) {
			from, at := offIn, offOut
			n, err = unix.CopyFileRange(h.fd, &from, to.fd, &at, length, flags)
			return err
		})
	})
	return max(n, 0), err
}

// available gives how much of length there is from off on: more will not be copied, even if the file grows meanwhile.
func (h *Handle) available(off int64, length int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(h.fd, &st); err != nil {
		return 0, err
	}
	if off < 0 || off >= st.Size {
		return min(length, 0), nil
	}
	return int(min(int64(length), st.Size-off)), nil
}
