//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
		{"deleted and replaced", func(s *space) { s.unlink("a/x"); s.unlink("a/z"); s.rmdir("a"); s.rename("b", "a", 0) }, []string{"renamed b a", "deleted  a", "deleted  a/x", "deleted  a/z"}},
		{"swapped, one name deleted, and what has that path now changed", func(s *space) {
			s.rename("a", "b", unix.RENAME_EXCHANGE)
			s.unlink("a/y")
			s.overwrite("b/x", "!", 0)
		}, []string{"renamed b a", "renamed a b", "deleted  b/y", "modified  b/x"}},
		{"swapped, and the same name in both changed", func(s *space) {
			s.rename("a", "b", unix.RENAME_EXCHANGE)
			s.unlink("a/z")
			s.overwrite("b/z", "!", 0)
		}, []string{"renamed b a", "renamed a b", "deleted  b/z", "modified  b/z"}},
		{"deleted and made again", func(s *space) { s.unlink("b/y"); s.unlink("b/z"); s.rmdir("b"); s.mkdir("b"); s.write("b/y", "Y") }, []string{"modified  b/y", "deleted  b/z"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSpace(t, nil)
			s.mkdir("a")
			s.write("a/x", "x")
			s.mkdir("b")
			s.write("b/y", "y")
			s.write("a/z", "z of a")
			s.write("b/z", "z of b")
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

func TestDiffFindsFilesThatOnlyOneStateKnowsOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(s *space)
		want []string
	}{
		{"changed", func(s *space) { s.overwrite("f", "X", 0) }, []string{"modified d/g", "modified f"}},
		{"changed, and a name less", func(s *space) { s.overwrite("f", "X", 0); s.unlink("d/g") }, []string{"deleted d/g", "modified f"}},
	} {
		for _, backwards := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, backwards %v", tt.name, backwards), func(t *testing.T) {
				s := newSpace(t, nil)
				s.mkdir("d")
				s.write("f", "content")
				s.link("f", "d/g")
				from := s.snapshot()
				tt.do(s)
				to := s.snapshot()
				s.reopen() // so that nothing is in memory
				want := slices.Clone(tt.want)
				if backwards {
					from, to = to, from
					for i := range want {
						want[i] = strings.Replace(want[i], "deleted", "created", 1)
					}
				}
				d, err := s.w.Diff(context.Background(), from, to, true)
				s.ok(err)
				var got []string
				for _, c := range d.Changes {
					got = append(got, fmt.Sprintf("%s %s", c.Kind, c.Path))
				}
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	}
}
