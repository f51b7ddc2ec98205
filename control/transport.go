package control

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxIdleConns is how many connections a client keeps open between calls.
const maxIdleConns = 8

// transport makes calls to one server on a fast local connection. In contrast to http.Transport, a call
// writes and reads on its own goroutine: that saves most of a round trip's time, which is spent on waking others up.
type transport struct {
	dial func(context.Context) (net.Conn, error)

	mu   sync.Mutex // guards idle
	idle []*clientConn
}

// clientConn is an open connection. One call uses it at a time.
type clientConn struct {
	net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
	lane bool // upgraded to laneProtocol
}

// roundTrip sends a request and reads the head of its reply. The reply's body must be closed; read to its end, it gives the
// connection back for the next call. whole says that the reply is no stream, so that it may come over a lane.
func (t *transport) roundTrip(req *http.Request, whole bool) (*http.Response, error) {
	ctx := req.Context()
	c, err := t.conn(ctx, whole)
	if err != nil {
		return nil, err
	}
	if whole && !c.lane {
		req.Header["Connection"], req.Header["Upgrade"] = []string{"Upgrade"}, []string{laneProtocol}
	}
	// When the context ends, reading and writing do.
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	resp, err := c.exchange(req)
	if err != nil {
		stop()
		c.Close()
		return nil, errors.Join(context.Cause(ctx), err)
	}
	resp.Body = &replyBody{ReadCloser: resp.Body, done: func(clean bool) {
		// A context that ended has set a deadline, or is about to.
		if stop() && clean && !resp.Close {
			t.put(c)
		} else {
			c.Close()
		}
	}}
	return resp, nil
}

func (c *clientConn) exchange(req *http.Request) (*http.Response, error) {
	if err := req.Write(c.w); err != nil {
		return nil, err
	}
	if err := c.w.Flush(); err != nil {
		return nil, err
	}
	spin(c.Conn)
	resp, err := http.ReadResponse(c.r, req)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		c.lane = true
		return http.ReadResponse(c.r, req)
	}
	return resp, err
}

// conn gives an idle connection that is still good, or a new one. Only with lane may it be one.
func (t *transport) conn(ctx context.Context, lane bool) (*clientConn, error) {
	for {
		c := t.take(lane)
		if c == nil {
			break
		}
		if c.r.Buffered() == 0 && stillOpen(c.Conn) {
			return c, nil
		}
		c.Close()
	}
	c, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	return &clientConn{Conn: c, r: bufio.NewReader(c), w: bufio.NewWriter(c)}, nil
}

// take removes the connection that was used last from the idle ones; nil if there is none. With lane it takes one if it can, without
// none.
func (t *transport) take(lane bool) *clientConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	best := -1
	for i, c := range t.idle {
		if c.lane == lane || !c.lane && (best < 0 || !t.idle[best].lane) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	c := t.idle[best]
	t.idle = slices.Delete(t.idle, best, best+1)
	return c
}

func (t *transport) put(c *clientConn) {
	t.mu.Lock()
	if len(t.idle) < maxIdleConns {
		t.idle = append(t.idle, c)
		c = nil
	}
	t.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// CloseIdleConnections closes the connections that no call uses.
func (t *transport) CloseIdleConnections() {
	for c := t.take(true); c != nil; c = t.take(true) {
		c.Close()
	}
}

// replyBody calls done once, when it is closed.
type replyBody struct {
	io.ReadCloser
	done  func(clean bool)
	ended bool // read to its end
	once  sync.Once
}

func (b *replyBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.ended = true
	}
	return n, err
}

func (b *replyBody) Close() error {
	b.once.Do(func() { b.done(b.ended) })
	return nil
}
