package runtime

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// channels are what a process is connected by: our ends, and theirs, which are passed on.
type channels struct {
	conn     net.Conn
	out, err *stream

	theirs, stdout, stderr *os.File
}

func newChannels() (*channels, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errs.Wrap(errs.Exec, opStart, "", os.NewSyscallError("socketpair", err))
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "runtime"), os.NewFile(uintptr(pair[1]), "driver")
	c := &channels{theirs: theirs}
	c.conn, err = net.FileConn(ours) // a copy of it
	ours.Close()
	if err == nil {
		c.out, c.stdout, err = newStream()
	}
	if err == nil {
		c.err, c.stderr, err = newStream()
	}
	if err != nil {
		c.closeTheirs()
		if c.conn != nil {
			c.conn.Close()
		}
		if c.out != nil {
			c.out.close()
		}
		return nil, errs.Wrap(errs.Exec, opStart, "", err)
	}
	return c, nil
}

func (c *channels) closeTheirs() {
	for _, f := range []*os.File{c.theirs, c.stdout, c.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// stream takes in what a process writes, and keeps the first limit bytes since the last take.
type stream struct {
	limit int
	r     *os.File
	conn  syscall.RawConn

	mu   sync.Mutex // guards what follows, and reading
	kept written
	buf  [32 << 10]byte
}

// written is what was written.
type written struct {
	text []byte
	cut  bool // there was more
}

func newStream() (*stream, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	conn, err := r.SyscallConn()
	if err != nil {
		r.Close()
		w.Close()
		return nil, nil, err
	}
	return &stream{r: r, conn: conn}, w, nil
}

// copy reads until the end. Reading and keeping are one step under mu, so that nothing is on its way in between.
func (s *stream) copy() {
	for more := true; more; {
		err := s.conn.Read(func(fd uintptr) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			n, err := s.read(fd)
			more = n > 0 || errors.Is(err, unix.EINTR)
			return !errors.Is(err, unix.EAGAIN)
		})
		if err != nil {
			return
		}
	}
}

func (s *stream) read(fd uintptr) (int, error) {
	n, err := unix.Read(int(fd), s.buf[:])
	if n <= 0 {
		return 0, err
	}
	room := min(n, s.limit-len(s.kept.text))
	s.kept.cut = s.kept.cut || room < n
	s.kept.text = append(s.kept.text, s.buf[:room]...)
	return n, nil
}

// take gives what was written since the last take, up to now: also what is still in the pipe.
func (s *stream) take() written {
	_ = s.conn.Control(func(fd uintptr) { // fails where it is closed, and nothing is in it
		s.mu.Lock()
		defer s.mu.Unlock()
		n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for err == nil && n > 0 { // no more, as something may write without end
			var got int
			if got, err = s.read(fd); got == 0 {
				return
			}
			n -= got
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.kept
	s.kept = written{}
	return w
}

func (s *stream) close() { s.r.Close() }

// isReset reports whether the other end has gone with something unread.
func isReset(err error) bool { return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) }
