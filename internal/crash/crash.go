// Package crash lets a test kill the process at a named point of the code, as the kernel's out-of-memory killer or a
// user's kill -9 would.
//
// Code under test calls Point where an interruption is interesting: before and after each step whose order matters for
// recovery. Unless the environment asks for it, a Point costs one load and one branch.
//
// The environment variable HYPERFS_CRASH_AT has the form "name:N": the process sends itself SIGKILL when it passes the point
// of that name for the Nth time, N counting from 1. "name" alone means "name:1". The variable HYPERFS_CRASH_TRACE, if it is
// set to anything, makes Passes count, so that a test can find out which points a workload passes and how often.
package crash

import (
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
)

// The environment variables that switch this package on.
const (
	EnvAt    = "HYPERFS_CRASH_AT"
	EnvTrace = "HYPERFS_CRASH_TRACE"
)

// on is false in every process that no test has prepared. It is not changed after init, except by this package's own tests.
var on bool

// target is the point to die at; empty means none.
var target struct {
	name string
	nth  int
}

var (
	mu     sync.Mutex     // guards passes
	passes map[string]int // how often each point was passed
)

func init() { configure(os.Getenv(EnvAt), os.Getenv(EnvTrace)) }

// configure reads the two variables. A number that isn't one counts as 1: a test that misspells it dies early, not never.
func configure(at, trace string) {
	on = at != "" || trace != ""
	target.name, target.nth = at, 1
	if name, n, ok := strings.Cut(at, ":"); ok {
		target.name = name
		if nth, err := strconv.Atoi(n); err == nil {
			target.nth = nth
		}
	}
	passes = make(map[string]int)
}

// Point marks a place where the process may be killed. It may be called by any goroutine, under any lock.
func Point(name string) {
	if on {
		pass(name)
	}
}

func pass(name string) {
	mu.Lock()
	passes[name]++
	n := passes[name]
	mu.Unlock()
	if name == target.name && n == target.nth {
		die()
	}
}

// Passes tells how often each point was passed so far. It is empty in a process that no test has prepared.
func Passes() map[string]int {
	mu.Lock()
	defer mu.Unlock()
	return maps.Clone(passes)
}
