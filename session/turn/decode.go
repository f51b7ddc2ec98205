package turn

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/rawjson"
)

// decoder reads requests strictly: only known members under their exact names, each once, of the right type. Values that the engine does not interpret stay parts of
// the text. Errors are USAGE, and name the member.
type decoder struct{ r *rawjson.Reader }

// decode reads a text with one object.
func decode(text []byte, members fields) error {
	if len(text) == 0 { // as if it were {}
		return nil
	}
	err := rawjson.CheckUTF8(text)
	d := decoder{rawjson.NewReader(text)}
	if err == nil {
		err = d.object("", members(d))
	}
	if err == nil {
		err = d.r.End()
	}
	var syntax *rawjson.SyntaxError
	if errors.As(err, &syntax) {
		err = wrong("body", "%w", syntax)
	}
	return err
}

// fields gives what reads the members of an object, by their names.
type fields func(d decoder) map[string]func(at string) error

func wrong(at, format string, args ...any) error {
	return errs.New(errs.Usage, "read the request", at, format, args...)
}

func (d decoder) expected(at, what string) error {
	if d.r.Kind() == 0 {
		return wrong("body", "the JSON ends too early")
	}
	return wrong(at, "%s is expected, not %s", what, kind(d.r.Kind()))
}

// kind names the type of a value by its first byte.
func kind(c byte) string {
	switch c {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

func (d decoder) object(at string, members map[string]func(at string) error) error {
	if d.r.Kind() != '{' {
		if at == "" {
			at = "body"
		}
		return d.expected(at, "an object")
	}
	return d.r.Object(func(name []byte) error {
		path := string(name)
		read := members[path]
		delete(members, path)
		if at != "" {
			path = at + "." + path
		}
		if read == nil {
			return wrong(path, "unknown or repeated field")
		}
		return read(path)
	})
}

// str reads a string, which must not be empty unless that says something.
func (d decoder) str(s *string, mayBeEmpty bool) func(at string) error {
	return func(at string) (err error) {
		if d.r.Kind() != '"' {
			return d.expected(at, "a string")
		}
		if *s, err = d.r.String(); err == nil && *s == "" && !mayBeEmpty {
			return wrong(at, "it is empty: leave it out instead")
		}
		return err
	}
}

func (d decoder) boolean(b *bool) func(at string) error {
	return func(at string) (err error) {
		if c := d.r.Kind(); c != 't' && c != 'f' {
			return d.expected(at, "a boolean")
		}
		*b, err = d.r.Bool()
		return err
	}
}

func (d decoder) integer(n *int64) func(at string) error {
	return func(at string) (err error) {
		if c := d.r.Kind(); c != '-' && (c < '0' || c > '9') {
			return d.expected(at, "an integer")
		}
		if *n, err = d.r.Int(); err != nil {
			return wrong(at, "an integer is expected")
		}
		return nil
	}
}

// value keeps a value of any type.
func (d decoder) value(v *json.RawMessage) func(at string) error {
	return func(string) (err error) { *v, err = d.r.Value(); return err }
}

func (d decoder) list(at string, element func(at string) error) error {
	if d.r.Kind() != '[' {
		return d.expected(at, "an array")
	}
	return d.r.Array(func(i int) error { return element(fmt.Sprintf("%s[%d]", at, i)) })
}

// messages adds to a list, which is not nil after that.
func (d decoder) messages(list *[]json.RawMessage) func(at string) error {
	return func(at string) error {
		*list = []json.RawMessage{}
		return d.list(at, func(at string) error {
			m, err := d.message(at)
			*list = append(*list, m)
			return err
		})
	}
}

// message reads an object with a role, once.
func (d decoder) message(at string) (json.RawMessage, error) {
	if d.r.Kind() != '{' {
		return nil, d.expected(at, "an object")
	}
	roles := 0
	raw, err := d.r.Raw(func() error {
		return d.r.Object(func(name []byte) error {
			if string(name) != "role" {
				return d.r.Skip()
			}
			roles++
			var role string
			return d.str(&role, false)(at + ".role")
		})
	})
	if err == nil && roles != 1 {
		err = wrong(at+".role", "a message has one role, not %d", roles)
	}
	return raw, err
}

func (d decoder) artifacts(list *[]Artifact) func(at string) error {
	return func(at string) error {
		return d.list(at, func(at string) error {
			var a Artifact
			err := d.object(at, map[string]func(string) error{"name": d.str(&a.Name, false), "data": d.value(&a.Data)})
			*list = append(*list, a)
			if err == nil {
				err = a.check(at)
			}
			return err
		})
	}
}

func (a Artifact) check(at string) error {
	switch {
	case a.Name == "":
		return wrong(at+".name", "an artifact has a name")
	case len(a.Name) > maxName:
		return wrong(at+".name", "it is longer than %d bytes", maxName)
	case len(a.Data) == 0:
		return wrong(at+".data", "an artifact has data: any JSON, also null")
	}
	return nil
}

// maxName is how long names of artifacts and conversations may be, in bytes.
const maxName = 1 << 10

func (u *Update) fields(d decoder) map[string]func(at string) error {
	u.checked = true
	return map[string]func(at string) error{
		"set_messages": func(at string) error {
			u.SetMessages = new([]json.RawMessage)
			return d.messages(u.SetMessages)(at)
		},
		"add_messages":  d.messages(&u.AddMessages),
		"add_artifacts": d.artifacts(&u.AddArtifacts),
		"custom":        d.value(&u.Custom),
		"custom_patch":  d.value(&u.CustomPatch),
		"bindings":      d.value(&u.Bindings),
		"with_patch":    d.boolean(&u.WithPatch),
		"owner": func(at string) error {
			u.Owner = &Owner{}
			var pid int64
			err := d.object(at, map[string]func(string) error{"pid": d.integer(&pid), "pid_start": d.integer(&u.Owner.PIDStart)})
			u.Owner.PID = int(pid)
			return err
		},
		"detached": func(at string) error {
			u.Detached = new(bool)
			return d.boolean(u.Detached)(at)
		},
	}
}

// Decode reads an update from JSON, strictly. It has parts of text, which must not be changed after that.
func (u *Update) Decode(text []byte) error { return decode(text, u.fields) }

// Decode reads options from JSON, as an update is read.
func (o *EndOptions) Decode(text []byte) error {
	return decode(text, func(d decoder) map[string]func(at string) error {
		return map[string]func(at string) error{
			"outcome":       d.str((*string)(&o.Outcome), false),
			"finish_reason": d.str(&o.FinishReason, false),
			"error": func(at string) error {
				e := &checkpoint.TurnError{}
				o.Error = e
				return d.object(at, map[string]func(string) error{"message": d.str(&e.Message, true), "code": d.str(&e.Code, false), "details": d.value(&e.Details)})
			},
			"update": func(at string) error {
				o.Update = &Update{}
				return d.object(at, o.Update.fields(d))
			},
			"no_rollback": d.boolean(&o.NoRollback),
			"with_state":  d.boolean(&o.WithState),
		}
	})
}

// check says whether an update that a program has made is one that Decode would give.
func (u *Update) check() error {
	if u.checked {
		return nil
	}
	text, err := u.AppendJSON(nil)
	if err != nil {
		return err
	}
	return new(Update).Decode(text)
}

// Decode reads a state from JSON. It has parts of text, which must not be changed after that.
func (s *State) Decode(text []byte) error {
	r := rawjson.NewReader(text)
	if err := s.read(r); err != nil {
		return err
	}
	return r.End()
}

// read takes a state as the engine writes it; members that it does not know are passed over.
func (s *State) read(r *rawjson.Reader) error {
	*s = State{Messages: []json.RawMessage{}, Artifacts: []Artifact{}}
	return r.Object(func(name []byte) (err error) {
		switch string(name) {
		case "conversation":
			s.Conversation, err = r.String()
		case "messages":
			err = r.Array(func(int) error {
				m, err := r.Value()
				s.Messages = append(s.Messages, m)
				return err
			})
		case "artifacts":
			err = r.Array(func(int) error {
				var a Artifact
				err := r.Object(func(name []byte) (err error) {
					switch string(name) {
					case "name":
						a.Name, err = r.String()
					case "data":
						a.Data, err = r.Value()
					default:
						err = r.Skip()
					}
					return err
				})
				s.Artifacts = append(s.Artifacts, a)
				return err
			})
		case "custom":
			s.Custom, err = r.Value()
		case "bindings":
			s.Bindings, err = r.Value()
		default:
			err = r.Skip()
		}
		return err
	})
}

// decodeWithState reads into v an object that may have a state as a member, which it gives.
func decodeWithState(text []byte, v any) (*State, error) {
	var st *State
	rest := make([]byte, 1, 1024)
	rest[0] = '{'
	r := rawjson.NewReader(text)
	err := r.Object(func(name []byte) error {
		if string(name) == "state" && r.Kind() == '{' {
			st = &State{}
			return st.read(r)
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = fmt.Appendf(rest, "%q:", name)
		value, err := r.Value()
		rest = append(rest, value...)
		return err
	})
	if err == nil {
		err = r.End()
	}
	if err != nil {
		return nil, err
	}
	return st, json.Unmarshal(append(rest, '}'), v)
}
