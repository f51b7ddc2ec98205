// Package strategytest is the conformance test that every tier must pass: all of them give identical results.
package strategytest

import (
	"testing"

	"github.com/hyperfs/hyperfs/strategy"
)

// New opens the tier under test, with no preimages in it. dir is a directory on the workspace's filesystem for files of
// the test.
type New func(t *testing.T) (s strategy.Strategy, dir string, kept Kept)

// Kept is where a tier keeps its preimages.
type Kept struct {
	Dir string
	// Place gives the file that a preimage is in, and where in it. nil means that each is a file in Dir, under its name.
	Place func(ref strategy.Ref) (path string, off int64)
}

// Run runs the conformance test, each case on a tier that open has made.
func Run(t *testing.T, open New) {
	for _, group := range [][]testCase{contentCases, saveCases, materializeCases, damageCases, namesCases, sumCases} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				s, dir, kept := open(t)
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				})
				c.run(&bench{T: t, s: s, dir: dir, kept: kept, open: open})
			})
		}
	}
}

type testCase struct {
	name string // a sentence
	run  func(b *bench)
}
