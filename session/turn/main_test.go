//go:build linux

package turn_test

import (
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv(sleeps) != "" {
		time.Sleep(10 * time.Minute)
		os.Exit(1)
	}
	if dir := os.Getenv(envVictim); dir != "" {
		victim(dir)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
