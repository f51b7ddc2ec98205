package gitpatch_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/gitpatch"
	"pgregory.net/rapid"
)

// tree is the files of a directory, by path. Directories are there if they have files.
type tree map[string]entry

type entry struct {
	mode    uint32
	content string
}

func TestGitAppliesEveryPatchOutsideOfARepository(t *testing.T) { checkPatches(t, false) }
func TestGitAppliesEveryPatchInsideOfARepository(t *testing.T)  { checkPatches(t, true) }

func checkPatches(t *testing.T, repository bool) {
	rapid.Check(t, func(t *rapid.T) {
		before := genTree().Draw(t, "before")
		after, changes := genChanges(t, before)
		var patch bytes.Buffer
		if err := gitpatch.Write(&patch, changes); err != nil {
			t.Fatal(err)
		}
		dir := newDir(t, repository)
		defer os.RemoveAll(dir)
		before.write(t, dir)
		apply(t, dir, patch.Bytes(), "--check")
		apply(t, dir, patch.Bytes())
		compare(t, dir, after)
		apply(t, dir, patch.Bytes(), "--reverse")
		compare(t, dir, before)
	})
}

func TestGitAppliesBinariesTooLargeForTheTextForm(t *testing.T) {
	long := strings.Repeat("one line of a text that is too long\n", 600_000)
	before := tree{"f": {gitpatch.ModeFile, long}}
	after := tree{"g": {gitpatch.ModeFile, long + "and another line\n"}}
	var patch bytes.Buffer
	changes := []gitpatch.Change{{Old: before.file("f"), New: after.file("g")}}
	if err := gitpatch.Write(&patch, changes); err != nil {
		t.Fatal(err)
	}
	dir := newDir(t, false)
	defer os.RemoveAll(dir)
	before.write(t, dir)
	apply(t, dir, patch.Bytes())
	compare(t, dir, after)
}

// failer is what rapid.T and testing.T have in common.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func genTree() *rapid.Generator[tree] {
	return rapid.Custom(func(t *rapid.T) tree {
		files := tree{}
		for range rapid.IntRange(0, 6).Draw(t, "files") {
			files.put(genPath().Draw(t, "path"), genEntry().Draw(t, "entry"))
		}
		return files
	})
}

// put adds a file unless a directory of that name is there, or a file where it needs a directory.
func (files tree) put(path string, e entry) bool {
	for other := range files {
		if strings.HasPrefix(other, path+"/") || strings.HasPrefix(path, other+"/") {
			return false
		}
	}
	files[path] = e
	return true
}

func genPath() *rapid.Generator[string] {
	name := rapid.SampledFrom([]string{"a", "b", "c", "sp ace", "end ", " start", "t\tab", "n\nl", `q"uote`, `back\slash`,
		"ünï", "\xff\xfe", "\x01\x7f", "-dash", "dev", "null", ".gitignore", ".gitattribute", "a b", "0", "x => y", "'"})
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(name, 1, 3).Draw(t, "names"), "/")
	})
}

// genEntry draws no symlink that can lead back to itself: git apply cannot look below one that becomes a directory.
func genEntry() *rapid.Generator[entry] {
	return rapid.Custom(func(t *rapid.T) entry {
		mode := rapid.SampledFrom([]uint32{gitpatch.ModeFile, gitpatch.ModeExecutable, gitpatch.ModeSymlink}).Draw(t, "mode")
		if mode == gitpatch.ModeSymlink {
			return entry{mode, rapid.SampledFrom([]string{"../b", "no\nwhere", "/abs", "\xff", "d/"}).Draw(t, "target")}
		}
		return entry{mode, genContent().Draw(t, "content")}
	})
}

func genContent() *rapid.Generator[string] {
	line := rapid.SampledFrom([]string{"a\n", "b\n", "\n", "c\r\n", "\r", "d\re\n", " s \n", "\\ No newline at end of file\n",
		"+++ b/x\n", "--- a/x\n", "@@ -1 +1 @@\n", "diff --git a/x b/x\n", "\xff\n", "ü\n", "GIT binary patch\n", "-- \n"})
	texts := rapid.Custom(func(t *rapid.T) string {
		lines := rapid.SliceOfN(line, 0, 40).Draw(t, "lines")
		return strings.Join(lines, "") + rapid.SampledFrom([]string{"", "", "end"}).Draw(t, "end")
	})
	binary := rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 200), func(b []byte) string { return "\x00" + string(b) })
	return rapid.OneOf(texts, texts, binary)
}

// genChanges draws a later state of before, and the changes between them, in any order.
func genChanges(t *rapid.T, before tree) (tree, []gitpatch.Change) {
	after := maps.Clone(before)
	origin := map[string]string{} // path in after → path in before
	for path := range before {
		origin[path] = path
	}
	for range rapid.IntRange(1, 6).Draw(t, "steps") {
		mutate(t, after, origin)
	}
	var changes []gitpatch.Change
	for path := range after {
		c := gitpatch.Change{New: after.file(path)}
		if from, ok := origin[path]; ok {
			c.Old = before.file(from)
		}
		changes = append(changes, c)
	}
	kept := slices.Collect(maps.Values(origin))
	for path := range before {
		if !slices.Contains(kept, path) {
			changes = append(changes, gitpatch.Change{Old: before.file(path)})
		}
	}
	slices.SortFunc(changes, func(a, b gitpatch.Change) int { return strings.Compare(nameOf(a), nameOf(b)) })
	return after, joinReplaced(rapid.Permutation(changes).Draw(t, "changes"))
}

