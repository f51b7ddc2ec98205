package linemerge

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMerge(t *testing.T) {
	const c = "CONFLICT"
	for _, tt := range []struct{ name, base, ours, theirs, want string }{
		{"nothing changed", "a\nb\n", "a\nb\n", "a\nb\n", "a\nb\n"},
		{"one side changed", "a\nb\nc\n", "a\nb\nc\n", "a\nB\nc\n", "a\nB\nc\n"},
		{"different functions", "a\n1\nb\n2\nc\n", "a\n1\n1\nb\n2\nc\n", "a\n1\nb\n2\nc\nd\n", "a\n1\n1\nb\n2\nc\nd\n"},
		{"the same line", "a\nb\nc\n", "a\nB\nc\n", "a\nbb\nc\n", c},
		{"the same change", "a\nb\nc\n", "a\nB\nc\n", "a\nB\nc\n", "a\nB\nc\n"},
		{"lines that touch", "a\nb\nc\nd\n", "a\nB\nc\nd\n", "a\nb\nC\nd\n", c},
		{"a line between", "a\nb\nc\nd\n", "A\nb\nc\nd\n", "a\nb\nC\nd\n", "A\nb\nC\nd\n"},
		{"both append", "a\n", "a\nb\n", "a\nc\n", c},
		{"both append the same", "a\n", "a\nb\n", "a\nb\n", "a\nb\n"},
		{"append after a missing newline", "x\na", "x\na\nb\n", "X\na", c},
		{"append after a missing newline, far away", "x\ny\nz\na", "x\ny\nz\na\nb\n", "X\ny\nz\na", "X\ny\nz\na\nb\n"},
		{"newline added by one side", "x\ny\na", "x\ny\na\n", "X\ny\na", "X\ny\na\n"},
		{"newline taken by one, line changed by the other", "x\na\n", "x\na", "x\nA\n", c},
		{"CRLF by one side, everywhere", "a\nb\n", "a\r\nb\r\n", "a\nB\n", c},
		{"CRLF in all", "a\r\nb\r\nc\r\n", "A\r\nb\r\nc\r\n", "a\r\nb\r\nC\r\n", "A\r\nb\r\nC\r\n"},
		{"all deleted and one changed", "a\nb\n", "", "a\nB\n", c},
		{"all deleted by both", "a\nb\n", "", "", ""},
		{"not UTF-8", "\xff\nb\n\xfe\n", "\xfd\nb\n\xfe\n", "\xff\nb\n\xfc\n", "\xfd\nb\n\xfc\n"},
		{"repeated lines", "x\nx\nx\ny\n", "x\nx\ny\n", "x\nx\nx\ny\nz\n", "x\nx\ny\nz\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, conflicts := Merge([]byte(tt.base), []byte(tt.ours), []byte(tt.theirs))
			if len(conflicts) > 0 {
				got = []byte(c)
			}
			if string(got) != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if git, clean := gitMerge(t, tt.base, tt.ours, tt.theirs); clean != (len(conflicts) == 0) || clean && git != string(got) {
				t.Errorf("git: clean %v, %q; here %q", clean, git, got)
			}
		})
	}
}

func TestMergeTellsLinesOfConflicts(t *testing.T) {
	base := "1\n2\n3\n4\n5\n6\n7\n8\n"
	ours := "0\n1\n2\nO\n4\n5\n6\n7\n8\n"
	theirs := "1\n2\nT\nT\n4\n5\n6\n8\n"
	_, got := Merge([]byte(base), []byte(ours), []byte(theirs))
	want := []Conflict{{Base: Lines{3, 1}, Ours: Lines{4, 1}, Theirs: Lines{3, 2}}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// gitMerge is what `git merge-file` makes of it.
func gitMerge(t testing.TB, base, ours, theirs string) (merged string, clean bool) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("git is not installed")
		}
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"base": base, "ours": ours, "theirs": theirs} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("git", "merge-file", "-p", "-q", "ours", "base", "theirs")
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() < 0 || exit.ExitCode() > 127) {
		t.Fatal(err, string(exit.Stderr))
	}
	return string(out), err == nil
}

// text makes a text of lines that mostly occur once, as those of a program do, with some that come again and again.
func text(r *rand.Rand, lines, often int) []string {
	out := make([]string, lines)
	for i := range out {
		out[i] = fmt.Sprintf("line %d", r.Int64())
		if r.IntN(100) < often {
			out[i] = []string{"", "}", "\t}", "end"}[r.IntN(4)]
		}
	}
	return out
}

