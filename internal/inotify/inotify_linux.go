// Package inotify watches files for tests, and tells what a program hears of them.
package inotify

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Watcher is a program that watches files.
type Watcher struct {
	fd    int
	paths map[int32]string
	seen  []string // "path: EVENT name", in their order
}

const watched = unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MODIFY | unix.IN_MOVE | unix.IN_MOVE_SELF

// Watch watches files and directories below dir. Close ends that.
func Watch(dir string, names ...string) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &Watcher{fd: fd, paths: map[int32]string{}}
	for _, name := range names {
		if err := w.Add(dir, name); err != nil {
			w.Close()
			return nil, err
		}
	}
	return w, nil
}

// Add watches one more.
func (w *Watcher) Add(dir, name string) error {
	wd, err := unix.InotifyAddWatch(w.fd, filepath.Join(dir, name), watched)
	if err != nil {
		return err
	}
	w.paths[int32(wd)] = name
	return nil
}

// Close ends the watching.
func (w *Watcher) Close() { unix.Close(w.fd) }

var events = []struct {
	mask uint32
	name string
}{
	{unix.IN_ATTRIB, "ATTRIB"}, {unix.IN_CREATE, "CREATE"}, {unix.IN_DELETE, "DELETE"}, {unix.IN_DELETE_SELF, "DELETE_SELF"},
	{unix.IN_MODIFY, "MODIFY"}, {unix.IN_MOVED_FROM, "MOVED_FROM"}, {unix.IN_MOVED_TO, "MOVED_TO"}, {unix.IN_MOVE_SELF, "MOVE_SELF"},
	{unix.IN_IGNORED, "IGNORED"}, {unix.IN_Q_OVERFLOW, "OVERFLOW"},
}

// Read gives the events that have come since it was called last: "watched: EVENT name", with a slash behind the name of a directory.
func (w *Watcher) Read() ([]string, error) {
	from := len(w.seen)
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, buf)
		if err == unix.EAGAIN {
			return w.seen[from:], nil
		}
		if err != nil {
			return nil, err
		}
		for b := buf[:n]; len(b) > 0; {
			b = w.take(b)
		}
	}
}

// take takes one event in, and gives what is behind it.
func (w *Watcher) take(b []byte) []byte {
	wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
	size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
	name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:size]), "\x00")
	if mask&unix.IN_ISDIR != 0 && name != "" {
		name += "/"
	}
	for _, e := range events {
		if mask&e.mask != 0 {
			w.seen = append(w.seen, strings.TrimSpace(fmt.Sprintf("%s: %s %s", w.paths[wd], e.name, name)))
		}
	}
	return b[size:]
}

// Sees waits until all of the events have come, of each that has a "|" in it one or the other, and for others that may come with them. It gives how
// many have.
func (w *Watcher) Sees(t testing.TB, want ...string) int {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		w.read(t)
		missing := slices.DeleteFunc(slices.Clone(want), func(s string) bool {
			return slices.ContainsFunc(strings.Split(s, "|"), func(s string) bool { return slices.Contains(w.seen, s) })
		})
		if len(missing) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no event %q among\n%s", missing, strings.Join(w.seen, "\n"))
		}
	}
	time.Sleep(20 * time.Millisecond)
	w.read(t)
	return len(w.seen)
}

// Lacks fails if one of the events has come.
func (w *Watcher) Lacks(t testing.TB, unwanted ...string) {
	t.Helper()
	w.read(t)
	for _, s := range unwanted {
		if slices.Contains(w.seen, s) {
			t.Errorf("there is an event %q among\n%s", s, strings.Join(w.seen, "\n"))
		}
	}
}

// Fresh forgets what has come.
func (w *Watcher) Fresh(t testing.TB) {
	t.Helper()
	w.read(t)
	w.seen = nil
}

func (w *Watcher) read(t testing.TB) {
	t.Helper()
	if _, err := w.Read(); err != nil {
		t.Fatal(err)
	}
}
