package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Limits of request bodies in bytes. All but states of turns are far smaller than the first.
const (
	maxBody      = 1 << 20
	maxLargeBody = 256 << 20
)

// limitOf is how long the body of a request may be, before it is known whether there is such a call.
func limitOf(path string) int64 {
	if strings.HasPrefix(path, "/v1/turns/") {
		return maxLargeBody
	}
	return maxBody
}

// none stands for a request without a body.
type none struct{}

// param is one query parameter.
type param struct {
	name string
	flag bool // a boolean; else a string that must not be empty
	doc  string
}

// readBody reads the whole body, of no more than limit bytes, into buf, which it may grow. One that was read before is given as it is.
func readBody(w http.ResponseWriter, r *http.Request, buf *bytes.Buffer, limit int64) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	if have, ok := r.Body.(readAlready); ok && int64(have.Len()) <= limit {
		return have.Bytes(), nil
	}
	if n := min(r.ContentLength, limit); n > maxBody {
		buf.Grow(int(n) + bytes.MinRead) // it would be copied while it grows
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, &Error{Code: Usage, Op: "read the request", On: "body", Err: err, Hint: fmt.Sprintf("%d MiB at most", limit>>20)}
		}
		return nil, &Error{Code: Usage, Op: "read the request", On: "body", Err: err}
	}
	return buf.Bytes(), nil
}

// readAlready is a body that is in memory, and that nobody else uses.
type readAlready struct{ *bytes.Buffer }

func (readAlready) Close() error { return nil }

// decoder is what reads itself from JSON. It may keep parts of the text.
type decoder interface{ Decode(text []byte) error }

// appender is what writes itself as JSON.
type appender interface {
	AppendJSON(b []byte) ([]byte, error)
}

// decodeBody fills the struct that dst points to from body, strictly: one JSON object, only known fields under their
// exact names, each once, of the right type and not null. No body at all is an empty object. Errors name the field.
func decodeBody(body []byte, dst any) error {
	if len(body) == 0 {
		return nil
	}
	if d, ok := dst.(decoder); ok {
		return d.Decode(body)
	}
	fields := fieldsOf(reflect.ValueOf(dst).Elem())
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return badBody(err, "a JSON object is expected")
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return badBody(err, "")
		}
		name := t.(string) // the decoder lets nothing else be a key
		field, ok := fields[name]
		if !ok {
			return errs.New(Usage, "read the request", name, "unknown or repeated field")
		}
		delete(fields, name)
		if err := decodeField(dec, name, field); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return badBody(err, "")
	}
	if _, err := dec.Token(); err != io.EOF {
		return errs.New(Usage, "read the request", "body", "something follows the JSON object")
	}
	return nil
}

// decodeField reads one value into a field. A tag or an ID that is given must not be empty; a message may be.
func decodeField(dec *json.Decoder, name string, field reflect.Value) error {
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return badBody(err, "")
	}
	if bytes.Equal(raw, []byte("null")) || json.Unmarshal(raw, field.Addr().Interface()) != nil {
		return errs.New(Usage, "read the request", name, "a %s is expected, not %s", field.Kind(), kindOfJSON(raw))
	}
	if field.Kind() == reflect.String && field.Len() == 0 && name != "message" {
		return errs.New(Usage, "read the request", name, "it is empty").WithHint("leave it out instead")
	}
	return nil
}

// kindOfJSON names the type of a JSON value.
func kindOfJSON(raw []byte) string {
	switch raw[0] {
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

// fieldsOf maps the JSON names of a struct's fields to the fields.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	m := make(map[string]reflect.Value, v.NumField())
	for i := range v.NumField() {
		if name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); name != "-" {
			m[name] = v.Field(i)
		}
	}
	return m
}

// badBody is the error of a body that is no JSON, or not the JSON that is wanted.
func badBody(err error, why string) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		why = "the JSON ends too early"
	} else if err != nil {
		why = "malformed JSON: " + err.Error()
	}
	return errs.New(Usage, "read the request", "body", "%s", why)
}

// query holds the query parameters of a request, each checked.
type query map[string]string

// flag reports whether a boolean parameter is set.
func (q query) flag(name string) bool { return q[name] == "true" }

// parseQuery checks the query string against params: only known names, each once, none empty. A boolean is true, false,
// 1, 0, or the bare name.
func parseQuery(raw string, params []param) (query, error) {
	if raw == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, errs.New(Usage, "read the request", "query", "malformed: %v", err)
	}
	q := make(query, len(values))
	for name, v := range values {
		p, ok := paramNamed(params, name)
		switch {
		case !ok:
			return nil, errs.New(Usage, "read the request", name, "unknown query parameter")
		case len(v) > 1:
			return nil, errs.New(Usage, "read the request", name, "given more than once")
		case p.flag:
			if q[name], err = parseFlag(name, v[0]); err != nil {
				return nil, err
			}
		case v[0] == "":
			return nil, errs.New(Usage, "read the request", name, "it is empty").WithHint("leave it out instead")
		default:
			q[name] = v[0]
		}
	}
	return q, nil
}

// paramNamed finds a parameter.
func paramNamed(params []param, name string) (param, bool) {
	for _, p := range params {
		if p.name == name {
			return p, true
		}
	}
	return param{}, false
}

// parseFlag gives "true" or "false".
func parseFlag(name, v string) (string, error) {
	switch v {
	case "", "1", "true":
		return "true", nil
	case "0", "false":
		return "false", nil
	}
	return "", errs.New(Usage, "read the request", name, "true or false is expected, not %q", v)
}
