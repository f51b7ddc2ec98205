//go:build !race

package overlay_test

const underRace = false // see race_test.go
