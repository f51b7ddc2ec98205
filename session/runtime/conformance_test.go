package runtime_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session/runtime"
)

func TestAProgramKeepsItsVariables(t *testing.T) {
	each(t, runtime.Limits{}, func(t *testing.T, s *tried) {
		if s.language == runtime.Python {
			s.is("import json\na = 1\ndef f(): return a + 1\nclass C:\n    def g(self): return f() + 1\n[a, f(), C().g()]", "[1,2,3]")
			s.is("a = 5\n[a, f(), C().g()]", "[5,6,7]")
			s.is("x = 1", "null")
			s.is("x; x", "1")
			s.is("__name__", `"__main__"`)
			s.is("import sys, pickle\nclass D: pass\ntype(pickle.loads(pickle.dumps(D()))) is D and sys.modules['__main__'].D is D", "true")
			return
		}
		s.is("let a = 1; const b = a + 1, {c, d: [e, ...r], ...q} = {c: 3, d: [4, 5, 6], z: 7}\nvar v = 8\nfunction f() { return new C().g() }\nclass C { g() { return b } }\n[a, b, c, e, r, q.z, v, f()]",
			"[1,2,3,4,[5,6],7,8,2]")
		s.is("[a, b, c, e, r, q.z, v, f(), typeof C]", `[1,2,3,4,[5,6],7,8,2,"function"]`)
		s.is("const a = 10\nlet b = await 20\nclass C { g() { return 30 } }\nfunction f() { return a + b }\n[a, b, f(), new C().g()]", "[10,20,30,30]")
		s.is("let b; typeof b", `"undefined"`)
		s.is("for (var i = 0, n = 3; i < n; i++) { var last = i; let hidden = i }\nfor (var k in {x: 1}) ;\nfor (var [o] of [[7]]) { if (true) var deep = o }\n[i, n, last, k, o, deep, typeof hidden]", `[3,3,2,"x",7,7,"undefined"]`)
		s.is("(function () { var inner = 1; let more = 2 })(); [typeof inner, typeof more]", `["undefined","undefined"]`)
		s.is("const {x = 1, y: {z = 2} = {}} = {}, [w = 3] = []; [x, z, w]", "[1,2,3]")
		s.is("[1, 2].map((n) => n * 2)", "[2,4]")
		s.is("(1 + 2) * 3", "9")
		s.is("((1 + 2)) * (3)", "9")
		s.is("`${1 + 1}` + '/*' + /[/}]/.test('}') // let t = 1", `"2/*true"`)
		s.is("const p = Promise.resolve(4); p", "4")
		s.is("if (a) { return 'early' }; 'late'", `"early"`)
		s.is("'use strict'; const strict = 1; strict", "1")
		s.is("this === globalThis", "true")
		s.is("label: for (;;) { break label }", "no JSON: it is undefined, which JSON does not have")
		s.is("async function later() { return await 5 }\nawait later() + await later()", "10")
		s.is("#! a line\n7", "7")
		s.is("", "no JSON: it is undefined, which JSON does not have")
	})
}

// valueCase is a value of a program: its JSON, or else a part of why there is none.
type valueCase struct{ code, json, why string }

