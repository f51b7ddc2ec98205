//go:build linux

package overlay

import (
	"slices"
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// stateFile is the content that a regular file had: what the block preimages since then have, over a whole preimage or over the inode itself.
// It has one descriptor open, whatever comes.
type stateFile struct {
	s  *state
	id checkpoint.ID

	mu      sync.RWMutex       // guards what follows; after Tree.mu. Who only reads what is underneath shares it
	under   int                // descriptor of what the block preimages lie over; -1 if it is closed
	content checkpoint.Content // what under and chain are made of
	chain   *strategy.Chain    // nil as long as there are no block preimages
}

// Open is State.Open.
func (s *state) Open(id checkpoint.ID) (StateFile, error) {
	f := &stateFile{s: s, id: id, under: -1}
	err := s.do(func(q *search) error {
		if err := q.checkKnown(id); err != nil {
			return err
		}
		c, _, err := s.past.Content(id)
		if err == nil && !c.Whole() {
			if err := q.openLive(id, &f.under); err != nil {
				return err
			}
			c, _, err = s.past.Content(id)
		}
		if err == nil {
			err = f.switchTo(c)
		}
		if err != nil {
			f.close()
		}
		return s.failure("open", err)
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// openLive opens a regular file where it is now. It is opened by way of an O_PATH descriptor: what took its name meanwhile might be a FIFO, and wait for somebody.
func (q *search) openLive(id checkpoint.ID, fd *int) error {
	at, err := q.open(id, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EINVAL
	}
	*fd, err = unix.Open(procPath(at), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != unix.EACCES || !q.alone {
		return err
	}
	n, done, err := q.node(id)
	if err != nil {
		return err
	}
	defer done()
	*fd, err = q.t.openForSave(n)
	return err
}

// switchTo makes it another content. The caller holds mu, and shares Tree.mu.
func (f *stateFile) switchTo(c checkpoint.Content) error {
	tier := f.s.t.tier
	if err := f.s.verify(c); err != nil {
		return err
	}
	if c.Whole() && c.Ref != f.content.Ref {
		file, err := tier.open(c.Ref)
		if err != nil {
			return err
		}
		defer file.Close()
		fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if f.under >= 0 {
			_ = unix.Close(f.under)
		}
		f.under = fd
	}
	chain, err := tier.openBlocks(c)
	if err != nil {
		return err
	}
	if chain != nil {
		chain.Close() // its files are opened when they are read
	}
	f.chain, f.content = chain, checkpoint.Content{Ref: c.Ref, Parts: slices.Clone(c.Parts)}
	return nil
}

// fixed reports whether nothing can change the content any more. The caller holds mu.
func (f *stateFile) fixed() bool { return f.content.Whole() && f.chain == nil }

// upToDate reports whether nothing was saved of the file since it was opened. The caller holds mu.
func (f *stateFile) upToDate() (bool, error) {
	if f.fixed() {
		return true, nil
	}
	c, _, err := f.s.past.Content(f.id)
	return err == nil && c.Ref == f.content.Ref && slices.Equal(c.Parts, f.content.Parts), err
}

// catchUp takes in what was saved of the file since it was opened. The caller holds mu alone.
func (f *stateFile) catchUp() error {
	ok, err := f.upToDate()
	if err != nil {
		return err
	}
	if !ok {
		c, _, err := f.s.past.Content(f.id)
		if err != nil {
			return err
		}
		return f.switchTo(c)
	}
	if f.chain != nil && !f.content.Whole() {
		return f.chain.Grow()
	}
	return nil
}

// read runs fn while Tree.mu is shared: so no block preimage is removed that the log has named before.
func (f *stateFile) read(fn func() error) error {
	return f.s.sharing(func(*search) error { return f.s.failure("read", fn()) })
}

// ReadAt is StateFile.ReadAt. Somebody may be writing to the file underneath, who saves what was there before that: so it is read first, and what is saved is
// asked for after that.
func (f *stateFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.read(func() error {
		done := false
		if n, done, err = f.readPlain(p, off); done || err != nil {
			return err
		}
		n, err = f.readPatched(p, off)
		return err
	})
	return n, err
}

// readPlain reads what is underneath; done says that there is nothing over it.
func (f *stateFile) readPlain(p []byte, off int64) (n int, done bool, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.chain != nil {
		return 0, false, nil
	}
	if n, err = f.readUnder(p, off); err != nil {
		return n, false, err
	}
	done, err = f.upToDate()
	return n, done, err
}

func (f *stateFile) readPatched(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	under := f.under
	n, err := f.readUnder(p, off)
	if err != nil {
		return 0, err
	}
	if err := f.catchUp(); err != nil {
		return 0, err
	}
	if f.under != under || f.content.Whole() {
		if n, err = f.readUnder(p, off); err != nil {
			return 0, err
		}
	}
	if f.chain == nil {
		return n, nil
	}
	defer f.chain.Close()
	p = p[:min(int64(len(p)), max(f.chain.Size()-off, 0))]
	clear(p[min(n, len(p)):])
	return len(p), f.chain.Patch(p, off)
}

// readUnder fills p from what is underneath, as far as that reaches.
func (f *stateFile) readUnder(p []byte, off int64) (int, error) {
	if f.under < 0 {
		return 0, unix.EBADF
	}
	done := 0
	for done < len(p) {
		n, err := unix.Pread(f.under, p[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		if n == 0 {
			break
		}
		done += n
	}
	return done, nil
}

// Lseek is StateFile.Lseek.
func (f *stateFile) Lseek(off int64, whence int) (at int64, err error) {
	if whence != unix.SEEK_DATA && whence != unix.SEEK_HOLE {
		return 0, unix.EINVAL
	}
	var none error // ENXIO is an answer, and no failure
	err = f.read(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		at, none = f.seek(off, whence)
		ok, err := f.upToDate()
		if err != nil || ok && f.chain == nil {
			return err
		}
		if err := f.catchUp(); err != nil {
			return err
		}
		if f.chain != nil {
			defer f.chain.Close()
		}
		at, none = f.seek(off, whence)
		return nil
	})
	if err == nil {
		err = none
	}
	return at, err
}

// seek does it for what is known of the content. What is underneath may change meanwhile, where nothing lies over it that says what it was: the caller
// catches up and asks again.
func (f *stateFile) seek(off int64, whence int) (int64, error) {
	if f.under < 0 {
		return 0, unix.EBADF
	}
	if f.chain == nil {
		return unix.Seek(f.under, off, whence)
	}
	size := f.chain.Size()
	if off < 0 || off >= size {
		return 0, unix.ENXIO
	}
	for _, p := range f.chain.Pieces() {
		if p.To <= off {
			continue
		}
		at, err := f.seekUnder(off, p.From, whence)
		if err != nil || at < p.From {
			return at, err
		}
		if p.Hole == (whence == unix.SEEK_HOLE) {
			return at, nil
		}
		off = p.To
	}
	at, err := f.seekUnder(off, size, whence)
	if err == nil && at == size && whence == unix.SEEK_DATA {
		err = unix.ENXIO
	}
	return at, err
}

// seekUnder gives the first data or hole underneath from off on and before end, and end if there is none. What lies there beyond the end of the file is a hole.
func (f *stateFile) seekUnder(off, end int64, whence int) (int64, error) {
	if off >= end {
		return max(off, end), nil
	}
	at, err := unix.Seek(f.under, off, whence)
	if err == unix.ENXIO {
		if at, err = end, nil; whence == unix.SEEK_HOLE {
			at = off
		}
	}
	return min(at, end), err
}

// size is how many bytes the content has.
func (f *stateFile) size() (size int64, err error) {
	err = f.read(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		var st unix.Stat_t
		err := unix.Fstat(f.under, &st)
		if err == nil {
			err = f.catchUp()
		}
		switch {
		case err != nil:
			return err
		case f.chain != nil:
			f.chain.Close()
			size = f.chain.Size()
			return nil
		case f.content.Whole():
			err = unix.Fstat(f.under, &st)
		}
		size = st.Size
		return err
	})
	return size, err
}

// Close is StateFile.Close.
func (f *stateFile) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.close()
}

func (f *stateFile) close() {
	if f.under >= 0 {
		_ = unix.Close(f.under)
		f.under = -1
	}
	if f.chain != nil {
		f.chain.Close()
	}
}
