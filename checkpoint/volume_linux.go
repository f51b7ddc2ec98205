package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// allocate makes a file take n bytes, and reports whether it could.
func allocate(f *os.File, n int64) bool { return unix.Fallocate(int(f.Fd()), 0, 0, n) == nil }

// allocateBeginning makes the first n bytes of an existing file take room, and leaves its size. It is false where there is not so much.
func allocateBeginning(name string, n int64) bool {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return true // it has just gone, as it was flushed
	}
	defer f.Close()
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n) != unix.ENOSPC
}
