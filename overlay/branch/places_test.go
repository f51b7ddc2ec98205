//go:build linux

package branch

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// A file that a branch has changed is where it was at the fork, also if somebody has seen it elsewhere later: main has moved it into a
// directory that the fork does not have.
func TestDiffTellsWhereAFileWasAndNotWhereItWasSeenLater(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"a", "other"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a/f"), []byte("main's"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "a/f"), filepath.Join(dir, "other/g")); err != nil {
		t.Fatal(err)
	}
	for _, links := range []uint32{2, 1} {
		if links == 1 {
			if err := os.Remove(filepath.Join(dir, "other/g")); err != nil {
				t.Fatal(err)
			}
		}
		w, err := Open(overlay.Config{Workspace: dir})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"a/f", "other/g"}
		diffAfterMove(t, w, want[:links])
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, overlay.StoreName)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new/f"), filepath.Join(dir, "a/f")); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
	}
}

func diffAfterMove(t *testing.T, w *Workspace, want []string) {
	t.Helper()
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fork := func(name string) *Volume {
		_, err := w.Fork(ctx, overlay.ForkOptions{Name: name})
		must(err)
		v, err := w.branches.Volume(name)
		must(err)
		t.Cleanup(v.Close)
		return v
	}
	change := func(v overlay.Volume, dir, name string) {
		d, _, err := v.Lookup(v.Root(), dir)
		must(err)
		n, _, err := v.Lookup(d, name)
		must(err)
		f, err := v.Open(n, unix.O_WRONLY, false, nil)
		must(err)
		_, err = f.WriteAt([]byte("changed"), 0)
		must(err)
		f.Release()
	}
	check := func(branch string) {
		t.Helper()
		d, err := w.branches.Diff(ctx, branch, "", "", true)
		must(err)
		var got []string
		for _, c := range d.Changes {
			got = append(got, c.Path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the diff of %s is %+v, want %q", branch, d.Changes, want)
		}
	}
	change(fork("early"), "a", "f")
	check("early")

	main := w.Tree().Volume()
	from, _, err := main.Lookup(main.Root(), "a")
	must(err)
	to, _, err := main.Mkdir(main.Root(), "new", 0o755, nil)
	must(err)
	must(main.Rename(from, "f", to, "f", 0))
	_, err = w.Snapshot(ctx, overlay.SnapshotOptions{})
	must(err)
	change(fork("late"), "new", "f") // where it is seen now
	check("early")
}
