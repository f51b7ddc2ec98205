package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/scan"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

// turnServer is a server of a real workspace, and a client of it.
type turnServer struct {
	*started
	t   testing.TB
	dir string
	w   *scan.Workspace
}

func startTurns(t testing.TB) *turnServer {
	t.Helper()
	s := &turnServer{t: t, dir: t.TempDir()}
	s.open()
	return s
}

func (s *turnServer) open() {
	s.t.Helper()
	w, err := scan.Open(overlay.Config{Workspace: s.dir})
	must(s.t, err)
	s.w = w
	s.started = start(s.t, w)
	s.t.Cleanup(func() { _ = s.server.Close(nil); _ = w.Close() })
}

// reopen ends the daemon in order, and starts another one.
func (s *turnServer) reopen() {
	s.t.Helper()
	must(s.t, s.server.Close(s.w.Close))
	s.open()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *turnServer) write(text string) {
	s.t.Helper()
	must(s.t, os.WriteFile(filepath.Join(s.dir, "file"), []byte(text), 0o644))
}

func (s *turnServer) holds(text string) {
	s.t.Helper()
	if b, err := os.ReadFile(filepath.Join(s.dir, "file")); string(b) != text {
		s.t.Errorf("the file holds %q, %v, want %q", b, err, text)
	}
}

func (s *turnServer) begin(o turn.BeginOptions) turn.Begun {
	s.t.Helper()
	b, err := s.BeginTurn(ctx, o)
	must(s.t, err)
	return b
}

// run makes a turn.
func (s *turnServer) run(text string) turn.Turn {
	s.t.Helper()
	b := s.begin(turn.BeginOptions{Conversation: "c"})
	s.write(text)
	r, err := s.EndTurn(ctx, b.ID, turn.EndOptions{Outcome: turn.Completed, FinishReason: "stop", Update: &turn.Update{AddMessages: []json.RawMessage{said(text)}}})
	must(s.t, err)
	return r.Turn
}