var javaScriptValues = []valueCase{
	{"null", "null", ""}, {"true", "true", ""}, {"-1.5e300", "-1.5e+300", ""}, {"9007199254740991", "9007199254740991", ""}, {"'a\"\\u0000\\u2028é😀'", "\"a\\\"\\u0000\u2028é😀\"", ""},
	{"({a: [1, {b: null}], 'c d': ''})", `{"a":[1,{"b":null}],"c d":""}`, ""}, {"Object.create(null)", "{}", ""},
	{"undefined", "", "undefined"}, {"() => 1", "", "function"}, {"class X {}; X", "", "function"}, {"Symbol('s')", "", "symbol"}, {"10n", "", "bigint"},
	{"NaN", "", "NaN"}, {"[Infinity]", "", "it[0] is Infinity"}, {"({a: undefined})", "", "it.a is undefined"}, {"[undefined]", "", "it[0] is undefined"}, {"[1, , 2]", "", "holes"},
	{"new Map([[1, 2]])", "", "type Map"}, {"new Set()", "", "type Set"}, {"new Date(0)", "", "type Date"}, {"/x/", "", "type RegExp"}, {"new Error('e')", "", "type Error"},
	{"new Uint8Array(2)", "", "type Uint8Array"}, {"new (class Point {})()", "", "type Point"}, {"Object(1)", "", "type Number"}, {"({toJSON() { return 1 }})", "", "toJSON"},
	{"({get a() { return 1 }})", "", "it.a is an accessor"}, {"({[Symbol.iterator]: 1})", "", "symbol"}, {"const c = {}; c.self = [c]; c", "", "it.self[0] is what contains it"},
	{"let deep = []; for (let i = 0; i < 2000; i++) deep = [deep]; deep", "", "nested deeper"}, {"'\\ud800'", "", "surrogate"}, {"({'\\udc00': 1})", "", "surrogate"},
	{"let wide = [0]; for (let i = 0; i < 60; i++) wide = [wide, wide]; wide", "", "more than"}, {"'x'.repeat(2e5)", "", "more than"},
	{"new Proxy({}, {ownKeys() { throw new Error('no') }})", "", "can't be read"}, {"({get constructor() { throw 1 }, a: NaN})", "", "accessor"},
	{"JSON.stringify = () => 'broken'; ({a: 1})", `{"a":1}`, ""}, {"Array.isArray = Object.keys = null; [1]", "[1]", ""},
}

var pythonValues = []valueCase{
	{"None", "null", ""}, {"True", "true", ""}, {"-1.5e300", "-1.5e+300", ""}, {"2**100", "1267650600228229401496703205376", ""}, {"'a\"\\0é😀'", `"a\"\u0000é😀"`, ""},
	{"{'a': [1, {'b': None}], 'c d': ''}", `{"a":[1,{"b":null}],"c d":""}`, ""}, {"1.0", "1.0", ""},
	{"lambda: 1", "", "type function"}, {"object", "", "type type"}, {"b'x'", "", "type bytes"}, {"(1, 2)", "", "type tuple"}, {"{1}", "", "type set"}, {"1j", "", "type complex"},
	{"float('nan')", "", "nan"}, {"[float('inf')]", "", "it[0] is inf"}, {"{1: 2}", "", "a key of type int"}, {"{'a': {(1,): 2}}", "", "it['a'] has a key of type tuple"},
	{"import datetime\ndatetime.date(2020, 1, 1)", "", "type date"}, {"import collections\ncollections.OrderedDict(a=1)", "", "type OrderedDict"},
	{"import enum\nclass E(enum.IntEnum):\n    A = 1\n[E.A]", "", "type E"}, {"c = {}\nc['self'] = [c]\nc", "", "it['self'][0] is what contains it"},
	{"d = []\nfor i in range(2000): d = [d]\nd", "", "nested deeper"}, {"'\\ud800'", "", "surrogate"}, {"{'\\udc00': 1}", "", "surrogate"},
	{"w = [0]\nfor i in range(60): w = [w, w]\nw", "", "more than"}, {"'x' * 200000", "", "more than"}, {"10**10000", "", "can't be read"},
	{"class R:\n    def __repr__(self): raise ValueError\nR()", "", "type R"}, {"import json\njson.dumps = None\n[1]", "[1]", ""},
}

func TestValuesCrossExactlyOrSayWhyNot(t *testing.T) {
	each(t, runtime.Limits{Value: 20 << 10}, func(t *testing.T, s *tried) {
		cases := javaScriptValues
		if s.language == runtime.Python {
			cases = pythonValues
		}
		for _, c := range cases {
			r, err := s.Execute(background, c.code)
			v := r.Value
			if err != nil || v.Type == "" || v.Name != "" || string(v.Value) != c.json || (v.Why == "") != (c.why == "") || !strings.Contains(v.Why, c.why) {
				t.Errorf("%s gives %+v, value %.100s, %v", c.code, v, v.Value, err)
			}
		}
	})
}

