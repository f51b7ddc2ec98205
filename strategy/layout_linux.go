package strategy

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// seeker is the layout that lseek(2) tells with SEEK_DATA and SEEK_HOLE.
type seeker struct {
	file
	own bool // file was opened here
}

// layoutOf gives the layout of src. lseek moves the offset, so somebody else's file is opened once more, for an offset
// of its own; where its mode or a missing /proc forbids that there is no layout.
func layoutOf(src source) (layout, bool) {
	if src.own {
		return seeker{file: src.file}, true
	}
	fd, err := retry(func() (int, error) {
		return unix.Open("/proc/self/fd/"+strconv.Itoa(src.fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, false
	}
	return seeker{file{fd}, true}, true
}

func (s seeker) close() {
	if s.own {
		_ = s.file.close()
	}
}

func (s seeker) next(off, size int64) (start, end int64, err error) {
	start, err = unix.Seek(s.fd, off, unix.SEEK_DATA)
	if err == unix.ENXIO { // nothing but a hole from off on
		return size, size, nil
	}
	if err != nil {
		return 0, 0, err
	}
	if start >= size {
		return size, size, nil
	}
	end, err = unix.Seek(s.fd, start, unix.SEEK_HOLE)
	if err == unix.ENXIO { // the file shrank meanwhile
		return size, size, nil
	}
	if err != nil {
		return 0, 0, err
	}
	return start, min(end, size), nil
}

func (s seeker) hole(off, _, size int64) (int64, error) {
	start, err := unix.Seek(s.fd, off, unix.SEEK_DATA)
	if err == unix.ENXIO {
		return size, nil
	}
	if err != nil {
		return 0, err
	}
	return min(max(start-start%blockSize, off), size), nil // the filesystem's blocks may be smaller than ours
}

// punch makes a hole of n bytes at off without changing the size. Where the filesystem can't, it is errNoPunch.
func (f file) punch(off, n int64) error {
	_, err := retry(func() (int, error) {
		return 0, unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		return errNoPunch
	}
	return err
}
