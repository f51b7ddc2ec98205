package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/crash"
)

func TestCrashOfTheDaemonLosesNothing(t *testing.T) {
	t.Parallel()
	needMount(t)
	const perLife = 4
	r := rand.New(rand.NewPCG(seed(t), 0))
	var points []string
	for p := range passesOf(t, 4) {
		points = append(points, p)
	}
	slices.Sort(points)
	i := 0
	repeat(t, 20, func() {
		killed := 0
		for range (kills(t, 10) + perLife - 1) / perLife {
			i++
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				dir := newLife(t)
				for k := range perLife {
					at := ""
					if k%2 == 0 {
						at = fmt.Sprintf("%s:%d", points[r.IntN(len(points))], 1+r.IntN(8))
					}
					killDaemon(t, dir, r.Uint64N(1<<40), at, time.Duration(200+r.IntN(800))*time.Millisecond)
					killed++
				}
			})
		}
		enough(t, killed, kills(t, 10))
	})
}

// killDaemon works on a life through a mount until the daemon dies: at a point if one is given, and in any case after a while. Then
// it proves that nothing is lost.
func killDaemon(t *testing.T, dir string, seed uint64, at string, while time.Duration) {
	t.Helper()
	t.Logf("seed %d, at %q", seed, at)
	var o mountOptions
	o.flags = append(o.flags, opensFlags(uint32(seed))...)
	if seed%3 > 0 {
		o.flags = append(o.flags, "--large-min", strconv.Itoa(lowLargeMin), "--block-size", strconv.Itoa(lowBlockSize))
	}
	o.plain = seed%8 != 0 // the race detector makes it several times as slow
	if at != "" {
		o.env = append(o.env, crash.EnvAt+"="+at)
	}
	_ = os.Remove(filepath.Join(dir, "journal"))
	if sub, err := newMountSubject(filepath.Join(dir, "workspace"), o); err == nil {
		workUntilDeath(t, dir, sub, seed, while)
	} else if at == "" {
		t.Fatal(err)
	} else { // it may have died while it opened the store
		if err := detach(filepath.Join(dir, "workspace")); err != nil {
			t.Fatal(err)
		}
	}
	prove(t, dir, func() (subject, error) {
		return newMountSubject(filepath.Join(dir, "workspace"), mountOptions{flags: o.flags, plain: o.plain})
	})
}

func workUntilDeath(t *testing.T, dir string, sub *mountSubject, seed uint64, while time.Duration) {
	t.Helper()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for { // more than once: the workload starts the daemon again now and then
			select {
			case <-ended:
				return
			case <-time.After(while):
				sub.strike()
				while = 20 * time.Millisecond
			}
		}
	}()
	l, err := begin(dir, sub)
	if err == nil {
		err = within(hangAfter, func() error { return l.run(seed, 1<<20) })
	}
	alive := sub.alive()
	for i := 0; alive && i < 200; i++ { // what fails because it is dying may be heard of before it is dead
		time.Sleep(10 * time.Millisecond)
		alive = sub.alive()
	}
	if e := sub.kill(); e != nil {
		t.Fatal(e)
	}
	if alive {
		t.Fatalf("the workload ended by itself: %v", err)
	}
}
