package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// do sends a request as any HTTP program could.
func (s *started) do(t *testing.T, method, path string, body io.Reader) (int, []byte, http.Header) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", s.socket) },
	}}
	req, err := http.NewRequest(method, "http://x"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text, resp.Header
}

func TestBadRequestsAreRefusedAndTheFieldIsNamed(t *testing.T) {
	w := &fakeWorkspace{}
	s := start(t, w)
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		code                     Code
		on                       string
	}{
		{"unknown field", "POST", "/v1/checkpoints", `{"agent":"a","colour":"red"}`, 400, Usage, "colour"},
		{"field in another case", "POST", "/v1/checkpoints", `{"Agent":"a"}`, 400, Usage, "Agent"},
		{"repeated field", "POST", "/v1/checkpoints", `{"agent":"a","agent":"b"}`, 400, Usage, "agent"},
		{"wrong type", "POST", "/v1/checkpoints", `{"agent":7}`, 400, Usage, "agent"},
		{"null", "POST", "/v1/checkpoints", `{"agent":null}`, 400, Usage, "agent"},
		{"object for a string", "POST", "/v1/checkpoints", `{"message":{}}`, 400, Usage, "message"},
		{"string for a boolean", "POST", "/v1/checkpoints/x/rollback", `{"discard":"yes"}`, 400, Usage, "discard"},
		{"empty tag", "POST", "/v1/checkpoints", `{"branch":""}`, 400, Usage, "branch"},
		{"empty ID", "POST", "/v1/checkpoints", `{"id":""}`, 400, Usage, "id"},
		{"array", "POST", "/v1/checkpoints", `[]`, 400, Usage, "body"},
		{"null body", "POST", "/v1/checkpoints", `null`, 400, Usage, "body"},
		{"cut off", "POST", "/v1/checkpoints", `{"agent":"a"`, 400, Usage, "body"},
		{"cut off in a value", "POST", "/v1/checkpoints", `{"agent":"a`, 400, Usage, "body"},
		{"cut off after a name", "POST", "/v1/checkpoints", `{"agent":`, 400, Usage, "body"},
		{"no JSON", "POST", "/v1/checkpoints", `agent=a`, 400, Usage, "body"},
		{"only space", "POST", "/v1/checkpoints", ` `, 400, Usage, "body"},
		{"something after it", "POST", "/v1/checkpoints", `{"agent":"a"} {}`, 400, Usage, "body"},
		{"garbage after it", "POST", "/v1/checkpoints", `{"agent":"a"}]`, 400, Usage, "body"},
		{"a body where none belongs", "POST", "/v1/gc", `{"x":1}`, 400, Usage, "x"},
		{"unknown query parameter", "GET", "/v1/checkpoints?color=red", "", 400, Usage, "color"},
		{"query parameter twice", "GET", "/v1/checkpoints?agent=a&agent=b", "", 400, Usage, "agent"},
		{"empty query parameter", "GET", "/v1/diff?from=", "", 400, Usage, "from"},
		{"wrong boolean", "GET", "/v1/diff?expand=maybe", "", 400, Usage, "expand"},
		{"malformed query", "GET", "/v1/diff?from=%zz", "", 400, Usage, "query"},
		{"query where none belongs", "POST", "/v1/gc?now=1", "", 400, Usage, "now"},
		{"unknown path", "GET", "/v1/nonsense", "", 404, NotFound, "/v1/nonsense"},
		{"root", "GET", "/", "", 404, NotFound, "/"},
		{"wrong method", "DELETE", "/v1/status", "", 405, Usage, "/v1/status"},
		{"GET of an action", "GET", "/v1/checkpoints/reserve", "", 405, Usage, "/v1/checkpoints/reserve"},
		{"unknown checkpoint", "GET", "/v1/checkpoints/none", "", 404, NotFound, "none"},
		{"slash in an ID", "GET", "/v1/checkpoints/a%2Fb", "", 404, NotFound, "a/b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, body, header := s.do(t, tt.method, tt.path, strings.NewReader(tt.body))
			var r ErrorReply
			if err := json.Unmarshal(body, &r); err != nil {
				t.Fatalf("the body %q is no JSON: %v", body, err)
			}
			if status != tt.status || r.Error.Code != tt.code || r.Error.On != tt.on || r.Error.Message == "" {
				t.Errorf("%d %+v, want %d %s on %q", status, r.Error, tt.status, tt.code, tt.on)
			}
			if got := header.Get("Content-Type"); got != mediaJSON {
				t.Errorf("Content-Type = %q", got)
			}
		})
	}
	if len(w.list) != 0 {
		t.Errorf("refused requests made %d checkpoints", len(w.list))
	}
}