func said(text string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"role":"user","content":%q}`, text))
}

func TestClientMakesTurns(t *testing.T) {
	s := startTurns(t)
	id, err := s.Reserve(ctx)
	must(t, err)
	b := s.begin(turn.BeginOptions{ID: id, Conversation: "c", Agent: "planner", PID: os.Getpid()})
	if b.ID != id || b.Agent != "planner" || b.PID != os.Getpid() || b.State == nil || b.State.Conversation != "c" || b.Status != checkpoint.TurnPending {
		t.Fatalf("%+v", b)
	}
	_, err = s.BeginTurn(ctx, turn.BeginOptions{Conversation: "d"})
	wantCode(t, err, AttemptInProgress, id)
	ev, err := s.UpdateTurn(ctx, id, turn.Update{AddMessages: []json.RawMessage{said("é")}, Custom: json.RawMessage(`{"n": 12345678901234567890.50}`), WithPatch: true})
	must(t, err)
	if ev.Seq != 1 || ev.Messages != 1 || ev.Added != 1 || string(ev.CustomPatch) != `[{"op":"replace","path":"","value":{"n":12345678901234567890.50}}]` {
		t.Errorf("%+v, %s", ev, ev.CustomPatch)
	}
	_, err = s.UpdateTurn(ctx, id, turn.Update{CustomPatch: json.RawMessage(`[{"op":"remove","path":"/x"}]`)})
	wantCode(t, err, Usage, "custom_patch")
	st, err := s.TurnState(ctx, id)
	if err != nil || string(st.Custom) != `{"n": 12345678901234567890.50}` || len(st.Messages) != 1 || string(st.Messages[0]) != string(said("é")) {
		t.Errorf("%s, %v", st.Custom, err)
	}
	s.write("1")
	r, err := s.EndTurn(ctx, id, turn.EndOptions{Outcome: turn.Completed, FinishReason: "stop", WithState: true, Update: &turn.Update{AddArtifacts: []turn.Artifact{{Name: "a", Data: json.RawMessage("1.0")}}}})
	if err != nil || r.Turn.Status != checkpoint.TurnCompleted || r.LastGood != id || r.State == nil || string(r.State.Artifacts[0].Data) != "1.0" || r.Turn.FinishReason != "stop" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = s.EndTurn(ctx, id, turn.EndOptions{Outcome: turn.Completed})
	wantCode(t, err, Disposed, id)
	if got, err := s.AbortTurn(ctx, id, turn.AbortOptions{Reason: "late"}); err != nil || got.Status != checkpoint.TurnCompleted {
		t.Errorf("%+v, %v", got, err)
	}
	list, err := s.Turns(ctx, turn.ListOptions{Conversation: "c", Status: "completed", Limit: 5})
	if err != nil || len(list) != 1 || list[0].ID != id {
		t.Errorf("%+v, %v", list, err)
	}
	_, err = s.Turns(ctx, turn.ListOptions{Status: "done"})
	wantCode(t, err, Usage, "done")
	_, err = s.Turns(ctx, turn.ListOptions{Limit: -1})
	wantCode(t, err, Usage, "limit")
	talks, err := s.Conversations(ctx)
	if err != nil || len(talks) != 1 || talks[0].Head != id {
		t.Errorf("%+v, %v", talks, err)
	}
	d, err := s.Diagnostics(ctx)
	if err != nil || d.Turns == nil || d.Turns.Turns != 1 || d.Turns.Keep != turn.DefaultKeep {
		t.Errorf("%+v, %v", d.Turns, err)
	}
	if r, err := s.GC(ctx); err != nil || r.Turns == nil {
		t.Errorf("%+v, %v", r, err)
	}
	for _, call := range []func() error{
		func() error { _, err := s.Turn(ctx, "ckpt_none"); return err },
		func() error { _, err := s.TurnState(ctx, "ckpt_none"); return err },
		func() error { _, err := s.WaitTurn(ctx, "ckpt_none"); return err },
		func() error { _, err := s.TurnEvents(ctx, "ckpt_none", ""); return err },
		func() error { _, err := s.AbortTurn(ctx, "ckpt_none", turn.AbortOptions{}); return err },
		func() error { _, err := s.EndTurn(ctx, "ckpt_none", turn.EndOptions{Outcome: turn.Failed}); return err },
	} {
		wantCode(t, call(), NotFound, "ckpt_none")
	}
	_, err = s.Turn(ctx, "..")
	wantCode(t, err, Usage, "..")
	f, err := s.DeleteConversation(ctx, "c")
	if err != nil || f.Turns != 1 {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestTurnsGoOnWithAnotherDaemon(t *testing.T) {
	s := startTurns(t)
	one := s.run("1")
	b := s.begin(turn.BeginOptions{Conversation: "c"})
	s.write("2")
	_, err := s.UpdateTurn(ctx, b.ID, turn.Update{AddMessages: []json.RawMessage{said("2")}})
	must(t, err)
	s.reopen()
	_, err = s.UpdateTurn(ctx, b.ID, turn.Update{AddMessages: []json.RawMessage{said("3")}})
	must(t, err)
	r, err := s.EndTurn(ctx, b.ID, turn.EndOptions{Outcome: turn.Completed, WithState: true})
	if err != nil || len(r.State.Messages) != 3 || r.Turn.Parent != one.ID {
		t.Errorf("%+v, %v", r, err)
	}
	b = s.begin(turn.BeginOptions{Conversation: "c"})
	s.write("bad")
	s.reopen()
	r, err = s.EndTurn(ctx, b.ID, turn.EndOptions{Outcome: turn.Failed})
	if err != nil || r.Turn.Status != checkpoint.TurnFailed || r.Rollback == nil {
		t.Errorf("%+v, %v", r, err)
	}
	s.holds("2")
}

func TestARollbackSaysWhichConversationsItLeaves(t *testing.T) {
	s := startTurns(t)
	one, two := s.run("1"), s.run("2")
	r, err := s.Rollback(ctx, one.ID, overlay.RollbackOptions{})
	if err != nil || len(r.Leaves) != 1 || r.Leaves[0] != (turn.Leaves{Conversation: "c", Head: two.ID, At: one.ID}) {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = s.Undo(ctx, ""); err != nil || len(r.Leaves) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	s.holds("2")
}

func TestClientGetsBothFaultsOfATurn(t *testing.T) {
	s := startTurns(t)
	b := s.begin(turn.BeginOptions{Conversation: "c"})
	s.write("1")
	for what, err := range map[string]error{"drop": s.Drop(ctx, b.Base), "promote": func() error { _, err := s.Promote(ctx, b.Base, PromoteOptions{}); return err }()} {
		if CodeOf(err) != Busy {
			t.Errorf("to %s what it goes back to gives %v", what, err)
		}
	}
	must(t, s.w.Drop(ctx, b.Base))
	_, err := s.EndTurn(ctx, b.ID, turn.EndOptions{Outcome: turn.Failed, Error: &checkpoint.TurnError{Message: "tests fail"}})
	wantCode(t, err, AttemptRollback, "tests fail")
	var both *attempt.RollbackError
	if !errors.As(err, &both) || both.Checkpoint != b.Base || both.Rollback == nil || CodeOf(both.Rollback) != Rollback {
		t.Errorf("%v does not have both", err)
	}
	r, err := s.EndTurn(ctx, b.ID, turn.EndOptions{Outcome: turn.Failed, NoRollback: true})
	if err != nil || r.Turn.Status != checkpoint.TurnFailed {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWaitingForATurnEndsWithIt(t *testing.T) {
	s := startTurns(t)
	b := s.begin(turn.BeginOptions{Conversation: "c"})
	status, reply, _ := s.do(t, "GET", "/v1/turns/"+b.ID+"?wait=1ms", nil)
	if status != 200 || !strings.Contains(string(reply), `"status":"pending"`) {
		t.Errorf("%d %s", status, reply)
	}
	for _, wait := range []string{"1", "x", "-1s", "11m"} {
		status, reply, _ := s.do(t, "GET", "/v1/turns/"+b.ID+"?wait="+wait, nil)
		if err := decodeError("x", status, reply); status != 400 || errOn(err) != "wait" {
			t.Errorf("%s: %d %s", wait, status, reply)
		}
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.WaitTurn(short, b.ID); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	got := make(chan turn.Turn, 1)
	go func() {
		r, err := s.WaitTurn(ctx, b.ID)
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	_, err := s.AbortTurn(ctx, b.ID, turn.AbortOptions{Reason: "no use"})
	must(t, err)
	if r := <-got; r.Status != checkpoint.TurnAborted || r.Error.Message != "no use" {
		t.Errorf("%+v", r)
	}
}

// nextOfTurns gives the next event of a stream, with its data as JSON.
func nextOfTurns(t *testing.T, ch <-chan overlay.Event) (typ, id string, data map[string]any) {
	t.Helper()
	select {
	case ev, ok := <-ch:
		if !ok {
			return "", "", nil
		}
		data, _ = ev.Data.(map[string]any)
		return ev.Type, ev.Checkpoint, data
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
		return
	}
}

func TestEventsOfATurnBeginWithWhatItIsAndEndWithIt(t *testing.T) {
	s := startTurns(t)
	first := s.run("1")
	b := s.begin(turn.BeginOptions{Conversation: "c"})
	over, stop := context.WithCancel(ctx)
	defer stop()
	one, err := s.TurnEvents(over, b.ID, "")
	must(t, err)
	talk, err := s.TurnEvents(over, "", "c")
	must(t, err)
	other, err := s.TurnEvents(over, "", "another")
	must(t, err)
	for _, ch := range []<-chan overlay.Event{one, talk} {
		if typ, id, data := nextOfTurns(t, ch); typ != turn.EventState || id != b.ID || data["status"] != "pending" {
			t.Errorf("first comes %s of %s: %v", typ, id, data)
		}
	}
	large := `"` + strings.Repeat("x", 3<<20) + `"`
	_, err = s.UpdateTurn(ctx, b.ID, turn.Update{Custom: json.RawMessage(large)})
	must(t, err)
	_, err = s.AbortTurn(ctx, b.ID, turn.AbortOptions{Force: true})
	must(t, err)
	for _, ch := range []<-chan overlay.Event{one, talk} {
		typ, _, data := nextOfTurns(t, ch)
		patch, _ := data["custom_patch"].([]any)
		if typ != turn.EventUpdated || len(patch) != 1 || len(patch[0].(map[string]any)["value"].(string)) != 3<<20 {
			t.Errorf("then comes %s", typ)
		}
		for _, want := range []string{turn.EventAborted, turn.EventEnded} {
			if typ, _, _ := nextOfTurns(t, ch); typ != want {
				t.Errorf("%s comes instead of %s", typ, want)
			}
		}
	}
	if typ, _, _ := nextOfTurns(t, one); typ != "" {
		t.Errorf("%s follows the end", typ)
	}
	d := s.begin(turn.BeginOptions{Conversation: "another"})
	if typ, id, _ := nextOfTurns(t, other); typ != turn.EventBegun || id != d.ID {
		t.Errorf("%s of %s", typ, id)
	}
	settled, err := s.TurnEvents(ctx, first.ID, "")
	must(t, err)
	if typ, _, data := nextOfTurns(t, settled); typ != turn.EventState || data["status"] != "completed" {
		t.Errorf("%s, %v", typ, data)
	}
	if typ, _, _ := nextOfTurns(t, settled); typ != "" {
		t.Errorf("%s follows", typ)
	}
}

func TestAbortsAndEndsRaceOverTheSocket(t *testing.T) {
	s := startTurns(t)
	s.run("0")
	last := "0"
	counts := map[checkpoint.TurnStatus]int{}
	for i := range 60 {
		text := fmt.Sprint("turn ", i)
		b := s.begin(turn.BeginOptions{Conversation: "c", NoState: true})
		s.write(text)
		var all sync.WaitGroup
		var aborted turn.Turn
		var ended turn.Result
		var abortErr, endErr error
		all.Go(func() {
			time.Sleep(time.Duration(i%4) * 200 * time.Microsecond)
			aborted, abortErr = s.AbortTurn(ctx, b.ID, turn.AbortOptions{Force: i%3 == 0})
		})
		all.Go(func() {
			time.Sleep(time.Duration(i%3) * 200 * time.Microsecond)
			ended, endErr = s.EndTurn(ctx, b.ID, turn.EndOptions{Outcome: turn.Completed, Update: &turn.Update{Custom: json.RawMessage(fmt.Sprintf("%q", text))}})
		})
		all.Wait()
		must(t, abortErr)
		must(t, endErr)
		if aborted.Status != ended.Turn.Status || !ended.Turn.Settled {
			t.Fatalf("the abort says %s, the end %+v", aborted.Status, ended.Turn)
		}
		counts[aborted.Status]++
		if ended.Turn.Status == checkpoint.TurnCompleted {
			last = text
			st, err := s.TurnState(ctx, b.ID)
			if err != nil || string(st.Custom) != fmt.Sprintf("%q", text) {
				t.Fatalf("%s, %v", st.Custom, err)
			}
		}
		s.holds(last)
	}
	t.Log(counts)
}

func TestFieldsOfTurnsAreChecked(t *testing.T) {
	s := startTurns(t)
	for _, tt := range []struct{ path, body, names string }{
		{"/v1/turns", `{"agent":""}`, "agent"},
		{"/v1/turns", `{"pid":"1"}`, "pid"},
		{"/v1/turns", `{"state":{}}`, "state"},
		{"/v1/turns/x/update", `{"add_messages":[{"role":"user"},{"role":null}]}`, "add_messages[1].role"},
		{"/v1/turns/x/update", `{"add_messages":[`, "body"},
		{"/v1/turns/x/update", `[]`, "body"},
		{"/v1/turns/x/update", "{\"custom\":\"\xff\"}", "body"},
		{"/v1/turns/x/end", `{}`, "outcome"},
		{"/v1/turns/x/end", `{"outcome":"aborted"}`, "outcome"},
		{"/v1/turns/x/end", `{"outcome":"completed","update":{"owner":[]}}`, "update.owner"},
		{"/v1/turns/x/abort", `{"force":"yes"}`, "force"},
		{"/v1/turns/x/abort", `{"reason":5}`, "reason"},
	} {
		status, reply, _ := s.do(t, "POST", tt.path, strings.NewReader(tt.body))
		if err := decodeError("turn", status, reply); status != 400 || errOn(err) != tt.names {
			t.Errorf("%s %s: %d %s", tt.path, tt.body, status, reply)
		}
	}
	status, reply, _ := s.do(t, "GET", "/v1/turns?limit=many", nil)
	if err := decodeError("turn", status, reply); status != 400 || errOn(err) != "limit" {
		t.Errorf("%d %s", status, reply)
	}
}

func TestStatesMayBeLargerThanOtherRequests(t *testing.T) {
	s := startTurns(t)
	b := s.begin(turn.BeginOptions{Conversation: "c"})
	large := json.RawMessage(`{"role":"user","content":"` + strings.Repeat("word ", 1<<20) + `"}`)
	u := turn.Update{AddMessages: []json.RawMessage{large}}
	text, err := u.AppendJSON(nil)
	must(t, err)
	if status, reply, _ := s.do(t, "POST", "/v1/turns/"+b.ID+"/update", strings.NewReader(string(text))); status != 200 { // over a plain connection
		t.Fatalf("%d %s", status, reply)
	}
	r, err := s.EndTurn(ctx, b.ID, turn.EndOptions{Outcome: turn.Completed, Update: &u, WithState: true})
	if err != nil || !slices.EqualFunc(r.State.Messages, []json.RawMessage{large, large}, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
		t.Errorf("%v", err)
	}
	status, reply, _ := s.do(t, "POST", "/v1/turns", strings.NewReader(`{"message":"`+strings.Repeat("x", 2<<20)+`"}`))
	if status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %.200s", status, reply)
	}
}

func TestAWorkspaceThatKeepsNoTurnsSaysSo(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	_, err := s.BeginTurn(ctx, turn.BeginOptions{})
	wantCode(t, err, Unsupported, "turns")
	_, err = s.TurnEvents(ctx, "", "")
	wantCode(t, err, Unsupported, "turns")
}

func TestRepliesOfTurnsAreWhatTheDocumentSays(t *testing.T) {
	s := startTurns(t)
	one := s.run("1")
	id, err := s.Reserve(ctx)
	must(t, err)
	doc := served(t, s.started)
	check := replyChecker(t, doc)
	for _, tt := range []struct{ method, path, route, body string }{
		{"POST", "/v1/turns", "/v1/turns", `{"conversation":"c","id":"` + id + `"}`},
		{"POST", "/v1/turns", "/v1/turns", `{"conversation":"c"}`},
		{"GET", "/v1/turns", "/v1/turns", ""},
		{"GET", "/v1/turns/" + id, "/v1/turns/{id}", ""},
		{"GET", "/v1/turns/none", "/v1/turns/{id}", ""},
		{"POST", "/v1/turns/" + id + "/update", "/v1/turns/{id}/update", `{"custom":{"a":1},"add_artifacts":[{"name":"x","data":[1]}],"with_patch":true,"bindings":{}}`},
		{"GET", "/v1/turns/" + id + "/state", "/v1/turns/{id}/state", ""},
		{"GET", "/v1/diagnostics", "/v1/diagnostics", ""},
		{"POST", "/v1/turns/" + id + "/abort", "/v1/turns/{id}/abort", `{"reason":"no use"}`},
		{"POST", "/v1/turns/" + id + "/end", "/v1/turns/{id}/end", `{"outcome":"completed","with_state":true}`},
		{"POST", "/v1/turns/" + one.ID + "/end", "/v1/turns/{id}/end", `{"outcome":"completed"}`},
		{"GET", "/v1/conversations", "/v1/conversations", ""},
		{"POST", "/v1/checkpoints/" + one.ID + "/rollback", "/v1/checkpoints/{id}/rollback", ""},
		{"POST", "/v1/turns/collect", "/v1/turns/collect", ""},
		{"POST", "/v1/gc", "/v1/gc", ""},
		{"DELETE", "/v1/conversations/c", "/v1/conversations/{name}", ""},
		{"DELETE", "/v1/conversations/none", "/v1/conversations/{name}", ""},
	} {
		status, body, _ := s.do(t, tt.method, tt.path, strings.NewReader(tt.body))
		if err := check(tt.method, tt.route, status, body); err != nil {
			t.Errorf("%s %s gave %d %s: %v", tt.method, tt.path, status, body, err)
		}
	}
}
