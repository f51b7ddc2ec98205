package devfuse

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestANearWorkerHasTheProgramComeBackBeforeItFollows is the program itself.
func TestANearWorkerHasTheProgramComeBackBeforeItFollows(t *testing.T) {
	runtime.LockOSThread() // for good, as it is bound
	n := &near{worker: &worker{request: make([]byte, sizeOfInHeader)}, stat: -1, kick: nowhere}
	defer n.unfollow()
	if err := unix.SchedGetaffinity(0, &n.allowed); err != nil {
		t.Fatal(err)
	}
	here := 0
	for !n.allowed.IsSet(here) {
		here++
	}
	if err := bind(0, here); err != nil {
		t.Fatal(err)
	}
	n.worker.header().Pid = uint32(unix.Gettid())
	look := func() (kick int) {
		n.looked, n.kick = time.Time{}, nowhere
		n.follow()
		return n.kick
	}
	n.cpu.Store(nowhere)
	if kick := look(); kick != nowhere || n.cpu.Load() != int32(here) {
		t.Fatalf("it is on CPU %d, and kicks %d", n.cpu.Load(), kick)
	}
	elsewhere := int32(here + 1)
	n.cpu.Store(elsewhere)
	for i := range maxKicks {
		if kick := look(); kick != here || n.cpu.Load() != elsewhere {
			t.Fatalf("look %d: it is on CPU %d, and kicks %d", i, n.cpu.Load(), kick)
		}
		if i == 0 { // the program has come back, and left again
			n.cpu.Store(int32(here))
			if kick := look(); kick != nowhere || n.kicks != 0 {
				t.Fatalf("it kicks a program that is where it should be, CPU %d; %d times so far", kick, n.kicks)
			}
			n.cpu.Store(elsewhere)
			if kick := look(); kick != here {
				t.Fatalf("it kicks CPU %d", kick)
			}
		}
	}
	if kick := look(); kick != nowhere || n.cpu.Load() != int32(here) || n.kicks != 0 {
		t.Errorf("in the end it is on CPU %d, and kicks %d; %d times so far", n.cpu.Load(), kick, n.kicks)
	}
}
