package fs_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"golang.org/x/sys/unix"
)

// names lists a directory.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestRollbackIsSeenAtOnce(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		must(t, os.MkdirAll(m.path("d", "sub"), 0o755))
		kept, gone := m.write(t, "d/kept", "old content"), m.write(t, "d/gone", "gone")
		must(t, os.Symlink("old target", m.path("d", "link")))
		id := m.snapshot(t)
		names(t, m.path("d"))

		must(t, os.WriteFile(kept, []byte("something new that is longer"), 0o644))
		must(t, os.Chmod(kept, 0o600))
		must(t, os.Remove(gone))
		must(t, os.Remove(m.path("d", "link")))
		must(t, os.Symlink("new target", m.path("d", "link")))
		must(t, os.Rename(m.path("d", "sub"), m.path("d", "moved")))
		m.write(t, "d/extra", "extra")
		if got := names(t, m.path("d")); got != "extra kept link moved" {
			t.Fatal(got)
		}
		_, err := os.Stat(gone) // the kernel remembers that there is none
		want(t, err, unix.ENOENT)
		got, err := os.ReadFile(kept) // and the pages
		if err != nil || string(got) == "old content" {
			t.Fatalf("%q, %v", got, err)
		}

		m.rollback(t, id)
		if got := names(t, m.path("d")); got != "gone kept link sub" {
			t.Errorf("listed: %s", got)
		}
		got, err = os.ReadFile(kept)
		if err != nil || string(got) != "old content" {
			t.Errorf("%q, %v", got, err)
		}
		if got := modeOfFile(t, kept); got != 0o644 {
			t.Errorf("mode %o", got)
		}
		if target, err := os.Readlink(m.path("d", "link")); err != nil || target != "old target" {
			t.Error(target, err)
		}
		if _, err := os.Stat(gone); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"moved", "extra"} {
			_, err := os.Stat(m.path("d", name))
			want(t, err, unix.ENOENT)
		}
	})
}

func TestRollbackIsSeenThroughAnOpenFile(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		p := m.write(t, "f", "old content")
		id := m.snapshot(t)
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		_, err = f.WriteAt([]byte("NEW"), 0)
		must(t, err)
		m.rollback(t, id)
		b := make([]byte, 20)
		n, _ := f.ReadAt(b, 0)
		if string(b[:n]) != "old content" {
			t.Errorf("got %q", b[:n])
		}
	})
}

// Replies that were worked out before a rollback may reach the kernel after its notifications.
func TestNothingStaleIsCachedWhenLookupsMeetARollback(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true})
	must(t, os.Mkdir(m.path("d"), 0o755))
	const files = 20
	for i := range files {
		m.write(t, fmt.Sprintf("d/%d", i), "old")
	}
	for range 10 {
		id := m.snapshot(t)
		for i := range files {
			must(t, os.WriteFile(m.path("d", fmt.Sprint(i)), []byte("newer"), 0o600))
			must(t, os.Chmod(m.path("d", fmt.Sprint(i)), 0o600))
		}
		must(t, os.Rename(m.path("d"), m.path("e"))) // so that all is looked up anew
		must(t, os.Rename(m.path("e"), m.path("d")))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					for i := range files {
						var st unix.Stat_t
						_ = unix.Stat(m.path("d", fmt.Sprint(i)), &st)
					}
					_, _ = os.ReadDir(m.path("d"))
				}
			})
		}
		m.rollback(t, id)
		close(stop)
		wg.Wait()
		for i := range files {
			var st unix.Stat_t
			must(t, unix.Stat(m.path("d", fmt.Sprint(i)), &st))
			if st.Size != 3 || st.Mode&0o777 != 0o644 {
				t.Fatalf("file %d: %d bytes, mode %o", i, st.Size, st.Mode)
			}
		}
	}
}

func TestDirtyPagesOfMappingsAreInTheSnapshot(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		p := m.write(t, "f", "0123456789")
		b := mapShared(t, p, 10)
		populate(t, b)
		b[0] = 'A'
		id := m.snapshot(t)
		must(t, os.WriteFile(p, []byte("overwritten"), 0o644))
		m.rollback(t, id)
		got, err := os.ReadFile(p)
		if err != nil || string(got) != "A123456789" {
			t.Fatalf("got %q, %v", got, err)
		}
	})
}

func TestChangesElsewhereShowUpSoon(t *testing.T) {
	m := mount(t, fs.Options{})
	p := m.write(t, "f", "old")
	lower := m.workspace + "/f"
	must(t, os.WriteFile(lower, []byte("changed underneath"), 0o644))
	must(t, os.WriteFile(m.workspace+"/new", nil, 0o644))
	eventually(t, "the content shows up", func() bool {
		got, err := os.ReadFile(p)
		return err == nil && string(got) == "changed underneath"
	})
	eventually(t, "the new name shows up", func() bool { return names(t, m.dir) == "f new" })
}

// What is open below keeps the kernel's inode of a removed directory alive, and that stays removed for ever.
func TestARemovedDirectoryComesBackWhileAFileOfItIsOpen(t *testing.T) {
	removals := map[string]func(t *testing.T, m *mounted){
		"rmdir": func(t *testing.T, m *mounted) { must(t, os.Remove(m.path("d"))) },
		"rename over it": func(t *testing.T, m *mounted) {
			must(t, os.Mkdir(m.path("e"), 0o755))
			must(t, unix.Rename(m.path("e"), m.path("d")))
		},
	}
	for name, remove := range removals {
		t.Run(name, func(t *testing.T) {
			eachVariant(t, func(t *testing.T, m *mounted) {
				must(t, os.Mkdir(m.path("d"), 0o755))
				p := m.write(t, "d/f", "old")
				id := m.snapshot(t)
				f, err := os.Open(p)
				must(t, err)
				defer f.Close()
				d, err := os.Open(m.path("d"))
				must(t, err)
				defer d.Close()
				must(t, os.Remove(p))
				remove(t, m)
				m.rollback(t, id)
				if got := names(t, m.path("d")); got != "f" {
					t.Errorf("listed: %s", got)
				}
				m.write(t, "d/new", "new")
				got, err := os.ReadFile(p)
				if err != nil || string(got) != "old" {
					t.Errorf("%q, %v", got, err)
				}
				if _, err := d.Stat(); err != nil {
					t.Errorf("a descriptor of the removed directory: %v", err)
				}
			})
		})
	}
}
