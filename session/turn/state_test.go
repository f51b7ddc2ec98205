package turn

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
)

func TestPatchesKeepWhatTheyDoNotChange(t *testing.T) {
	for _, tt := range []struct{ doc, patch, want string }{
		{`{"a":12345678901234567890123,"b":1.10,"n":1e400}`, `[{"op":"add","path":"/c","value":98765432109876543210.50}]`, `{"a":12345678901234567890123,"b":1.10,"n":1e400,"c":98765432109876543210.50}`},
		{``, `[{"op":"replace","path":"","value":{"x":1}}]`, `{"x":1}`},
		{``, `[{"op":"add","path":"","value":5}]`, `5`},
		{`5`, `[{"op":"test","path":"","value":5},{"op":"replace","path":"","value":[1,2.00]}]`, `[1,2.00]`},
		{`"s"`, `[{"op":"replace","path":"","value":"<&>"}]`, `"<&>"`},
		{`{"a":1}`, `[{"op":"remove","path":""}]`, ``},
		{`{"a":[1,2]}`, `[{"op":"add","path":"/a/-","value":{"y":1.0}},{"op":"move","from":"/a/0","path":"/b"},{"op":"copy","from":"/b","path":"/a~1b"}]`, `{"a":[2,{"y":1.0}],"b":1,"a/b":1}`},
		{`{"a":{"b":1}}`, `[{"op":"copy","from":"","path":"/c"}]`, `{"a":{"b":1},"c":{"a":{"b":1}}}`},
		{`{"é":"\u00e9\ud800"}`, `[{"op":"add","path":"/é2","value":"\u2028"}]`, `{"é":"\u00e9\ud800","é2":"\u2028"}`},
		{`{"a":1}`, `[]`, `{"a":1}`},
		{`{"":1}`, `[{"op":"replace","path":"/","value":2}]`, `{"":2}`},
	} {
		var doc json.RawMessage
		if tt.doc != "" {
			doc = json.RawMessage(tt.doc)
		}
		before := bytes.Clone(doc)
		got, err := applyPatch(doc, json.RawMessage(tt.patch))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s with %s is %s, %v, want %s", tt.doc, tt.patch, got, err, tt.want)
		}
		if !bytes.Equal(before, doc) {
			t.Errorf("%s has become %s", before, doc)
		}
	}
}

func TestWrongPatchesAreRefused(t *testing.T) {
	for _, patch := range []string{
		`{}`, `null`, `5`, `"x"`, `[5]`, `[null]`, `[{}]`, `[{"op":"x","path":"/a"}]`, `[{"op":"add","path":"/b"}]`, `[{"op":"remove"}]`, `[{"op":"add","path":"a","value":1}]`,
		`[{"op":"add","path":5,"value":1}]`, `[{"op":"remove","path":"/x"}]`, `[{"op":"replace","path":"/x","value":1}]`, `[{"op":"test","path":"/a","value":2}]`,
		`[{"op":"remove","path":"/l/-1"}]`, `[{"op":"add","path":"/l/5","value":1}]`, `[{"op":"move","from":"/x","path":"/y"}]`, `[{"op":"copy","from":"x","path":"/y"}]`,
		`[{"op":"add","path":"/a/b/c","value":1}]`, `[{"op":"add","path":"/ok","value":1},{"op":"remove","path":"/x"}]`,
	} {
		got, err := applyPatch(json.RawMessage(`{"a":1,"l":[1]}`), json.RawMessage(patch))
		var e *errs.Error
		if !errors.As(err, &e) || e.Code != errs.Usage || e.On != "custom_patch" {
			t.Errorf("%s gives %s, %v", patch, got, err)
		}
	}
	_, err := applyPatch(json.RawMessage(`{"d":{}}`), json.RawMessage(`[{"op":"add","path":"/d","value":{}},{"op":"replace","path":"/d/x","value":1}]`))
	if err == nil || !strings.Contains(err.Error(), "missing key: /d/x:") {
		t.Errorf("the pointer is not named as it was given: %v", err)
	}
	bomb := `[{"op":"copy","from":"","path":"/-"}` + strings.Repeat(`,{"op":"copy","from":"","path":"/-"}`, 40) + `]`
	if got, err := applyPatch(json.RawMessage(`["`+strings.Repeat("x", 1000)+`"]`), json.RawMessage(bomb)); errs.CodeOf(err) != errs.Usage {
		t.Errorf("a document became %d bytes long, %v", len(got), err)
	}
}

