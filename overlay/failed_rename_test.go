//go:build linux

package overlay_test

import (
	"context"
	"testing"
)

// A rename that fails hides nothing that was changed before it.
func TestAFailedRenameHidesNoChange(t *testing.T) {
	for name, try := range map[string]struct{ from, to string }{
		"onto a directory that is not empty": {"other", "dir"},
		"into itself":                        {"dir", "dir/sub/x"},
		"onto what is in it":                 {"dir", "dir/c.txt"},
		"a file onto a directory":            {"b.txt", "dir"},
		"a directory onto a file":            {"dir", "b.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, fillSmall)
			s.mkdir("other")
			s.write("other/x", "x")
			id := s.snapshot()
			before := s.state()
			s.overwrite("dir/c.txt", "CHANGED", 0)
			s.unlink("dir/sub/d.txt")
			from, fromName := s.parent(try.from)
			to, toName := s.parent(try.to)
			if err := s.tr.Rename(from, fromName, to, toName, 0); err == nil {
				t.Fatal("the rename did not fail")
			}
			d, err := s.w.Diff(context.Background(), "", "", false)
			s.ok(err)
			var paths []string
			for _, c := range d.Changes {
				if len(c.What) != 1 || c.What[0] != "mtime" {
					paths = append(paths, c.Path)
				}
			}
			if len(paths) != 2 || paths[0] != "dir/c.txt" || paths[1] != "dir/sub/d.txt" {
				t.Errorf("Diff tells of %q", paths)
			}
			s.rollback(id)
			s.same(before)
		})
	}
}
