package control

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

// object is a JSON object.
type object = map[string]any

// enums lists the values of string types that have few.
var enums = map[reflect.Type][]any{
	reflect.TypeFor[checkpoint.Status]():  {checkpoint.Active, checkpoint.RollingBack, checkpoint.Promoted, checkpoint.Disposed},
	reflect.TypeFor[overlay.ChangeKind](): {overlay.Created, overlay.Modified, overlay.Deleted, overlay.Renamed},
	reflect.TypeFor[attempt.Outcome]():    {attempt.Success, attempt.Failure, attempt.Abandoned},
	reflect.TypeFor[overlay.Answer]():     {overlay.Yes, overlay.No, overlay.Unknown},
	reflect.TypeFor[turn.Outcome]():       {turn.Completed, turn.Failed},

	reflect.TypeFor[checkpoint.TurnStatus](): {checkpoint.TurnPending, checkpoint.TurnCompleted, checkpoint.TurnFailed, checkpoint.TurnAborted},

	reflect.TypeFor[overlay.IgnoredAction](): {overlay.ActionBlocked, overlay.ActionIgnored, overlay.ActionDeclared},
	reflect.TypeFor[Code](): {Capacity, BranchConflict, Integrity, Path, IgnoredPath, Rollback, NotFound, Busy, Exec, ExecOptions,
		ExecTimeout, AttemptInProgress, AttemptRollback, Disposed, Unsupported, Usage, Internal},
}

// names are those of types whose own names others have too.
var names = map[reflect.Type]string{
	reflect.TypeFor[turn.EndOptions]():  "TurnEndOptions",
	reflect.TypeFor[turn.Result]():      "TurnResult",
	reflect.TypeFor[turn.State]():       "ConversationState",
	reflect.TypeFor[turn.Update]():      "TurnUpdate",
	reflect.TypeFor[turn.UpdateEvent](): "TurnUpdated",
	reflect.TypeFor[turn.Owner]():       "TurnOwner",
	reflect.TypeFor[turn.Stats]():       "TurnStats",
}

// schemas collects the JSON Schemas (2020-12, as OpenAPI 3.1 has them) of Go types, each named struct once.
type schemas struct {
	named  object // by the name of the type
	closed bool   // objects may have no other members: true of requests
}

// of gives the schema of t as encoding/json writes it: a reference for a named struct.
func (s *schemas) of(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return object{} // anything
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case enums[t] != nil:
		return object{"type": "string", "enum": enums[t]}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		return s.structRef(t)
	}
	return object{} // an interface: anything
}

// structRef gives a reference to the schema of a named struct, which it makes on first use.
func (s *schemas) structRef(t reflect.Type) object {
	name := t.Name()
	if other := names[t]; other != "" {
		name = other
	}
	if _, ok := s.named[name]; !ok {
		s.named[name] = nil // it may refer to itself
		props := object{}
		required := s.fields(t, props, []string{})
		schema := object{"type": "object", "properties": props, "required": required}
		if s.closed {
			schema["additionalProperties"] = false
		}
		s.named[name] = schema
	}
	return object{"$ref": "#/components/schemas/" + name}
}

// fields adds the fields of a struct, those of embedded structs too, to props, and the names of those that are always
// there to required. Where a name comes twice, the outer one counts, as encoding/json has it.
func (s *schemas) fields(t reflect.Type, props object, required []string) []string {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() || f.Tag.Get("json") == "-" {
			continue
		}
		tag := f.Tag.Get("json")
		if f.Anonymous && tag == "" {
			required = s.fields(f.Type, props, required)
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		props[name] = s.of(f.Type)
		if !s.closed && !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	return required
}
