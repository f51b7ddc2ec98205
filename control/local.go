package control

import (
	"context"
	"net"
	"sync"
)

// Local makes a client of a server in the same process, for a workspace that nobody has mounted: the same calls, the
// same errors. The server must not be serving yet; closing it ends the client.
func Local(s *Server) *Client {
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	go s.Serve(l)
	return newClient(l.dial)
}

// pipeListener hands out the ends of pipes in memory.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept waits for the next dial.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close ends all waiting.
func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr has no meaning here.
func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }
