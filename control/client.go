package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// maxErrorBody is how much of a failed reply is read, in bytes.
const maxErrorBody = 1 << 20

// Client calls a daemon. Its methods may be called concurrently; connections are kept open between calls. Each call ends
// when its context does. Errors are *Error with the code that the daemon gave; a daemon that cannot be reached is
// NOT_FOUND.
type Client struct {
	transport *transport
}

// baseURL is what every request starts with: the host has no meaning on a unix socket.
const baseURL = "http://hyperfs"

// NewClient makes a client of the daemon that listens on socket. Nothing is sent yet.
func NewClient(socket string) *Client {
	return newClient(func(ctx context.Context) (net.Conn, error) { return dialSocket(ctx, socket) })
}

// Dial makes a client of a workspace's daemon, or gives NOT_FOUND if none answers. The path is looked for as it is first, since a mount
// may be dead or closed to root; where none answers for that, with its symlinks resolved.
func Dial(ctx context.Context, workspace string) (*Client, error) {
	abs, err := filepath.Abs(workspace)
	if err != nil {
		return nil, errs.Wrap(Path, "connect", workspace, err)
	}
	socket, err := FindSocket(ctx, abs)
	if err != nil {
		if real, failed := filepath.EvalSymlinks(abs); failed == nil && real != abs {
			socket, err = FindSocket(ctx, real)
		}
	}
	if err != nil {
		return nil, err
	}
	return NewClient(socket), nil
}

func newClient(dial func(context.Context) (net.Conn, error)) *Client {
	return &Client{&transport{dial: dial}}
}

// Close closes idle connections. Calls under way go on.
func (c *Client) Close() error {
	c.transport.CloseIdleConnections()
	return nil
}

// stream makes a call whose reply, with the status 200, may be long or without an end. The caller closes its body.
func (c *Client) stream(ctx context.Context, op, path string, q url.Values) (*http.Response, error) {
	return c.request(ctx, op, http.MethodGet, path, q, nil, false)
}

// request sends body, if there is one, as JSON and gives the reply, whose status is 200. The caller closes its body.
func (c *Client) request(ctx context.Context, op, method, path string, q url.Values, body any, whole bool) (*http.Response, error) {
	target := baseURL + path
	if len(q) > 0 {
		target += "?" + q.Encode()
	}
	var in io.Reader
	if body != nil {
		var b []byte
		var err error
		if a, ok := body.(appender); ok {
			b, err = a.AppendJSON(nil)
			err = errs.Ensure(op, "", err)
		} else {
			b, err = json.Marshal(body)
			err = errs.Wrap(Usage, op, "", err)
		}
		if err != nil {
			return nil, err
		}
		if limit := limitOf(path); int64(len(b)) > limit {
			return nil, errs.New(Usage, op, "", "the request is larger than %d MiB", limit>>20)
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, in)
	if err != nil {
		return nil, errs.Wrap(Usage, op, "", err)
	}
	resp, err := c.transport.roundTrip(req, whole)
	if err != nil {
		return nil, unreachable(ctx, op, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		return nil, unreachable(ctx, op, err)
	}
	return nil, decodeError(op, resp.StatusCode, text)
}

// unreachable is the error of a call that got no whole answer.
func unreachable(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return errs.Wrap(Internal, op, "", context.Cause(ctx))
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return errs.New(NotFound, op, "", "the daemon cannot be reached: %w", dial.Err).WithHint("hyperfs mount starts one")
	}
	return errs.New(Internal, op, "", "the daemon ended before it answered: %w", err).WithHint("hyperfs status")
}

// call sends a request and decodes its reply into reply.
func (c *Client) call(ctx context.Context, op, method, path string, q url.Values, body, reply any) error {
	resp, err := c.request(ctx, op, method, path, q, body, true)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := readReply(resp)
	if err != nil {
		return unreachable(ctx, op, err)
	}
	if d, ok := reply.(decoder); ok {
		err = d.Decode(text)
	} else {
		err = json.Unmarshal(text, reply)
	}
	if err != nil {
		return errs.New(Internal, op, "", "the daemon's answer cannot be read: %w", err)
	}
	return nil
}

// readReply reads a whole body, of which the length is known.
func readReply(resp *http.Response) ([]byte, error) {
	if resp.ContentLength < 0 {
		return io.ReadAll(resp.Body)
	}
	text := make([]byte, resp.ContentLength)
	_, err := io.ReadFull(resp.Body, text)
	if err != nil {
		return nil, err
	}
	// Reading to the end gives the connection back at once.
	_, err = resp.Body.Read(make([]byte, 1))
	if err == io.EOF {
		err = nil
	}
	return text, err
}
