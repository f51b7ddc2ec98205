// Package strategytest is the conformance test that every tier must pass: all of them give identical results.
package strategytest

import (
	"testing"

	"github.com/hyperfs/hyperfs/strategy"
)

// New opens the tier under test, with no preimages in it. dir is a directory on the workspace's filesystem for files of
// the test; kept is the one where the tier keeps its preimages, each a file under its name.
type New func(t *testing.T) (s strategy.Strategy, dir, kept string)

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
				c.run(&bench{T: t, s: s, dir: dir, kept: kept})
			})
		}
	}
}

type testCase struct {
	name string // a sentence
	run  func(b *bench)
}
