//go:build linux

package branch

import (
	"sync/atomic"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// content is the open content of a regular file: a file of the pool, or what main had. All open files of an inode share it, and go over to
// another one when the inode is copied up. Who has acquired it can go on reading meanwhile; nobody writes then, as only what is in
// the live layer is written to, and that is not copied up.
type content struct {
	refs     atomic.Int32
	pool     uint64            // 0 for main's
	fd       int               // of the pool
	writable bool              // fd is
	main     overlay.StateFile // nil for the pool's
}

func (c *content) acquire() *content {
	c.refs.Add(1)
	return c
}

func (c *content) release() {
	if c.refs.Add(-1) > 0 {
		return
	}
	if c.main != nil {
		c.main.Close()
	} else {
		_ = unix.Close(c.fd)
	}
}

// closedContent gives EBADF to all who read it: better that than what is no more.
func closedContent() *content {
	c := &content{fd: -1}
	c.refs.Store(1)
	return c
}

func (c *content) readAt(p []byte, off int64) (n int, err error) {
	if c.main != nil {
		return c.main.ReadAt(p, off)
	}
	err = ignoringEINTR(func() (err error) { n, err = unix.Pread(c.fd, p, off); return err })
	return max(n, 0), err
}

func (c *content) lseek(off int64, whence int) (int64, error) {
	if c.main != nil {
		return c.main.Lseek(off, whence)
	}
	return unix.Seek(c.fd, off, whence)
}

// cloneTo fills an empty file of the pool with the content.
func (c *content) cloneTo(fd int) error {
	if c.main != nil {
		return c.main.CloneTo(fd)
	}
	return cloneFd(c.fd, fd)
}

// openContent opens the content that e says, which the caller releases once.
func (v *Volume) openContent(n *node, e inode, write bool) (*content, error) {
	return v.st.open(v.m.pool, n, e, write)
}

func (s *state) open(p *pool, n *node, e inode, write bool) (*content, error) {
	c := &content{pool: e.data}
	c.refs.Store(1)
	var err error
	if e.data == 0 {
		c.main, err = s.base.Open(n.id)
		return c, err
	}
	flags := unix.O_RDONLY
	if write {
		flags, c.writable = unix.O_RDWR, true
	}
	c.fd, err = p.open(e.data, flags)
	return c, err
}

// file is an open regular file.
type file struct {
	v     *Volume
	n     *node
	write bool
}

// Open implements overlay.Volume. Nothing is copied up before something changes.
func (v *Volume) Open(i overlay.Inode, flags int, _ bool, _ *overlay.Caller) (overlay.File, error) {
	n, err := v.own(i)
	if err != nil {
		return nil, err
	}
	write := flags&unix.O_ACCMODE != unix.O_RDONLY
	enter := v.enter
	if write || flags&unix.O_TRUNC != 0 {
		enter = v.enterToChange
	}
	if err := enter(); err != nil {
		return nil, err
	}
	defer v.leave()
	switch {
	case n.IsDir():
		return nil, unix.EISDIR
	case !n.isRegular():
		return nil, unix.ENXIO
	}
	if flags&unix.O_TRUNC != 0 {
		n.mu.Lock()
		err := v.truncate(n, 0, true)
		n.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	return v.newFile(n, write)
}

// newFile opens a file. The caller is in an operation.
func (v *Volume) newFile(n *node, write bool) (*file, error) {
	v.pin(n)
	if err := v.openNode(n, write); err != nil {
		v.unpin(n)
		return nil, err
	}
	return &file{v: v, n: n, write: write}, nil
}

func (v *Volume) openNode(n *node, write bool) error {
	err := v.settled(n, func(e inode) error {
		n.contentMu.Lock()
		defer n.contentMu.Unlock()
		if n.content == nil {
			c, err := v.openContent(n, e, write && v.isLive(e))
			if err != nil {
				return err
			}
			n.content = c
		}
		n.opens++
		if write {
			n.writers++
		}
		return nil
	})
	if err != nil || !write {
		return err
	}
	v.nodesMu.Lock()
	v.open[n] = struct{}{}
	v.nodesMu.Unlock()
	return nil
}

// Release implements overlay.File.
func (f *file) Release() {
	n, v := f.n, f.v
	v.nodesMu.Lock() // so that an open and a close agree on v.open
	n.contentMu.Lock()
	n.opens--
	if f.write {
		n.writers--
	}
	if n.writers == 0 {
		delete(v.open, n)
	}
	var c *content
	if n.opens == 0 {
		c, n.content = n.content, nil
	}
	n.contentMu.Unlock()
	v.nodesMu.Unlock()
	if c != nil {
		c.release()
	}
	v.unpin(n)
}

// Inode implements overlay.File.
func (f *file) Inode() overlay.Inode { return f.n }

// Direct implements overlay.File: a reader may have to go over to another content, and a writer to copy up.
func (f *file) Direct() bool { return false }

// Fd implements overlay.File.
func (f *file) Fd() int { return -1 }

// current gives the content as it is now.
func (f *file) current() *content {
	f.n.contentMu.Lock()
	defer f.n.contentMu.Unlock()
	return f.n.content.acquire()
}

// read calls fn with the content.
func (f *file) read(fn func(c *content) error) error {
	if err := f.v.enter(); err != nil {
		return err
	}
	defer f.v.leave()
	c := f.current()
	defer c.release()
	return fn(c)
}

// change calls fn with the content in the live layer, open for writing.
func (f *file) change(fn func(c *content) error) error {
	if !f.write {
		return unix.EBADF
	}
	if err := f.v.enterToChange(); err != nil {
		return err
	}
	defer f.v.leave()
	c, err := f.writable()
	if err != nil {
		return err
	}
	defer c.release()
	return fn(c)
}

// writable gives the content in the live layer, which it copies up if it has to.
func (f *file) writable() (*content, error) {
	n, v := f.n, f.v
	if e := v.entry(n); v.isLive(e) {
		if c := f.current(); c.writable && c.pool == e.pool {
			return c, nil
		} else {
			c.release()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e, err := v.copyUp(n, whole)
	if err != nil {
		return nil, err
	}
	n.contentMu.Lock()
	defer n.contentMu.Unlock()
	if c := n.content; !c.writable || c.pool != e.pool { // it was opened for reading only, or before a snapshot
		again, err := v.openContent(n, e, true)
		if err != nil {
			return nil, err
		}
		c.release()
		n.content = again
	}
	return n.content.acquire(), nil
}

// ReadAt implements overlay.File.
func (f *file) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.read(func(c *content) (err error) { n, err = c.readAt(p, off); return err })
	return n, err
}

// WriteAt implements overlay.File.
func (f *file) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.change(func(c *content) error {
		return ignoringEINTR(func() (err error) { n, err = unix.Pwrite(c.fd, p, off); return err })
	})
	return max(n, 0), err
}

// Fsync implements overlay.File.
func (f *file) Fsync(datasync bool) error {
	return f.read(func(c *content) error {
		switch {
		case c.main != nil:
			return nil
		case datasync:
			return unix.Fdatasync(c.fd)
		}
		return unix.Fsync(c.fd)
	})
}

// Fallocate implements overlay.File.
func (f *file) Fallocate(mode uint32, off, length int64) error {
	return f.change(func(c *content) error {
		return ignoringEINTR(func() error { return unix.Fallocate(c.fd, mode, off, length) })
	})
}

// Lseek implements overlay.File.
func (f *file) Lseek(off int64, whence int) (at int64, err error) {
	err = f.read(func(c *content) (err error) { at, err = c.lseek(off, whence); return err })
	return at, err
}

// copyChunk is how much is copied at once where the kernel does not do it, in bytes.
const copyChunk = 1 << 20

// CopyFileRange implements overlay.File.
func (f *file) CopyFileRange(offIn int64, out overlay.File, offOut int64, length, flags int) (n int, err error) {
	to, ok := out.(*file)
	if !ok || to.v != f.v {
		return 0, unix.EXDEV
	}
	err = to.change(func(dst *content) error {
		src := f.current() // after the copy-up of the target, which may be the same file
		defer src.release()
		if src.main != nil {
			n, err = copyFromMain(src.main, offIn, dst.fd, offOut, length)
			return err
		}
		return ignoringEINTR(func() (err error) {
			in, at := offIn, offOut
			n, err = unix.CopyFileRange(src.fd, &in, dst.fd, &at, length, flags)
			return err
		})
	})
	return max(n, 0), err
}

// copyFromMain copies no more than a chunk, as copy_file_range(2) may.
func copyFromMain(src overlay.StateFile, offIn int64, fd int, offOut int64, length int) (int, error) {
	if length < 0 || offIn < 0 || offOut < 0 {
		return 0, unix.EINVAL
	}
	buf := make([]byte, min(length, copyChunk))
	n, err := src.ReadAt(buf, offIn)
	if err != nil || n == 0 {
		return 0, err
	}
	return n, writeAll(fd, buf[:n], offOut)
}
