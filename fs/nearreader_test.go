package fs_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"golang.org/x/sys/unix"
)

// asker makes requests that the kernel always asks the daemon, from one thread.
func asker(dir string, n int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range n {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return err
		}
	}
	return nil
}

// askUntilNear makes requests until the near reader takes them.
func askUntilNear(t *testing.T, m *mounted) {
	t.Helper()
	before, _ := m.server.NearRequests()
	eventually(t, "the near reader takes requests", func() bool {
		must(t, asker(m.dir, 1000))
		now, able := m.server.NearRequests()
		if !able {
			lacking(t, "no near reader: it takes two CPUs, and Linux 6.12")
		}
		return now > before+100
	})
}

func TestANearReaderTakesTheRequestsOfOneProgram(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, NoURing: true})
	askUntilNear(t, m)
	var wg sync.WaitGroup
	for who := range 4 { // each has a share of them, or none
		wg.Go(func() {
			for i := range 100 {
				p := m.path(fmt.Sprint("f", who, "-", i))
				if err := os.WriteFile(p, []byte(p), 0o600); err != nil {
					t.Error(err)
				}
				if got, err := os.ReadFile(p); err != nil || string(got) != p {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
	askUntilNear(t, m)
}

func TestWithoutANearReaderThereIsNone(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, NoURing: true, NoNearReader: true})
	must(t, asker(m.dir, 20000))
	if n, able := m.server.NearRequests(); n != 0 || able {
		t.Errorf("it has taken %d requests; it can: %v", n, able)
	}
}

// TestANearReaderThatGetsNoCPUDelaysNobodyForGood has others take all CPUs, of which it gets next to nothing.
func TestANearReaderThatGetsNoCPUDelaysNobodyForGood(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, NoURing: true})
	askUntilNear(t, m)
	for range 2 * runtime.NumCPU() {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		must(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	for range 2 { // another thread each time
		asked := make(chan error)
		go func() { asked <- asker(m.dir, 2000) }()
		must(t, <-asked)
	}
}

// TestANearReaderEndsWithItsMount unmounts while it waits for a request, and while it waits for its turn.
func TestANearReaderEndsWithItsMount(t *testing.T) {
	for _, idle := range []bool{false, true} {
		m := mount(t, fs.Options{InPlace: true, NoURing: true})
		askUntilNear(t, m)
		if idle {
			before, _ := m.server.NearRequests()
			eventually(t, "others read", func() bool {
				must(t, asker(m.dir, 1))
				after, _ := m.server.NearRequests()
				same := after == before
				before = after
				return same
			})
		}
		must(t, m.server.Unmount(false))
		m.server.Wait()
	}
}

// TestANearReaderFollowsItsProgram has programs that may run on one CPU only, and then on another one only.
func TestANearReaderFollowsItsProgram(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, NoURing: true})
	askUntilNear(t, m)
	var allowed unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &allowed))
	for round := range 2 {
		for cpu := range runtime.NumCPU() {
			if !allowed.IsSet(cpu) {
				continue
			}
			asked := make(chan error)
			go func() {
				runtime.LockOSThread() // for good, as it is bound
				var one unix.CPUSet
				one.Set(cpu)
				err := unix.SchedSetaffinity(0, &one)
				for range 1000 {
					if err == nil && !slices.Contains(idleThreads(t), one) {
						err = asker(m.dir, 1000)
					}
				}
				asked <- err
			}()
			must(t, <-asked)
			var want unix.CPUSet
			want.Set(cpu)
			if got := idleThreads(t); !slices.Contains(got, want) {
				t.Fatalf("round %d: threads of SCHED_IDLE may run on %v, none on %v only", round, got, want)
			}
		}
	}
}

// idleThreads tells where each thread of this process may run that has the policy SCHED_IDLE.
func idleThreads(t *testing.T) (sets []unix.CPUSet) {
	t.Helper()
	tids, err := os.ReadDir("/proc/self/task")
	must(t, err)
	for _, entry := range tids {
		tid, err := strconv.Atoi(entry.Name())
		must(t, err)
		var set unix.CPUSet
		if attr, err := unix.SchedGetAttr(tid, 0); err == nil && attr.Policy == unix.SCHED_IDLE && unix.SchedGetaffinity(tid, &set) == nil {
			sets = append(sets, set)
		}
	}
	return sets
}
