package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

type running struct{ *exec.Cmd }

func (r running) Wait() error { r.Cmd.Wait(); return fmt.Errorf("%v", r.ProcessState) }
func (r running) Kill()       { r.Process.Kill() }

func TestTry(t *testing.T) {
	for _, k := range []Kind{Node, CPython} {
		start := time.Now()
		s, err := Start(context.Background(), k, "", func(args []string, in, out, e *os.File) (Running, error) {
			c := exec.Command(args[0], args[1:]...)
			c.Stdin, c.Stdout, c.Stderr = in, out, e
			return running{c}, c.Start()
		}, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(k, time.Since(start), len(s.ReservedNames()))
		ctx := context.Background()
		try := func(code string) {
			ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			r, err := s.Execute(ctx, code)
			t.Logf("%s => %s %s %s|%q %q %v %v %v", code, r.Value.Type, r.Value.Value, r.Value.Why, r.Stdout, r.Stderr, r.Cut, r.Duration, err)
		}
		if err := s.SetGlobals(ctx, map[string]any{"add": Func(func(ctx context.Context, a []json.RawMessage) (any, error) {
			return string(a[0]) + string(a[1]), nil
		}), "fail": Func(func(ctx context.Context, a []json.RawMessage) (any, error) { <-ctx.Done(); return nil, ctx.Err() })}); err != nil {
			t.Fatal(err)
		}
		if k == Node {
			for _, c := range []string{"1+1", "await import('./x.mjs').then(m=>m.y)", "await import('fs').then(m => typeof m.readFileSync)"} { try(c) }; for _, c := range []string{"let a = 5; const {b, c: [d]} = {b: 1, c: [2]}; console.log('hi'); class X { y() { return 3 } }; function f() { return new X().y() }; a + b + d + f()",
				"let a = 6\nlet b\nfor (var i = 0; i < 3; i++) {}\nfor (const k of [1]) ;\n[a, b, i, typeof k]", "while(true){}", "a", "await add(1,'x')", "await Promise.all([add(1,2),add(3,4)])", "add(1,2)", "throw new TypeError('no')", "x y", "await import('fs').then(m => typeof m.readFileSync)", "(1+2)*3", "await fail()", "fail().then(()=>1)", "undefined", "new Map()", "require('child_process').execSync('echo child', {stdio:'inherit'}); process.stdin.fd", "return 7", "require('fs').readdirSync('/proc/self/fd').length", "globalThis.big='x'.repeat(5e7); big.length",
				"({e:`${a}`, t: /[/]/.test('/')})", "await null; while(true){}", "a"} {
				try(c)
			}
		} else {
			for _, c := range []string{"try:\n  while True: pass\nexcept BaseException as e: print(repr(e))\n7"} { try(c) }; for _, c := range []string{"a=5\nprint('hi')\nclass X:\n  pass\na", "while True: pass", "a", "add(1,'x')", "add(1, object())", "raise ValueError('no')", "x y", "def f():\n  1/0\nf()", "fail()", "import time; time.sleep(5)", "import subprocess; subprocess.run('echo child; sleep 3', shell=True)", "import os; os.listdir('/proc/self/fd')", "exit()", "10**30", "{1,2}", "a\n", "print(open('/dev/stdin').read()); __name__", "try:\n  while True: pass\nexcept BaseException: pass\n7", "os._exit(4)"} {
				try(c)
			}
		}
		b, err := s.Snapshot(ctx)
		t.Log(b, err)
		t.Log(s.Err())
		t.Log(s.Close(), s.Err())
	}
}