// randomJSON makes a small document, whose numbers no float64 holds.
func randomJSON(r *rand.Rand, depth int) any {
	switch n := r.IntN(8); {
	case n < 2 && depth > 0:
		m := map[string]any{}
		for range r.IntN(4) {
			m[[]string{"a", "b", "c/d", "e~f", ""}[r.IntN(5)]] = randomJSON(r, depth-1)
		}
		return m
	case n < 4 && depth > 0:
		list := []any{}
		for range r.IntN(4) {
			list = append(list, randomJSON(r, depth-1))
		}
		return list
	case n < 6:
		return json.Number(fmt.Sprintf("%d%s", 1+r.IntN(3), []string{"", "0000000000000000000001", ".50"}[r.IntN(3)]))
	case n == 6:
		return nil
	}
	return []string{"x", "<y>", "é"}[r.IntN(3)]
}

func TestComparedDocumentsGiveThePatchBetweenThem(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 800 {
		before, err := json.Marshal(randomJSON(r, 4))
		if err != nil {
			t.Fatal(err)
		}
		after, err := json.Marshal(randomJSON(r, 4))
		if err != nil {
			t.Fatal(err)
		}
		patch := comparePatch(before, after)
		got, err := applyPatch(before, patch)
		if err != nil || canonical(t, got) != canonical(t, after) {
			t.Fatalf("%s to %s: %s gives %s, %v", before, after, patch, got, err)
		}
	}
}

