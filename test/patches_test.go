package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"github.com/hyperfs/hyperfs/overlay/scan"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
	"golang.org/x/sys/unix"
)

// envPatchTrees is how many random trees a test of patches goes through with the FUSE backend's tree; other backends take a fifth.
const envPatchTrees = "HYPERFS_PATCH_TREES"

// treesPerPatch is how many random trees, side by side, one run of git apply is about.
const treesPerPatch = 20

func TestPatchOfRandomChangesGivesTheTreeThatTheyGave(t *testing.T) {
	for _, b := range []struct {
		name  string
		share int // percent of the trees
		open  func(dir string) (patchSubject, error)
	}{
		{"tree", 100, openPatchTree},
		{"branch", 20, openPatchBranch},
		{"scan", 20, openPatchScan},
	} {
		t.Run(b.name, func(t *testing.T) {
			rounds := max(amount(t, envPatchTrees, 1000)*b.share/100/treesPerPatch, 1)
			repeat(t, b.share/10, func() {
				dir := filepath.Join(memory(t), "workspace")
				must(t, os.Mkdir(dir, 0o755))
				sub, err := b.open(dir)
				must(t, err)
				defer func() { must(t, sub.close()) }()
				s := seed(t)
				l := &patchLife{T: t, sub: sub, rand: rand.New(rand.NewPCG(s, 1)), spare: memory(t), generators: map[string]*ops.Generator{}}
				defer func() {
					if t.Failed() {
						t.Logf("seed %d", s)
					}
				}()
				l.live(rounds)
			})
		})
	}
}

// patchSubject is a workspace whose patches are tested.
type patchSubject struct {
	fs       ops.FS
	copy     func(dst string) error // of the live tree
	snapshot func() (string, error)
	patch    func(from, to string, out *bytes.Buffer) error
	close    func() error
}

func openPatchTree(dir string) (s patchSubject, err error) {
	ws, err := overlay.Open(treeOptions{Large: true, Tier: "pure-manifest hot"}.config(dir))
	if err != nil {
		return s, err
	}
	fs := treefs.New(ws.Tree(), treefs.Options{})
	return patchSubject{
		fs:   fs,
		copy: func(dst string) error { return treestate.Copy(dir, dst) },
		snapshot: func() (string, error) {
			c, err := ws.Snapshot(context.Background(), overlay.SnapshotOptions{})
			return c.ID, err
		},
		patch: func(from, to string, out *bytes.Buffer) error { return ws.Patch(context.Background(), from, to, out) },
		close: func() error { fs.Drop(); return ws.Close() },
	}, nil
}

func openPatchBranch(dir string) (s patchSubject, err error) {
	const name = "b"
	ws, err := branch.Open(treeOptions{}.config(dir))
	if err != nil {
		return s, err
	}
	ctx := context.Background()
	if _, err := ws.Fork(ctx, overlay.ForkOptions{Name: name}); err != nil {
		return s, err
	}
	vol, err := ws.Manager().Volume(name)
	if err != nil {
		return s, err
	}
	fs := treefs.NewVolume(vol, treefs.Options{})
	return patchSubject{
		fs:   fs,
		copy: func(dst string) error { _, err := fs.Copy(dst); return err },
		snapshot: func() (string, error) {
			c, err := ws.Snapshot(ctx, overlay.SnapshotOptions{Branch: name})
			return c.ID, err
		},
		patch: func(from, to string, out *bytes.Buffer) error { return ws.Manager().Patch(ctx, name, from, to, out) },
		close: func() error { fs.Drop(); vol.Close(); return ws.Close() },
	}, nil
}

func openPatchScan(dir string) (s patchSubject, err error) {
	ws, err := scan.Open(overlay.Config{Workspace: dir})
	if err != nil {
		return s, err
	}
	fs, err := ops.OpenDirFS(dir)
	return patchSubject{
		fs:   fs,
		copy: func(dst string) error { return treestate.Copy(dir, dst) },
		snapshot: func() (string, error) {
			c, err := ws.Snapshot(context.Background(), overlay.SnapshotOptions{})
			return c.ID, err
		},
		patch: func(from, to string, out *bytes.Buffer) error { return ws.Patch(context.Background(), from, to, out) },
		close: func() error { return errors.Join(fs.Close(), ws.Close()) },
	}, err
}

