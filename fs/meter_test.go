package fs_test

import (
	"os"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"golang.org/x/sys/unix"
)

// operation gives what a mount has counted of one kind.
func operation(s *fs.Server, name string) fs.Operation {
	for _, o := range s.Stats().Operations {
		if o.Name == name {
			return o
		}
	}
	return fs.Operation{Name: name}
}

func TestEachRequestIsCountedAndTimedOnce(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true})
	text := strings.Repeat("x", 5000)
	for _, c := range []struct {
		op     string
		count  uint64
		errors uint64
		do     func() error
		fails  bool
	}{
		{op: "mkdir", count: 1, do: func() error { return os.Mkdir(m.path("d"), 0o755) }},
		{op: "create", count: 1, do: func() error { return os.WriteFile(m.path("f"), []byte(text), 0o644) }},
		{op: "lookup", count: 1, do: func() error { return unix.Lstat(m.path("none"), new(unix.Stat_t)) }, fails: true}, // that there is none is an answer
		{op: "lookup", count: 0, do: func() error { return unix.Lstat(m.path("none"), new(unix.Stat_t)) }, fails: true},
		{op: "setattr", count: 1, do: func() error { return os.Chmod(m.path("f"), 0o600) }},
		{op: "removexattr", count: 1, errors: 1, do: func() error { return unix.Removexattr(m.path("f"), "user.none") }, fails: true},
		{op: "rename", count: 1, do: func() error { return os.Rename(m.path("f"), m.path("g")) }},
		{op: "unlink", count: 1, do: func() error { return os.Remove(m.path("g")) }},
	} {
		before := operation(m.server, c.op)
		if err := c.do(); (err != nil) != c.fails {
			t.Fatalf("%s: %v", c.op, err)
		}
		after := operation(m.server, c.op)
		if n := after.Took.Count - before.Took.Count; n != c.count || after.Errors-before.Errors != c.errors {
			t.Errorf("%s: %d requests, %d of them errors; not %d and %d", c.op, n, after.Errors-before.Errors, c.count, c.errors)
		}
		if took := after.Took.Sub(before.Took); took.Count != c.count || c.count > 0 && (took.Total <= 0 || took.Max <= 0) {
			t.Errorf("%s took %+v", c.op, took)
		}
	}
	if s := m.server.Stats(); s.Written != 5000 || s.Nodes == 0 {
		t.Errorf("%d bytes were written, %d inodes are held", s.Written, s.Nodes)
	}
}

func TestBytesAreCountedUnlessTheyPassTheDaemonBy(t *testing.T) {
	for _, v := range []variant{inPlace, cached} {
		t.Run(v.name, func(t *testing.T) {
			m := mount(t, v.opts)
			m.write(t, "f", strings.Repeat("x", 300_000))
			if _, err := os.ReadFile(m.path("f")); err != nil {
				t.Fatal(err)
			}
			s, past := m.server.Stats(), m.server.Features().Passthrough
			if past && s.Read+s.Written != 0 || !past && (s.Written != 300_000 || s.Read > 300_000) {
				t.Errorf("%d bytes read, %d written; passthrough: %v", s.Read, s.Written, past)
			}
			if opens := s.Events["passthrough_open"]; past != (opens > 0) {
				t.Errorf("%d opens for passthrough", opens)
			}
		})
	}
}

func TestRequestsOfABranchMountAreCountedToo(t *testing.T) {
	s := mountTwice(t)
	before := operation(s.server, "mkdir")
	if err := os.Mkdir(s.at+"/counted", 0o755); err != nil {
		t.Fatal(err)
	}
	if after := operation(s.server, "mkdir"); after.Took.Count != before.Took.Count+1 {
		t.Errorf("%d became %d", before.Took.Count, after.Took.Count)
	}
}