// canonical gives JSON whose members are sorted.
func canonical(t *testing.T, text []byte) string {
	t.Helper()
	var v any
	if err := unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestWrongFieldsAreNamed(t *testing.T) {
	for _, tt := range []struct{ text, on string }{
		{`[]`, "body"},
		{`{"add_messages":[{"role":"user"}`, "body"},
		{`{"custom":1} x`, "body"},
		{"{\"custom\":\"\xff\"}", "body"},
		{`{"custom":01}`, "body"},
		{`{"messages":[]}`, "messages"},
		{`{"custom":1,"custom":2}`, "custom"},
		{`{"add_messages":{}}`, "add_messages"},
		{`{"add_messages":null}`, "add_messages"},
		{`{"add_messages":[{"role":"user"},5]}`, "add_messages[1]"},
		{`{"add_messages":[{"content":"x"}]}`, "add_messages[0].role"},
		{`{"add_messages":[{"role":5}]}`, "add_messages[0].role"},
		{`{"add_messages":[{"role":""}]}`, "add_messages[0].role"},
		{`{"add_messages":[{"role":"a","role":"b"}]}`, "add_messages[0].role"},
		{`{"set_messages":[{"role":"user"},{"role":"user"},[]]}`, "set_messages[2]"},
		{`{"add_artifacts":[{"name":"a"}]}`, "add_artifacts[0].data"},
		{`{"add_artifacts":[{"data":1}]}`, "add_artifacts[0].name"},
		{`{"add_artifacts":[{"name":"","data":1}]}`, "add_artifacts[0].name"},
		{`{"add_artifacts":[{"name":7,"data":1}]}`, "add_artifacts[0].name"},
		{`{"add_artifacts":[{"name":"a","data":1,"x":1}]}`, "add_artifacts[0].x"},
		{`{"owner":{"pid":"1"}}`, "owner.pid"},
		{`{"owner":{"pid":1.5}}`, "owner.pid"},
		{`{"owner":5}`, "owner"},
		{`{"detached":1}`, "detached"},
		{`{"with_patch":null}`, "with_patch"},
	} {
		var u Update
		err := u.Decode([]byte(tt.text))
		var e *errs.Error
		if !errors.As(err, &e) || e.Code != errs.Usage || e.On != tt.on {
			t.Errorf("%s: %v, want one about %s", tt.text, err, tt.on)
		}
	}
	for _, tt := range []struct{ text, on string }{
		{`{"outcome":5}`, "outcome"},
		{`{"error":"x"}`, "error"},
		{`{"error":{"message":5}}`, "error.message"},
		{`{"error":{"details":}}`, "body"},
		{`{"update":{"add_messages":[{}]}}`, "update.add_messages[0].role"},
		{`{"update":[]}`, "update"},
		{`{"state":{}}`, "state"},
	} {
		err := new(EndOptions).Decode([]byte(tt.text))
		var e *errs.Error
		if !errors.As(err, &e) || e.Code != errs.Usage || e.On != tt.on {
			t.Errorf("%s: %v, want one about %s", tt.text, err, tt.on)
		}
	}
}

func TestUpdatesCrossJSONByteForByte(t *testing.T) {
	yes, list := true, []json.RawMessage{json.RawMessage(`{ "role":"user", "n": 1e400, "role2":"\u0041" }`)}
	o := EndOptions{Outcome: Completed, FinishReason: "stop", Error: &checkpoint.TurnError{Message: "m", Code: "c", Details: json.RawMessage(`{"a":[1.50]}`)}, NoRollback: true, WithState: true,
		Update: &Update{SetMessages: &list, AddMessages: list, AddArtifacts: []Artifact{{"a\n\"é<", json.RawMessage(` null`)}}, Custom: json.RawMessage(`{"<":123456789012345678901234567890}`),
			CustomPatch: json.RawMessage(`[]`), Bindings: json.RawMessage(`null`), WithPatch: true, Owner: &Owner{1, 2}, Detached: &yes}}
	text, err := o.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got EndOptions
	if err := got.Decode(text); err != nil {
		t.Fatal(err)
	}
	u := got.Update
	if string(u.AddMessages[0]) != string(list[0]) || string((*u.SetMessages)[0]) != string(list[0]) || string(u.Custom) != string(o.Update.Custom) || u.AddArtifacts[0].Name != "a\n\"é<" ||
		string(u.AddArtifacts[0].Data) != "null" || string(u.Bindings) != "null" || *u.Owner != (Owner{1, 2}) || !*u.Detached || !u.WithPatch || string(u.CustomPatch) != "[]" {
		t.Errorf("%s became %+v", text, u)
	}
	if got.Outcome != Completed || got.FinishReason != "stop" || got.Error.Message != "m" || string(got.Error.Details) != `{"a":[1.50]}` || !got.NoRollback || !got.WithState {
		t.Errorf("%s became %+v", text, got)
	}
	var other EndOptions // what encoding/json writes is taken too
	std, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Decode(std); err != nil {
		t.Errorf("%s: %v", std, err)
	}
	for _, raw := range []string{`1},"force":true`, `{"role":"user"},{"role":"user"}`, ``, `{`} {
		if _, err := (&Update{AddMessages: []json.RawMessage{json.RawMessage(raw)}}).AppendJSON(nil); errs.CodeOf(err) != errs.Usage {
			t.Errorf("%q is written: %v", raw, err)
		}
	}
}

func TestStatesCrossJSON(t *testing.T) {
	want := State{Conversation: "c\"é", Messages: []json.RawMessage{json.RawMessage(`{"role":"a"}`)}, Artifacts: []Artifact{{"x", json.RawMessage(`1.0`)}}, Custom: json.RawMessage(`null`)}
	b := Begun{Turn: Turn{ID: "ckpt_x", Conversation: "c"}, State: &want, Settled: []Turn{{ID: "y"}}}
	text, err := b.AppendJSON(nil)
	if err != nil || !json.Valid(text) {
		t.Fatalf("%s, %v", text, err)
	}
	var got Begun
	if err := got.Decode(text); err != nil {
		t.Fatal(err)
	}
	one, _ := json.Marshal(got.State)
	two, _ := json.Marshal(want)
	if got.ID != "ckpt_x" || len(got.Settled) != 1 || !bytes.Equal(one, two) || got.State.Bindings != nil {
		t.Errorf("%s became %+v, %s", text, got, one)
	}
	b.State = nil
	if text, err = b.AppendJSON(nil); err == nil {
		err = got.Decode(text)
	}
	if err != nil || got.State != nil {
		t.Errorf("%s became %+v, %v", text, got, err)
	}
}

// A state that was changed in any way is what a list of messages, and maps, say.
func TestStatesAreKeptInTheStore(t *testing.T) {
	s, err := checkpoint.Open(t.TempDir(), checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := rand.New(rand.NewPCG(7, 8))
	st := &state{}
	var messages []string
	artifacts := map[string]string{}
	var names []string
	custom := ""
	for i := range 60 {
		u := &Update{}
		m := func() json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"role":"user","n":%d}`, r.IntN(50))) }
		if r.IntN(12) == 0 {
			u.SetMessages = &[]json.RawMessage{}
			messages = nil
			for range r.IntN(100) {
				*u.SetMessages = append(*u.SetMessages, m())
			}
			for _, m := range *u.SetMessages {
				messages = append(messages, string(m))
			}
		}
		for range r.IntN(40) {
			u.AddMessages = append(u.AddMessages, m())
			messages = append(messages, string(u.AddMessages[len(u.AddMessages)-1]))
		}
		for range r.IntN(3) {
			a := Artifact{fmt.Sprint("a", r.IntN(6)), json.RawMessage(fmt.Sprint(i))}
			u.AddArtifacts = append(u.AddArtifacts, a)
			if artifacts[a.Name] == "" {
				names = append(names, a.Name)
			}
			artifacts[a.Name] = string(a.Data)
		}
		if r.IntN(3) == 0 {
			custom = fmt.Sprintf(`{"n":%d}`, i)
			u.Custom = json.RawMessage(custom)
		}
		before := st
		size, count := before.messages, before.count()
		if st, _, err = st.change(s.Turns(), u); err != nil {
			t.Fatal(err)
		}
		if before.messages != size || before.count() != count {
			t.Fatal("the state before has changed")
		}
		if r.IntN(2) == 0 { // a turn ends, and the next one begins
			rec, err := st.save(s.Turns())
			if err != nil {
				t.Fatal(err)
			}
			if st, err = stateOf(s.Turns(), rec); err != nil {
				t.Fatal(err)
			}
			size := int64(len(custom))
			for _, m := range messages {
				size += int64(len(m))
			}
			for name, data := range artifacts {
				size += int64(len(name) + len(data))
			}
			if rec.Messages != len(messages) || rec.Bytes != size {
				t.Errorf("step %d: the record says %d messages and %d bytes, not %d and %d", i, rec.Messages, rec.Bytes, len(messages), size)
			}
		}
		got, err := st.load(s.Turns(), "c")
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, m := range got.Messages {
			have = append(have, string(m))
		}
		if strings.Join(have, "\n") != strings.Join(messages, "\n") || string(got.Custom) != custom || len(got.Artifacts) != len(names) {
			t.Fatalf("step %d: it is %d messages, %s", i, len(have), got.Custom)
		}
		for j, a := range got.Artifacts {
			if a.Name != names[j] || string(a.Data) != artifacts[a.Name] {
				t.Fatalf("step %d: artifact %d is %+v", i, j, a)
			}
		}
		for _, m := range got.Messages { // whoever gets a state may change it
			clear(m)
		}
		clear(got.Custom)
	}
}
