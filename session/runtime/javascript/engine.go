package javascript

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dop251/goja"

	"github.com/hyperfs/hyperfs/session/runtime"
	"github.com/hyperfs/hyperfs/session/runtime/internal/js"
)

// maxDepth is how many calls of functions a program may nest. Go ends the whole process where a stack takes a gigabyte.
const maxDepth = 4000

// engine is a session in this process.
type engine struct {
	limits   runtime.Limits
	names    []string // reserved
	reserved map[string]bool
	funcs    runtime.Functions
	runs     int // executions, with turn

	// The realm. Whoever has turn uses it, one goroutine at a time.
	vm                     *goja.Runtime
	operations             *goja.Object
	parse, encode, explain goja.Callable
	hostError              goja.Callable

	turn  chan struct{} // has room for who has a call under way
	ended chan struct{}

	base   context.Context // of calls of the host; ends with the session
	cancel context.CancelFunc
	ready  chan struct{} // has an element when there are answers

	mu          sync.Mutex // guards what follows
	why         error      // set before ended is closed
	out, errOut output
	run         *execution // under way
	calls       int        // of the host, under way
	answers     []answer
}

// execution is one request. What it calls may go on when it is over, but not when it was interrupted.
type execution struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// answer is what a function of the host gave.
type answer struct {
	run             *execution
	resolve, reject func(any) error
	value           json.RawMessage
	err             error
}

// output is a stream of the program.
type output struct {
	text []byte
	cut  bool
}

// errMemory is what a program is interrupted with that has too much.
var errMemory = errors.New("the program takes more memory than it may")

// New makes a session. It is an Adopter.
func New(l runtime.Limits) (runtime.CodeSession, error) {
	l, err := l.Complete()
	if err != nil {
		return nil, err
	}
	e := &engine{
		limits: l, vm: goja.New(), turn: make(chan struct{}, 1), ended: make(chan struct{}), ready: make(chan struct{}, 1),
	}
	e.base, e.cancel = context.WithCancel(context.Background())
	e.vm.SetMaxCallStackSize(maxDepth)
	if err := e.prepare(); err != nil {
		e.cancel()
		return nil, err
	}
	return e, nil
}

// console is what programs write with.
const console = `(function (write) {
  const show = (v) => {
    if (typeof v !== 'object' || v === null) return typeof v === 'symbol' ? v.toString() : String(v);
    if (v instanceof Error) return v.stack || String(v);
    try { return JSON.stringify(v) || String(v); } catch (e) { return String(v); }
  };
  const to = (stream) => (...args) => write(stream, args.map(show).join(' ') + '\n');
  return { log: to(1), info: to(1), debug: to(1), warn: to(2), error: to(2) };
})`

// prepare makes what programs find, and what works on it.
func (e *engine) prepare() error {
	vm := e.vm
	makeConsole, err := vm.RunString(console)
	if err != nil {
		return err
	}
	makeConsoleOf, _ := goja.AssertFunction(makeConsole)
	c, err := makeConsoleOf(nil, vm.ToValue(e.write))
	if err != nil {
		return err
	}
	if err := vm.Set("console", c); err != nil {
		return err
	}
	v, err := vm.RunScript("globals", js.Globals)
	if err != nil {
		return err
	}
	makeOperations, _ := goja.AssertFunction(v)
	v, err = makeOperations(nil, vm.GlobalObject(), vm.ToValue(e.call), vm.ToValue(wellFormed), vm.ToValue(byteLength))
	if err != nil {
		return err
	}
	e.operations = v.ToObject(vm)
	e.encode, _ = goja.AssertFunction(e.operations.Get("encode"))
	e.explain, _ = goja.AssertFunction(e.operations.Get("error"))
	e.parse, _ = goja.AssertFunction(vm.Get("JSON").ToObject(vm).Get("parse"))
	limits := e.operations.Get("limits").ToObject(vm)
	if err := errors.Join(limits.Set("value", e.limits.Value), limits.Set("entry", e.limits.Entry)); err != nil {
		return err
	}
	v, err = vm.RunString(`(message) => Object.assign(new Error(message), { name: 'HostError' })`)
	if err != nil {
		return err
	}
	e.hostError, _ = goja.AssertFunction(v)
	names, err := e.operate("reserved")
	if err != nil {
		return err
	}
	e.reserved = map[string]bool{}
	for _, n := range names.Export().([]any) {
		e.names = append(e.names, n.(string))
		e.reserved[n.(string)] = true
	}
	return nil
}

