//go:build race

package test

// raceEnabled says that the race detector watches.
const raceEnabled = true