// patchLife is one workspace that is changed at random, with a checkout beside it that patches keep up with it.
type patchLife struct {
	*testing.T
	sub        patchSubject
	rand       *rand.Rand
	spare      string
	generators map[string]*ops.Generator
}

// Intn implements ops.Chooser.
func (l *patchLife) Intn(_ string, n int) int { return l.rand.IntN(n) }

func (l *patchLife) live(rounds int) {
	x := ops.NewExecutor(textFS{l.sub.fs})
	for i := range treesPerPatch {
		must(l.T, x.Apply(ops.Op{Kind: ops.Mkdir, Path: treeName(i), Mode: 0o755}))
	}
	l.change(x, 15)
	from, err := l.sub.snapshot()
	must(l.T, err)
	was := l.checkout(0)
	dir := filepath.Join(l.spare, "work")
	must(l.T, treestate.Copy(filepath.Join(l.spare, "0"), dir))
	for i := 1; i <= rounds && !l.Failed(); i++ {
		l.change(x, 6)
		now := l.checkout(i)
		l.apply(dir, from, "")
		l.compare(dir, now, "after the patch of what changed since the checkpoint")
		to, err := l.sub.snapshot()
		must(l.T, err)
		if i%3 == 0 {
			l.apply(dir, to, from)
			l.compare(dir, was, "after the patch from the later checkpoint to the earlier one")
			l.apply(dir, from, to)
			l.compare(dir, now, "after the patch from the earlier checkpoint to the later one")
		}
		from, was = to, now
	}
}

func treeName(i int) ops.Bytes { return ops.Bytes(fmt.Sprintf("t%d", i)) }

// change makes n random changes to each of the trees.
func (l *patchLife) change(x *ops.Executor, n int) {
	for i := range treesPerPatch {
		name := string(treeName(i))
		g := l.generators[name]
		if g == nil {
			g = &ops.Generator{Root: os.Getuid() == 0, NoHandles: true}
			l.generators[name] = g
		}
		for range n {
			o := g.Next(l, l.view(name))
			o.Path, o.To = inTree(name, o.Path), inTree(name, o.To)
			o.Len, o.Off = o.Len%700, o.Off%900
			if o.Value == "a" { // git apply can't look below a symlink that leads to itself and becomes a directory
				o.Value = "b"
			}
			if err := x.Apply(o); err != nil {
				if ops.ErrnoName(err) == err.Error() {
					l.Fatalf("%v: %v", o, err)
				}
			}
		}
	}
}

// inTree makes a path one in a tree, with the odd names in it that random operations do not choose.
func inTree(tree string, path ops.Bytes) ops.Bytes {
	switch path {
	case "":
		return ""
	case ".":
		return ops.Bytes(tree)
	}
	parts := strings.Split(string(path), "/")
	for i, p := range parts {
		if odd, is := oddNames[p]; is {
			parts[i] = odd
		}
	}
	return ops.Bytes(tree + "/" + strings.Join(parts, "/"))
}

var oddNames = map[string]string{"b": "sp ace", "c": `q"uote`, "d": "ünï\tx", "e": ".gitignore", "f": ".gitattributes"}

// view lists what a tree holds.
func (l *patchLife) view(tree string) (v ops.View) {
	var walk func(path, rel string)
	walk = func(path, rel string) {
		list, err := l.sub.fs.ReadDir(path)
		must(l.T, err)
		slices.Sort(list)
		for _, name := range list {
			p, r := path+"/"+name, name
			if rel != "" {
				r = rel + "/" + name
			}
			if dir, err := l.sub.fs.IsDir(p); err == nil && dir {
				v.Dirs = append(v.Dirs, r)
				walk(p, r)
			} else {
				v.Files = append(v.Files, r)
			}
		}
	}
	walk(tree, "")
	return v
}

// checkout makes the directory n what a clean checkout of the live tree is, and gives that.
func (l *patchLife) checkout(n int) treestate.State {
	l.Helper()
	all, dir := filepath.Join(l.spare, "all"), filepath.Join(l.spare, fmt.Sprint(n))
	must(l.T, l.sub.copy(all))
	must(l.T, checkOut(all, dir))
	must(l.T, treestate.Remove(all))
	s, err := treestate.Capture(dir, treestate.Options{})
	must(l.T, err)
	if n > 0 { // only the first is needed itself
		must(l.T, treestate.Remove(dir))
	}
	return s
}

