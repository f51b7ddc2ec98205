//go:build linux

package overlay

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTheEarliestThatTheClockMayHaveShown(t *testing.T) {
	const hour = int64(time.Hour)
	for name, c := range map[string]struct {
		then, now clock
		seen      int64
		want      int64
	}{
		"nothing happened":                 {clock{1, 100 * hour}, clock{1, 100 * hour}, 200 * hour, 200 * hour},
		"set back":                         {clock{1, 100 * hour}, clock{1, 97 * hour}, 200 * hour, 197 * hour},
		"set forward":                      {clock{1, 100 * hour}, clock{1, 103 * hour}, 200 * hour, 200 * hour},
		"started since":                    {clock{1, 100 * hour}, clock{2, 201 * hour}, 200 * hour, 200 * hour},
		"started since, with an old clock": {clock{1, 100 * hour}, clock{2, 5 * hour}, 200 * hour, 5 * hour},
		"an earlier version did not say":   {clock{}, clock{1, 5 * hour}, 200 * hour, 200 * hour},
		"two readings of the same clock":   {clock{1, 100 * hour}, clock{1, 100*hour - 1000}, 200 * hour, 200 * hour},
	} {
		if got := c.then.earliest(c.seen, c.now); got != c.want {
			t.Errorf("%s: it is %v, want %v", name, time.Duration(got), time.Duration(c.want))
		}
	}
}

// TestAClockReadOnABusyMachineWasNotSetBack has threads wait for CPUs while they read the clock, which would look like a clock that is ahead.
func TestAClockReadOnABusyMachineWasNotSetBack(t *testing.T) {
	first := readClock()
	var all sync.WaitGroup
	for range 4 * runtime.NumCPU() {
		all.Go(func() {
			for began := time.Now(); time.Since(began) < time.Second; {
				if c := readClock(); first.earliest(0, c) != 0 || c.earliest(0, first) != 0 {
					t.Errorf("read once more it's ahead by %v", time.Duration(c.ahead-first.ahead))
					return
				}
			}
		})
	}
	all.Wait()
}

// TestTheLedgerSaysWhenTheRecordsOfAChangeWereThere as that may be long after the change began.
func TestTheLedgerSaysWhenTheRecordsOfAChangeWereThere(t *testing.T) {
	w, err := Open(Config{Workspace: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.tree.beginChange(); err != nil {
		t.Fatal(err)
	}
	var ready int64
	err = w.tree.record(func(*logTx) error {
		time.Sleep(2 * stirGrain)
		ready = time.Now().UnixNano()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l, last, err := openLedger(w.storeFd)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.f.Close()
	if last < ready {
		t.Errorf("it says %d for a change at %d", last, ready)
	}
}

func TestTheLedgerSaysWhenAChangeBegan(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	reopen := func() (*ledger, int64) {
		l, last, err := openLedger(fd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.f.Close() })
		return l, last
	}
	l, last := reopen()
	if last != 0 {
		t.Errorf("a new one says %d", last)
	}
	for range 3 {
		before := time.Now().UnixNano()
		l.note()
		if _, last := reopen(); last > time.Now().UnixNano() || before > last+int64(stirGrain) {
			t.Errorf("it says %d for a change at %d", last, before)
		}
		time.Sleep(stirGrain / 2)
	}
	name := filepath.Join(dir, ledgerName)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[3] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, last := reopen(); last != 0 {
		t.Errorf("a damaged one says %d", last)
	}
}
