package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/turn"
)

// served gets the document as a client would.
func served(t *testing.T, s *started) map[string]any {
	t.Helper()
	status, body, _ := s.do(t, "GET", "/openapi.json", nil)
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	return parse(t, body).(map[string]any)
}

func parse(t *testing.T, body []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v
}

func TestTheDocumentIsValidOpenAPI31(t *testing.T) {
	f, err := os.ReadFile("testdata/openapi-3.1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("openapi", parse(t, f)); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("openapi")
	if err != nil {
		t.Fatal(err)
	}
	doc := served(t, start(t, &fakeWorkspace{}))
	if err := schema.Validate(doc); err != nil {
		t.Error(err)
	}
	delete(doc, "info")
	if schema.Validate(doc) == nil {
		t.Error("a document without its info is valid too: the schema checks nothing")
	}
}

func TestTheDocumentAndTheServerHaveTheSameRoutes(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	paths := served(t, s)["paths"].(map[string]any)
	documented := 0
	for path, item := range paths {
		for method := range item.(map[string]any) {
			documented++
			if method = strings.ToUpper(method); method == "GET" && path == "/v1/events" || path == "/v1/unmount" {
				continue // one does not end, the other ends the server; their own tests call them
			}
			status, body, _ := s.do(t, method, strings.NewReplacer("{id}", "none", "{name}", "none", "{kind}", "heap").Replace(path), nil)
			if status == 405 || bytes.Contains(body, []byte("no such call")) {
				t.Errorf("%s %s is documented but not served: %d %s", method, path, status, body)
			}
		}
	}
	if documented != len(routes) {
		t.Errorf("%d operations are documented, %d routes served", documented, len(routes))
	}
	for _, r := range routes {
		item, _ := paths[r.path].(map[string]any)
		if item[strings.ToLower(r.method)] == nil {
			t.Errorf("%s %s is served but not documented", r.method, r.path)
		}
	}
}

func TestRepliesAreWhatTheDocumentSays(t *testing.T) {
	s := start(t, &forkable{fakeWorkspace: &fakeWorkspace{
		diff: overlay.Diff{Changes: []overlay.Change{{Kind: overlay.Modified, Path: "\xff", Type: "file", What: []string{"content"}, Mode: 0o100644, Size: 1}}},
	}})
	if _, err := s.Snapshot(ctx, overlay.SnapshotOptions{ID: "one", Message: "m"}); err != nil {
		t.Fatal(err)
	}
	check := replyChecker(t, served(t, s))
	for _, tt := range []struct{ method, path, route, body string }{
		{"GET", "/v1/status", "/v1/status", ""},
		{"GET", "/v1/diagnostics", "/v1/diagnostics", ""},
		{"GET", "/v1/version", "/v1/version", ""},
		{"GET", "/v1/stats", "/v1/stats", ""},
		{"GET", "/v1/debug/pprof/none", "/v1/debug/pprof/{kind}", ""},
		{"POST", "/v1/checkpoints", "/v1/checkpoints", `{"agent":"a","message":"m"}`},
		{"GET", "/v1/checkpoints", "/v1/checkpoints", ""},
		{"GET", "/v1/checkpoints?agent=nobody", "/v1/checkpoints", ""},
		{"POST", "/v1/checkpoints/reserve", "/v1/checkpoints/reserve", ""},
		{"GET", "/v1/checkpoints/one", "/v1/checkpoints/{id}", ""},
		{"GET", "/v1/checkpoints/none", "/v1/checkpoints/{id}", ""},
		{"POST", "/v1/checkpoints/one/rollback", "/v1/checkpoints/{id}/rollback", `{"discard":true}`},
		{"POST", "/v1/checkpoints/one/promote", "/v1/checkpoints/{id}/promote", `{"patch":true}`},
		{"DELETE", "/v1/checkpoints/one", "/v1/checkpoints/{id}", ""},
		{"GET", "/v1/recover", "/v1/recover", ""},
		{"POST", "/v1/checkpoints/one/rehydrate", "/v1/checkpoints/{id}/rehydrate", ""},
		{"POST", "/v1/checkpoints/none/rehydrate", "/v1/checkpoints/{id}/rehydrate", ""},
		{"POST", "/v1/undo", "/v1/undo", ""},
		{"GET", "/v1/diff?from=one&expand", "/v1/diff", ""},
		{"GET", "/v1/reconcile", "/v1/reconcile", ""},
		{"POST", "/v1/gc", "/v1/gc", ""},
		{"POST", "/v1/fsck", "/v1/fsck", ""},
		{"POST", "/v1/fsck?deep=1", "/v1/fsck", ""},
		{"POST", "/v1/fsck?deep=2", "/v1/fsck", ""},
		{"POST", "/v1/attempts", "/v1/attempts", `{"agent":"a","id":"two"}`},
		{"POST", "/v1/attempts", "/v1/attempts", `{}`},
		{"GET", "/v1/attempts", "/v1/attempts", ""},
		{"POST", "/v1/attempts/two/end", "/v1/attempts/{id}/end", `{"outcome":"maybe"}`},
		{"POST", "/v1/attempts/two/end", "/v1/attempts/{id}/end", `{"outcome":"success"}`},
		{"POST", "/v1/attempts/two/end", "/v1/attempts/{id}/end", `{"outcome":"failure"}`},
		{"POST", "/v1/attempts", "/v1/attempts", `{"id":"three"}`},
		{"POST", "/v1/attempts/three/end", "/v1/attempts/{id}/end", `{"outcome":"failure","message":"why"}`},
		{"POST", "/v1/attempts", "/v1/attempts", `{"id":"four"}`},
		{"DELETE", "/v1/attempts/four", "/v1/attempts/{id}", ""},
		{"GET", "/v1/heads?by=subagent", "/v1/heads", ""},
		{"GET", "/v1/heads?by=nothing", "/v1/heads", ""},
		{"POST", "/v1/branches", "/v1/branches", `{"name":"fix","from":"one"}`},
		{"GET", "/v1/branches", "/v1/branches", ""},
		{"GET", "/v1/branches/fix", "/v1/branches/{name}", ""},
		{"GET", "/v1/branches/none", "/v1/branches/{name}", ""},
		{"POST", "/v1/branches/fix/merge", "/v1/branches/{name}/merge", `{"on_conflict":"theirs"}`},
		{"POST", "/v1/branches/fix/merge", "/v1/branches/{name}/merge", `{"on_conflict":"reject"}`},
		{"DELETE", "/v1/branches/fix", "/v1/branches/{name}", ""},
		{"POST", "/v1/unmount", "/v1/unmount", "{}"},
	} {
		status, body, _ := s.do(t, tt.method, tt.path, strings.NewReader(tt.body))
		if err := check(tt.method, tt.route, status, body); err != nil {
			t.Errorf("%s %s gave %d %s: %v", tt.method, tt.path, status, body, err)
		}
	}
}

// replyChecker compiles the schemas of a document. It allows no member that the document does not have.
func replyChecker(t *testing.T, doc map[string]any) func(method, path string, status int, body []byte) error {
	t.Helper()
	for _, schema := range doc["components"].(map[string]any)["schemas"].(map[string]any) {
		schema.(map[string]any)["additionalProperties"] = false
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("doc", doc); err != nil {
		t.Fatal(err)
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
	return func(method, path string, status int, body []byte) error {
		at := fmt.Sprintf("doc#/paths/%s/%s/responses/200/content/application~1json/schema", escape.Replace(path), strings.ToLower(method))
		if status != 200 {
			at = "doc#/components/responses/Failure/content/application~1json/schema"
		}
		schema, err := c.Compile(at)
		if err != nil {
			return err
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
		if err != nil {
			return err
		}
		return schema.Validate(v)
	}
}

func TestRequestsAreWhatTheDocumentSays(t *testing.T) {
	check := struct{ schemas map[string]any }{served(t, start(t, &fakeWorkspace{}))["components"].(map[string]any)["schemas"].(map[string]any)}
	for name, v := range map[string]any{
		"SnapshotOptions":    overlay.SnapshotOptions{ID: "a", Parent: "b", Branch: "c", Subagent: "d", Agent: "e", CreatedBy: "f", Message: "g"},
		"RollbackOptions":    overlay.RollbackOptions{Discard: true, Branch: "a"},
		"PromoteOptions":     PromoteOptions{Patch: true},
		"UnmountOptions":     UnmountOptions{Lazy: true, Force: true},
		"MountBranchOptions": MountBranchOptions{At: "a"},
		"ForkOptions":        overlay.ForkOptions{Name: "a", From: "b", Branch: "f", Subagent: "c", Agent: "d", Message: "e"},
		"MergeOptions":       overlay.MergeOptions{OnConflict: "theirs", DryRun: true, Exclusive: true},
		"BeginOptions":       turn.BeginOptions{ID: "a", Conversation: "b", From: "c", Branch: "d", Fork: "e", Subagent: "f", Agent: "g", Message: "h", PID: 1, PIDStart: 2, NoState: true},
		"AbortOptions":       turn.AbortOptions{Reason: "a", Force: true},
		"TurnEndOptions":     turn.EndOptions{Outcome: turn.Failed, FinishReason: "a", Error: &checkpoint.TurnError{}, Update: &turn.Update{}, NoRollback: true, WithState: true},
		"TurnUpdate": turn.Update{SetMessages: &[]json.RawMessage{}, AddMessages: []json.RawMessage{[]byte("1")}, AddArtifacts: []turn.Artifact{{Data: []byte("1")}}, Custom: []byte("1"),
			CustomPatch: []byte("1"), Bindings: []byte("1"), WithPatch: true, Owner: &turn.Owner{PID: 1}, Detached: new(bool)},
	} {
		schema := check.schemas[name].(map[string]any)
		if schema["additionalProperties"] != false {
			t.Errorf("%s may have any member", name)
		}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		props := schema["properties"].(map[string]any)
		for member := range parse(t, text).(map[string]any) {
			if props[member] == nil {
				t.Errorf("%s has %s, which is not documented", name, member)
			}
			delete(props, member)
		}
		for member := range props {
			t.Errorf("%s is documented to have %s", name, member)
		}
	}
}
