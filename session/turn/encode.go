package turn

import (
	"bytes"
	"encoding/json"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/rawjson"
)

// object writes a JSON object. Values that are JSON already are copied: encoding/json would read them once more.
type object struct {
	b   []byte
	err error
}

func (o *object) name(name string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(append(append(o.b, '"'), name...), '"', ':') // all of ours are plain
}

// value writes what encoding/json makes of v.
func (o *object) value(name string, v any) {
	o.name(name)
	o.encode(v)
}

func (o *object) encode(v any) {
	w := bytes.NewBuffer(o.b)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		o.err = err
		return
	}
	o.b = bytes.TrimSuffix(w.Bytes(), []byte{'\n'})
}

// raw writes a value that is JSON.
func (o *object) raw(name string, v json.RawMessage) {
	if v != nil {
		o.name(name)
		o.b = append(o.b, v...)
	}
}

func (o *object) messages(name string, list []json.RawMessage) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, m := range list {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = append(o.b, m...)
	}
	o.b = append(o.b, ']')
}

func (o *object) artifacts(name string, list []Artifact) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, a := range list {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = append(o.b, '{')
		o.value("name", a.Name)
		o.raw("data", a.Data)
		o.b = append(o.b, '}')
	}
	o.b = append(o.b, ']')
}

// AppendJSON appends what encoding/json would make of it. What must be JSON in it is looked at: USAGE names what is not.
func (u *Update) AppendJSON(b []byte) ([]byte, error) {
	if err := u.checkRaw(); err != nil {
		return b, err
	}
	size := 1 << 10
	for _, list := range append([][]json.RawMessage{u.AddMessages}, deref(u.SetMessages)) {
		for _, m := range list {
			size += len(m) + 1
		}
	}
	o := object{b: append(growBy(b, size), '{')}
	if u.SetMessages != nil {
		o.messages("set_messages", *u.SetMessages)
	}
	if u.AddMessages != nil {
		o.messages("add_messages", u.AddMessages)
	}
	if u.AddArtifacts != nil {
		o.artifacts("add_artifacts", u.AddArtifacts)
	}
	o.raw("custom", u.Custom)
	o.raw("custom_patch", u.CustomPatch)
	o.raw("bindings", u.Bindings)
	if u.WithPatch {
		o.value("with_patch", true)
	}
	if u.Owner != nil {
		o.value("owner", u.Owner)
	}
	if u.Detached != nil {
		o.value("detached", *u.Detached)
	}
	return append(o.b, '}'), o.err
}

func deref(list *[]json.RawMessage) []json.RawMessage {
	if list == nil {
		return nil
	}
	return *list
}

func growBy(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	return append(make([]byte, 0, len(b)+n), b...)
}

// checkRaw says which value is no JSON: written as it is, it could be taken for more than a value.
func (u *Update) checkRaw() error {
	var first error
	check := func(at string, v json.RawMessage) {
		if first != nil {
			return
		}
		if _, err := rawjson.Value(v); err != nil {
			first = wrong(at, "%w", err)
		}
	}
	for _, m := range deref(u.SetMessages) {
		check("set_messages", m)
	}
	for _, m := range u.AddMessages {
		check("add_messages", m)
	}
	for _, a := range u.AddArtifacts {
		check("add_artifacts", a.Data)
	}
	for _, v := range []struct {
		at   string
		text json.RawMessage
	}{{"custom", u.Custom}, {"custom_patch", u.CustomPatch}, {"bindings", u.Bindings}} {
		if v.text != nil {
			check(v.at, v.text)
		}
	}
	return first
}

// AppendJSON appends what encoding/json would make of it, as that of an update does.
func (o *EndOptions) AppendJSON(b []byte) ([]byte, error) {
	w := object{b: append(b, '{')}
	w.value("outcome", o.Outcome)
	if o.FinishReason != "" {
		w.value("finish_reason", o.FinishReason)
	}
	if o.Error != nil {
		w.value("error", o.Error)
	}
	if o.NoRollback {
		w.value("no_rollback", true)
	}
	if o.WithState {
		w.value("with_state", true)
	}
	if w.err != nil {
		return b, errs.Wrap(errs.Usage, "end turn", "error", w.err)
	}
	if o.Update != nil {
		w.name("update")
		var err error
		if w.b, err = o.Update.AppendJSON(w.b); err != nil {
			return b, err
		}
	}
	return append(w.b, '}'), nil
}

// AppendJSON appends what encoding/json would make of it. What must be JSON in it is not looked at.
func (s *State) AppendJSON(b []byte) ([]byte, error) {
	size := 1 << 10
	for _, m := range s.Messages {
		size += len(m) + 1
	}
	for _, a := range s.Artifacts {
		size += len(a.Name) + len(a.Data) + 64
	}
	o := object{b: append(growBy(b, size+len(s.Custom)+len(s.Bindings)), '{')}
	o.value("conversation", s.Conversation)
	o.messages("messages", s.Messages)
	o.artifacts("artifacts", s.Artifacts)
	o.raw("custom", s.Custom)
	o.raw("bindings", s.Bindings)
	return append(o.b, '}'), o.err
}

// AppendJSON appends what encoding/json would make of it.
func (r Begun) AppendJSON(b []byte) ([]byte, error) {
	st := r.State
	r.State = nil
	return appendWithState(b, r, st)
}

// Decode reads what AppendJSON has written.
func (r *Begun) Decode(text []byte) (err error) {
	r.State, err = decodeWithState(text, r)
	return err
}

// AppendJSON appends what encoding/json would make of it.
func (r Result) AppendJSON(b []byte) ([]byte, error) {
	st := r.State
	r.State = nil
	return appendWithState(b, r, st)
}

// Decode reads what AppendJSON has written.
func (r *Result) Decode(text []byte) (err error) {
	r.State, err = decodeWithState(text, r)
	return err
}

// appendWithState appends an object, and the state as a further member of it.
func appendWithState(b []byte, v any, st *State) ([]byte, error) {
	o := object{b: b}
	o.encode(v)
	if o.err != nil || st == nil {
		return o.b, o.err
	}
	o.b = o.b[:len(o.b)-1]
	o.name("state")
	b, err := st.AppendJSON(o.b)
	return append(b, '}'), err
}
