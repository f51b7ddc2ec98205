package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// MaxCalls is how many calls of functions a session has under way, at most.
const MaxCalls = 1024

// Functions are the functions of this process that the program of one session can call, each by a number that no other one of the session ever gets.
// The zero value is ready.
type Functions struct {
	mu   sync.Mutex // guards what follows
	last int64
	byID map[int64]function
}

// function is one that was set with a global, or with a key of one: "tools.search" then.
type function struct {
	global string
	call   Func
}

// errTaken is what a program gets that calls a function which was set anew, or deleted.
var errTaken = errors.New("the host has taken this function back")

// Wired is a value on its way into a program: JSON, with null where functions are to be put.
type Wired struct {
	JSON  json.RawMessage `json:"value"`
	Funcs []WiredFunc     `json:"funcs,omitempty"`
}

// WiredFunc says where a function is: by keys of objects, none for the value itself.
type WiredFunc struct {
	Path []string `json:"path"`
	ID   int64    `json:"id"`

	call Func
}

// Wire makes values ready for a program, and their functions callable. The caller calls done when they have been set, with the error of that: it takes back the functions that were
// there before, or the new ones. prefix goes before the names of globals, where values are keys of one.
func (f *Functions) Wire(l Limits, language, prefix string, values map[string]any) (wired map[string]Wired, done func(error), err error) {
	wired = map[string]Wired{}
	for name, value := range values {
		var w Wired
		w.JSON, err = l.Marshal(language, w.strip(value, nil))
		if err != nil {
			return nil, nil, errs.Wrap(errs.Usage, opRun, prefix+name, err)
		}
		wired[name] = w
	}
	fresh := map[int64]bool{}
	for name, w := range wired {
		for i := range w.Funcs {
			w.Funcs[i].ID = f.add(prefix+name, w.Funcs[i].call)
			fresh[w.Funcs[i].ID] = true
		}
	}
	names := slices.Collect(maps.Keys(wired))
	for i := range names {
		names[i] = prefix + names[i]
	}
	return wired, f.settler(names, fresh), nil
}

// Add makes one function callable, as that of a global. done is as in Wire.
func (f *Functions) Add(global string, call Func) (id int64, done func(error)) {
	id = f.add(global, call)
	return id, f.settler([]string{global}, map[int64]bool{id: true})
}

func (f *Functions) add(global string, call Func) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	if f.byID == nil {
		f.byID = map[int64]function{}
	}
	f.byID[f.last] = function{global, call}
	return f.last
}

// settler gives what takes back the old functions of globals, or the fresh ones.
func (f *Functions) settler(globals []string, fresh map[int64]bool) func(error) {
	return func(err error) {
		f.remove(globals, func(id int64) bool { return fresh[id] != (err == nil) })
	}
}

// TakeBack makes the functions of globals impossible to call.
func (f *Functions) TakeBack(globals ...string) { f.remove(globals, func(int64) bool { return true }) }

func (f *Functions) remove(globals []string, which func(id int64) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.byID, func(id int64, have function) bool {
		return which(id) && slices.ContainsFunc(globals, func(g string) bool {
			return have.global == g || strings.HasPrefix(have.global, g+".")
		})
	})
}

// Call calls a function by its number and gives its result as JSON. A panic becomes an error: it must not end what has nothing to do with it.
func (f *Functions) Call(ctx context.Context, l Limits, language string, id int64, args []json.RawMessage) (result json.RawMessage, err error) {
	f.mu.Lock()
	have, ok := f.byID[id]
	f.mu.Unlock()
	if !ok {
		return nil, errTaken
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the function panicked: %v", r)
		}
	}()
	v, err := have.call(ctx, args)
	if err != nil {
		return nil, err
	}
	return l.Marshal(language, v)
}

// strip gives v without its functions, which it notes.
func (w *Wired) strip(v any, path []string) any {
	switch v := v.(type) {
	case Func:
		w.Funcs = append(w.Funcs, WiredFunc{Path: append([]string{}, path...), call: v})
		return nil
	case func(context.Context, []json.RawMessage) (any, error):
		return w.strip(Func(v), path)
	case map[string]any:
		if v == nil {
			return nil
		}
		bare := make(map[string]any, len(v))
		for key, value := range v {
			bare[key] = w.strip(value, append(path, key))
		}
		return bare
	}
	return v
}