// checkOut makes to what git can carry of from: regular files that are executable or not, symlinks, and the directories above them.
func checkOut(from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	list, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range list {
		x, y := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		switch {
		case e.IsDir():
			if err = checkOut(x, y); err == nil {
				if err = os.Remove(y); errors.Is(err, unix.ENOTEMPTY) {
					err = nil
				}
			}
		case e.Type().IsRegular():
			err = checkOutFile(x, y)
		case e.Type() == os.ModeSymlink:
			var target string
			if target, err = os.Readlink(x); err == nil {
				err = os.Symlink(target, y)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkOutFile(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	return os.WriteFile(to, content, mode)
}

func (l *patchLife) apply(dir, from, to string) {
	l.Helper()
	var patch bytes.Buffer
	must(l.T, l.sub.patch(from, to, &patch))
	if patch.Len() == 0 {
		return // git apply takes none that is empty
	}
	gitApply(l.T, dir, patch.Bytes())
}

// gitApply has git apply a patch, inside of no repository.
func gitApply(t *testing.T, dir string, patch []byte, flags ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"apply", "--whitespace=nowarn"}, flags...)...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(patch)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%.4000s\nof this patch:\n%.4000q", err, out, patch)
	}
}

// compare proves that a directory holds the files of a state, as far as git carries them.
func (l *patchLife) compare(dir string, want treestate.State, when string) {
	l.Helper()
	got, err := treestate.Capture(dir, treestate.Options{})
	must(l.T, err)
	if diff := diffForGit(want, got); len(diff) > 0 {
		l.Fatalf("%s:\n%s", when, strings.Join(diff, "\n"))
	}
}

func diffForGit(want, got treestate.State) (diff []string) {
	all := maps.Clone(want)
	maps.Copy(all, got)
	for _, p := range all.Paths() {
		x, there := want[p]
		y, is := got[p]
		if all[p].IsDir() && (!there || !is || y.IsDir()) { // git knows only those that something is in, and these are compared
			continue
		}
		if !there || !is || x.Mode != y.Mode || x.Size != y.Size || x.Sum != y.Sum || x.Target != y.Target {
			diff = append(diff, fmt.Sprintf("%q is %o of %d bytes %q, want %o of %d bytes %q", p, y.Mode, y.Size, y.Target, x.Mode, x.Size, x.Target))
		}
	}
	return diff
}

// textFS is an FS in which most of what is written is text: short lines, some with CRLF, and often without a newline at the end.
type textFS struct{ ops.FS }

type textFile struct{ ops.File }

func (t textFS) Open(path string, flags int, mode uint32) (ops.File, error) {
	f, err := t.FS.Open(path, flags, mode)
	return textFile{f}, err
}

func (t textFS) Tmpfile(dir string, mode uint32) (ops.File, error) {
	f, err := t.FS.Tmpfile(dir, mode)
	return textFile{f}, err
}

func (t textFS) LinkFile(f ops.File, path string) error {
	return t.FS.LinkFile(f.(textFile).File, path)
}

func (f textFile) CopyFrom(src ops.File, srcOff, off, n int64) error {
	return f.File.CopyFrom(src.(textFile).File, srcOff, off, n)
}

func (f textFile) WriteAt(p []byte, off int64) (int, error) {
	if p[0]%8 > 0 {
		text := make([]byte, 0, len(p)+3)
		for _, b := range p {
			text = append(text, []string{"a", "b", "c\n", "\n", "d\r\n", "e", "ü", "+x\n"}[b%8]...)
		}
		p = text[:len(p)]
	}
	return f.File.WriteAt(p, off)
}

// A patch for a repository that converts what it checks out is exact where git is told that there is no repository, as docs/patches.md says.
func TestPatchIsExactInARepositoryThatConverts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "workspace")
	must(t, os.Mkdir(dir, 0o755))
	write := func(name, text string) { must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)) }
	write(".gitattributes", "* text=auto eol=crlf\n*.id ident\n*.f filter=loud\n")
	write("mixed", "a\r\nb\nc\n")
	write("lf", "x\ny\n")
	write("crlf", "x\r\ny\r\n")
	write("i.id", "$Id$\n")
	write("x.f", "quiet\n")
	sub, err := openPatchScan(dir)
	must(t, err)
	defer func() { must(t, sub.close()) }()
	from, err := sub.snapshot()
	must(t, err)
	old := filepath.Join(t.TempDir(), "old")
	must(t, sub.copy(old))
	write("mixed", "a\r\nB\nc\n")
	write("lf", "x\nY\n")
	write("crlf", "x\r\nY\r\n")
	write("i.id", "$Id$ 2\n")
	write("x.f", "still quiet\n")
	write("new", "1\n2\n")
	var patch bytes.Buffer
	must(t, sub.patch(from, "", &patch))
	script(t, old, toolEnv(t, false), `git init -q .; git config core.autocrlf true; git config filter.loud.smudge 'tr a-z A-Z'; git config filter.loud.clean 'tr A-Z a-z'`)
	t.Setenv("GIT_DIR", "/nonexistent")
	gitApply(t, old, patch.Bytes())
	must(t, os.RemoveAll(filepath.Join(old, ".git")))
	want, err := treestate.Capture(dir, treestate.Options{})
	must(t, err)
	got, err := treestate.Capture(old, treestate.Options{})
	must(t, err)
	if diff := diffForGit(want, got); len(diff) > 0 {
		t.Error(strings.Join(diff, "\n"))
	}
}

