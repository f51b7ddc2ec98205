//go:build unix

package strategy

import (
	"os"

	"golang.org/x/sys/unix"
)

// file is an open file, read and written by position. Plain descriptors: making an *os.File costs as much as the rest
// of saving a small file.
type file struct{ fd int }

// stat is what the tiers need to know of a file.
type stat struct {
	size    int64 // bytes
	mtime   int64 // ns since 1970
	regular bool
}

// fileOf gives f's descriptor. The caller keeps f alive.
func fileOf(f *os.File) file { return file{int(f.Fd())} }

// osFile hands the descriptor over to an *os.File.
func (f file) osFile(name string) *os.File { return os.NewFile(uintptr(f.fd), name) }

// readAt reads until p is full or the file ends, which is no error.
func (f file) readAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := retry(func() (int, error) { return unix.Pread(f.fd, p[done:], off+int64(done)) })
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

func (f file) writeAt(p []byte, off int64) error {
	for len(p) > 0 {
		n, err := retry(func() (int, error) { return unix.Pwrite(f.fd, p, off) })
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

func (f file) stat() (stat, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return stat{}, os.NewSyscallError("fstat", err)
	}
	return toStat(&st), nil
}

func toStat(st *unix.Stat_t) stat {
	return stat{
		size:    st.Size,
		mtime:   unix.TimespecToNsec(st.Mtim),
		regular: uint32(st.Mode)&unix.S_IFMT == unix.S_IFREG,
	}
}

func (f file) truncate(size int64) error {
	_, err := retry(func() (int, error) { return 0, unix.Ftruncate(f.fd, size) })
	return err
}

func (f file) sync() error {
	_, err := retry(func() (int, error) { return 0, unix.Fsync(f.fd) })
	return err
}

func (f file) close() error { return unix.Close(f.fd) }

// retry calls fn again as long as a signal interrupts it, which some network filesystems let happen.
func retry(fn func() (int, error)) (int, error) {
	for {
		n, err := fn()
		if err != unix.EINTR {
			return n, err
		}
	}
}
