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

// change runs fn with the preimage of the whole content made safe before.
func (h *Handle) change(fn func() error) error {
	t, n := h.t, h.node
	t.mu.RLock()
	defer t.mu.RUnlock()
	t.stir()
	if t.needsContent(n) {
		n.mu.Lock()
		err := t.protectContentBy(n, h.fd, h.readable, nil)
		n.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return fn()
}

// WriteAt writes as pwrite(2) does.
func (h *Handle) WriteAt(p []byte, off int64) (n int, err error) {
	err = h.change(func() error {
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
	return h.change(func() error {
		return ignoringEINTR(func() error { return unix.Fallocate(h.fd, mode, off, length) })
	})
}

// Lseek is lseek(2), for SEEK_DATA and SEEK_HOLE. The offset of the handle means nothing.
func (h *Handle) Lseek(off int64, whence int) (int64, error) {
	return unix.Seek(h.fd, off, whence)
}

// CopyFileRange is copy_file_range(2) from h to out.
func (h *Handle) CopyFileRange(offIn int64, out *Handle, offOut int64, length, flags int) (n int, err error) {
	err = out.change(func() error {
		return ignoringEINTR(func() (err error) {
			in, to := offIn, offOut
			n, err = unix.CopyFileRange(h.fd, &in, out.fd, &to, length, flags)
			return err
		})
	})
	return max(n, 0), err
}
