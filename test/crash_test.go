package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/test/treefs"
)

// The environment variables that make this test binary a victim instead of running tests.
const (
	envVictim      = "HYPERFS_TEST_VICTIM"       // the directory of its life
	envVictimSeed  = "HYPERFS_TEST_VICTIM_SEED"  //
	envVictimSteps = "HYPERFS_TEST_VICTIM_STEPS" // 0 means: only open the workspace, as after a kill
)

// victim works on a life until it is done or killed. It is a process of its own.
func victim(dir string) error {
	seed, err := strconv.ParseUint(os.Getenv(envVictimSeed), 10, 64)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(os.Getenv(envVictimSteps))
	if err != nil {
		return err
	}
	sub, err := openLife(dir, seed)
	if err != nil {
		return err
	}
	if n == 0 {
		return sub.Close()
	}
	l, err := begin(dir, sub)
	if err != nil {
		return err
	}
	if err := l.run(seed, n); err != nil {
		l.note(lineFailed, strings.ReplaceAll(err.Error(), "\n", " | "))
		return err
	}
	passes, err := json.Marshal(crash.Passes())
	if err != nil {
		return err
	}
	return errors.Join(sub.Close(), os.WriteFile(filepath.Join(dir, "passes"), passes, 0o600))
}

// openLife opens the workspace of a life.
func openLife(dir string, seed uint64) (subject, error) {
	names := treefs.Options{KeepNames: seed%2 == 0, Direct: seed%4 < 2}
	return newTreeSubject(filepath.Join(dir, "workspace"), treeOptions{Options: names, Tier: lifeTiers[seed%uint64(len(lifeTiers))], Large: seed%3 > 0})
}

// lifeTiers are what a life goes through: it finds preimages of one tier when it is opened with another, and those of the hot buffer without it.
var lifeTiers = []string{"posix-link", "auto", "pure-manifest hot", "pure-manifest", "auto hot"}

