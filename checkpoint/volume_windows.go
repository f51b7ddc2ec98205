package checkpoint

import (
	"os"

	"golang.org/x/sys/windows"
)

// volume is a filesystem, by the path of a directory on it.
type volume struct{ dir string }

func openVolume(dir string) (volume, error) {
	_, err := os.Stat(dir)
	return volume{dir}, err
}

func (v volume) close() error { return nil }

// free is how many bytes can be written.
func (v volume) free() int64 {
	path, err := windows.UTF16PtrFromString(v.dir)
	if err != nil {
		return 0
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(path, &free, nil, nil); err != nil {
		return 0
	}
	return int64(free)
}

// allocate makes a file take n bytes, and reports whether it could: NTFS allocates what a file is extended by.
func allocate(f *os.File, n int64) bool { return f.Truncate(n) == nil }

// allocated gives the bytes of a file: of how many there are holes is not asked.
func allocated(path string) int64 {
	st, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}

// syncDirectory has nothing to do: NTFS and ReFS log changes of a directory in order, and give no way to wait for them.
func syncDirectory(string) error { return nil }

// allocateAhead is not there: somebody who fills the disk may end the process.
func allocateAhead(string, int64) error { return nil }