func TestGlobalsAreSetPatchedAndDeleted(t *testing.T) {
	each(t, runtime.Limits{}, func(t *testing.T, s *tried) {
		must(t, s.SetGlobals(background, map[string]any{"n": 7, "text": "é<&>", "raw": json.RawMessage(`{"a": [1, 2]}`), "nothing": nil, "list": []string{"x"}}))
		s.is(s.pick("[n, text, raw.a[1], nothing, list]", "[n, text, raw['a'][1], nothing, list]"), `[7,"é<&>",2,null,["x"]]`)
		must(t, s.PatchGlobal(background, "raw", runtime.Patch{Set: map[string]any{"b": 3, "c": 4}}))
		must(t, s.PatchGlobal(background, "raw", runtime.Patch{Set: map[string]any{"b": 5}, Delete: []string{"c", "none"}, Alias: []string{"a", "b", "none"}}))
		s.is("raw", `{"a":[1,2],"b":5}`)
		s.is("[a, b]", "[[1,2],5]")
		must(t, s.PatchGlobal(background, "fresh", runtime.Patch{Set: map[string]any{"k": 1}}))
		s.is("fresh", `{"k":1}`)
		must(t, s.PatchGlobal(background, "raw", runtime.Patch{Delete: []string{"a"}}))
		s.fails(s.pick("if (!('a' in raw)) a", "if 'a' not in raw: a"))

		found, err := s.Globals(background, "list", "missing", "n")
		must(t, err)
		if len(found) != 2 || found[0].Name != "list" || string(found[0].Value) != `["x"]` || string(found[1].Value) != "7" {
			t.Errorf("it has %+v", found)
		}
		s.run(s.pick("let own = 1; function fn() {}", "own = 1\ndef fn(): pass"))
		must(t, s.DeleteGlobals(background, "own", "fn", "n", "missing"))
		s.fails("own")
		if found, err := s.Globals(background, "own", "fn", "n"); err != nil || len(found) > 0 {
			t.Errorf("deleted, and there: %+v, %v", found, err)
		}
		s.run(s.pick("let own = 2", "own = 2"))
		s.is("own", "2")

		for _, name := range []string{"", "1a", "a-b", "a b", "a.b", "__proto__", s.ReservedNames()[0]} {
			for what, err := range map[string]error{
				"set": s.SetGlobals(background, map[string]any{name: 1}), "patched": s.PatchGlobal(background, name, runtime.Patch{}), "deleted": s.DeleteGlobals(background, name),
			} {
				if errs.CodeOf(err) != errs.Usage {
					t.Errorf("%q can be %s: %v", name, what, err)
				}
			}
		}
		for what, v := range map[string]any{"a channel": make(chan int), "no JSON": json.RawMessage("{")} {
			if err := s.SetGlobals(background, map[string]any{"bad": v, "good": 1}); errs.CodeOf(err) != errs.Usage {
				t.Errorf("%s can be set: %v", what, err)
			}
		}
		if found, _ := s.Globals(background, "good"); len(found) > 0 {
			t.Error("half of the globals were set")
		}
		err = s.SetGlobals(background, map[string]any{"large": json.RawMessage(`[{"9007199254740993": 1.5e3}, 9007199254740993]`)})
		if (err == nil) != (s.language == runtime.Python) {
			t.Errorf("an integer beyond floating point gives %v", err)
		}
	})
}

