package ops

import (
	"errors"

	"golang.org/x/sys/unix"
)

// dirFile is an open file of a DirFS.
type dirFile struct {
	fd      int
	mapping Mapping
}

// WriteAt implements File. A descriptor that was opened with O_APPEND writes at the end whatever off says.
func (f *dirFile) WriteAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pwrite(f.fd, p[done:], off+int64(done))
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Size implements File.
func (f *dirFile) Size() (int64, error) {
	var st unix.Stat_t
	err := unix.Fstat(f.fd, &st)
	return st.Size, err
}

// Truncate implements File.
func (f *dirFile) Truncate(size int64) error { return unix.Ftruncate(f.fd, size) }

// Fallocate implements File.
func (f *dirFile) Fallocate(mode uint32, off, n int64) error {
	return unix.Fallocate(f.fd, mode, off, n)
}

// CopyFrom implements File. It stops without an error where src ends.
func (f *dirFile) CopyFrom(src File, srcOff, off, n int64) error {
	from := src.(*dirFile).fd
	for n > 0 {
		k, err := unix.CopyFileRange(from, &srcOff, f.fd, &off, int(n), 0)
		if err != nil || k == 0 {
			return err
		}
		n -= int64(k)
	}
	return nil
}

// Fsync implements File.
func (f *dirFile) Fsync() error { return unix.Fsync(f.fd) }

// Map implements File.
func (f *dirFile) Map(n int64) error { return f.mapping.Map(f.fd, n) }

// MapWrite implements File.
func (f *dirFile) MapWrite(p []byte, off int64) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	return f.mapping.Write(p, off, size)
}

// Close implements File. The mapping ends too.
func (f *dirFile) Close() error { return errors.Join(f.mapping.Close(), unix.Close(f.fd)) }
