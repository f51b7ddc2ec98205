package devfuse

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAKickerRunsWhereItKicks(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	var p Pool
	k, err := p.newKicker()
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(time.Minute)
	for cpu := range 1024 {
		if !allowed.IsSet(cpu) {
			continue
		}
		for where := nowhere; where != cpu; {
			if time.Now().After(end) {
				t.Fatalf("kicking CPU %d, it runs on %d", cpu, where)
			}
			k.kick(cpu)
			time.Sleep(time.Millisecond)
			where = whereIs(t, int(k.tid.Load()))
		}
	}
	k.end()
	p.Wait()
}

// whereIs is the CPU on which a thread of this process ran last, or nowhere if there is no such thread.
func whereIs(t *testing.T, tid int) int {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/stat", tid))
	if err != nil {
		return nowhere
	}
	defer f.Close()
	cpu, err := cpuOf(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return cpu
}
