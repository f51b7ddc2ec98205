package wine

import (
	"fmt"
	"os"
	"os/signal"
	"testing"
	"time"
)

// envInterrupted makes this test binary a program that damages the file that it names, waits for an interrupt and ends with 3.
// run.sh runs it so: only who holds the terminal can send one.
const envInterrupted = "HYPERFS_TEST_INTERRUPTED"

func TestMain(m *testing.M) {
	if name := os.Getenv(envInterrupted); name != "" {
		os.Exit(waitForInterrupt(name))
	}
	os.Exit(m.Run())
}

func waitForInterrupt(name string) int {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, os.Interrupt)
	if err := os.WriteFile(name, []byte("damaged"), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {
	case <-ch:
		return 3
	case <-time.After(30 * time.Second):
		return 4
	}
}
