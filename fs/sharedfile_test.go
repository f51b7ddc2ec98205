package fs_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"golang.org/x/sys/unix"
)

// mountUnasked mounts so that the kernel opens files by itself.
func mountUnasked(t *testing.T) *mounted {
	t.Helper()
	m := mount(t, fs.Options{InPlace: true, NoURing: true})
	if f := m.server.Features(); !f.NoOpen {
		t.Fatal("the kernel asks for opens: " + f.NoOpenReason)
	}
	return m
}

func TestWhatIsCachedIsOpenedAndReadWithoutARequest(t *testing.T) {
	m := mountUnasked(t)
	p := m.write(t, "f", "content")
	read := func() {
		t.Helper()
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0) // os.Open asks for attributes, too
		must(t, err)
		defer unix.Close(fd)
		b := make([]byte, 10)
		if n, err := unix.Read(fd, b); err != nil || string(b[:n]) != "content" {
			t.Fatalf("%q, %v", b[:max(n, 0)], err)
		}
	}
	read()
	before := m.server.Counts()
	for range 10 {
		read()
	}
	after := m.server.Counts()
	for name, n := range after {
		if n != before[name] {
			t.Errorf("%d times %s", n-before[name], name)
		}
	}
}

// Each of these has a file open, and goes on after the daemon has closed its own.
func TestFilesStayOpenWhateverTheDaemonCloses(t *testing.T) {
	cases := []struct {
		name string
		open func(t *testing.T, m *mounted) *os.File
		gone bool // it has no name then
	}{
		{"created", func(t *testing.T, m *mounted) *os.File { return openFile(t, m.path("f"), os.O_RDWR|os.O_CREATE) }, false},
		{"unlinked", func(t *testing.T, m *mounted) *os.File {
			f := openFile(t, m.path("f"), os.O_RDWR|os.O_CREATE)
			must(t, os.Remove(f.Name()))
			return f
		}, true},
		{"old and unlinked", func(t *testing.T, m *mounted) *os.File {
			f := openFile(t, m.path("old"), os.O_RDWR|os.O_TRUNC)
			must(t, os.Remove(f.Name()))
			return f
		}, true},
		{"unlinked after the daemon has closed it", func(t *testing.T, m *mounted) *os.File {
			f := openFile(t, m.path("f"), os.O_RDWR|os.O_CREATE)
			m.server.CloseSharedFiles()
			must(t, os.Remove(f.Name()))
			return f
		}, true},
		{"replaced", func(t *testing.T, m *mounted) *os.File {
			f := openFile(t, m.path("f"), os.O_RDWR|os.O_CREATE)
			must(t, os.Rename(m.write(t, "other", "other"), f.Name()))
			return f
		}, true},
		{"without a name", func(t *testing.T, m *mounted) *os.File { return openFile(t, m.dir, os.O_RDWR|unix.O_TMPFILE) }, true},
		{"of another mode", func(t *testing.T, m *mounted) *os.File {
			f := openFile(t, m.path("f"), os.O_RDWR|os.O_CREATE)
			must(t, f.Chmod(0))
			return f
		}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := mountUnasked(t)
			m.write(t, "old", "old content")
			id := m.snapshot(t)
			f := c.open(t, m)
			if strings.HasPrefix(c.name, "old") { // and what was kept of it goes
				must(t, m.w.Drop(t.Context(), id))
				_, err := m.w.GC(t.Context())
				must(t, err)
			}
			for i, text := range []string{"one", "three"} {
				m.server.CloseSharedFiles()
				if _, err := f.WriteAt([]byte(text), int64(10*i)); err != nil {
					t.Fatal(err)
				}
			}
			m.server.CloseSharedFiles()
			must(t, f.Truncate(13))
			m.server.CloseSharedFiles()
			if st, err := f.Stat(); err != nil || st.Size() != 13 {
				t.Fatalf("%v, %v", st, err)
			}
			must(t, f.Sync())
			got, err := io.ReadAll(io.NewSectionReader(f, 0, 100))
			if want := "one" + strings.Repeat("\x00", 7) + "thr"; err != nil || string(got) != want {
				t.Errorf("%q, %v", got, err)
			}
			again := openFile(t, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR)
			if _, err := again.WriteAt([]byte("x"), 0); err != nil {
				t.Error(err)
			}
			must(t, again.Close())
			must(t, f.Close())
			if c.gone {
				m.server.CloseSharedFiles()
				eventually(t, "nothing is open", func() bool { return m.w.Stats().Handles == 0 })
			}
		})
	}
}

