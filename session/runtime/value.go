package runtime

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Entry is a value of a program, as far as JSON can say it.
type Entry struct {
	Name string `json:"name,omitempty"`
	Type string `json:"type"` // as the language calls it: "object", "Map", "dict"

	// Value is JSON that gives back an equal value. Where there is none, Why says why, and Text shows the value to people, in a few words.
	Value json.RawMessage `json:"value,omitempty"`
	Why   string          `json:"why,omitempty"`
	Text  string          `json:"text,omitempty"`
}

// Restorable reports whether there is a value.
func (e Entry) Restorable() bool { return len(e.Value) > 0 }

// bindings is the form of saved variables, as turns keep them.
type bindings struct {
	Version  int     `json:"version"`
	Language string  `json:"language"`
	Entries  []Entry `json:"entries"`
}

const bindingsVersion = 1

// MarshalBindings gives saved variables as one JSON document, as a turn's state keeps it.
func MarshalBindings(language string, entries []Entry) (json.RawMessage, error) {
	b, err := json.Marshal(bindings{bindingsVersion, language, entries})
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "save bindings", "", err)
	}
	return b, nil
}

// UnmarshalBindings is the reverse. No document, and null, is no variables.
//
// Errors: INTEGRITY for what MarshalBindings has not made; UNSUPPORTED for what a later version of it has.
func UnmarshalBindings(document json.RawMessage) (language string, entries []Entry, err error) {
	const op = "read bindings"
	if t := bytes.TrimSpace(document); len(t) == 0 || string(t) == "null" {
		return "", nil, nil
	}
	var b bindings
	switch err := json.Unmarshal(document, &b); {
	case err != nil:
		return "", nil, errs.Wrap(errs.Integrity, op, "", err)
	case b.Version > bindingsVersion:
		return "", nil, errs.New(errs.Unsupported, op, "", "their version is %d, and %d the latest that is known", b.Version, bindingsVersion)
	case b.Version < 1:
		return "", nil, errs.New(errs.Integrity, op, "", "they have no version")
	}
	seen := map[string]bool{}
	for _, e := range b.Entries {
		if e.Name == "" || seen[e.Name] {
			return "", nil, errs.New(errs.Integrity, op, e.Name, "a name is missing, or there twice")
		}
		seen[e.Name] = true
	}
	return b.Language, b.Entries, nil
}

// Marshal gives v as JSON for a program, or says why it can't have that.
func (l Limits) Marshal(language string, v any) (json.RawMessage, error) {
	document, ok := v.(json.RawMessage)
	if !ok || !json.Valid(document) {
		var err error
		if document, err = json.Marshal(v); err != nil {
			return nil, err
		}
	}
	if len(document) > l.Value {
		return nil, fmt.Errorf("it takes %d bytes, and the limit is %d", len(document), l.Value)
	}
	if language == JavaScript {
		return document, exact(document)
	}
	return document, nil
}

// exact says which integer in a JSON document JavaScript, whose numbers are floating point, would change.
func exact(document []byte) error {
	for i := 0; i < len(document); i++ {
		switch c := document[i]; {
		case c == '"':
			for i++; ; i++ { // to the quote that ends it
				next := bytes.IndexByte(document[i:], '"')
				if next < 0 {
					return nil
				}
				i += next
				if escapes := len(document[:i]) - len(bytes.TrimRight(document[:i], `\`)); escapes%2 == 0 {
					break
				}
			}
		case c == '-' || c >= '0' && c <= '9':
			start := i
			integer := true
			for ; i < len(document) && bytes.IndexByte([]byte("+-.0123456789eE"), document[i]) >= 0; i++ {
				integer = integer && document[i] != '.' && document[i] != 'e' && document[i] != 'E'
			}
			if text := string(document[start:i]); integer && i-start > 15 && !same(text) {
				return fmt.Errorf("%s is a number that JavaScript does not have exactly", text)
			}
			i--
		}
	}
	return nil
}

// same reports whether an integer stays what it is as a floating point number.
func same(integer string) bool {
	f, err := strconv.ParseFloat(integer, 64)
	return err == nil && strconv.FormatFloat(f, 'f', -1, 64) == integer && strconv.FormatFloat(f, 'f', 0, 64) == integer
}
