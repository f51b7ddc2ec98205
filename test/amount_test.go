package test

import (
	"hash/crc32"
	"os"
	"strconv"
	"testing"
	"time"
)

// The environment variables that say how much random work is to be done.
const (
	envSteps = "HYPERFS_STEPS" // operations of the differential tests, in all
	envKills = "HYPERFS_KILLS" // kills of the crash tests, in all
	envSoak  = "HYPERFS_SOAK"  // a duration, which the differential and the crash tests fill each; the numbers don't count then
)

// amount gives the number in the environment variable, or the default, shortened by -short.
func amount(t *testing.T, env string, n int) int {
	t.Helper()
	if text := os.Getenv(env); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", env, err)
		}
	}
	if testing.Short() {
		n /= 10
	}
	return n
}

// steps is how many operations a test with the given share (percent) of all has to make.
func steps(t *testing.T, share int) int {
	t.Helper()
	return max(amount(t, envSteps, 4_000)*share/100, sequenceSteps)
}

// share is how much a test does that is also run without the race detector: there, where a step takes a third of the time, it makes most of them.
func share(withRace, without int) int {
	if raceEnabled {
		return withRace
	}
	return without
}

// kills is how many kills a test with the given share (percent) of all makes.
func kills(t *testing.T, share int) int {
	t.Helper()
	return max(amount(t, envKills, 90)*share/100, 1)
}

// seed begins what is random in a test. With CI=true it is always the same for one test, so that no change is blamed for what
// another one has done; only a soak goes further there.
func seed(t *testing.T) uint64 {
	if os.Getenv("CI") == "true" && os.Getenv(envSoak) == "" {
		return uint64(crc32.ChecksumIEEE([]byte(t.Name())))
	}
	return uint64(time.Now().UnixNano())
}

// repeat calls fn once, or with HYPERFS_SOAK as often as the given share (percent) of that time allows, until the test fails.
func repeat(t *testing.T, share int, fn func()) {
	t.Helper()
	start := time.Now()
	var soak time.Duration
	if text := os.Getenv(envSoak); text != "" {
		var err error
		if soak, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", envSoak, err)
		}
	}
	for {
		fn()
		if t.Failed() || time.Since(start) >= soak*time.Duration(share)/100 {
			return
		}
	}
}