func TestFunctionsOfTheHostAreCalled(t *testing.T) {
	each(t, runtime.Limits{}, func(t *testing.T, s *tried) {
		fail := runtime.Func(func(context.Context, []json.RawMessage) (any, error) { return nil, errors.New("not today") })
		panics := runtime.Func(func(context.Context, []json.RawMessage) (any, error) { panic("oh") })
		count := runtime.Func(func(_ context.Context, args []json.RawMessage) (any, error) { return len(args), nil })
		bad := runtime.Func(func(context.Context, []json.RawMessage) (any, error) { return make(chan int), nil })
		must(t, s.SetGlobals(background, map[string]any{
			"echo": echo, "fail": fail, "panics": panics, "bad": bad,
			"tools": map[string]any{"count": count, "deep": map[string]any{"echo": func(_ context.Context, args []json.RawMessage) (any, error) { return args[0], nil }}, "version": 3},
		}))
		s.is(s.pick("await echo({a: [1, 'é', null]})", "echo({'a': [1, 'é', None]})"), `{"a":[1,"é",null]}`)
		s.is(s.pick("[await tools.count(1, 2, 3), await tools.deep.echo(5), tools.version, await tools.count()]", "[tools['count'](1, 2, 3), tools['deep']['echo'](5), tools['version'], tools['count']()]"), "[3,5,3,0]")
		for _, name := range []string{"fail", "panics", "bad"} {
			if p := s.fails(s.pick("await ", "") + name + "()"); p.Name != "HostError" || p.Message == "" {
				t.Errorf("%s gives %+v", name, p)
			}
		}
		s.is(s.pick("try { await fail() } catch (e) { return e.message }", "try:\n    fail()\nexcept HostError as e:\n    m = str(e)\nm"), `"not today"`)
		if p := s.fails(s.pick("await echo(new Map())", "echo({1})")); p.Name != "TypeError" || !strings.Contains(p.Message, "argument 1 of echo can't leave the session") {
			t.Errorf("%+v", p)
		}
		s.is(s.pick("const held = echo; await held(1)", "held = echo\nheld(1)"), "1")
		must(t, s.SetGlobals(background, map[string]any{"echo": count}))
		s.is(s.pick("await ", "")+"echo(1)", "1")
		if p := s.fails(s.pick("await ", "") + "held(1)"); !strings.Contains(p.Message, "taken") {
			t.Errorf("a function that was replaced gives %+v", p)
		}
		s.run(s.pick("const counter = tools.count; 0", "counter = tools['count']"))
		must(t, s.DeleteGlobals(background, "tools"))
		if p := s.fails(s.pick("await ", "") + "counter(1)"); !strings.Contains(p.Message, "taken") {
			t.Errorf("a function that was deleted gives %+v", p)
		}
	})
}

func TestCallsOfTheHostRunSideBySide(t *testing.T) {
	each(t, runtime.Limits{}, func(t *testing.T, s *tried) {
		var meet sync.WaitGroup
		meet.Add(3)
		must(t, s.SetGlobals(background, map[string]any{"together": runtime.Func(func(_ context.Context, args []json.RawMessage) (any, error) {
			meet.Done()
			meet.Wait()
			return args[0], nil
		})}))
		s.is(s.pick("await Promise.all([together(1), together(2), together(3)])",
			"from concurrent.futures import ThreadPoolExecutor\nlist(ThreadPoolExecutor(3).map(together, [1, 2, 3]))"), "[1,2,3]")
		if s.language == runtime.Python {
			return
		}
		must(t, s.SetGlobals(background, map[string]any{"echo": echo}))
		s.is("let late = 0; echo(5).then((v) => { late = v }); 0", "0")
		for try := 0; s.run("await echo(1); late") != "5"; try++ { // in the background until then
			if try == 1000 {
				t.Fatal("what was not awaited never comes")
			}
		}
	})
}

func TestExceptionsEndAProgramAndNotItsSession(t *testing.T) {
	each(t, runtime.Limits{}, func(t *testing.T, s *tried) {
		for code, want := range map[string]string{
			s.pick("let before = 1; throw new TypeError('wrong')", "before = 1\nraise TypeError('wrong')"): "TypeError: wrong",
			s.pick("function f() { null.x }\nf()", "def f(): return [][1]\nf()"):                           s.pick("TypeError", "IndexError"),
			s.pick("let = = 1", "1 = = 2"):                                                                                   "SyntaxError",
			s.pick("}); (() => {", "return"):                                                                                 "SyntaxError",
			s.pick("await Promise.reject(new RangeError('far'))", "raise SystemExit(3)"):                                     s.pick("RangeError: far", "SystemExit: 3"),
			s.pick("throw {message: 'plain'}", "raise KeyboardInterrupt('plain')"):                                           s.pick("Error: plain", "KeyboardInterrupt: plain"),
			s.pick("throw 'text'", "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd"):              s.pick("string: text", "Odd"),
			s.pick("eval(1); let deep = '['.repeat(1e6); JSON.parse(deep + deep)", "import json\njson.loads('[' * 1000000)"): s.pick("", "RecursionError"),
			s.pick("const r = () => r(); r()", "def r(): return r()\nr()"):                                                   s.pick("RangeError", "RecursionError"),
			s.pick("throw new Proxy({}, {get() { throw 1 }})", "raise type('E', (Exception,), {'__module__': None})"):        s.pick("", "E"),
		} {
			if p := s.fails(code); !strings.HasPrefix(p.Error(), want) {
				t.Errorf("%s gives %q", code, p.Error())
			}
		}
		s.is("before", "1")
		s.fails(s.pick("const deep = () => deep(); deep()", "deep = lambda: deep()\ndeep()"))
		s.is(s.pick("await Promise.resolve(3)", "3"), "3")
		s.fails(strings.Repeat(s.pick("(", "["), 200000))
		if p := s.fails(s.pick("function g() { throw new Error('here') }\n\ng()", "def g():\n    raise ValueError('here')\ng()")); !strings.Contains(p.Stack, s.pick("run-", "<run ")) || !strings.Contains(p.Stack, "g") {
			t.Errorf("the stack is %q", p.Stack)
		}
	})
}

