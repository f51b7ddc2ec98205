package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/test/ops"
)

// envMinimise is how long operations are left out of a failure to find the few that matter. The default is a minute.
const envMinimise = "HYPERFS_MINIMISE"

func minimiseFor() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(envMinimise)); err == nil {
		return d
	}
	return time.Minute
}

func (p property) minimise(t *testing.T, base, log string) {
	t.Helper()
	minimise(t, log, func(list []ops.Op) error { return p.execute(base, list) })
}

// minimise finds the few operations of a log that are enough for a failure, and saves them beside it.
func minimise(t *testing.T, log string, execute func([]ops.Op) error) {
	list, err := readLog(log)
	if err != nil {
		t.Error(err)
		return
	}
	why := execute(list)
	if why == nil {
		t.Logf("the operations in %s fail only sometimes", log)
		return
	}
	end := time.Now().Add(minimiseFor())
	list = reduce(list, func(rest []ops.Op) bool {
		if time.Now().After(end) {
			return false
		}
		err := execute(rest)
		same := err != nil && symptom(err) == symptom(why)
		if same {
			why = err
		}
		return same
	})
	name := strings.TrimSuffix(log, ".jsonl") + "-min.jsonl"
	if err := saveLog(name, list); err != nil {
		t.Error(err)
	}
	var text strings.Builder
	_ = ops.WriteLog(&text, list[max(len(list)-20, 0):])
	t.Errorf("%d operations are enough, the last of them:\n%s%v\nagain: %s=%s go test ./test -run '%s'",
		len(list), text.String(), why, envReplay, name, t.Name())
}

// symptom is what a failure is like, without the operation and the paths: leaving operations out must not lead to another one.
func symptom(err error) string {
	text := err.Error()
	for strings.HasPrefix(text, "{") { // an operation, in a line of its own
		_, text, _ = strings.Cut(text, "\n")
	}
	text, _, _ = strings.Cut(text, ":")
	return text
}

// reduce leaves out as much of list as it can while fails stays true.
func reduce(list []ops.Op, fails func([]ops.Op) bool) []ops.Op {
	for _, key := range []func(ops.Op) string{func(o ops.Op) string { return o.Branch }, func(o ops.Op) string { return string(o.Kind) }} {
		list = reduceBy(key, list, fails)
	}
	for chunk := len(list) / 2; chunk > 0; {
		smaller := false
		for at := 0; at < len(list); {
			rest := append(append([]ops.Op{}, list[:at]...), list[min(at+chunk, len(list)):]...)
			if fails(rest) {
				list, smaller = rest, true
			} else {
				at += chunk
			}
		}
		if !smaller || chunk > len(list) {
			chunk /= 2
		}
	}
	return list
}

// reduceBy leaves out all operations at once that have one thing in common.
func reduceBy(key func(ops.Op) string, list []ops.Op, fails func([]ops.Op) bool) []ops.Op {
	var keys []string
	for _, o := range list {
		if k := key(o); !slices.Contains(keys, k) && o.Kind != ops.Variant {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		rest := slices.DeleteFunc(slices.Clone(list), func(o ops.Op) bool { return o.Kind != ops.Variant && key(o) == k })
		if fails(rest) {
			list = rest
		}
	}
	return list
}

// hangAfter is when something that takes milliseconds counts as stuck. It is no bound for its speed.
const hangAfter = time.Minute

// errStuck is that something doesn't come back.
var errStuck = errors.New("stuck")

// within calls fn and gives its error, or one with all stacks if it doesn't come back. Then it goes on for ever.
func within(d time.Duration, fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		stacks := make([]byte, 1<<20)
		return fmt.Errorf("%w for %v:\n%s", errStuck, d, stacks[:runtime.Stack(stacks, true)])
	}
}

// execute runs a list of operations in a new world. A panic and a deadlock are errors too.
func (p property) execute(base string, list []ops.Op) error {
	return within(hangAfter/4, func() error { return p.executeHere(base, list) })
}

func (p property) executeHere(base string, list []ops.Op) (err error) {
	variant := uint32(0)
	if len(list) > 0 && list[0].Kind == ops.Variant {
		variant, list = list[0].Flags, list[1:]
	}
	w, err := p.newWorld(base, variant)
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			return // locks may be held
		}
		err = errors.Join(err, w.close())
	}()
	for _, o := range list {
		if err := w.do(o); err != nil {
			return fmt.Errorf("%v\n%w", o, err)
		}
	}
	return w.finish()
}

// replay executes a log instead of random operations.
func (p property) replay(t *testing.T, base, log string) {
	list, err := readLog(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.execute(base, list); err != nil {
		t.Error(err)
		p.minimise(t, base, log)
	}
}

func saveLog(name string, list []ops.Op) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(ops.WriteLog(f, list), f.Close())
}

func readLog(name string) ([]ops.Op, error) {
	f, err := os.Open(filepath.Clean(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ops.ReadLog(f)
}

func TestReduceFindsTheOperationsThatMatter(t *testing.T) {
	var list []ops.Op
	for i := range 100 {
		list = append(list, ops.Op{Kind: ops.Mkdir, N: i})
	}
	got := reduce(list, func(rest []ops.Op) bool {
		found := 0
		for _, o := range rest {
			if o.N == 17 || o.N == 18 || o.N == 80 {
				found++
			}
		}
		return found == 3
	})
	if len(got) != 3 {
		t.Errorf("%d operations are left, want 3: %v", len(got), got)
	}
}