func openFile(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0o644)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestTheDaemonKeepsAFewFilesOpen(t *testing.T) {
	m := mountUnasked(t)
	const count = 700
	var open []*os.File
	for i := range count {
		open = append(open, openFile(t, m.path(fmt.Sprint(i)), os.O_RDWR|os.O_CREATE))
	}
	for round := range 2 {
		for i, f := range open {
			_, err := f.WriteAt(fmt.Appendf(nil, "%d of %d", i, round), 0)
			must(t, err)
		}
	}
	if n := m.server.SharedFiles(); n == 0 || n > 512 {
		t.Errorf("%d files are open", n)
	}
	for i := range count {
		got, err := os.ReadFile(m.path(fmt.Sprint(i)))
		if err != nil || string(got) != fmt.Sprint(i, " of 1") {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

func TestNothingStaysOpenOfAFileThatGotAName(t *testing.T) {
	m := mountUnasked(t)
	for i := range 50 {
		f := openFile(t, m.dir, os.O_RDWR|unix.O_TMPFILE)
		must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, m.path(fmt.Sprint(i)), unix.AT_SYMLINK_FOLLOW))
		must(t, f.Close())
	}
	m.server.CloseSharedFiles()
	if n := m.w.Stats().Handles; n != 0 {
		t.Errorf("%d files are open", n)
	}
}

// A preimage is made when it is needed, and no later: what an open says counts for nothing.
func TestWhatIsOnlyOpenedForWritingIsNotSaved(t *testing.T) {
	m := mountUnasked(t)
	p := m.write(t, "f", "as it was")
	id := m.snapshot(t)
	f := openFile(t, p, os.O_RDWR)
	records := func() (n uint64) {
		for _, p := range m.w.Stats().Preimages {
			n += p.Count
		}
		return n
	}
	if n := records(); n != 0 {
		t.Fatalf("%d preimages", n)
	}
	_, err := f.WriteAt([]byte("IS"), 3)
	must(t, err)
	if n := records(); n != 1 {
		t.Fatalf("%d preimages", n)
	}
	m.rollback(t, id)
	for range 2 { // by the file that is open, and by a new one
		got, err := io.ReadAll(io.NewSectionReader(f, 0, 100))
		if err != nil || string(got) != "as it was" {
			t.Errorf("%q, %v", got, err)
		}
		f = openFile(t, p, os.O_RDONLY)
	}
}

// What is in a mapping is a part of a checkpoint that is made then, whoever else works in the mount, and after the files have been closed.
func TestACheckpointHasWhatWasJustStoredIntoAMapping(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint("busy ", busy), func(t *testing.T) {
			m := mountUnasked(t)
			const size = 64 << 10
			p := m.write(t, "f", strings.Repeat("-", size))
			b := mapShared(t, p, size)
			populate(t, b)
			m.server.CloseSharedFiles()
			end := func() {}
			if busy {
				end = keepBusy(t, m)
			}
			var ids []string
			const rounds = 20
			for i := range rounds {
				for at := 0; at < size; at += 4096 {
					b[at] = byte('a' + i)
				}
				ids = append(ids, m.snapshot(t))
			}
			end()
			for i := rounds - 1; i >= 0; i-- {
				m.rollback(t, ids[i])
				got, err := os.ReadFile(p)
				must(t, err)
				want := bytes.Repeat(append([]byte{byte('a' + i)}, bytes.Repeat([]byte("-"), 4095)...), size/4096)
				if !bytes.Equal(got, want) {
					t.Fatalf("checkpoint %d: %q…", i, got[:1])
				}
			}
		})
	}
}

// TestACheckpointHasWhatWasStoredWhileAFileIsCut has the kernel keep dirty pages back, as it does for as long as it waits for a truncation.
func TestACheckpointHasWhatWasStoredWhileAFileIsCut(t *testing.T) {
	m := mountUnasked(t)
	const size = 64 << 10
	p := m.write(t, "f", strings.Repeat("-", 2*size))
	b := mapShared(t, p, size)
	populate(t, b)
	letters := make([]byte, 256)
	for i := range letters {
		letters[i] = byte(i)
	}
	source := filepath.Join(t.TempDir(), "letters")
	must(t, os.WriteFile(source, letters, 0o644))
	from := openFile(t, source, os.O_RDONLY)
	// store is done by a system call: the kernel may have dropped the page, and the daemon, which is in this process, has to answer a READ for it.
	store := func(at int, value byte) {
		t.Helper()
		_, err := from.ReadAt(b[at:at+1], int64(value))
		must(t, err)
	}
	stop := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for i := int64(1); ; i++ {
			select {
			case <-stop:
				return
			default:
				if err := os.Truncate(p, 2*size+i%2*size); err != nil { // behind what is mapped
					t.Error(err)
				}
			}
		}
	})
	var ids []string
	const rounds = 100
	for i := range rounds {
		for at := 0; at < size; at += 4096 {
			store(at, byte(i))
		}
		ids = append(ids, m.snapshot(t))
	}
	close(stop)
	cutting.Wait()
	for i := rounds - 1; i >= 0; i-- {
		m.rollback(t, ids[i])
		got, err := os.ReadFile(p)
		must(t, err)
		for at := 0; at < size; at += 4096 {
			if got[at] != byte(i) {
				t.Fatalf("checkpoint %d has %d at %d", i, got[at], at)
			}
		}
	}
}

// keepBusy has requests made all the time, until end.
func keepBusy(t *testing.T, m *mounted) (end func()) {
	stop, done := make(chan struct{}), sync.WaitGroup{}
	for range 4 {
		done.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					var st unix.Statfs_t
					_ = unix.Statfs(m.dir, &st) // which the kernel always asks for
				}
			}
		})
	}
	return func() { close(stop); done.Wait() }
}

func TestTheKernelAsksForOpensWhereItMust(t *testing.T) {
	for _, c := range []struct {
		name string
		opts fs.Options
	}{
		{"elsewhere", fs.Options{}},
		{"with passthrough", fs.Options{InPlace: true, Passthrough: true}},
		{"told so", fs.Options{InPlace: true, OpenRequests: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := mount(t, c.opts)
			if f := m.server.Features(); f.NoOpen || f.NoOpenReason == "" {
				t.Errorf("%+v", f)
			}
			before := m.server.Counts()["open"]
			_, err := os.ReadFile(m.write(t, "f", "x"))
			must(t, err)
			if m.server.Counts()["open"] == before {
				t.Error("it did not ask")
			}
		})
	}
}
