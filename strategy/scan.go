package strategy

import "fmt"

// source is a file to read a content from.
type source struct {
	file
	own bool // it is a preimage: its offset is ours to move, and failing to read it means that it is damaged
}

// layout finds the data of a sparse file.
type layout interface {
	// next gives the first range of data at or after off, in bytes, and size, size if there is none.
	next(off, size int64) (start, end int64, err error)
	// hole gives the end of the hole that the block at off, which is all zeros, is in; off if it is in none. It is at most size.
	// zeros is where the zeros end, as far as they are known.
	hole(off, zeros, size int64) (end int64, err error)
	close()
}

// noLayout is for where the filesystem doesn't tell its holes: all zero blocks count as such.
type noLayout struct{}

func (noLayout) next(off, size int64) (start, end int64, err error) { return off, size, nil }
func (noLayout) hole(_, zeros, _ int64) (end int64, err error)      { return zeros, nil }
func (noLayout) close()                                             {}

// scan reads the first size bytes of src and calls data with them, in ascending order, at multiples of blockSize, leaving
// out holes. It returns the size, or less if the file turned out to be shorter. p is valid during the call only.
func scan(src source, size int64, buf []byte, data func(p []byte, off int64) error) (int64, error) {
	if size <= int64(len(buf)) {
		n, err := src.read(buf[:size], 0)
		if err != nil {
			return 0, err
		}
		// Only what reads as zeros can be a hole.
		if !hasZeroBlock(buf[:n]) {
			return int64(n), emit(buf[:n], 0, data)
		}
	}
	l, ok := layoutOf(src)
	if !ok {
		return scanDense(src, size, buf, data)
	}
	defer l.close()
	return scanSparse(src, l, size, buf, data)
}

// scanSparse leaves out the holes that the filesystem has.
func scanSparse(src source, l layout, size int64, buf []byte, data func(p []byte, off int64) error) (int64, error) {
	for off := int64(0); off < size; {
		start, end, err := l.next(off, size)
		if err != nil {
			return 0, fmt.Errorf("find data: %w", err)
		}
		// The filesystem's blocks may be smaller than ours.
		start -= start % blockSize
		end = min(end+(blockSize-end%blockSize)%blockSize, size)
		if got, err := scanRange(src, start, end, buf, data); err != nil || got < end {
			return got, err
		}
		off = end
	}
	return size, nil
}

// scanDense is for where the filesystem doesn't tell its holes: it leaves out all zero blocks.
func scanDense(src source, size int64, buf []byte, data func(p []byte, off int64) error) (int64, error) {
	return scanRange(src, 0, size, buf, func(p []byte, off int64) error {
		for from, to := nextRun(p, 0); from < to; from, to = nextRun(p, to) {
			if err := data(p[from:to], off+int64(from)); err != nil {
				return err
			}
		}
		return nil
	})
}

// scanRange reads from start to end, and returns end or where the file ended before.
func scanRange(src source, start, end int64, buf []byte, data func(p []byte, off int64) error) (int64, error) {
	for start < end {
		p := buf[:min(int64(len(buf)), end-start)]
		n, err := src.read(p, start)
		if err != nil {
			return start, err
		}
		if err := emit(p[:n], start, data); err != nil {
			return start, err
		}
		start += int64(n)
		if n < len(p) {
			break
		}
	}
	return start, nil
}

func emit(p []byte, off int64, data func(p []byte, off int64) error) error {
	if len(p) == 0 {
		return nil
	}
	return data(p, off)
}

// read fills p from off on; less than that means that the file ends there.
func (s source) read(p []byte, off int64) (int, error) {
	n, err := s.readAt(p, off)
	switch {
	case err == nil:
		return n, nil
	case s.own:
		return 0, fmt.Errorf("%w: read: %w", ErrCorrupt, err)
	default:
		return 0, fmt.Errorf("read: %w", err)
	}
}

// sumOf computes the checksum of the first size bytes of src.
func sumOf(src source, size int64) (sum uint64, err error) {
	err = withBuffer(size, func(buf []byte) error {
		s := newSummer()
		end, err := scan(src, size, buf, func(p []byte, off int64) error {
			s.add(p, off)
			return nil
		})
		sum = s.sum(end)
		return err
	})
	return sum, err
}