// wellFormed reports whether a string has no half of a surrogate pair.
func wellFormed(c goja.FunctionCall) goja.Value {
	s, _ := c.Argument(0).(goja.String)
	if s == nil || !strings.ContainsRune(s.String(), '\uFFFD') {
		return trueValue
	}
	for i := 0; i < s.Length(); i++ {
		switch u := s.CharAt(i); {
		case u >= 0xD800 && u < 0xDC00 && i+1 < s.Length() && s.CharAt(i+1)&0xFC00 == 0xDC00:
			i++
		case u >= 0xD800 && u < 0xE000:
			return falseValue
		}
	}
	return trueValue
}

var trueValue, falseValue = goja.New().ToValue(true), goja.New().ToValue(false)

// byteLength gives the length of a string in UTF-8.
func byteLength(c goja.FunctionCall) goja.Value {
	return goja.New().ToValue(len(c.Argument(0).String()))
}

// write keeps what a program writes.
func (e *engine) write(stream int, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := &e.out
	if stream == 2 {
		o = &e.errOut
	}
	room := min(len(text), e.limits.Output-len(o.text))
	o.cut = o.cut || room < len(text)
	o.text = append(o.text, text[:room]...)
}

// take gives what was written since the last take.
func (e *engine) take() (out, errOut output) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out, errOut = e.out, e.errOut
	e.out, e.errOut = output{}, output{}
	return out, errOut
}

// operate calls an operation on the globals.
func (e *engine) operate(name string, args ...goja.Value) (goja.Value, error) {
	f, ok := goja.AssertFunction(e.operations.Get(name))
	if !ok {
		return nil, fmt.Errorf("there is no operation %s", name)
	}
	return f(nil, args...)
}

// value makes v, by way of JSON, a value of the program's realm.
func (e *engine) value(v any) (goja.Value, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return e.parse(nil, e.vm.ToValue(string(b)))
}

// call calls a function of the host, and gives a promise.
func (e *engine) call(c goja.FunctionCall) goja.Value {
	texts, _ := c.Argument(1).Export().([]any)
	args := make([]json.RawMessage, len(texts))
	for i, t := range texts {
		args[i] = json.RawMessage(t.(string))
	}
	promise, resolve, reject := e.vm.NewPromise()
	e.mu.Lock()
	defer e.mu.Unlock()
	a := answer{run: e.run, resolve: resolve, reject: reject}
	id, many := c.Argument(0).ToInteger(), e.calls >= runtime.MaxCalls
	e.calls++
	go func() {
		ctx, cancel := context.WithCancel(e.base)
		defer cancel()
		defer context.AfterFunc(a.run.ctx, cancel)()
		err := fmt.Errorf("more than %d calls are under way", runtime.MaxCalls)
		if !many {
			a.value, err = e.funcs.Call(ctx, e.limits, runtime.JavaScript, id, args)
		}
		a.err = err
		e.mu.Lock()
		e.answers = append(e.answers, a)
		e.mu.Unlock()
		select {
		case e.ready <- struct{}{}:
		default:
		}
	}()
	return e.vm.ToValue(promise)
}

