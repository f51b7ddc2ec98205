//go:build linux

package overlay

import (
	"sync"

	"golang.org/x/sys/unix"
)

// cloneStep is how much is copied at once, in bytes: Tree.mu is shared for as long as one step takes.
const cloneStep = 1 << 20

// cloneBuffers are kept, as one that is made for each file takes as long as the copying: it is full of pages that nobody has yet.
var cloneBuffers = sync.Pool{New: func() any { return new([cloneStep]byte) }}

// CloneTo is StateFile.CloneTo. A clone is made of what is underneath, which may be changing: what was saved from there by then is put over it.
func (f *stateFile) CloneTo(fd int) error {
	size, err := f.size()
	if err != nil {
		return err
	}
	cloned, err := f.cloneUnder(fd)
	if err != nil {
		return err
	}
	if !cloned { // what a first attempt may have left is not what must be there
		err = truncateTo(fd, 0)
	}
	if err == nil {
		err = truncateTo(fd, size)
	}
	switch {
	case err != nil:
		return err
	case cloned:
		return f.copySaved(fd)
	}
	return f.copyData(fd, size)
}

func truncateTo(fd int, size int64) error {
	return ignoringEINTR(func() error { return unix.Ftruncate(fd, size) })
}

// cloneUnder makes fd a clone of what is underneath, if that can be, and of what it is by the time that nothing more was saved of it.
func (f *stateFile) cloneUnder(fd int) (cloned bool, err error) {
	err = f.read(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for {
			under := f.under
			if unix.IoctlFileClone(fd, under) != nil {
				cloned = false
				return nil
			}
			cloned = true
			if err := f.catchUp(); err != nil {
				return err
			}
			if f.chain != nil {
				f.chain.Close()
			}
			if f.under == under {
				return nil
			}
		}
	})
	return cloned, err
}

// copyData copies all but the holes to fd, which is empty.
func (f *stateFile) copyData(fd int, size int64) error {
	buf := cloneBuffers.Get().(*[cloneStep]byte)
	defer cloneBuffers.Put(buf)
	for at := int64(0); at < size; {
		from, err := f.Lseek(at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		if err != nil {
			return err
		}
		to, err := f.Lseek(from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := f.copyRange(fd, from, to, buf[:], false); err != nil {
			return err
		}
		at = to
	}
	return nil
}

// copySaved copies what block preimages have over what fd holds.
func (f *stateFile) copySaved(fd int) error {
	var spans []span
	f.mu.RLock()
	if f.chain != nil {
		for _, e := range f.chain.Saved() {
			spans = append(spans, span{e.From, e.To})
		}
	}
	f.mu.RUnlock()
	if len(spans) == 0 {
		return nil
	}
	buf := cloneBuffers.Get().(*[cloneStep]byte)
	defer cloneBuffers.Put(buf)
	for _, s := range spans {
		if err := f.copyRange(fd, s.from, s.to, buf[:], true); err != nil {
			return err
		}
	}
	return nil
}

// copyRange copies a range to fd; over says that something else may be there already.
func (f *stateFile) copyRange(fd int, from, to int64, buf []byte, over bool) error {
	for from < to {
		p := buf[:min(int64(len(buf)), to-from)]
		n, err := f.ReadAt(p, from)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if err := putBlocks(fd, p[:n], from, over); err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// putBlocks writes p to fd, but what is nothing but zeros: that stays a hole, or with over becomes one.
func putBlocks(fd int, p []byte, off int64, over bool) error {
	for len(p) > 0 {
		n, zero := zeroRun(p)
		var err error
		switch {
		case !zero:
			err = pwriteAll(fd, p[:n], off)
		case over:
			if unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, int64(n)) != nil {
				err = pwriteAll(fd, p[:n], off)
			}
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// zeroRun gives how many of the first bytes are in blocks of nothing but zeros, or in blocks of something else.
func zeroRun(p []byte) (n int, zero bool) {
	for n < len(p) {
		block := p[n:min(n+blockSize, len(p))]
		z := isZero(block)
		if n > 0 && z != zero {
			return n, zero
		}
		zero = z
		n += len(block)
	}
	return n, zero
}

func isZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

func pwriteAll(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}
