//go:build linux

package overlay_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// The size that counts is the one of the file that was opened, whatever it was when its name was looked up.
func TestOnlyReadersOfLargeFilesBypassTheDaemon(t *testing.T) {
	s := newSpace(t, func(dir string) { fill(t, dir, "f", 128<<10) })
	n := s.at("f")
	s.direct(n, false, unix.O_RDONLY).Release()
	fill(t, s.dir, "f", 128<<10+1) // from outside
	if n != s.at("f") {
		t.Fatal("it is another inode now")
	}
	s.direct(n, true, unix.O_RDONLY).Release()
	fill(t, s.dir, "f", 1)
	s.direct(n, false, unix.O_RDONLY).Release()
	s.direct(n, false, unix.O_RDONLY|unix.O_TRUNC).Release()

	w := s.direct(n, true, unix.O_WRONLY) // now all have to
	s.direct(n, true, unix.O_RDONLY).Release()
	s.direct(n, true, unix.O_RDONLY|unix.O_TRUNC).Release()
	s.ok(os.Remove(filepath.Join(s.dir, "f"))) // from outside: only the handle reaches it
	s.direct(n, true, unix.O_RDONLY).Release()
	w.Release()
}

// direct opens a file, which must be granted direct access or not.
func (s *space) direct(n *overlay.Node, want bool, flags int) *overlay.Handle {
	s.Helper()
	h, err := s.tr.Open(n, flags, true, nil)
	s.ok(err)
	if h.Direct() != want {
		s.Errorf("opened with flags %#x: direct is %v", flags, h.Direct())
	}
	return h
}

func fill(t *testing.T, dir, name string, size int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
}