// settle gives the program the answers that have come. Those of executions that were interrupted are dropped, so that nothing of these goes on.
func (e *engine) settle() error {
	e.mu.Lock()
	answers := e.answers
	e.answers = nil
	e.calls -= len(answers)
	e.mu.Unlock()
	for _, a := range answers {
		if a.run.ctx.Err() != nil {
			continue
		}
		if err := e.give(a); err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) give(a answer) error {
	if a.err != nil {
		v, err := e.hostError(nil, e.vm.ToValue(a.err.Error()))
		if err != nil {
			return err
		}
		return a.reject(v)
	}
	v, err := e.parse(nil, e.vm.ToValue(string(a.value)))
	if err != nil {
		return err
	}
	return a.resolve(v)
}

// within runs fn on the realm, in its turn, and interrupts it when ctx ends, or when it takes too much memory. An engine that can't be interrupted, as one of its own functions is
// at work, ends the session; the function goes on until it returns.
func (e *engine) within(ctx context.Context, fn func() error) error {
	select {
	case e.turn <- struct{}{}:
	case <-e.base.Done():
		return e.gone()
	case <-ctx.Done():
		return runtime.Interrupted(ctx)
	}
	if err := e.gone(); err != nil {
		<-e.turn
		return err
	}
	if ctx.Err() != nil {
		<-e.turn
		return runtime.Interrupted(ctx)
	}
	run := &execution{}
	run.ctx, run.cancel = context.WithCancel(context.Background())
	e.mu.Lock()
	e.run = run
	e.mu.Unlock()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		run.cancel()
		e.vm.Interrupt(context.Cause(ctx))
		close(interrupted)
	})
	unwatch := e.watch()
	done := make(chan error, 1)
	go func() { done <- e.guarded(fn) }()
	err, ok := e.wait(done, interrupted)
	unwatch()
	if !ok {
		e.end(runtime.Died(fmt.Errorf("the program was interrupted and did not stop within %v", e.limits.Grace)))
		return e.gone()
	}
	if !stop() {
		<-interrupted
	}
	e.vm.ClearInterrupt()
	<-e.turn
	return e.judge(ctx, run, err)
}

// wait waits for the end of a run, which after an interrupt must come within the grace period.
func (e *engine) wait(done <-chan error, interrupted <-chan struct{}) (err error, ok bool) {
	select {
	case err = <-done:
		return err, true
	case <-interrupted:
	case <-e.base.Done(): // the end interrupts, too
	}
	timer := time.NewTimer(e.limits.Grace)
	defer timer.Stop()
	select {
	case err = <-done:
		return err, true
	case <-timer.C:
		return nil, false
	}
}

// guarded makes exceptions errors of programs, and a panic of the engine the end of the session, not of the process.
func (e *engine) guarded(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = runtime.Died(fmt.Errorf("the engine has failed: %v", r))
			e.end(err)
		}
	}()
	if err = e.settle(); err == nil {
		err = fn()
	}
	var threw *goja.Exception
	var deep *goja.StackOverflowError
	switch {
	case errors.As(err, &deep):
		return runtime.Threw(&runtime.ProgramError{Name: "RangeError", Message: fmt.Sprintf("more than %d calls are nested", maxDepth)})
	case errors.As(err, &threw):
		return runtime.Threw(e.exception(threw.Value()))
	}
	return err
}

// judge makes the error of a request out of what the run gave.
func (e *engine) judge(ctx context.Context, run *execution, err error) error {
	var stopped *goja.InterruptedError
	switch {
	case err == nil:
		return nil
	case e.gone() != nil:
		return e.gone()
	case errors.As(err, &stopped) && stopped.Value() == error(errMemory):
		run.cancel()
		return runtime.Threw(&runtime.ProgramError{Name: "MemoryError", Message: errMemory.Error()})
	case ctx.Err() != nil:
		return runtime.Interrupted(ctx)
	}
	return err
}

// exception gives what is known of an exception.
func (e *engine) exception(v goja.Value) *runtime.ProgramError {
	p := &runtime.ProgramError{Name: "Error"}
	r, err := e.explain(nil, v)
	if err != nil {
		return p
	}
	o := r.ToObject(e.vm)
	p.Name, p.Message, p.Stack = o.Get("name").String(), o.Get("message").String(), o.Get("stack").String()
	return p
}

// end ends the session, for the reason why unless there was one before.
func (e *engine) end(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.why != nil {
		return
	}
	e.why = why
	e.cancel()
	e.vm.Interrupt(why)
	go func() {
		defer close(e.ended)
		select {
		case e.turn <- struct{}{}:
			<-e.turn
		case <-time.After(e.limits.Grace): // a function of the engine goes on
		}
	}()
}

// gone gives why the session has ended, or is about to.
func (e *engine) gone() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.why
}

// Done implements runtime.CodeSession.
func (e *engine) Done() <-chan struct{} { return e.ended }

// Err implements runtime.CodeSession.
func (e *engine) Err() error {
	select {
	case <-e.ended:
		return e.gone()
	default:
		return nil
	}
}

// Close implements runtime.CodeSession.
func (e *engine) Close() error {
	e.end(runtime.Closed())
	<-e.ended
	e.mu.Lock()
	defer e.mu.Unlock()
	e.why = runtime.Closed()
	return nil
}
