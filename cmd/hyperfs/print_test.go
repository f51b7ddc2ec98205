package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
)

func TestNamesAreQuotedAsGitDoes(t *testing.T) {
	for in, want := range map[string]string{
		"plain":         "plain",
		"with space":    "with space",
		"ünïcödé/日本":    "ünïcödé/日本",
		"":              "",
		"a\nb":          `"a\nb"`,
		"tab\t":         `"tab\t"`,
		`quo"te`:        `"quo\"te"`,
		`back\slash`:    `"back\\slash"`,
		"\x1b[31mred":   `"\033[31mred"`,
		"latin\xe9":     `"latin\351"`,
		"ü\xff":         `"ü\377"`,
		"\x00":          `"\000"`,
		"\u202egnp.exe": `"\342\200\256gnp.exe"`, // turns the text around on a terminal
		"\ufffd":        "\ufffd",
	} {
		if got := quote(in); got != want {
			t.Errorf("quote(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	if got := oneLine("a\nb\x1b[2Jc\r"); got != "a b [2Jc " {
		t.Errorf("%q", got)
	}
}

func TestChangesHaveGitsLetters(t *testing.T) {
	var b bytes.Buffer
	err := printChanges(&b, []overlay.Change{
		{Kind: overlay.Created, Path: "new", Type: "dir", Tree: true},
		{Kind: overlay.Modified, Path: "m", Type: "file", What: []string{"content"}},
		{Kind: overlay.Modified, Path: "t", Type: "symlink", OldType: "file", What: []string{"type"}},
		{Kind: overlay.Deleted, Path: "d\n", Type: "file"},
		{Kind: overlay.Renamed, Path: "to", OldPath: "from", Type: "file"},
	})
	want := "A\tnew/\nM\tm\nT\tt\nD\t\"d\\n\"\nR\tfrom\tto\n"
	if err != nil || b.String() != want {
		t.Errorf("got %q, %v; want %q", b.String(), err, want)
	}
}

const samplePatch = `diff --git a/one.txt b/one.txt
index 1..2 100644
--- a/one.txt
+++ b/one.txt
@@ -1,3 +1,3 @@
 same
--- looks like a header
-gone
+++ looks like one too
+new
@@ -10 +10,2 @@ func
 same
+diff --git a/x b/x
\ No newline at end of file
diff --git a/old name b/new name
similarity index 100%
rename from old name
rename to new name
diff --git "a/b\"in" "b/b\"in"
new file mode 100644
GIT binary patch
literal 3
KcmZQzU|;|M00IB

`

func writeSample(w io.Writer) error {
	_, err := io.WriteString(w, samplePatch)
	return err
}

func TestStatCountsLinesAndNotWhatLooksLikeHeaders(t *testing.T) {
	list, err := readStats(writeSample)
	if err != nil {
		t.Fatal(err)
	}
	want := []fileStat{{name: "one.txt", added: 3, removed: 2}, {name: "new name"}, {name: `"b\"in"`, binary: true}}
	if len(list) != len(want) {
		t.Fatalf("%+v, want %+v", list, want)
	}
	for i := range want {
		if list[i] != want[i] {
			t.Errorf("%+v, want %+v", list[i], want[i])
		}
	}
}

func TestStatGivesThePatchsError(t *testing.T) {
	if err := printStat(io.Discard, func(io.Writer) error { return io.ErrNoProgress }); err != io.ErrNoProgress {
		t.Errorf("%v", err)
	}
}

func TestAStraightHistoryIsAStraightLine(t *testing.T) {
	var list []checkpoint.Checkpoint
	for i, p := range []string{"a:", "b:a", "c:b", "d:c", "x:b", "y:x", "e:d", "lost:gone"} {
		id, parent, _ := strings.Cut(p, ":")
		list = append(list, checkpoint.Checkpoint{ID: id, Parent: parent, Seq: uint64(i), Status: checkpoint.Active, Message: "m"})
	}
	var b bytes.Buffer
	d := newDrawing(list, "e", "y")
	d.out = &b
	d.add([]checkpoint.Branch{{Name: "fix-1", ForkPoint: "a"}, {Name: "fix-2", ForkPoint: "a", Head: "y"}, {Name: "fix-3", ForkPoint: "y", Message: "m"}})
	d.chains(d.roots, "")
	var got []string
	for _, l := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		mark := ""
		if i := strings.Index(l, "←"); i >= 0 {
			mark = " " + l[i:]
		}
		at, _, _ := strings.Cut(l, "  ")
		got = append(got, at+mark)
	}
	want := "├─● a|│ ├─◇ fix-1|│ ● b|│ ├─● c|│ │ ● d|│ │ ● e ← newest|│ ● x|│ ● y ← undo|│ ├─◇ fix-2|│ └─◇ fix-3|● lost"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("\n%s\nwant\n%s", strings.ReplaceAll(s, "|", "\n"), strings.ReplaceAll(want, "|", "\n"))
	}
}