// edit changes, adds and removes lines; it copies some only if lines occur often.
func edit(r *rand.Rand, lines []string, often int) []string {
	lines = slices.Clone(lines)
	kinds := 3
	if often > 0 {
		kinds = 4
	}
	for range 1 + r.IntN(4) {
		at := r.IntN(len(lines) + 1)
		n := min(1+r.IntN(3), len(lines)-at)
		switch r.IntN(kinds) {
		case 0:
			lines = slices.Insert(lines, at, text(r, 1+r.IntN(3), often)...)
		case 1:
			lines = slices.Delete(lines, at, at+n)
		case 2:
			lines = slices.Replace(lines, at, at+n, text(r, n, often)...)
		case 3:
			part := slices.Clone(lines[at : at+n])
			lines = slices.Insert(lines, r.IntN(len(lines)+1), part...)
		}
	}
	return lines
}

func join(r *rand.Rand, lines []string) string {
	s := strings.Join(lines, "\n")
	if r.IntN(8) > 0 && s != "" {
		s += "\n"
	}
	return s
}

// seed is always the same with CI=true.
func seed() uint64 {
	if os.Getenv("CI") == "true" {
		return 1
	}
	return uint64(time.Now().UnixNano())
}

// Where no line repeats, there is one shortest comparison, and the outcome must be git's. Where lines do, git may take another
// one that is as short, so that now and then one of the two has a conflict and the other one none.
func TestMergeIsWhatGitMakesOfIt(t *testing.T) {
	s := seed()
	r := rand.New(rand.NewPCG(s, 0))
	n := 3000
	if testing.Short() {
		n = 300
	}
	conflicts, clean, others := 0, 0, 0
	for i := range n {
		often := []int{0, 10, 40}[i%3]
		b := text(r, 1+r.IntN(40), often)
		base, ours, theirs := join(r, b), join(r, edit(r, b, often)), join(r, edit(r, b, often))
		want, ok := gitMerge(t, base, ours, theirs)
		got, cs := Merge([]byte(base), []byte(ours), []byte(theirs))
		switch differs := ok != (len(cs) == 0) || ok && want != string(got); {
		case differs && often > 0:
			others++
		case differs:
			t.Fatalf("seed %d, triple %d: git clean %v, here %v\nbase %q\nours %q\ntheirs %q\ngit %q\nhere %q", s, i, ok, cs, base, ours, theirs, want, got)
		}
		if ok {
			clean++
		} else {
			conflicts++
		}
	}
	if others > n/200 {
		t.Errorf("seed %d: in %d of %d cases git makes something else of it", s, others, n)
	}
	if conflicts < n/20 || clean < n/20 {
		t.Errorf("%d clean and %d with conflicts do not say much", clean, conflicts)
	}
}

func TestMergeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a\n", "b\n", "c\n", "\n"}), 0, 12), func(l []string) []byte { return []byte(strings.Join(l, "")) })
		base, ours, theirs := lines.Draw(t, "base"), lines.Draw(t, "ours"), lines.Draw(t, "theirs")
		one, c1 := Merge(base, ours, theirs)
		two, c2 := Merge(base, theirs, ours)
		if len(c1) != len(c2) || !bytes.Equal(one, two) {
			t.Fatalf("the sides are not treated alike: %q %v, %q %v", one, c1, two, c2)
		}
		if got, c := Merge(base, ours, base); len(c) > 0 || !bytes.Equal(got, ours) {
			t.Fatalf("merging nothing changed it: %q %v", got, c)
		}
		if got, c := Merge(base, ours, ours); len(c) > 0 || !bytes.Equal(got, ours) {
			t.Fatalf("merging the same changed it: %q %v", got, c)
		}
	})
}

func TestDiffOfLongTextsThatHaveLittleInCommonEnds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	a, b := make([]int32, 50_000), make([]int32, 50_000)
	for i := range a {
		a[i], b[i] = int32(r.IntN(300)), int32(r.IntN(300))
	}
	start := time.Now()
	list := diff(a, b)
	i, j := 0, 0
	for _, c := range append(list, change{len(a), len(a), len(b), len(b)}) {
		if !slices.Equal(a[i:c.a0], b[j:c.b0]) {
			t.Fatalf("%v: what is left out differs", c)
		}
		i, j = c.a1, c.b1
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
}

func BenchmarkMerge50000Lines(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	base := text(r, 50_000, 20)
	ours, theirs := slices.Clone(base), slices.Clone(base)
	for i := 0; i < len(base); i += 100 {
		ours[i], theirs[i+50] = "ours", "theirs"
	}
	x, y, z := []byte(join(r, base)), []byte(join(r, ours)), []byte(join(r, theirs))
	b.SetBytes(int64(len(x)))
	for b.Loop() {
		if _, c := Merge(x, y, z); len(c) > 0 {
			b.Fatal(c)
		}
	}
}