func TestPatchOfChangesOfEveryKindGivesTheTree(t *testing.T) {
	const before = `
		mkdir -p d/sub e f empty hollow/inner; for n in d/1 d/sub/2 e/3 f/4 swap1 swap2 chain1 chain2 file link0; do seq 30 | sed "s,^,$n ," > $n; done
		printf 'no newline' > tail; printf 'a\r\nb\r\n' > crlf; : > none; head -c 1500000 /dev/zero | tr '\0' x > large; head -c 900 /dev/urandom > binary
		ln -s target link; ln -s d dirlink; ln d/1 hard; echo secret > shut; chmod 000 shut; mkfifo fifo; echo '*.log' > .gitignore; echo log > a.log; mkdir todir; echo x > todir/x`
	const after = `
		mv d moved; echo edited >> moved/1; mv e/3 e/third; sed -i s/7/seven/ e/third
		mv swap1 t; mv swap2 swap1; mv t swap2; mv chain2 chain3; mv chain1 chain2
		printf 'no newline either' > tail; printf 'a\r\nB\r\n' > crlf; rm none; : > none2; printf mid | dd of=large bs=1 seek=700000 conv=notrunc status=none; printf '\0\1' >> binary
		ln -sfn other link; rm dirlink; mkdir dirlink; echo in > dirlink/f; rm -r todir; echo file > todir; rm file; ln -s x file; chmod 755 link0; echo more >> hard
		echo other > shut; chmod 400 shut; rm fifo; rmdir empty; echo was-empty > empty; rm -r f; echo more >> a.log; mkdir still-empty; printf 'tab\n' > "$(printf 't\tab "q" \377 ')"`
	for _, b := range []struct {
		name string
		open func(dir string) (patchSubject, error)
	}{{"scan", openPatchScan}, {"mount", openPatchMount}} {
		t.Run(b.name, func(t *testing.T) {
			if b.name == "mount" {
				needMount(t)
			}
			dir := filepath.Join(t.TempDir(), "workspace")
			must(t, os.Mkdir(dir, 0o755))
			script(t, dir, nil, before)
			sub, err := b.open(dir)
			must(t, err)
			defer func() { must(t, sub.close()) }()
			from, err := sub.snapshot()
			must(t, err)
			l := &patchLife{T: t, sub: sub, spare: t.TempDir()}
			was := l.checkout(0)
			script(t, dir, nil, after)
			now := l.checkout(1)
			work := filepath.Join(l.spare, "0")
			l.apply(work, from, "")
			l.compare(work, now, "after the patch")
			var patch bytes.Buffer
			must(t, sub.patch(from, "", &patch))
			gitApply(t, work, patch.Bytes(), "--reverse")
			l.compare(work, was, "after the patch was taken back")
			gitApply(t, work, patch.Bytes(), "--check")
		})
	}
}

func openPatchMount(dir string) (s patchSubject, err error) {
	m, err := newMountSubject(dir, mountOptions{})
	if err != nil {
		return s, err
	}
	return patchSubject{
		copy:     func(dst string) error { return treestate.Copy(dir, dst) },
		snapshot: m.Snapshot,
		patch: func(from, to string, out *bytes.Buffer) error {
			return m.client.Patch(context.Background(), control.Between{From: from, To: to}, out)
		},
		close: m.Close,
	}, nil
}
