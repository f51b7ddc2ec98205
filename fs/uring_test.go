package fs_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/fs/uring"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// needURing skips a test where the kernel has no FUSE over io_uring or has it switched off, which only root can change and `make uring` does.
func needURing(t *testing.T) {
	t.Helper()
	if why := uring.Enabled(); why != "" {
		if os.Getenv("HYPERFS_TEST_URING") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
}

func TestRequestsComeByURing(t *testing.T) {
	needURing(t)
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprint("switched off: ", off), func(t *testing.T) {
			m := mount(t, fs.Options{InPlace: true, NoURing: off, OpenRequests: true})
			if f := m.server.Features(); f.URing == off || off != (f.URingReason != "") {
				t.Errorf("it is used: %v; why not: %q", f.URing, f.URingReason)
			}
			m.write(t, "f", "content")
			got, err := os.ReadFile(m.path("f"))
			if err != nil || string(got) != "content" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestWithoutURingTheReasonIsSaid(t *testing.T) {
	why := uring.Enabled()
	if why == "" {
		why = "only where the kernel asks for opens"
		t.Setenv("HYPERFS_TEST_URING", "")
	}
	if f := mount(t, fs.Options{InPlace: true}).server.Features(); f.URing || !strings.Contains(f.URingReason, why) {
		t.Errorf("used: %v; %q, want %q", f.URing, f.URingReason, why)
	}
}

// gatedShelf has no branches, and says so when the gate is opened.
type gatedShelf struct {
	*testShelf
	gate    chan struct{}
	waiting atomic.Int32
}

func (s *gatedShelf) Branch(name string) (overlay.Volume, func(), error) {
	s.waiting.Add(1)
	<-s.gate
	return s.testShelf.Branch(name)
}

// TestRequestsThatWaitDelayNoOthers has more of them than a queue has threads at the beginning.
func TestRequestsThatWaitDelayNoOthers(t *testing.T) {
	const many = 100
	s := &gatedShelf{testShelf: newTestShelf(), gate: make(chan struct{})}
	m := mount(t, fs.Options{InPlace: true, Shelf: s})
	open := sync.OnceFunc(func() { close(s.gate) })
	defer open()
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			if _, err := os.Stat(m.path(overlay.StoreName, "branches", fmt.Sprint(i))); !errors.Is(err, unix.ENOENT) {
				t.Error(err)
			}
		})
	}
	eventually(t, "all are waiting", func() bool { return s.waiting.Load() == many })
	for i := range 50 {
		m.write(t, fmt.Sprint("f", i), "content")
	}
	open()
	wg.Wait()
	must(t, m.server.Unmount(false))
}

// TestADaemonThatDiesInTheMiddleEndsItsRequests kills it while programs are at work.
func TestADaemonThatDiesInTheMiddleEndsItsRequests(t *testing.T) {
	dir := t.TempDir()
	daemon := startHelper(t, 0, "daemon", dir, dir)
	var wg sync.WaitGroup
	var made atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				f, err := os.Create(fmt.Sprintf("%s/%d-%d", dir, i, n))
				if err != nil {
					if !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.ECANCELED) {
						t.Error(err)
					}
					return
				}
				f.Close()
				made.Add(1)
			}
		})
	}
	eventually(t, "files are made", func() bool { return made.Load() > 500 })
	must(t, daemon.Process.Kill())
	_ = daemon.Wait()
	wg.Wait()
	if cleaned, err := fs.CleanDeadMount(dir); !cleaned || err != nil {
		t.Fatal(cleaned, err)
	}
}
