package fs_test

import (
	"os"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/inotify"
)

// watch watches files and directories of a mount.
func watch(t *testing.T, dir string, names ...string) *inotify.Watcher {
	t.Helper()
	w, err := inotify.Watch(dir, names...)
	must(t, err)
	t.Cleanup(w.Close)
	return w
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

