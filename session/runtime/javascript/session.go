package javascript

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dop251/goja"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session/runtime"
)

// Language implements runtime.CodeSession.
func (e *engine) Language() string { return runtime.JavaScript }

// ReservedNames implements runtime.CodeSession.
func (e *engine) ReservedNames() []string { return slices.Clone(e.names) }

// Execute implements runtime.CodeSession.
func (e *engine) Execute(ctx context.Context, code string) (r runtime.Result, err error) {
	start := time.Now()
	value := make(chan runtime.Entry, 1)
	err = e.within(ctx, func() error {
		e.runs++
		name := fmt.Sprintf("run-%d", e.runs)
		var text string
		var err error
		if nesting(code, false) > maxNesting {
			err = fmt.Errorf("more than %d brackets are nested", maxNesting)
		} else {
			text, err = rewrite(name, code)
		}
		if err == nil {
			_, err = goja.Compile(name, text, false)
		}
		if err != nil {
			return runtime.Threw(&runtime.ProgramError{Name: "SyntaxError", Message: strings.TrimPrefix(err.Error(), "SyntaxError: ")})
		}
		v, err := e.vm.RunScript(name, text)
		if err != nil {
			return err
		}
		v, err = e.await(ctx, v)
		if err != nil {
			return err
		}
		encoded, err := e.encode(nil, v)
		if err != nil {
			return err
		}
		value <- entry(encoded.Export())
		return nil
	})
	if err == nil {
		r.Value = <-value
	}
	out, errOut := e.take()
	r.Stdout, r.Stderr, r.Cut = out.text, errOut.text, out.cut || errOut.cut
	r.Duration = time.Since(start)
	return r, err
}

// await runs the realm until a promise is settled.
func (e *engine) await(ctx context.Context, v goja.Value) (goja.Value, error) {
	if v.ExportType() != reflect.TypeFor[*goja.Promise]() {
		return v, nil // to export something else may run getters of the program
	}
	p, _ := v.Export().(*goja.Promise)
	for p.State() == goja.PromiseStatePending {
		e.mu.Lock()
		idle := e.calls == 0
		e.mu.Unlock()
		if idle {
			return nil, runtime.Threw(&runtime.ProgramError{Name: "Error", Message: "the program awaits what nothing will settle"})
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-e.base.Done():
			return nil, e.gone()
		}
		if err := e.settle(); err != nil {
			return nil, err
		}
	}
	if p.State() == goja.PromiseStateRejected {
		return nil, runtime.Threw(e.exception(p.Result()))
	}
	return p.Result(), nil
}

// entry makes what the operations give an Entry.
func entry(v any) (r runtime.Entry) {
	m, _ := v.(map[string]any)
	text := func(key string) string {
		s, _ := m[key].(string)
		return s
	}
	r = runtime.Entry{Name: text("name"), Type: text("type"), Why: text("why"), Text: text("text")}
	if s, ok := m["json"].(string); ok {
		r.Value = json.RawMessage(s)
	}
	return r
}

// Globals implements runtime.CodeSession.
func (e *engine) Globals(ctx context.Context, names ...string) ([]runtime.Entry, error) {
	return e.entries(ctx, "get", names)
}

// Snapshot implements runtime.CodeSession.
func (e *engine) Snapshot(ctx context.Context, except ...string) ([]runtime.Entry, error) {
	return e.entries(ctx, "snapshot", except)
}

func (e *engine) entries(ctx context.Context, operation string, names []string) (entries []runtime.Entry, err error) {
	var found any
	err = e.work(ctx, operation, func(r goja.Value) { found = r.Export() }, list(names))
	if err != nil {
		return nil, err
	}
	all, _ := found.([]any)
	for _, v := range all {
		entries = append(entries, entry(v))
	}
	return entries, nil
}

// list is an empty list where there is none, as operations need one.
func list(names []string) []string { return append([]string{}, names...) }

// work does an operation whose arguments are JSON.
func (e *engine) work(ctx context.Context, operation string, result func(goja.Value), args ...any) error {
	return e.within(ctx, func() error {
		values := make([]goja.Value, len(args))
		for i, a := range args {
			v, err := e.value(a)
			if err != nil {
				return errs.Wrap(errs.Usage, "run code", "", err)
			}
			values[i] = v
		}
		r, err := e.operate(operation, values...)
		if err == nil && result != nil {
			result(r)
		}
		return err
	})
}

// SetGlobals implements runtime.CodeSession.
func (e *engine) SetGlobals(ctx context.Context, values map[string]any) error {
	if err := runtime.CheckNames(e.reserved, slices.Collect(maps.Keys(values))...); err != nil {
		return err
	}
	return e.send(ctx, "", values, func(wired any) error { return e.work(ctx, "set", nil, wired) })
}

// PatchGlobal implements runtime.CodeSession.
func (e *engine) PatchGlobal(ctx context.Context, name string, p runtime.Patch) error {
	if err := runtime.CheckNames(e.reserved, p.Globals(name)...); err != nil {
		return err
	}
	return e.send(ctx, name+".", p.Set, func(wired any) error {
		return e.work(ctx, "patch", nil, name, wired, list(p.Delete), list(p.Alias))
	})
}

// send does what takes values.
func (e *engine) send(ctx context.Context, prefix string, values map[string]any, do func(wired any) error) error {
	wired, done, err := e.funcs.Wire(e.limits, runtime.JavaScript, prefix, values)
	if err != nil {
		return err
	}
	err = do(wired)
	done(err)
	return err
}

// DeleteGlobals implements runtime.CodeSession.
func (e *engine) DeleteGlobals(ctx context.Context, names ...string) error {
	if err := runtime.CheckNames(e.reserved, names...); err != nil {
		return err
	}
	err := e.work(ctx, "delete", nil, list(names))
	if err == nil {
		e.funcs.TakeBack(names...)
	}
	return err
}

// Restore implements runtime.CodeSession.
func (e *engine) Restore(ctx context.Context, entries []runtime.Entry) ([]runtime.Entry, error) {
	able, err := runtime.Restorable(runtime.JavaScript, entries, e.reserved)
	if err != nil || len(able) == 0 {
		return nil, err
	}
	return able, e.work(ctx, "restore", nil, able)
}

// InstallFinal implements runtime.Adopter.
func (e *engine) InstallFinal(ctx context.Context, name string, fn runtime.Func) error {
	if err := runtime.CheckNames(e.reserved, name); err != nil {
		return err
	}
	if fn == nil {
		return errs.Wrap(errs.Usage, "run code", name, errors.New("there is no function"))
	}
	id, done := e.funcs.Add(name, fn)
	err := e.work(ctx, "installFinal", nil, name, id)
	done(err)
	return err
}

// Cross implements runtime.Adopter.
func (e *engine) Cross(ctx context.Context, b runtime.Boundary) error {
	if err := runtime.CheckNames(e.reserved, b.Globals()...); err != nil {
		return err
	}
	err := e.send(ctx, b.Inputs+".", b.Patch.Set, func(wired any) error {
		return e.work(ctx, "cross", nil, b, wired, list(b.Patch.Delete), list(b.Patch.Alias))
	})
	if err == nil {
		e.funcs.TakeBack(b.Gone()...)
	}
	return err
}
