package gitpatch_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/gitpatch"
)

func text(path, content string) *gitpatch.File {
	return file(path, gitpatch.ModeFile, content)
}

func file(path string, mode uint32, content string) *gitpatch.File {
	return &gitpatch.File{Path: path, Mode: mode, Size: int64(len(content)),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil }}
}

func patchOf(t *testing.T, changes ...gitpatch.Change) string {
	t.Helper()
	var b bytes.Buffer
	if err := gitpatch.Write(&b, changes); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPatchReadsLikeThatOfGit(t *testing.T) {
	for name, c := range map[string]struct {
		change gitpatch.Change
		want   string
	}{
		"modified": {
			gitpatch.Change{Old: text("ab", "1\n2\n3\n4\n5\n"), New: text("ab", "1\n2\n3\n4\nV")},
			"diff --git a/ab b/ab\n" +
				"index 8a1218a1024a212bb3db30becd860315f9f3ac52..819957395fe985bf1d1d8cc39447f6fad35163e2 100644\n" +
				"--- a/ab\n+++ b/ab\n@@ -2,4 +2,4 @@\n 2\n 3\n 4\n-5\n+V\n\\ No newline at end of file\n",
		},
		"created, of unusual name": {
			gitpatch.Change{New: file("\xff \"\n", gitpatch.ModeExecutable, "x\n")},
			"diff --git \"a/\\377 \\\"\\n\" \"b/\\377 \\\"\\n\"\nnew file mode 100755\n" +
				"index 0000000000000000000000000000000000000000..587be6b4c3f93f93c489c0111bba5596147a26cb\n" +
				"--- /dev/null\n+++ \"b/\\377 \\\"\\n\"\n@@ -0,0 +1,1 @@\n+x\n",
		},
		"deleted, empty": {
			gitpatch.Change{Old: text("e", "")},
			"diff --git a/e b/e\ndeleted file mode 100644\n" +
				"index e69de29bb2d1d6434b8b29ae775ad8c2e48c5391..0000000000000000000000000000000000000000\n",
		},
		"renamed, and made executable": {
			gitpatch.Change{Old: text("x", "same\n"), New: file("d/y", gitpatch.ModeExecutable, "same\n")},
			"diff --git a/x b/d/y\nold mode 100644\nnew mode 100755\nsimilarity index 100%\nrename from x\nrename to d/y\n",
		},
		"the same": {gitpatch.Change{Old: text("x", "same\n"), New: text("x", "same\n")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := patchOf(t, c.change); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}

func TestChangeOfTypeIsADeletionAndACreation(t *testing.T) {
	got := patchOf(t, gitpatch.Change{Old: text("l", "x\n"), New: file("l", gitpatch.ModeSymlink, "x")})
	if !strings.Contains(got, "deleted file mode 100644\n") || !strings.Contains(got, "new file mode 120000\n") {
		t.Errorf("got:\n%s", got)
	}
}

func TestSimilarityTellsHowMuchARenamedFileKept(t *testing.T) {
	same := strings.Repeat("a line that stays\n", 90)
	got := patchOf(t, gitpatch.Change{
		Old: text("x", same),
		New: text("y", same+strings.Repeat("a line that's new\n", 10)),
	})
	if !strings.Contains(got, "similarity index 89%\n") {
		t.Errorf("got:\n%s", got)
	}
}

func TestWhatGitDoesNotApplyIsRefused(t *testing.T) {
	for name, c := range map[string]gitpatch.Change{
		"no file":               {},
		"a directory":           {New: file("d", 0o040000, "")},
		"no path":               {New: text("", "x")},
		"an absolute path":      {New: text("/etc/passwd", "x")},
		"an escape":             {New: text("a/../../x", "x")},
		"git's directory":       {New: text("sub/.git/config", "x")},
		"its other spellings":   {New: text(".GIT. /config", "x")},
		"its short name":        {New: text("GIT~1/config", "x")},
		"a .gitmodules symlink": {New: file(".gitmodules", gitpatch.ModeSymlink, "x")},
	} {
		t.Run(name, func(t *testing.T) {
			if err := gitpatch.Write(io.Discard, []gitpatch.Change{c}); err == nil {
				t.Error("it was written")
			}
		})
	}
}

func TestFileThatChangesWhileItIsReadIsAnError(t *testing.T) {
	reads := 0
	unstable := &gitpatch.File{Path: "x", Mode: gitpatch.ModeFile, Size: 3, Open: func() (io.ReadCloser, error) {
		reads++
		return io.NopCloser(bytes.NewReader([]byte{0, 'x', byte(reads)})), nil
	}}
	if err := gitpatch.Write(io.Discard, []gitpatch.Change{{New: unstable}}); err == nil {
		t.Error("content that differs the second time went unseen")
	}
	short := text("x", "abc")
	short.Size = 4
	if err := gitpatch.Write(io.Discard, []gitpatch.Change{{New: short}}); err == nil {
		t.Error("a file shorter than its size went unseen")
	}
}

func TestErrorOfOpenAndOfTheWriterComeBack(t *testing.T) {
	cause := errors.New("gone")
	f := text("x", "abc")
	f.Open = func() (io.ReadCloser, error) { return nil, cause }
	if err := gitpatch.Write(io.Discard, []gitpatch.Change{{New: f}}); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	pr, pw := io.Pipe()
	pr.CloseWithError(cause)
	if err := gitpatch.Write(pw, []gitpatch.Change{{New: text("x", "abc")}}); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

// An algorithm of quadratic time would not come back from this one.
func TestLongTextsWithNothingInCommonAreCompared(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var before, after strings.Builder
	for range 250_000 {
		before.WriteByte("ab"[r.IntN(2)])
		before.WriteByte('\n')
		after.WriteByte("ab"[r.IntN(2)])
		after.WriteByte('\n')
	}
	got := patchOf(t, gitpatch.Change{Old: text("x", before.String()), New: text("x", after.String())})
	if !strings.Contains(got, "\n@@ -") {
		t.Error("no hunk")
	}
}
