//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDiffTellsDirectoriesThatTookEachOthersPlace(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(s *space)
		want []string
	}{
		{"swapped", func(s *space) { s.rename("a", "b", unix.RENAME_EXCHANGE) }, []string{"renamed b a", "renamed a b"}},
		{"moved on", func(s *space) { s.rename("a", "c", 0); s.rename("b", "a", 0) }, []string{"renamed b a", "renamed a c"}},
		{"replaced by a new one", func(s *space) { s.rename("a", "c", 0); s.mkdir("a") }, []string{"created  a", "renamed a c"}},
		{"deleted and replaced", func(s *space) { s.unlink("a/x"); s.rmdir("a"); s.rename("b", "a", 0) }, []string{"renamed b a", "deleted  a", "deleted  a/x"}},
		{"deleted and made again", func(s *space) { s.unlink("b/y"); s.rmdir("b"); s.mkdir("b"); s.write("b/y", "Y") }, []string{"modified  b/y"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSpace(t, nil)
			s.mkdir("a")
			s.write("a/x", "x")
			s.mkdir("b")
			s.write("b/y", "y")
			id := s.snapshot()
			tt.do(s)
			d, err := s.w.Diff(context.Background(), id, "", true)
			s.ok(err)
			var got []string
			for _, c := range d.Changes {
				got = append(got, fmt.Sprintf("%s %s %s", c.Kind, c.OldPath, c.Path))
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
