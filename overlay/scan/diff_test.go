//go:build linux || windows

package scan

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

func TestDiffTellsOnceOfWhatWasMovedOutOfADirectoryThatIsGone(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(f *fixture)
		want []string
	}{
		{"removed", func(f *fixture) {
			f.must(os.Rename(f.path("d/x"), f.path("x")))
			f.must(os.Remove(f.path("d")))
		}, []string{"deleted  d", "renamed d/x x"}},
		{"in one that is new", func(f *fixture) {
			f.must(os.Mkdir(f.path("n"), 0o755))
			f.must(os.Rename(f.path("d/x"), f.path("n/x")))
			f.must(os.Remove(f.path("d")))
		}, []string{"created  n", "deleted  d", "renamed d/x n/x"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.write("d/x", "moved")
			id := f.snapshot()
			tt.do(f)
			d, err := f.w.Diff(context.Background(), id, "", true)
			f.must(err)
			var got []string
			for _, c := range d.Changes {
				got = append(got, fmt.Sprintf("%s %s %s", c.Kind, c.OldPath, c.Path))
			}
			slices.Sort(got)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestDiffFindsTheSameContentUnderEveryNameOfAFile though the newest checkpoint, by which a scan knows what has not changed, has another one.
func TestDiffFindsTheSameContentUnderEveryNameOfAFile(t *testing.T) {
	for _, tt := range []struct {
		name    string
		do      func(f *fixture)
		want    []string
		unknown []string // where birth times are not known, or nil
	}{
		{"a new inode whose first name is new", func(f *fixture) {
			f.write("a", "what it was")
			f.must(os.Remove(f.path("m/f")))
			f.must(os.Link(f.path("a"), f.path("m/f")))
		}, []string{"created a []", "modified m/f [mtime]"}, nil},
		{"a new inode whose first name is in a directory below", func(f *fixture) {
			f.write("m/d/f", "what it was")
			f.must(os.Remove(f.path("m/f")))
			f.must(os.Link(f.path("m/d/f"), f.path("m/f")))
		}, []string{"created m/d []", "created m/d/f []", "modified m/f [mtime]"}, nil},
		{"the inode, renamed", func(f *fixture) {
			f.write("m/f", "what it was")
			f.must(os.Rename(f.path("m/f"), f.path("g")))
		}, []string{"renamed g [mtime]"}, []string{"created g []", "deleted m/f []"}},
		{"another content", func(f *fixture) {
			f.write("a", "what it is!")
			f.must(os.Remove(f.path("m/f")))
			f.must(os.Link(f.path("a"), f.path("m/f")))
		}, []string{"created a []", "modified m/f [content mtime]"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.write("m/f", "what it was")
			f.must(os.Chtimes(f.path("m/f"), time.Unix(1, 0), time.Unix(1, 0)))
			id := f.snapshot()
			f.write("m/f", "what it was not")
			f.snapshot()
			tt.do(f)
			if !f.w.births && tt.unknown != nil {
				tt.want = tt.unknown
			}
			d, err := f.w.Diff(context.Background(), id, "", true)
			f.must(err)
			var got []string
			for _, c := range d.Changes {
				got = append(got, fmt.Sprintf("%s %s %s", c.Kind, c.Path, c.What))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
