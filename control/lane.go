package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// laneProtocol is what a client upgrades a connection to (RFC 9110, section 7.8) that it makes many small calls on. The
// requests and replies stay those of HTTP/1.1, each reply whole and with its length; the request that asked for the upgrade
// is answered first. What is gained is time: http.Server watches the connection on a second goroutine from the first instant
// of each request, and starting and stopping that takes several times as long as a snapshot does. A lane looks only where a
// call is long.
const laneProtocol = "hyperfs-calls"

const (
	laneWatchAfter = 20 * time.Millisecond // how long a call takes before its caller is watched
	laneHeader     = 64 << 10              // bytes of a request beside its body
)

// lane is the server's end of an upgraded connection. One goroutine uses it.
type lane struct {
	s     *Server
	conn  net.Conn
	limit io.LimitedReader // of the request that is read
	r     *bufio.Reader
	out   bytes.Buffer // what is sent next
}

// wantsLane reports whether a request asks for the upgrade.
func wantsLane(r *http.Request) bool { return r.Header.Get("Upgrade") == laneProtocol }

// openLane upgrades the connection of a request, answers it, and then what follows on the connection.
func (s *Server) openLane(w http.ResponseWriter, first *http.Request) {
	var body bytes.Buffer
	if _, err := readBody(w, first, &body, limitOf(first.URL.Path)); err != nil {
		writeError(w, err)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeError(w, errs.Wrap(Internal, "upgrade the connection", "", err))
		return
	}
	if !s.lanes.add(conn) {
		conn.Close()
		return
	}
	defer s.lanes.remove(conn) // when it is closed, so that nobody sends a request to a server that has ended
	defer conn.Close()
	l := &lane{s: s, conn: conn, limit: io.LimitedReader{R: conn, N: laneHeader}} // of what follows while the first is answered
	if n := rw.Reader.Buffered(); n > 0 {                                         // of who does not wait for the answer
		early, _ := rw.Reader.Peek(n)
		l.limit.R = io.MultiReader(bytes.NewReader(early), conn)
	}
	l.r = bufio.NewReader(&l.limit)
	fmt.Fprintf(&l.out, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", laneProtocol)
	first.Body = readAlready{&body}
	for req := first; req != nil; req = l.next() {
		if l.answer(req) != nil || req.Close {
			return
		}
	}
}

// next waits for another request; nil says that none comes.
func (l *lane) next() *http.Request {
	l.limit.N = maxBody + laneHeader
	_ = l.conn.SetReadDeadline(time.Now().Add(idleTimeout)) // of a connection that is gone, the next call fails
	select {
	case <-l.s.closing: // after the deadline was set, which lanes.end shortens
		return nil
	default:
	}
	if _, err := l.r.Peek(1); err != nil {
		return nil
	}
	_ = l.conn.SetReadDeadline(time.Now().Add(readTimeout))
	req, err := http.ReadRequest(l.r)
	if err != nil {
		return nil
	}
	// All of it: while the call runs, watch reads the connection.
	limit := limitOf(req.URL.Path)
	l.limit.N += limit - maxBody
	body := new(bytes.Buffer)
	if n := min(req.ContentLength, limit); n > 0 {
		body.Grow(int(n) + bytes.MinRead)
	}
	if _, err := body.ReadFrom(io.LimitReader(req.Body, limit+1)); err != nil {
		return nil
	}
	req.Body = readAlready{body}
	req.Close = req.Close || int64(body.Len()) > limit // it will be refused, and its rest is still to come
	_ = l.conn.SetReadDeadline(time.Time{})
	return req
}

// answer answers one request. An error says that the connection is no good any more.
func (l *lane) answer(req *http.Request) error {
	ctx, cancel := context.WithCancel(l.s.base)
	defer cancel()
	reply := laneReply{header: http.Header{}, status: http.StatusOK}
	stop := l.watch(cancel)
	l.s.mux.ServeHTTP(&reply, req.WithContext(ctx))
	stop()
	fmt.Fprintf(&l.out, "HTTP/1.1 %03d %s\r\n", reply.status, http.StatusText(reply.status))
	reply.header["Content-Length"] = []string{strconv.Itoa(reply.body.Len())}
	_ = reply.header.Write(&l.out) // to memory
	l.out.WriteString("\r\n")
	l.out.Write(reply.body.Bytes())
	_ = l.conn.SetWriteDeadline(time.Now().Add(readTimeout))
	_, err := l.conn.Write(l.out.Bytes())
	l.out = bytes.Buffer{}
	return err
}

// watch calls gone when the caller of a long call goes away. The function that it gives ends that, and must be called before
// the connection is read again.
func (l *lane) watch(gone func()) (stop func()) {
	ended := make(chan struct{})
	timer := time.AfterFunc(laneWatchAfter, func() {
		defer close(ended)
		if _, err := l.r.Peek(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			gone()
		}
	})
	return func() {
		if !timer.Stop() {
			_ = l.conn.SetReadDeadline(time.Unix(1, 0))
			<-ended
		}
	}
}

// laneReply keeps a reply until it is whole.
type laneReply struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *laneReply) Header() http.Header         { return r.header }
func (r *laneReply) WriteHeader(status int)      { r.status = status }
func (r *laneReply) Write(p []byte) (int, error) { return r.body.Write(p) }

// lanes are the upgraded connections of a server, which http.Server no longer knows.
type lanes struct {
	mu    sync.Mutex // guards what follows
	open  map[net.Conn]struct{}
	ended chan struct{} // not nil: no more are taken; closed when none is left
}

func (l *lanes) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return false
	}
	if l.open == nil {
		l.open = map[net.Conn]struct{}{}
	}
	l.open[c] = struct{}{}
	return true
}

func (l *lanes) remove(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
	if l.ended != nil && len(l.open) == 0 {
		close(l.ended)
	}
}

// end closes what is idle, waits for what is being answered until ctx ends, and then closes that too. It is called once.
func (l *lanes) end(ctx context.Context) {
	l.mu.Lock()
	l.ended = make(chan struct{})
	left := slices.Collect(maps.Keys(l.open))
	if len(left) == 0 {
		close(l.ended)
	}
	l.mu.Unlock()
	for _, c := range left {
		_ = c.SetReadDeadline(time.Unix(1, 0))
	}
	select {
	case <-l.ended:
	case <-ctx.Done():
		for _, c := range left {
			_ = c.Close()
		}
	}
}
