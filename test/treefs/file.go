package treefs

import (
	"errors"

	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
	"golang.org/x/sys/unix"
)

// file is an open file. One that is direct is read, written and mapped through the tree's own descriptor, as the kernel
// does with passthrough. Of all others the kernel would keep mapped pages that were written until it is asked for them.
type file struct {
	fs      *FS
	h       overlay.File
	tmp     overlay.Inode // what Tmpfile has to give back
	mapping ops.Mapping   // of a direct file
	mapped  int64         // bytes, of one that isn't
	dirty   []dirtyRange
}

// dirtyRange is what was written through a mapping.
type dirtyRange struct {
	off  int64
	data []byte
}

// WriteAt implements ops.File.
func (x *file) WriteAt(p []byte, off int64) (int, error) {
	x.fs.Flush()
	for done := 0; ; {
		var n int
		var err error
		if x.h.Direct() {
			n, err = unix.Pwrite(x.h.Fd(), p[done:], off+int64(done))
		} else {
			n, err = x.h.WriteAt(p[done:], off+int64(done))
		}
		done += n
		if err != nil || done == len(p) {
			return done, err
		}
	}
}

// Size implements ops.File.
func (x *file) Size() (int64, error) {
	x.fs.Flush()
	a, err := x.fs.vol.GetAttr(x.h.Inode(), x.h)
	return a.Size, err
}

// Truncate implements ops.File.
func (x *file) Truncate(size int64) error {
	x.fs.Flush()
	_, err := x.fs.vol.SetAttr(x.h.Inode(), x.h, &overlay.SetAttr{Valid: overlay.SetSize, Size: size})
	return err
}

// Fallocate implements ops.File.
func (x *file) Fallocate(mode uint32, off, n int64) error {
	x.fs.Flush()
	return x.h.Fallocate(mode, off, n)
}

// CopyFrom implements ops.File.
func (x *file) CopyFrom(src ops.File, srcOff, off, n int64) error {
	x.fs.Flush()
	for n > 0 {
		k, err := src.(*file).h.CopyFileRange(srcOff, x.h, off, int(n), 0)
		if err != nil || k == 0 {
			return err
		}
		srcOff, off, n = srcOff+int64(k), off+int64(k), n-int64(k)
	}
	return nil
}

// Fsync implements ops.File.
func (x *file) Fsync() error {
	x.fs.Flush()
	return x.h.Fsync(false)
}

// Map implements ops.File.
func (x *file) Map(n int64) error {
	x.fs.Flush()
	if x.h.Direct() {
		return x.mapping.Map(x.h.Fd(), n)
	}
	if x.mapped != 0 {
		return unix.EBUSY
	}
	x.mapped = n
	return nil
}

// MapWrite implements ops.File.
func (x *file) MapWrite(p []byte, off int64) error {
	size, err := x.Size()
	if err != nil {
		return err
	}
	if x.h.Direct() {
		return x.mapping.Write(p, off, size)
	}
	end := min(size, x.mapped)
	if off >= end {
		return unix.EFAULT
	}
	x.fs.mu.Lock()
	defer x.fs.mu.Unlock()
	x.dirty = append(x.dirty, dirtyRange{off, p[:min(int64(len(p)), end-off)]})
	x.fs.pending = append(x.fs.pending, x)
	return nil
}

// writeBack gives the dirty pages to the tree. Nobody would hear of an error, so it is a defect of the test's subject.
func (x *file) writeBack() {
	for _, d := range x.dirty {
		if _, err := x.h.WriteAt(d.data, d.off); err != nil {
			panic("writing a mapped page back: " + err.Error())
		}
	}
	x.dirty = nil
}

// Close implements ops.File.
func (x *file) Close() error {
	x.fs.Flush()
	err := x.mapping.Close()
	if x.tmp != nil {
		x.fs.vol.Forget(x.tmp, 1)
	}
	x.h.Release()
	return errors.Join(err)
}
