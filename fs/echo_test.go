package fs_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/inotify"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// watch watches files and directories of a mount.
func watch(t *testing.T, dir string, names ...string) *inotify.Watcher {
	t.Helper()
	w, err := inotify.Watch(dir, names...)
	must(t, err)
	t.Cleanup(w.Close)
	return w
}

// tell does what a rollback with these effects does at its end.
func tell(s *fs.Server, effects ...overlay.Effect) {
	t := s.Notifier().(overlay.Teller)
	t.Tell(effects, func() {
		for _, e := range effects {
			if e.Was != 0 || e.Is != 0 {
				t.InvalEntry(e.Dir, e.Name)
			}
		}
	})
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
		w.Sees(t,
			"d: MODIFY changed", "d/changed: MODIFY", "d: ATTRIB mode", "d/mode: ATTRIB",
			"d: DELETE replaced", "d: CREATE replaced", "d/replaced: DELETE_SELF",
			"d: CREATE removed", "d: CREATE renamed", "d/sub: DELETE other",
			"d/sub: DELETE again", "d/linked: ATTRIB", "d: DELETE link", "d: CREATE link",
			"d: CREATE gone/", "d/sub: DELETE new/", "d: DELETE deeper/", "d/sub: CREATE deep/",
		)
		w.Lacks(t, "d: DELETE removed", "d: DELETE changed", "d: CREATE changed", "d: MODIFY mode", "d/linked: DELETE_SELF", "d: CREATE sub/")

		w = watch(t, m.dir, "d", "d/sub", "d/changed", "d/removed")
		_, err := m.w.Undo(t.Context())
		must(t, err)
		w.Sees(t, "d: MODIFY changed", "d/changed: MODIFY", "d: DELETE removed", "d/removed: DELETE_SELF", "d/sub: CREATE other", "d/sub: CREATE new/", "d: DELETE gone/")
		for name, content := range map[string]string{"d/changed": "something new", "d/replaced": "replaced", "d/sub/other": "n", "d/sub/new/file": "new"} {
			if got, err := os.ReadFile(m.path(name)); err != nil || string(got) != content {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	})
}

func TestAnEchoIsRightWhateverIsCached(t *testing.T) {
	eachEcho(t, func(t *testing.T, m *mounted) {
		f := m.write(t, "f", "content")
		must(t, os.MkdirAll(m.path("dir", "below"), 0o755))
		_, err := os.Stat(f)
		must(t, err)
		_, err = os.Stat(m.path("absent"))
		want(t, err, unix.ENOENT)
		here, err := unix.Open(m.path("dir"), unix.O_PATH, 0)
		must(t, err)
		defer unix.Close(here)
		root := m.w.Tree().Volume().Root()
		w := watch(t, m.dir, "", "f", "dir")

		tell(m.server, overlay.Effect{Dir: root, Name: "f", Was: unix.S_IFREG, Is: unix.S_IFREG})
		w.Sees(t, ": DELETE f", ": CREATE f")
		tell(m.server, overlay.Effect{Dir: root, Name: "absent", Was: unix.S_IFREG})
		w.Sees(t, ": DELETE absent")
		tell(m.server, overlay.Effect{Dir: root, Name: "dir", Is: unix.S_IFDIR})
		w.Sees(t, ": CREATE dir/")
		w.Fresh(t)
		m.server.Notifier().(overlay.Teller).Tell([]overlay.Effect{ // none of which is so any more
			{Dir: root, Name: "absent", Is: unix.S_IFREG}, {Dir: root, Name: "f", Was: unix.S_IFREG}, {Dir: root, Name: "dir", Was: unix.S_IFDIR},
			{Dir: root, Name: "absent", Content: true},
		}, func() {})
		tell(m.server, overlay.Effect{Dir: root, Name: "f", Content: true})
		if n := w.Sees(t, ": MODIFY f", "f: MODIFY"); n != 2 {
			t.Errorf("%d events", n)
		}

		if got, err := os.Readlink(fmt.Sprint("/proc/self/fd/", here)); err != nil || got != m.path("dir") {
			t.Errorf("an open directory is %q, %v", got, err)
		}
		var st unix.Stat_t
		if must(t, unix.Stat(f, &st)); st.Nlink != 1 || st.Size != 7 {
			t.Errorf("%+v", st)
		}
		if got := names(t, m.dir); got != "dir f" && got != ".hyperfs dir f" {
			t.Error(got)
		}
	})
}

func TestWhoWatchesBelowAVeryLongPathSeesARollback(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Echo: true})
	dir, err := unix.Open(m.dir, unix.O_DIRECTORY, 0)
	must(t, err)
	for range 20 {
		name := strings.Repeat("n", 250)
		must(t, unix.Mkdirat(dir, name, 0o755))
		below, err := unix.Openat(dir, name, unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(dir))
		dir = below
	}
	defer unix.Close(dir)
	id := m.snapshot(t)
	fd, err := unix.Openat(dir, "new", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(t, err)
	must(t, unix.Close(fd))
	w := watch(t, fmt.Sprint("/proc/self/fd/", dir), "")
	m.rollback(t, id)
	w.Sees(t, ": DELETE new")
}

func TestNothingIsRaisedWithoutEcho(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true})
	p := m.write(t, "f", "old")
	id := m.snapshot(t)
	must(t, os.WriteFile(p, []byte("new"), 0o644))
	w := watch(t, m.dir, "f", "")
	m.rollback(t, id)
	time.Sleep(50 * time.Millisecond)
	if seen, err := w.Read(); err != nil || len(seen) > 0 {
		t.Errorf("%q, %v", seen, err)
	}
}
