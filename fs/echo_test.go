package fs_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/fs"
	"golang.org/x/sys/unix"
)

// watcher is a program that watches files, as inotify has it.
type watcher struct {
	t     *testing.T
	fd    int
	paths map[int32]string
	seen  []string // "path: EVENT name", in their order
}

const watched = unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MODIFY | unix.IN_MOVE | unix.IN_MOVE_SELF

// watch watches files and directories of a mount.
func watch(t *testing.T, dir string, names ...string) *watcher {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	w := &watcher{t: t, fd: fd, paths: map[int32]string{}}
	for _, name := range names {
		wd, err := unix.InotifyAddWatch(fd, filepath.Join(dir, name), watched)
		must(t, err)
		w.paths[int32(wd)] = name
	}
	return w
}

var eventNames = []struct {
	mask uint32
	name string
}{
	{unix.IN_ATTRIB, "ATTRIB"}, {unix.IN_CREATE, "CREATE"}, {unix.IN_DELETE, "DELETE"}, {unix.IN_DELETE_SELF, "DELETE_SELF"},
	{unix.IN_MODIFY, "MODIFY"}, {unix.IN_MOVED_FROM, "MOVED_FROM"}, {unix.IN_MOVED_TO, "MOVED_TO"}, {unix.IN_MOVE_SELF, "MOVE_SELF"},
	{unix.IN_IGNORED, "IGNORED"}, {unix.IN_Q_OVERFLOW, "OVERFLOW"},
}

// read takes in what there is.
func (w *watcher) read() {
	w.t.Helper()
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, buf)
		if err == unix.EAGAIN {
			return
		}
		must(w.t, err)
		for b := buf[:n]; len(b) > 0; {
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:size]), "\x00")
			b = b[size:]
			for _, e := range eventNames {
				if mask&e.mask != 0 {
					if mask&unix.IN_ISDIR != 0 {
						name += "/"
					}
					w.seen = append(w.seen, strings.TrimSpace(fmt.Sprintf("%s: %s %s", w.paths[wd], e.name, name)))
				}
			}
		}
	}
}

// sees waits until the events have come, and for others that may come with them, and gives all.
func (w *watcher) sees(want ...string) []string {
	w.t.Helper()
	missing := func() (m []string) {
		for _, s := range want {
			if !slices.Contains(w.seen, s) {
				m = append(m, s)
			}
		}
		return m
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		w.read()
		if len(missing()) == 0 {
			break
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("no event %q among\n%s", missing(), strings.Join(w.seen, "\n"))
		}
	}
	time.Sleep(20 * time.Millisecond)
	w.read()
	return w.seen
}

// lacks fails if there was such an event.
func (w *watcher) lacks(unwanted ...string) {
	w.t.Helper()
	for _, s := range unwanted {
		if slices.Contains(w.seen, s) {
			w.t.Errorf("there is an event %q among\n%s", s, strings.Join(w.seen, "\n"))
		}
	}
}

// fresh forgets what was seen.
func (w *watcher) fresh() {
	w.read()
	w.seen = nil
}

// eachEcho runs a test on a mount of each kind that tells those who watch.
func eachEcho(t *testing.T, test func(t *testing.T, m *mounted)) {
	for _, v := range []variant{inPlace, cached, elsewhere} {
		v.opts.Echo = true
		t.Run(v.name, func(t *testing.T) { test(t, mount(t, v.opts)) })
	}
}

func TestWhoWatchesSeesARollbackAndItsUndo(t *testing.T) {
	eachEcho(t, func(t *testing.T, m *mounted) {
		must(t, os.MkdirAll(m.path("d", "sub", "deep"), 0o755))
		must(t, os.MkdirAll(m.path("d", "gone", "below"), 0o755))
		changed, mode, replaced := m.write(t, "d/changed", "old"), m.write(t, "d/mode", "m"), m.write(t, "d/replaced", "old")
		m.write(t, "d/removed", "r")
		m.write(t, "d/renamed", "n")
		m.write(t, "d/linked", "l")
		m.write(t, "d/gone/below/f", "f")
		must(t, os.Symlink("a", m.path("d", "link")))
		id := m.snapshot(t)

		must(t, os.WriteFile(changed, []byte("something new"), 0o644))
		must(t, os.Chmod(mode, 0o600))
		m.write(t, "d/temporary", "replaced")
		must(t, os.Rename(m.path("d", "temporary"), replaced))
		must(t, os.Remove(m.path("d", "removed")))
		must(t, os.Rename(m.path("d", "renamed"), m.path("d", "sub", "other")))
		must(t, os.Link(m.path("d", "linked"), m.path("d", "sub", "again")))
		must(t, os.Remove(m.path("d", "link")))
		must(t, os.Symlink("b", m.path("d", "link")))
		must(t, os.RemoveAll(m.path("d", "gone")))
		must(t, os.MkdirAll(m.path("d", "sub", "new", "tree"), 0o755))
		m.write(t, "d/sub/new/file", "new")
		must(t, os.Rename(m.path("d", "sub", "deep"), m.path("d", "deeper")))

		w := watch(t, m.dir, "d", "d/sub", "d/changed", "d/mode", "d/replaced", "d/linked", "d/sub/new")
		m.rollback(t, id)
		w.sees(
			"d: MODIFY changed", "d/changed: MODIFY", "d: ATTRIB mode", "d/mode: ATTRIB",
			"d: DELETE replaced", "d: CREATE replaced", "d/replaced: DELETE_SELF",
			"d: CREATE removed", "d: CREATE renamed", "d/sub: DELETE other",
			"d/sub: DELETE again", "d/linked: ATTRIB", "d: DELETE link", "d: CREATE link",
			"d: CREATE gone/", "d/sub: DELETE new/", "d: DELETE deeper/", "d/sub: CREATE deep/",
		)
		w.lacks("d: DELETE removed", "d: DELETE changed", "d: CREATE changed", "d: MODIFY mode", "d/linked: DELETE_SELF", "d: CREATE sub/")

		w = watch(t, m.dir, "d", "d/sub", "d/changed", "d/removed")
		_, err := m.w.Undo(t.Context())
		must(t, err)
		w.sees("d: MODIFY changed", "d/changed: MODIFY", "d: DELETE removed", "d/removed: DELETE_SELF", "d/sub: CREATE other", "d/sub: CREATE new/", "d: DELETE gone/")
		for name, content := range map[string]string{"d/changed": "something new", "d/replaced": "replaced", "d/sub/other": "n", "d/sub/new/file": "new"} {
			if got, err := os.ReadFile(m.path(name)); err != nil || string(got) != content {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	})
}

func TestNothingIsRaisedWithoutEcho(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true})
	p := m.write(t, "f", "old")
	id := m.snapshot(t)
	must(t, os.WriteFile(p, []byte("new"), 0o644))
	w := watch(t, m.dir, "f", "")
	m.rollback(t, id)
	time.Sleep(50 * time.Millisecond)
	if w.read(); len(w.seen) > 0 {
		t.Errorf("%q", w.seen)
	}
}

