package githead_test

import (
	"testing"

	"github.com/hyperfs/hyperfs/internal/githead"
)

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no repository":        {nil, ""},
		"a commit checked out": {map[string]string{".git/HEAD": "c0ffee"}, "c0ffee"},
		"a branch":             {map[string]string{".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": "c0ffee"}, "c0ffee"},
		"a packed branch": {map[string]string{".git/HEAD": "ref: refs/heads/main",
			".git/packed-refs": "# pack-refs with: peeled\nbad refs/heads/mainly\nc0ffee refs/heads/main\n^0ff"}, "c0ffee"},
		"a branch without a commit":   {map[string]string{".git/HEAD": "ref: refs/heads/main"}, ""},
		"a branch out of the way":     {map[string]string{".git/HEAD": "ref: refs/../../secret", ".git/refs/../../secret": "bad"}, ""},
		"a ref that is no branch":     {map[string]string{".git/HEAD": "ref: config", ".git/config": "bad"}, ""},
		"a loose before a packed one": {map[string]string{".git/HEAD": "ref: refs/heads/m", ".git/refs/heads/m": "new", ".git/packed-refs": "old refs/heads/m"}, "new"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := githead.Read(func(path string) string { return c.files[path] }); got != c.want {
				t.Errorf("it reads %q, want %q", got, c.want)
			}
		})
	}
}
