package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// needPassthrough fails where the machine should have passthrough and has not.
func needPassthrough(t *testing.T, m *mounted) {
	t.Helper()
	if f := m.server.Features(); !f.Passthrough {
		lacking(t, "no passthrough: "+f.PassthroughReason)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 2000 {
		if holds() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("did not happen: " + what)
}

func (m *mounted) snapshot(t testing.TB) string {
	t.Helper()
	c, err := m.w.Snapshot(t.Context(), overlay.SnapshotOptions{})
	must(t, err)
	return c.ID
}

func (m *mounted) rollback(t testing.TB, id string) {
	t.Helper()
	_, err := m.w.Rollback(t.Context(), id, overlay.RollbackOptions{})
	must(t, err)
}

// modeOf sets up a file whose opens are served in one way or the other.
type modeOf struct {
	name string
	path func(t *testing.T, m *mounted) string
}

// bothModes are a file that is opened past the daemon, and one that is too large to copy at the open and was there before the
// newest checkpoint, so that its writes have to go through the daemon.
var bothModes = []modeOf{
	{"passthrough", func(t *testing.T, m *mounted) string { return m.write(t, "small", "0123456789") }},
	{"cached", func(t *testing.T, m *mounted) string {
		p := m.path("large")
		must(t, os.WriteFile(p, make([]byte, 3<<20), 0o644))
		m.snapshot(t)
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		must(t, err)
		t.Cleanup(func() { f.Close() }) // decides the mode of all that follow
		return p
	}},
}

func TestOpensOfOneFileInAnyOrderShareTheirMode(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Passthrough: true})
	needPassthrough(t, m)
	flags := []int{os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDWR | unix.O_DIRECT}
	for _, mode := range bothModes {
		t.Run(mode.name, func(t *testing.T) {
			p := mode.path(t, m)
			for i := range flags {
				var open []*os.File
				for j := range flags {
					f, err := os.OpenFile(p, flags[(i+j)%len(flags)], 0)
					must(t, err)
					open = append(open, f)
				}
				open[0].Close()
				f, err := os.Open(p)
				must(t, err)
				f.Close()
				for _, f := range open[1:] {
					f.Close()
				}
			}
		})
	}
}

func TestALargeFileThatWasLookedIntoIsKeptByBlocks(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Passthrough: true})
	needPassthrough(t, m)
	p := m.path("large")
	must(t, os.WriteFile(p, make([]byte, 3<<20), 0o644))
	m.snapshot(t)
	past := func() uint64 { return m.server.Counts()["passthrough_open"] }
	for _, reader := range []struct {
		name  string
		stays bool
	}{{"a reader that closes it", false}, {"a reader that stays", true}} {
		t.Run(reader.name, func(t *testing.T) {
			r, err := os.Open(p)
			must(t, err)
			defer r.Close()
			before, gone := past(), make(chan struct{})
			go func() {
				defer close(gone)
				if !reader.stays {
					time.Sleep(time.Millisecond)
					r.Close()
				}
			}()
			w, err := os.OpenFile(p, os.O_RDWR, 0)
			must(t, err)
			defer w.Close()
			<-gone
			if got := past() - before; got != map[bool]uint64{true: 1}[reader.stays] {
				t.Errorf("%d opens for writing go past the daemon", got)
			}
		})
		eventually(t, "it is closed", func() bool { return m.server.OpenInodes() == 0 })
	}
}

func TestAFileChangesItsModeWhenItIsClosed(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Passthrough: true})
	needPassthrough(t, m)
	p := m.write(t, "f", "a")
	for i := range 20 {
		must(t, os.WriteFile(p, fmt.Appendf(nil, "content %d", i), 0o644))
		m.snapshot(t)
		got, err := os.ReadFile(p)
		must(t, err)
		if want := fmt.Sprintf("content %d", i); string(got) != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		must(t, os.Truncate(p, 2<<20)) // past the size that is copied at an open
		m.snapshot(t)
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("large"), 0)
		must(t, err)
		f.Close()
	}
}

func TestReadsAfterAWritePastTheDaemonSeeIt(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Passthrough: true})
	needPassthrough(t, m)
	p := m.write(t, "f", "content 0")
	for i := range 50 {
		got, err := os.ReadFile(p) // small: its pages are cached
		must(t, err)
		if want := fmt.Sprintf("content %d", i); string(got) != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt(fmt.Appendf(nil, "content %d", i+1), 0)
		must(t, err)
		must(t, f.Close())
	}
}

func TestSharedMappingsOfTwoOpensSeeEachOther(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		p := m.write(t, "f", "0123456789")
		a, b := mapShared(t, p, 10), mapShared(t, p, 10)
		populate(t, a)
		populate(t, b)
		a[0], b[9] = 'A', 'B'
		if string(a) != "A12345678B" || string(b) != string(a) {
			t.Fatalf("got %q and %q", a, b)
		}
		must(t, unix.Msync(a, unix.MS_SYNC))
		if got, err := os.ReadFile(p); err != nil || string(got) != "A12345678B" {
			t.Fatalf("got %q, %v", got, err)
		}
	})
}

