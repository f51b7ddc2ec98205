// Package test proves hyperfs from end to end: random operations against a plain directory, kills at any instant, real tools on a
// real mount, and the limits of what a filesystem has to bear.
package test

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	os.Setenv("GORACE", "atexit_sleep_ms=10") // its default makes each process that ends take a second
	become(envVictim, victim)
	become(envBranchVictim, branchVictim)
	become(envHands, serveHands)
	become(envWatch, watchAndPrint)
	become(envInBranch, attemptInBranch)
	become(envTurnVictim, turnVictim)
	flag.Parse()
	// Failures are kept as logs of operations, which say more than rapid's own files.
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	code := m.Run()
	checked.remove()
	plain.remove()
	search.remove()
	agentic.remove()
	for _, p := range examples {
		p.remove()
	}
	unchecked.remove()
	os.Exit(code)
}

// become makes this process something else than a test if the environment variable is set, whose value it works on.
func become(env string, fn func(string) error) {
	arg := os.Getenv(env)
	if arg == "" {
		return
	}
	if err := fn(arg); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", env, err)
		os.Exit(1)
	}
	os.Exit(0)
}