// joinReplaced makes one change of a deletion and a creation of the same path, as a caller does that compares paths.
func joinReplaced(changes []gitpatch.Change) []gitpatch.Change {
	var joined []gitpatch.Change
	at := map[string]int{}
	for _, c := range changes {
		if c.Old != nil && c.New != nil {
			joined = append(joined, c)
			continue
		}
		path := nameOf(c)
		if i, ok := at[path]; !ok {
			at[path] = len(joined)
			joined = append(joined, c)
		} else if c.Old != nil {
			joined[i].Old = c.Old
		} else {
			joined[i].New = c.New
		}
	}
	return joined
}

func nameOf(c gitpatch.Change) string {
	if c.New != nil {
		return c.New.Path
	}
	return c.Old.Path
}

// mutate changes one file, and keeps origin in step.
func mutate(t *rapid.T, files tree, origin map[string]string) {
	paths := slices.Sorted(maps.Keys(files))
	if len(paths) == 0 || rapid.IntRange(0, 3).Draw(t, "create") == 0 {
		path := genPath().Draw(t, "path")
		if _, there := files[path]; !there {
			files.put(path, genEntry().Draw(t, "entry"))
		}
		return
	}
	path := rapid.SampledFrom(paths).Draw(t, "which")
	e, from := files[path], origin[path]
	switch rapid.SampledFrom([]string{"delete", "move", "swap", "append", "rewrite", "replace"}).Draw(t, "how") {
	case "delete":
		delete(files, path)
		delete(origin, path)
	case "move":
		to := genPath().Draw(t, "to")
		delete(files, path)
		if _, there := files[to]; there || !files.put(to, e) {
			files[path] = e
			return
		}
		delete(origin, path)
		if from != "" {
			origin[to] = from
		}
	case "swap":
		other := rapid.SampledFrom(paths).Draw(t, "other")
		files[path], files[other] = files[other], files[path]
		swapOrigin(origin, path, other)
	case "append":
		if e.mode != gitpatch.ModeSymlink {
			e.content += genContent().Draw(t, "more")
			files[path] = e
		}
	case "rewrite":
		files[path] = genEntry().Draw(t, "entry")
	case "replace":
		files[path] = genEntry().Draw(t, "entry")
		delete(origin, path)
	}
}

func swapOrigin(origin map[string]string, a, b string) {
	fromA, okA := origin[a]
	fromB, okB := origin[b]
	delete(origin, a)
	delete(origin, b)
	if okA {
		origin[b] = fromA
	}
	if okB {
		origin[a] = fromB
	}
}

func (files tree) file(path string) *gitpatch.File {
	e := files[path]
	return &gitpatch.File{Path: path, Mode: e.mode, Size: int64(len(e.content)),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(e.content)), nil }}
}

func newDir(t failer, repository bool) string {
	dir, err := os.MkdirTemp("", "gitpatch")
	if err != nil {
		t.Fatal(err)
	}
	if repository {
		git(t, dir, nil, "init", "--quiet")
	}
	return dir
}

func (files tree) write(t failer, dir string) {
	for path, e := range files {
		full := filepath.Join(dir, path)
		err := os.MkdirAll(filepath.Dir(full), 0o777)
		if err == nil && e.mode == gitpatch.ModeSymlink {
			err = os.Symlink(e.content, full)
		} else if err == nil {
			err = os.WriteFile(full, []byte(e.content), fs.FileMode(e.mode&0o777))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func apply(t failer, dir string, patch []byte, flags ...string) {
	t.Helper()
	if len(patch) > 0 { // git apply takes no empty patch
		git(t, dir, patch, append([]string{"apply"}, flags...)...)
	}
}

func git(t failer, dir string, stdin []byte, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	cmd.Stdin = bytes.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s\nof this patch:\n%s", args, err, out, stdin)
	}
}

func compare(t failer, dir string, want tree) {
	t.Helper()
	got := read(t, dir)
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if got[path] != want[path] {
			t.Fatalf("%q is %o %.200q instead of %o %.200q", path, got[path].mode, got[path].content, want[path].mode, want[path].content)
		}
		delete(got, path)
	}
	if len(got) > 0 {
		t.Fatalf("there are also %q", slices.Collect(maps.Keys(got)))
	}
}

func read(t failer, dir string) tree {
	files := tree{}
	err := filepath.WalkDir(dir, func(full string, d fs.DirEntry, err error) error {
		path, _ := filepath.Rel(dir, full)
		if err != nil || path == ".git" {
			return firstOf(err, fs.SkipDir)
		}
		if d.IsDir() {
			return nil
		}
		e, err := readEntry(full, d)
		files[path] = e
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func readEntry(full string, d fs.DirEntry) (entry, error) {
	if d.Type() == fs.ModeSymlink {
		target, err := os.Readlink(full)
		return entry{gitpatch.ModeSymlink, target}, err
	}
	info, err := d.Info()
	if err != nil {
		return entry{}, err
	}
	content, err := os.ReadFile(full)
	if err != nil {
		return entry{}, fmt.Errorf("read back: %w", err)
	}
	return entry{0o100000 | uint32(info.Mode().Perm()), string(content)}, nil
}
