package fs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

func TestASingleReaderTakesTheRequests(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprint("switched off: ", off), func(t *testing.T) {
			m := mount(t, fs.Options{InPlace: true, NoURing: true, NoSingleReader: off})
			if f := m.server.Features(); f.SingleReader == off {
				t.Error("it is used: ", f.SingleReader)
			}
			for i := range 100 { // more than wake the watch
				p := m.write(t, fmt.Sprint("f", i), "content")
				if got, err := os.ReadFile(p); err != nil || string(got) != "content" {
					t.Fatalf("%q, %v", got, err)
				}
			}
		})
	}
}

// gated is a mount where a look for a branch waits until the gate is opened.
func gated(t *testing.T) (m *mounted, s *gatedShelf, open func()) {
	t.Helper()
	s = &gatedShelf{testShelf: newTestShelf(), gate: make(chan struct{})}
	m = mount(t, fs.Options{InPlace: true, NoURing: true, Shelf: s})
	open = sync.OnceFunc(func() { close(s.gate) })
	t.Cleanup(open) // before the mount's
	return m, s, open
}

// TestWhoIsKilledInARequestDelaysNoOthers has the kernel send an INTERRUPT for it.
func TestWhoIsKilledInARequestDelaysNoOthers(t *testing.T) {
	m, s, open := gated(t)
	for i := range 100 {
		m.write(t, fmt.Sprint("before", i), "content")
	}
	cmd := exec.Command("stat", m.path(overlay.StoreName, "branches", "b"))
	must(t, cmd.Start())
	eventually(t, "it waits", func() bool { return s.waiting.Load() == 1 })
	must(t, cmd.Process.Kill())
	for i := range 100 {
		m.write(t, fmt.Sprint("after", i), "content")
	}
	open()
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
		t.Error("it was not killed:", cmd.ProcessState)
	}
}

// TestAnAbortEndsWhatWaits has a forced unmount cut the connection, while one request is worked on and programs make others.
func TestAnAbortEndsWhatWaits(t *testing.T) {
	m, s, open := gated(t) // which needs root, as forcing an unmount does
	dir, err := unix.Open(m.dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := os.Stat(m.path(overlay.StoreName, "branches", "b")); !isCutOff(err) {
			t.Error(err)
		}
	})
	var made atomic.Int64
	for i := range 4 {
		wg.Go(func() {
			if err := makeFiles(dir, i, &made, nil); !isCutOff(err) {
				t.Error(err)
			}
		})
	}
	eventually(t, "one waits, others work", func() bool { return s.waiting.Load() == 1 && made.Load() > 100 })
	_ = unix.Unmount(m.dir, unix.MNT_FORCE) // it is busy, but aborted
	wg.Wait()
	must(t, unix.Close(dir))
	open()
	must(t, m.server.Unmount(false))
}

// TestWhoIsInAMountThatIsTakenAwayIsServed unmounts lazily while programs work below a directory that they have open.
func TestWhoIsInAMountThatIsTakenAwayIsServed(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, NoURing: true})
	var wg sync.WaitGroup
	var made atomic.Int64
	stop := make(chan struct{})
	for i := range 4 {
		dir, err := unix.Open(m.dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		wg.Go(func() {
			defer unix.Close(dir)
			if err := makeFiles(dir, i, &made, stop); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "files are made", func() bool { return made.Load() > 100 })
	must(t, m.server.Unmount(true))
	before := made.Load()
	eventually(t, "more are made", func() bool { return made.Load() > before+100 })
	close(stop)
	wg.Wait()
	m.server.Wait()
}

// isCutOff reports whether an error is that of a connection which has ended.
func isCutOff(err error) bool {
	return errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOTCONN)
}

// makeFiles makes files in a directory, until there is an error or it is to stop.
func makeFiles(dir, who int, made *atomic.Int64, stop <-chan struct{}) error {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return nil
		default:
		}
		fd, err := unix.Openat(dir, fmt.Sprint("f", who, "-", n), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		_ = unix.Close(fd)
		made.Add(1)
	}
}