func TestABodyOverTheLimitIsRefused(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	big := `{"message":"` + strings.Repeat("x", maxBody) + `"}`
	status, body, _ := s.do(t, "POST", "/v1/checkpoints", strings.NewReader(big))
	if status != http.StatusRequestEntityTooLarge || !bytes.Contains(body, []byte(`"USAGE"`)) {
		t.Errorf("%d %s", status, body)
	}
	unknownLength := io.MultiReader(strings.NewReader(big))
	if status, body, _ = s.do(t, "POST", "/v1/checkpoints", unknownLength); status != http.StatusRequestEntityTooLarge {
		t.Errorf("chunked: %d %s", status, body)
	}
}

func TestABodyMayBeLeftOut(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	for _, body := range []string{"", "{}", " {} \n"} {
		if status, text, _ := s.do(t, "POST", "/v1/checkpoints", strings.NewReader(body)); status != 200 {
			t.Errorf("body %q: %d %s", body, status, text)
		}
	}
}

func TestAWrongMethodIsToldTheRightOnes(t *testing.T) {
	_, _, header := start(t, &fakeWorkspace{}).do(t, "PUT", "/v1/checkpoints", nil)
	if got := header.Get("Allow"); got != "GET, POST" {
		t.Errorf("Allow = %q", got)
	}
}

func TestUnmountAnswersWhenTheWorkspaceIsReleased(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	r, err := s.Unmount(ctx, UnmountOptions{})
	if err != nil || !r.Ended {
		t.Fatalf("Unmount = %+v, %v", r, err)
	}
	select {
	case <-s.host.freed:
	default:
		t.Error("the reply came before the workspace was released")
	}
	if _, err := net.Dial("unix", s.socket); err == nil {
		t.Error("the socket still answers, so that the next daemon would think it is not alone")
	}
}

func TestABusyMountStaysAndTheServerGoesOn(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	s.host.busy = true
	_, err := s.Unmount(ctx, UnmountOptions{})
	wantCode(t, err, Busy, "--lazy")
	if _, err := s.Status(ctx); err != nil {
		t.Error(err)
	}
	if r, err := s.Unmount(ctx, UnmountOptions{Lazy: true}); err != nil || !r.Ended {
		t.Errorf("lazy Unmount = %+v, %v", r, err)
	}
}

func TestCloseCancelsWhatIsUnderWayAndWaitsForIt(t *testing.T) {
	s := start(t, &fakeWorkspace{block: make(chan struct{})})
	failed := make(chan error, 1)
	go func() {
		_, err := s.GC(ctx)
		failed <- err
	}()
	for s.server.requests.Load() == 0 {
	}
	if err := s.server.Close(func() error { return errors.New("disk is gone") }); err == nil || err.Error() != "disk is gone" {
		t.Errorf("Close = %v, want release's error", err)
	}
	if err := <-failed; err == nil {
		t.Error("a call that was cut off gave no error")
	}
}

func TestPanicsInTheWorkspaceDoNotEndTheServer(t *testing.T) {
	s := start(t, &panicking{})
	if _, err := s.Reserve(ctx); err == nil {
		t.Error("a panic gave a reply")
	}
	if _, err := s.Status(ctx); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}