// mapShared maps a file for writing and closes it.
func mapShared(t *testing.T, path string, size int) []byte {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// populate has the pages of a mapping read by a system call. A page fault would keep the Go runtime from stopping
// the thread that it happens on, and the daemon, which is of the same process here, might have to wait for just that.
func populate(t *testing.T, b []byte) {
	t.Helper()
	must(t, unix.Madvise(b, unix.MADV_POPULATE_WRITE))
}

// A mapping of a passthrough file goes on after the kernel has released the file, and the daemon sees neither it nor its writes.
func TestSnapshotHoldsAgainstAMappingWhoseFileIsClosed(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		p := m.write(t, "f", "0123456789")
		b := mapShared(t, p, 10)
		populate(t, b)
		b[0] = 'A'
		time.Sleep(50 * time.Millisecond) // the release arrives
		id := m.snapshot(t)
		populate(t, b)
		b[1] = 'B'
		m.rollback(t, id)
		got, err := os.ReadFile(p)
		must(t, err)
		if string(got) != "A123456789" {
			t.Fatalf("got %q", got)
		}
	})
}

func TestHandlesOfMappingsEndWithThem(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Passthrough: true})
	needPassthrough(t, m)
	p := m.write(t, "f", "0123456789")
	eventually(t, "the write's handle is released", func() bool { return m.w.Diagnostics().Handles == 0 })
	fd, err := unix.Open(p, unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	b, err := unix.Mmap(fd, 0, 10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	must(t, unix.Close(fd))
	time.Sleep(50 * time.Millisecond)
	if n := m.w.Diagnostics().Handles; n != 1 {
		t.Errorf("%d handles while it is mapped, want 1", n)
	}
	must(t, unix.Munmap(b))
	eventually(t, "the mapping's handle is released", func() bool { return m.w.Diagnostics().Handles == 0 })
}

// What was open for writing alone cannot have been mapped: its end is the end of all writes, whoever else has the file underneath open.
func TestAFileThatCannotBeMappedDoesNotLinger(t *testing.T) {
	m := mount(t, fs.Options{})
	needPassthrough(t, m)
	must(t, os.WriteFile(filepath.Join(m.workspace, "f"), []byte("0123456789"), 0o644))
	reader, err := os.Open(filepath.Join(m.workspace, "f")) // as a mapping would, it keeps a lease from being granted
	must(t, err)
	defer reader.Close()
	f, err := os.OpenFile(m.path("f"), os.O_WRONLY, 0)
	must(t, err)
	must(t, f.Close())
	eventually(t, "the writer's handle is released", func() bool { return m.w.Diagnostics().Handles == 0 })
	f, err = os.OpenFile(m.path("f"), os.O_RDWR, 0)
	must(t, err)
	must(t, f.Close())
	time.Sleep(50 * time.Millisecond)
	if n := m.w.Diagnostics().Handles; n != 1 {
		t.Errorf("%d handles after it was open for reading and writing, want 1", n)
	}
	must(t, reader.Close())
	eventually(t, "that handle is released too", func() bool { return m.w.Diagnostics().Handles == 0 })
}

// The last one who closes the file cannot have mapped it, but somebody before has.
func TestAMappingLastsLongerThanWritersThatCannotMap(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Passthrough: true})
	needPassthrough(t, m)
	p := m.write(t, "f", "0123456789")
	writer, err := os.OpenFile(p, os.O_WRONLY, 0)
	must(t, err)
	b := mapShared(t, p, 10)
	time.Sleep(50 * time.Millisecond) // the release arrives
	must(t, writer.Close())
	time.Sleep(50 * time.Millisecond)
	if n := m.w.Diagnostics().Handles; n != 1 {
		t.Errorf("%d handles while it is mapped, want 1", n)
	}
	id := m.snapshot(t)
	populate(t, b)
	b[1] = 'B'
	m.rollback(t, id)
	if got, err := os.ReadFile(p); err != nil || string(got) != "0123456789" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestOverlayfsHasNoPassthrough(t *testing.T) {
	m := mountDir(t, testfs.Overlay(t, nil), fs.Options{InPlace: true, Passthrough: true})
	if f := m.server.Features(); f.Passthrough || f.PassthroughReason == "" {
		t.Fatalf("%+v", f)
	}
	m.write(t, "f", "works")
}

func TestPassthroughCanBeSwitchedOff(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Passthrough: true, NoPassthrough: true})
	m.write(t, "f", "works")
	if n := m.server.Counts()["passthrough_open"]; n != 0 {
		t.Fatalf("%d files are served past the daemon", n)
	}
	if n := m.server.Counts()["write"]; n == 0 {
		t.Fatal("no write came to the daemon")
	}
}