// newLife makes the directory of a life. It is in memory where it can be: a kill loses nothing there either.
func newLife(t *testing.T) string {
	t.Helper()
	dir := memory(t)
	ws := filepath.Join(dir, "workspace")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := seedTree(ws); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start starts a victim. env is added to its environment.
func start(t *testing.T, dir string, seed uint64, steps int, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envVictim+"="+dir, envVictimSteps+"="+strconv.Itoa(steps),
		envVictimSeed+"="+strconv.FormatUint(seed, 10))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// ended waits for a victim and reports whether it was killed. Any other end than that and success is a defect.
func ended(t *testing.T, cmd *exec.Cmd) (killed bool) {
	t.Helper()
	err := within(2*hangAfter, cmd.Wait)
	if err == nil {
		return false
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		_ = cmd.Process.Kill()
		t.Fatalf("the victim ended by itself: %v", err)
	}
	return true
}

// prove checks everything that must hold after a kill, and makes the life ready for the next one. open opens its workspace.
func prove(t *testing.T, dir string, open func() (subject, error)) {
	t.Helper()
	w, err := readWreck(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.checkWorkspace(); err != nil {
		t.Fatal(err)
	}
	before, err := lowerState(w.path("workspace"))
	if err != nil {
		t.Fatal(err)
	}
	sub, err := open()
	if err != nil {
		t.Fatalf("open after the kill: %v", err)
	}
	if err := errors.Join(w.checkRecovered(sub, before), w.settle(sub), within(hangAfter, sub.Close)); err != nil {
		t.Fatal(err)
	}
}

// enough fails a test that has killed less than it was to: then it has not tried what it says it proves. Up to a sixth may be
// missing, as a victim can be done before its time comes.
func enough(t *testing.T, killed, wanted int) {
	t.Helper()
	t.Logf("%d kills", killed)
	if killed < wanted-wanted/6 && !t.Failed() {
		t.Errorf("%d were killed, want %d", killed, wanted)
	}
}

// victimSteps is how long a victim works if nobody kills it.
const victimSteps = 150

// passesOf gives how often a victim that is not killed passes each point.
func passesOf(t *testing.T, seed uint64) map[string]int {
	t.Helper()
	dir := newLife(t)
	if ended(t, start(t, dir, seed, victimSteps, crash.EnvTrace+"=1")) {
		t.Fatal("the victim was killed by somebody else")
	}
	data, err := os.ReadFile(filepath.Join(dir, "passes"))
	if err != nil {
		t.Fatal(err)
	}
	passes := map[string]int{}
	if err := json.Unmarshal(data, &passes); err != nil {
		t.Fatal(err)
	}
	return passes
}

func TestCrashAtEveryPointLosesNothing(t *testing.T) {
	t.Parallel()
	seed := uint64(4)
	repeat(t, 20, func() {
		killed, wanted := 0, kills(t, 60)
		for range 4 { // not every life passes every point as often as it is to die there
			if killed < wanted && !t.Failed() {
				killed += killEverywhere(t, seed, wanted-killed)
				seed++
			}
		}
		enough(t, killed, wanted)
	})
}

// killEverywhere kills about n lives of one seed, at all points that they pass, and gives how many died.
func killEverywhere(t *testing.T, seed uint64, n int) (killed int) {
	passes := passesOf(t, seed)
	var points []string
	for p := range passes {
		points = append(points, p)
	}
	sort.Strings(points)
	if len(points) == 0 {
		t.Fatal("no point was passed")
	}
	each := (n + len(points) - 1) / len(points)
	for _, point := range points {
		for i := range min(each, passes[point]) {
			nth := 1 + i*passes[point]/each
			at := fmt.Sprintf("%s:%d", point, nth)
			t.Run(at, func(t *testing.T) {
				dir := newLife(t)
				if !ended(t, start(t, dir, seed, victimSteps, crash.EnvAt+"="+at)) {
					return // work in the background does not pass every point equally often
				}
				killed++
				recoverTwice(t, dir, seed, i)
				prove(t, dir, func() (subject, error) { return openLife(dir, seed) })
			})
		}
	}
	return killed
}

// recoverTwice kills the first start after a kill too, at some point of the recovery.
func recoverTwice(t *testing.T, dir string, seed uint64, i int) {
	t.Helper()
	at := []string{"", "rollback-aside:1", "rollback-put:1", "rollback-inode:1", "rollback-applied:1"}[i%5]
	if at != "" {
		ended(t, start(t, dir, seed, 0, crash.EnvAt+"="+at))
	}
}

func TestCrashAtRandomUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	const perLife = 6
	r := rand.New(rand.NewPCG(seed(t), 0))
	i := 0
	repeat(t, 60, func() {
		killed := 0
		for range (kills(t, 30) + perLife - 1) / perLife {
			i++
			t.Run(strconv.Itoa(i), func(t *testing.T) { killed += killAtRandom(t, r, perLife) })
		}
		enough(t, killed, kills(t, 30))
	})
}

// killAtRandom lives one life that is cut n times, and gives how often it died of that.
func killAtRandom(t *testing.T, r *rand.Rand, n int) (killed int) {
	dir := newLife(t)
	for range n {
		seed := r.Uint64N(1 << 40)
		t.Logf("seed %d", seed)
		_ = os.Remove(filepath.Join(dir, "journal"))
		cmd := start(t, dir, seed, 1<<20)
		waitForWork(t, dir)
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
		_ = cmd.Process.Kill()
		if ended(t, cmd) {
			killed++
		}
		prove(t, dir, func() (subject, error) { return openLife(dir, seed) })
	}
	return killed
}

// waitForWork returns when the victim has done something.
func waitForWork(t *testing.T, dir string) {
	t.Helper()
	err := within(hangAfter, func() error {
		for {
			if st, err := os.Stat(filepath.Join(dir, "journal")); err == nil && st.Size() > 0 {
				return nil
			}
			time.Sleep(time.Millisecond)
		}
	})
	if err != nil {
		t.Fatal("the victim does nothing")
	}
}
