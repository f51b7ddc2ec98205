package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"golang.org/x/sys/unix"
)

// Programs, make above all, go by the times of files that they empty again. Filesystems differ in what truncate(2) does to the time of a file that has the size already, so both kinds are tried.
func TestASizeThatIsSetSetsTimes(t *testing.T) {
	for on, lower := range map[string]string{"disk": t.TempDir(), "tmpfs": testfs.Tmpfs(t, 64<<20)} {
		for name, o := range map[string]fs.Options{"default": {}, "opens": {OpenRequests: true, NoPassthrough: true}, "passthrough": {Passthrough: true}} {
			o.InPlace, o.NoURing = true, true
			t.Run(on+" "+name, func(t *testing.T) {
				dir, err := os.MkdirTemp(lower, "ws")
				must(t, err)
				m := mountDir(t, dir, o)
				for _, old := range []bool{false, true} {
					for _, c := range sizeSetters {
						must(t, os.WriteFile(m.path(c.name), []byte(c.content), 0o644))
					}
					if old {
						m.snapshot(t)
					}
					for _, c := range sizeSetters {
						if err := checkSizeSetter(m, c); err != nil {
							t.Errorf("%s, old: %v: %v", c.name, old, err)
						}
					}
				}
			})
		}
	}
}

type sizeSetter struct {
	name, content string
	set           func(path string) error
	size          int64
}

func ftruncateTo(size int64) func(string) error {
	return func(path string) error {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Ftruncate(fd, size)
	}
}

func openEmptying(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

var sizeSetters = []sizeSetter{
	{"O_TRUNC of an empty file", "", openEmptying, 0},
	{"O_TRUNC", "abc", openEmptying, 0},
	{"ftruncate of an empty file", "", ftruncateTo(0), 0},
	{"ftruncate to nothing", "abc", ftruncateTo(0), 0},
	{"ftruncate to the same size", "abc", ftruncateTo(3), 3},
	{"ftruncate to less", "abc", ftruncateTo(2), 2},
	{"ftruncate to more", "abc", ftruncateTo(5000), 5000},
	{"truncate to less", "abc", func(path string) error { return unix.Truncate(path, 2) }, 2},
}

func checkSizeSetter(m *mounted, c sizeSetter) error {
	p, renamed := m.path(c.name), m.path("renamed")
	now := time.Now()
	if err := os.Chtimes(p, now.Add(-time.Hour), now.Add(-time.Hour)); err != nil {
		return err
	}
	if err := c.set(p); err != nil {
		return err
	}
	for _, path := range []string{p, renamed} {
		st, err := os.Stat(path)
		if err != nil {
			return err
		}
		if st.Size() != c.size || now.Sub(st.ModTime()) > time.Minute {
			return fmt.Errorf("%s: %d bytes, modified %v ago", filepath.Base(path), st.Size(), now.Sub(st.ModTime()))
		}
		if path == p { // so the kernel has to ask for its attributes
			if err := os.Rename(p, renamed); err != nil {
				return err
			}
		}
	}
	return os.Rename(renamed, p)
}