func TestAnEndlessProgramIsInterrupted(t *testing.T) {
	each(t, runtime.Limits{}, func(t *testing.T, s *tried) {
		s.run(s.pick("let kept = 1", "kept = 1"))
		if _, err := s.Execute(soon(t), s.pick("while (true) kept++", "while True: kept += 1")); errs.CodeOf(err) != errs.ExecTimeout || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a loop gives %v", err)
		}
		if s.run("kept > 1") != "true" {
			t.Error("it has not run, or its variables are gone")
		}
		s.is(s.pick("await Promise.resolve(3)", "3"), "3")
		ctx, cancel := context.WithCancelCause(background)
		told := make(chan struct{})
		must(t, s.SetGlobals(background, map[string]any{"wait": runtime.Func(func(ctx context.Context, _ []json.RawMessage) (any, error) {
			cancel(errors.New("enough"))
			<-ctx.Done()
			close(told)
			return nil, ctx.Err()
		})}))
		if _, err := s.Execute(ctx, s.pick("await wait()", "wait()")); errs.CodeOf(err) != errs.Exec || !strings.Contains(err.Error(), "enough") {
			t.Errorf("a program that waits gives %v", err)
		}
		<-told
		if _, err := s.Execute(ctx, "1"); errs.CodeOf(err) != errs.Exec {
			t.Errorf("with a context that has ended it gives %v", err)
		}
		for range 20 { // interrupts that come about when the program ends hit no other one
			ctx, cancel := context.WithCancel(background)
			go cancel()
			if _, err := s.Execute(ctx, "1"); err != nil && errs.CodeOf(err) != errs.Exec {
				t.Error(err)
			}
			s.is("kept > 1", "true")
		}
	})
}

// What catches the interrupt and goes on ends the session instead.
func TestAProgramThatCannotBeInterruptedEndsItsSession(t *testing.T) {
	each(t, runtime.Limits{Grace: 200 * time.Millisecond}, func(t *testing.T, s *tried) {
		code := s.pick("await null; for (;;) { try { for (;;) ; } finally { continue } }", "import time\nwhile True:\n    try: time.sleep(1)\n    except BaseException: pass")
		if s.name == "goja" {
			code = "/^(?=a)(a+)+$/.test('a'.repeat(25) + '!')" // in one of the engine's own functions
		}
		_, err := s.Execute(soon(t), code)
		var death *runtime.DeathError
		if !errors.As(err, &death) || errs.CodeOf(err) != errs.Exec || s.name != "goja" && !strings.Contains(err.Error(), "did not stop") {
			t.Fatalf("it gives %v", err)
		}
		<-s.Done()
		if s.name == "goja" { // nor is that which has awaited something
			async := s.subject.start(t, runtime.Limits{})
			if _, err := async.Execute(soon(t), "await null; for (;;) ;"); !errors.As(err, &death) {
				t.Errorf("a loop behind an await gives %v", err)
			}
		}
		if err := s.SetGlobals(background, map[string]any{"x": 1}); !errors.As(err, &death) || !errors.As(s.Err(), &death) {
			t.Errorf("afterwards it gives %v, %v", err, s.Err())
		}
	})
}

