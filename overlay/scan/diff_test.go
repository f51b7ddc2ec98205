//go:build linux || windows

package scan

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
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
