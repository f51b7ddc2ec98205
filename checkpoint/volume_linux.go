package checkpoint

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// allocate makes a file take n bytes, and reports whether it could.
func allocate(f *os.File, n int64) bool { return unix.Fallocate(int(f.Fd()), 0, 0, n) == nil }

// allocateAhead makes the next n bytes of a file take room, where nothing was written yet, and leaves its size. It fails with ENOSPC alone.
func allocateAhead(name string, n int64) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil // it has just gone, as all of it is in a table
	}
	defer f.Close()
	fd := int(f.Fd())
	from, err := unix.Seek(fd, 0, unix.SEEK_HOLE)
	if err != nil {
		return nil
	}
	end, err := unix.Seek(fd, 0, io.SeekEnd)
	if err != nil || from >= end {
		return nil
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, from, min(n, end-from)); err == unix.ENOSPC {
		return err
	}
	return nil
}