func TestOutputIsTheProgramsOwnAndBounded(t *testing.T) {
	each(t, runtime.Limits{Output: 1000}, func(t *testing.T, s *tried) {
		r, err := s.Execute(background, s.pick("console.log('out', 1); console.error('err'); 5", "import sys\nprint('out', 1)\nprint('err', file=sys.stderr)\n5"))
		if err != nil || string(r.Stdout) != "out 1\n" || string(r.Stderr) != "err\n" || r.Cut || string(r.Value.Value) != "5" {
			t.Errorf("%q %q %v %v", r.Stdout, r.Stderr, r.Cut, err)
		}
		r, err = s.Execute(background, s.pick("for (let i = 0; i < 2000; i++) console.log('0123456789'); throw new Error('x')", "for i in range(2000): print('0123456789')\nraise ValueError"))
		if err == nil || len(r.Stdout) != 1000 || !bytes.HasPrefix(r.Stdout, []byte("0123456789\n0")) || !r.Cut {
			t.Errorf("a flood gives %d bytes, %v, %v", len(r.Stdout), r.Cut, err)
		}
		if r, err := s.Execute(background, "1"); err != nil || len(r.Stdout) > 0 || r.Cut {
			t.Errorf("the next one has %q, %v, %v", r.Stdout, r.Cut, err)
		}
		if !s.process {
			return
		}
		r, err = s.Execute(background, s.pick("process.stdout.write('a'); require('child_process').execSync('printf b; cat', {stdio: 'inherit'}); process.stdout.write('c'); 0",
			"import subprocess\nprint('a', end='', flush=True)\nsubprocess.run('printf b; cat', shell=True)\nprint('c', end='')"))
		if err != nil || string(r.Stdout) != "abc" {
			t.Errorf("a child and its parent write %q, %v", r.Stdout, err)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	each(t, runtime.Limits{Memory: 64 << 20}, func(t *testing.T, s *tried) {
		piece := "new Array(1e5).fill(1.5)"
		if s.name == "goja" {
			piece = "'x'.repeat(1000).repeat(1000)" // an array takes it long, and a string takes Node.js no memory
		}
		_, err := s.Execute(background, s.pick("const hog = []; for (;;) hog.push("+piece+")", "hog = []\nwhile True: hog.append(bytearray(1000000))"))
		var threw *runtime.ProgramError
		var death *runtime.DeathError
		switch s.name {
		case "Node.js":
			if !errors.As(err, &death) {
				t.Errorf("it gives %v", err)
			}
		default:
			if !errors.As(err, &threw) || threw.Name != "MemoryError" {
				t.Errorf("it gives %v", err)
			}
			must(t, s.DeleteGlobals(background, "hog"))
			s.is("1 + 1", "2")
		}
	})
}

func TestCallsWaitForOneAnotherAndCloseForNone(t *testing.T) {
	each(t, runtime.Limits{}, func(t *testing.T, s *tried) {
		s.run(s.pick("let n = 0", "n = 0"))
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				if _, err := s.Execute(background, s.pick("const was = n; await null; n = was + 1", "was = n\nimport time; time.sleep(0)\nn = was + 1")); err != nil {
					t.Error(err)
				}
				must(t, s.SetGlobals(background, map[string]any{fmt.Sprintf("g%d", i): i}))
			})
		}
		all.Wait()
		s.is("n + g7", "15")
		started := make(chan struct{})
		must(t, s.SetGlobals(background, map[string]any{"tell": runtime.Func(func(context.Context, []json.RawMessage) (any, error) { close(started); return nil, nil })}))
		ended := make(chan error, 2)
		go func() {
			_, err := s.Execute(background, s.pick("await tell(); for (;;) ;", "tell()\nwhile True: x = 1"))
			ended <- err
		}()
		<-started
		go func() { ended <- s.SetGlobals(background, map[string]any{"a": 1}) }()
		if s.Err() != nil {
			t.Error(s.Err())
		}
		must(t, s.Close())
		must(t, s.Close())
		for range 2 {
			if err := <-ended; errs.CodeOf(err) != errs.Disposed {
				t.Errorf("under way, it gives %v", err)
			}
		}
		<-s.Done()
		_, err := s.Execute(background, "1")
		for _, err := range []error{err, s.Err(), s.DeleteGlobals(background, "a")} {
			if errs.CodeOf(err) != errs.Disposed {
				t.Errorf("afterwards it gives %v", err)
			}
		}
	})
}

