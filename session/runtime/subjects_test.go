package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session/runtime"
	"github.com/hyperfs/hyperfs/session/runtime/javascript"
)

// subject is a runtime that must do what all do.
type subject struct {
	name     string
	language string
	process  bool
	open     func(ctx context.Context, l runtime.Limits) (runtime.CodeSession, error)
}

// subjects are all runtimes of this system.
var subjects = []subject{{name: "goja", language: runtime.JavaScript, open: func(_ context.Context, l runtime.Limits) (runtime.CodeSession, error) {
	return javascript.New(l)
}}}

var background = context.Background()

// each runs a test with a session of each runtime. The test speaks its language through pick.
func each(t *testing.T, l runtime.Limits, test func(t *testing.T, s *tried)) {
	t.Parallel()
	for _, sub := range subjects {
		t.Run(sub.name, func(t *testing.T) {
			t.Parallel()
			test(t, sub.start(t, l))
		})
	}
}

// tried is a session under test.
type tried struct {
	runtime.CodeSession
	subject
	t *testing.T
}

func (sub subject) start(t *testing.T, l runtime.Limits) *tried {
	t.Helper()
	s, err := sub.open(background, l)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return &tried{s, sub, t}
}

// pick gives the text for the language.
func (s *tried) pick(js, py string) string {
	if s.language == runtime.Python {
		return py
	}
	return js
}

// run executes a program that must succeed, and gives its value.
func (s *tried) run(code string) string {
	s.t.Helper()
	return run(s.t, s.CodeSession, code)
}

func run(t *testing.T, s interface {
	Execute(context.Context, string) (runtime.Result, error)
}, code string) string {
	t.Helper()
	r, err := s.Execute(background, code)
	if err != nil {
		t.Fatalf("%.300s\n%v\n%s%s", code, err, r.Stdout, r.Stderr)
	}
	if !r.Value.Restorable() {
		return "no JSON: " + r.Value.Why
	}
	return string(r.Value.Value)
}

// is checks the value of a program.
func (s *tried) is(code, want string) {
	s.t.Helper()
	if got := s.run(code); got != want {
		s.t.Errorf("%s gives %.300s, and not %s", code, got, want)
	}
}

// fails executes a program that must end with an exception, and gives that.
func (s *tried) fails(code string) *runtime.ProgramError {
	s.t.Helper()
	_, err := s.Execute(background, code)
	var p *runtime.ProgramError
	if !errors.As(err, &p) || errs.CodeOf(err) != errs.Exec {
		s.t.Fatalf("%s gives %v", code, err)
	}
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// soon gives a context that ends after a moment.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// echo gives its first argument back.
var echo = runtime.Func(func(_ context.Context, args []json.RawMessage) (any, error) {
	if len(args) == 0 {
		return nil, nil
	}
	return args[0], nil
})

// values gives the values of entries by name, or why they have none.
func values(entries []runtime.Entry) map[string]string {
	m := map[string]string{}
	for _, e := range entries {
		m[e.Name] = string(e.Value)
		if !e.Restorable() {
			m[e.Name] = "no JSON: " + e.Why
		}
	}
	return m
}
