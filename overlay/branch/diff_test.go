//go:build linux

package branch_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"golang.org/x/sys/unix"
)

// changes gives a diff as kinds and paths.
func (s *space) changes(name, from, to string) (list []string) {
	s.Helper()
	diff, err := s.m.Diff(context.Background(), name, from, to, false)
	s.ok(err)
	for _, c := range diff.Changes {
		text := string(c.Kind) + " " + c.Path
		if c.OldPath != "" {
			text += " from " + c.OldPath
		}
		list = append(list, text)
	}
	return list
}

func TestDiffTellsDirectoriesThatChangedPlacesAsRenamed(t *testing.T) {
	s := newSpace(t, map[string]string{"one/a": "", "two/b": ""})
	s.fork("x", "")
	x := s.tree("x")
	s.ok(x.Rename(x.Root(), "one", x.Root(), "two", unix.RENAME_EXCHANGE))
	want := []string{"renamed one from two", "renamed two from one"}
	if got := s.changes("x", "", ""); !reflect.DeepEqual(got, want) {
		t.Errorf("the diff is %q, want %q", got, want)
	}
}

func TestDiffTellsOfAFileThatChangedWhileItsOtherNameWasReplaced(t *testing.T) {
	s := newSpace(t, map[string]string{"one": "content"})
	s.fork("x", "")
	x := s.tree("x")
	x.link("one", "two")
	s.snapshot("x")
	x.write("new", "another")
	x.rename("new", "two")
	x.write("one", "changed")
	want := []string{"modified one", "modified two"}
	if got := s.changes("x", "", ""); !reflect.DeepEqual(got, want) {
		t.Errorf("the diff is %q, want %q", got, want)
	}
}

func TestDiffStartsAtTheForkPointAndAtCheckpoints(t *testing.T) {
	s := newSpace(t, map[string]string{"dir/a": "1", "dir/b": "2", "c": "3", "same": "="})
	s.fork("x", "")
	x := s.tree("x")
	x.write("dir/a", "changed")
	x.rename("c", "dir/c")
	first := s.snapshot("x")
	x.unlink("dir/b")
	x.mkdir("new")
	x.write("new/file", "")
	x.write("same", "=")
	since := []string{"deleted dir/b", "created new", "modified same"}
	for name, c := range map[string]struct {
		from, to string
		want     []string
	}{
		"since the newest checkpoint": {"", "", since},
		"since a checkpoint":          {first, "", since},
		"since the fork point":        {mainPoint, "", []string{"modified dir/a", "deleted dir/b", "renamed dir/c from c", "created new", "modified same"}},
		"from the fork point":         {mainPoint, first, []string{"modified dir/a", "renamed dir/c from c"}},
		"backwards":                   {first, mainPoint, []string{"renamed c from dir/c", "modified dir/a"}},
	} {
		if got := s.changes("x", c.from, c.to); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: the diff is %q, want %q", name, got, c.want)
		}
	}
	diff, err := s.m.Diff(context.Background(), "x", "", "", false)
	s.ok(err)
	if got := diff.Changes[2].What; !reflect.DeepEqual(got, []string{"mtime"}) {
		t.Errorf("what was written again with the same content differs in %q", got)
	}
}

func TestPatchLeadsFromTheForkPointToTheBranch(t *testing.T) {
	s := newSpace(t, map[string]string{"dir/a": "one\ntwo\n", "dir/b": "2", "c": "3\n"})
	s.fork("x", "")
	x := s.tree("x")
	x.write("dir/a", "one\nTWO\n")
	x.unlink("dir/b")
	x.rename("c", "moved")
	x.mkdir("new")
	x.write("new/file", "content\x00")
	_, _, err := x.Symlink(x.Root(), "link", "target", nil)
	s.ok(err)
	x.rename("dir", "other")
	var patch bytes.Buffer
	s.ok(s.m.Patch(context.Background(), "x", mainPoint, "", &patch))
	dir := filepath.Join(t.TempDir(), "copy")
	s.ok(treestate.Copy(s.main, dir))
	cmd := exec.Command("git", "apply", "-")
	cmd.Dir, cmd.Stdin = dir, &patch
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s", err, out)
	}
	for path, want := range map[string]string{"other/a": "one\nTWO\n", "moved": "3\n", "new/file": "content\x00"} {
		if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v, want %q", path, b, err, want)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "link")); err != nil || to != "target" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	for _, path := range []string{"dir/a", "other/b", "c"} {
		if _, err := os.Lstat(filepath.Join(dir, path)); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}