func TestBindingsOutliveTheirSession(t *testing.T) {
	each(t, runtime.Limits{Entry: 1000}, func(t *testing.T, s *tried) {
		must(t, s.SetGlobals(background, map[string]any{"tool": echo, "given": 1}))
		s.run(s.pick("let n = 1.5, text = 'é', tree = {a: [1, {b: null}]}, fn = () => 1, when = new Date(0), big = 'x'.repeat(2000)\nclass K {}",
			"n, text, tree, fn, when, big = 1.5, 'é', {'a': [1, {'b': None}]}, lambda: 1, {1}, 'x' * 2000\nimport os\nclass K: pass\nlarge = 2**70"))
		entries, err := s.Snapshot(background, "tool", "given")
		must(t, err)
		if !slices.IsSortedFunc(entries, func(a, b runtime.Entry) int { return strings.Compare(a.Name, b.Name) }) {
			t.Error("they are not sorted")
		}
		got := values(entries)
		for name, want := range map[string]string{"n": "1.5", "text": `"é"`, "tree": `{"a":[1,{"b":null}]}`, "fn": "no JSON", "when": "no JSON", "big": "no JSON: it takes more than 1000 bytes", "K": "no JSON"} {
			if !strings.HasPrefix(got[name], want) {
				t.Errorf("%s is %s", name, got[name])
			}
		}
		for _, name := range append(s.ReservedNames(), "tool", "given") {
			if _, ok := got[name]; ok {
				t.Errorf("%s is there", name)
			}
		}
		document, err := runtime.MarshalBindings(s.Language(), entries)
		must(t, err)
		language, read, err := runtime.UnmarshalBindings(document)
		if err != nil || language != s.language || len(read) != len(entries) {
			t.Fatal(language, read, err)
		}
		must(t, s.Close())

		next := s.subject.start(t, runtime.Limits{})
		read = append(read, runtime.Entry{Name: s.pick("Object", "__builtins__"), Type: "object", Value: json.RawMessage("1")})
		restored, err := next.Restore(background, read)
		must(t, err)
		want := []string{"n", "text", "tree"}
		if s.language == runtime.Python {
			want = []string{"large", "n", "text", "tree"}
			next.is("large", "1180591620717411303424")
		}
		var names []string
		for _, e := range restored {
			names = append(names, e.Name)
		}
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("restored are %q", names)
		}
		next.is(next.pick("[n, text, tree, typeof fn, typeof Object]", "[n, text, tree, 'fn' in globals(), type(__builtins__).__name__]"),
			next.pick(`[1.5,"é",{"a":[1,{"b":null}]},"undefined","function"]`, `[1.5,"é",{"a":[1,{"b":null}]},false,"module"]`))
	})
}

func TestDocumentsOfBindingsAreChecked(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]errs.Code{
		"": "", "null": "", " \n": "", `{"version":1,"language":"python","entries":null}`: "",
		"{": errs.Integrity, "[]": errs.Integrity, "{}": errs.Integrity, `{"version":2}`: errs.Unsupported,
		`{"version":1,"entries":[{"type":"x"}]}`: errs.Integrity, `{"version":1,"entries":[{"name":"a"},{"name":"a"}]}`: errs.Integrity,
	} {
		if _, entries, err := runtime.UnmarshalBindings(json.RawMessage(document)); errs.CodeOf(err) != want || len(entries) > 0 {
			t.Errorf("%s gives %v, %v", document, entries, err)
		}
	}
}

func TestLimitsAreChecked(t *testing.T) {
	t.Parallel()
	for _, sub := range subjects {
		for _, l := range []runtime.Limits{{Output: -1}, {Value: 2 << 30}, {Entry: -1}, {Memory: -1}, {Grace: -1}} {
			if _, err := sub.open(background, l); errs.CodeOf(err) != errs.Usage {
				t.Errorf("%s with %+v gives %v", sub.name, l, err)
			}
		}
	}
}
