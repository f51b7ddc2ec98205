package control

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
)

// rawLane is a connection that a test speaks HTTP on by hand.
type rawLane struct {
	*testing.T
	net.Conn
	r *bufio.Reader
}

func (s *started) rawLane(t *testing.T) *rawLane {
	t.Helper()
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &rawLane{t, c, bufio.NewReader(c)}
}

const upgrade = "Host: x\r\nConnection: Upgrade\r\nUpgrade: " + laneProtocol + "\r\n"

// reply reads one reply and gives its status and body.
func (l *rawLane) reply() (int, string) {
	l.Helper()
	resp, err := http.ReadResponse(l.r, nil)
	if err != nil {
		l.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		l.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func (l *rawLane) wantReply(status int, mentions string) {
	l.Helper()
	got, text := l.reply()
	if got != status || !strings.Contains(text, mentions) {
		l.Errorf("the reply is %d %q, want %d with %q", got, text, status, mentions)
	}
}

func TestALaneAnswersInOrderAlsoWhatCameEarly(t *testing.T) {
	l := start(t, &fakeWorkspace{}).rawLane(t)
	fmt.Fprintf(l, "POST /v1/checkpoints HTTP/1.1\r\n%sContent-Length: 18\r\n\r\n{\"id\":\"ckpt_mine\"}", upgrade)
	fmt.Fprint(l, "GET /v1/checkpoints HTTP/1.1\r\nHost: x\r\n\r\n"+
		"POST /v1/checkpoints HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{\"colour\":1}")
	l.wantReply(http.StatusSwitchingProtocols, "")
	l.wantReply(200, "ckpt_mine")
	l.wantReply(200, `"checkpoints":[`)
	l.wantReply(400, "USAGE")
	fmt.Fprint(l, "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n")
	l.wantReply(200, `"test"`)
}

func TestALaneTakesNoStreams(t *testing.T) {
	l := start(t, &fakeWorkspace{}).rawLane(t)
	fmt.Fprintf(l, "GET /v1/events HTTP/1.1\r\n%s\r\n", upgrade)
	l.wantReply(http.StatusSwitchingProtocols, "")
	l.wantReply(400, "connection of its own")
	fmt.Fprint(l, "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
	l.wantReply(200, "workspace")
}

func TestARequestThatIsTooLargeIsNotUpgraded(t *testing.T) {
	l := start(t, &fakeWorkspace{}).rawLane(t)
	go fmt.Fprintf(l, "POST /v1/checkpoints HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", upgrade, maxBody+1, strings.Repeat("x", maxBody+1))
	l.wantReply(http.StatusRequestEntityTooLarge, "USAGE")
}

func TestALaneRefusesARequestThatIsTooLargeAndEnds(t *testing.T) {
	l := start(t, &fakeWorkspace{}).rawLane(t)
	fmt.Fprintf(l, "GET /v1/version HTTP/1.1\r\n%s\r\n", upgrade)
	l.wantReply(http.StatusSwitchingProtocols, "")
	l.wantReply(200, `"test"`)
	go fmt.Fprintf(l, "POST /v1/checkpoints HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", maxBody+1, strings.Repeat("x", maxBody+1))
	l.wantReply(http.StatusRequestEntityTooLarge, "USAGE")
	if _, err := l.r.ReadByte(); err == nil {
		t.Error("the connection goes on in the middle of a request")
	}
}

func TestALaneEndsAfterWhatIsNoRequest(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	for _, bad := range []string{"nonsense\r\n\r\n", "POST /v1/gc HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{", "GET / HTTP/1.1\r\nX: " + strings.Repeat("y", maxBody+laneHeader)} {
		l := s.rawLane(t)
		fmt.Fprintf(l, "GET /v1/version HTTP/1.1\r\n%s\r\n", upgrade)
		l.wantReply(http.StatusSwitchingProtocols, "")
		l.wantReply(200, `"test"`)
		go func() {
			fmt.Fprint(l, bad)
			_ = l.Conn.(*net.UnixConn).CloseWrite()
		}()
		for {
			if _, err := http.ReadResponse(l.r, nil); err != nil {
				break // the end, or a refusal before it
			}
		}
	}
	if _, err := s.Status(ctx); err != nil {
		t.Error(err)
	}
}

// leaving tells when the context of its GC ends.
type leaving struct {
	fakeWorkspace
	begun, ended chan struct{}
}

func (w *leaving) GC(ctx context.Context) (overlay.GCResult, error) {
	close(w.begun)
	<-ctx.Done()
	close(w.ended)
	return overlay.GCResult{}, ctx.Err()
}

func TestALongCallOnALaneEndsWhenItsCallerIsGone(t *testing.T) {
	w := &leaving{begun: make(chan struct{}), ended: make(chan struct{})}
	l := start(t, w).rawLane(t)
	fmt.Fprintf(l, "POST /v1/gc HTTP/1.1\r\n%s\r\n", upgrade)
	<-w.begun
	l.Close()
	<-w.ended
}

func TestALongCallOnALaneIsNotCutOff(t *testing.T) {
	w := &fakeWorkspace{block: make(chan struct{})}
	s := start(t, w)
	for range 2 { // the first request of a lane, and another
		w.block = make(chan struct{})
		time.AfterFunc(3*laneWatchAfter, func() { close(w.block) })
		if r, err := s.GC(ctx); err != nil || r.Bytes != 4096 {
			t.Errorf("GC = %+v, %v", r, err)
		}
	}
}

func TestALaneGoesOnAfterALongCall(t *testing.T) {
	w := &fakeWorkspace{block: make(chan struct{})}
	s := start(t, w)
	l := s.rawLane(t)
	fmt.Fprintf(l, "POST /v1/gc HTTP/1.1\r\n%s\r\n", upgrade)
	for s.server.requests.Load() == 0 {
	}
	// Its arrival shows that the call is watched: the server has read it before it was done with the first one, or after.
	fmt.Fprint(l, "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n")
	close(w.block)
	l.wantReply(http.StatusSwitchingProtocols, "")
	l.wantReply(200, "4096")
	l.wantReply(200, `"test"`)
	fmt.Fprint(l, "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n")
	l.wantReply(200, `"test"`)
}

func TestCloseEndsIdleLanes(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	l := s.rawLane(t)
	fmt.Fprintf(l, "GET /v1/version HTTP/1.1\r\n%s\r\n", upgrade)
	l.wantReply(http.StatusSwitchingProtocols, "")
	l.wantReply(200, `"test"`)
	if err := s.server.Close(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.r.ReadByte(); err != io.EOF {
		t.Errorf("after Close the connection gives %v, want EOF", err)
	}
}

func TestClientSpeaksToAServerWithoutLanes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(Options{Workspace: &fakeWorkspace{}})
	plain := &http.Server{Handler: s.mux}
	go func() { _ = plain.Serve(l) }()
	defer plain.Close()
	c := NewClient(socket)
	defer c.Close()
	for range 3 {
		if _, err := c.Status(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.transport.idle) != 1 || c.transport.idle[0].lane {
		t.Errorf("the client keeps %d connections, want the one plain one", len(c.transport.idle))
	}
}

func TestClientKeepsCallsAndStreamsApart(t *testing.T) {
	s := start(t, &fakeWorkspace{patch: "diff"})
	var text strings.Builder
	for range 2 {
		if _, err := s.Status(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s.Patch(ctx, Between{}, &text); err != nil {
			t.Fatal(err)
		}
	}
	lanes := 0
	for _, c := range s.transport.idle {
		if c.lane {
			lanes++
		}
	}
	if text.String() != "diffdiff" || len(s.transport.idle) != 2 || lanes != 1 {
		t.Errorf("%q over %d connections, %d of them lanes; want one of each kind", text.String(), len(s.transport.idle), lanes)
	}
}
