package strategy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// errNoPunch says that holes can't be made in an existing file. It is made anew from nothing then.
var errNoPunch = errors.New("the filesystem can't punch holes")

// Copy copies what the regular file src, open for reading, holds into dst, an empty one that is open for writing. Holes
// stay holes. It moves no file offset.
func Copy(dst, src *os.File) error {
	defer runtime.KeepAlive(src)
	defer runtime.KeepAlive(dst)
	_, err := copyWhole(fileOf(dst), fileOf(src))
	return err
}

// copyNew copies the first size bytes of src into dst, which is empty. It returns the checksum of what it copied.
func copyNew(dst file, src source, size int64) (sum uint64, err error) {
	err = withBuffer(size, func(buf []byte) error {
		s := newSummer()
		var at int64 // the size of dst
		end, err := scan(src, size, buf, func(p []byte, off int64) error {
			s.add(p, off)
			at = off + int64(len(p))
			return write(dst, p, off)
		})
		if err == nil && at < end {
			err = resize(dst, end)
		}
		sum = s.sum(end)
		return err
	})
	return sum, err
}

// copyOver makes dst equal to the first size bytes of src, whatever it holds, and returns their checksum. It rewrites in place
// what differs: so a full filesystem has room for what had room before, and little is written.
func copyOver(dst file, src source, size int64) (sum uint64, err error) {
	st, err := dst.stat()
	if err != nil {
		return 0, err
	}
	if st.size != size {
		if err := resize(dst, size); err != nil {
			return 0, err
		}
	}
	sum, err = rewrite(dst, src, size)
	if !errors.Is(err, errNoPunch) {
		return sum, err
	}
	if err := resize(dst, 0); err != nil {
		return 0, err
	}
	return copyNew(dst, src, size)
}

// rewrite is copyOver for a dst that has the right size.
func rewrite(dst file, src source, size int64) (sum uint64, err error) {
	err = withBuffer(2*size, func(buf []byte) error {
		s := newSummer()
		buf, old := buf[:len(buf)/2], buf[len(buf)/2:]
		var at int64
		end, err := scan(src, size, buf, func(p []byte, off int64) error {
			s.add(p, off)
			if err := punch(dst, at, off); err != nil {
				return err
			}
			at = off + int64(len(p))
			return writeChanged(dst, p, off, old)
		})
		if err == nil {
			err = punch(dst, at, end)
		}
		sum = s.sum(end)
		return err
	})
	return sum, err
}

// writeChanged writes p at off unless dst has these bytes already. old is a buffer as large as p.
func writeChanged(dst file, p []byte, off int64, old []byte) error {
	// Where p holds zero blocks, equal bytes might be a hole in dst that is none in the preimage.
	if !hasZeroBlock(p) {
		n, err := dst.readAt(old[:len(p)], off)
		if err == nil && bytes.Equal(old[:n], p) {
			return nil
		}
	}
	return write(dst, p, off)
}

func write(dst file, p []byte, off int64) error {
	if err := dst.writeAt(p, off); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func resize(dst file, size int64) error {
	if err := dst.truncate(size); err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	return nil
}

func punch(dst file, from, to int64) error {
	if from >= to {
		return nil
	}
	if err := dst.punch(from, to-from); err != nil {
		return fmt.Errorf("punch hole: %w", err)
	}
	return nil
}
