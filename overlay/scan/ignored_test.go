//go:build linux || windows

package scan

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
)

// deps gives a project whose dependencies are ignored.
func deps(t *testing.T, patterns ...string) *fixture {
	t.Helper()
	f := newFixture(t)
	f.writeAll(map[string]string{
		"package.json": "{}", "src/main.js": "main", "src/lib/util.js": "util",
		"node_modules/left/index.js": "left", "node_modules/.cache/meta.json": "meta 1",
	})
	if f.ignore = patterns; patterns == nil {
		f.ignore = []string{"node_modules/"}
	}
	f.reopen()
	return f
}

func (f *fixture) writeAll(files map[string]string) {
	f.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f.write(name, files[name])
	}
}

// use opens the workspace anew, with other patterns.
func (f *fixture) use(patterns ...string) {
	f.Helper()
	f.ignore = patterns
	f.reopen()
}

// reads compares what is in files; "" means that there is none.
func (f *fixture) reads(want map[string]string) {
	f.Helper()
	for name, text := range want {
		b, err := os.ReadFile(f.path(name))
		switch {
		case text == "" && err == nil:
			f.Errorf("%s is there: %q", name, b)
		case text != "" && string(b) != text:
			f.Errorf("%s has %q, should have %q (%v)", name, b, text, err)
		}
	}
}

func (f *fixture) rename(from, to string) {
	f.Helper()
	f.must(os.MkdirAll(filepath.Dir(f.path(to)), 0o755))
	f.must(os.Rename(f.path(from), f.path(to)))
}

func (f *fixture) removeAll(name string) {
	f.Helper()
	f.must(os.RemoveAll(f.path(name)))
}

func (f *fixture) undo() {
	f.Helper()
	_, err := f.w.Undo(context.Background())
	f.must(err)
}

func (f *fixture) track(names ...string) {
	f.Helper()
	_, err := f.w.Track(context.Background(), names)
	f.must(err)
}

// refuses fails the test unless a rollback is refused with a code, and nothing has changed.
func (f *fixture) refuses(id string, code errs.Code) {
	f.Helper()
	before := f.capture()
	_, err := f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	f.wantCode(err, code)
	f.is(before)
}

// changes lists what a diff from a checkpoint says, one word for each; times alone are left out.
func (f *fixture) changes(id string) string {
	f.Helper()
	d, err := f.w.Diff(context.Background(), id, "", false)
	f.must(err)
	var all []string
	for _, c := range d.Changes {
		if slices.Equal(c.What, []string{"mtime"}) {
			continue
		}
		all = append(all, strings.TrimSpace(fmt.Sprint(c.Kind, " ", c.OldPath, " ", c.Path)))
	}
	return strings.ReplaceAll(strings.Join(all, ", "), "  ", " ")
}

func TestARollbackLeavesIgnoredPaths(t *testing.T) {
	f := deps(t)
	id := f.snapshot()
	f.writeAll(map[string]string{"src/main.js": "MAIN", "node_modules/left/index.js": "LEFT", "node_modules/right/index.js": "right"})
	f.must(os.Remove(f.path("node_modules/.cache/meta.json")))
	if got := f.changes(id); got != "modified src/main.js" {
		t.Error(got)
	}
	f.rollback(id)
	after := map[string]string{
		"src/main.js": "main", "node_modules/left/index.js": "LEFT", "node_modules/right/index.js": "right", "node_modules/.cache/meta.json": "",
	}
	f.reads(after)
	f.undo()
	after["src/main.js"] = "MAIN"
	f.reads(after)
	f.reopen()
	f.rollback(id)
	after["src/main.js"] = "main"
	f.reads(after)
	f.sound()
	if n := f.backupCount(); n != 4 { // three that are protected, and what main.js was before the rollback
		t.Errorf("%d backups", n)
	}
}

func TestIgnoredDirectoriesAreNotWalked(t *testing.T) {
	f := deps(t)
	f.snapshot()
	if n := f.w.Status().Scan.Entries; n != 6 {
		t.Errorf("%d entries", n)
	}
	for i := range 50 {
		f.write(fmt.Sprint("node_modules/", i, "/index.js"), "x")
	}
	f.snapshot()
	st := f.w.Status()
	if st.Scan.Entries != 6 || st.Ignore == nil || !slices.Equal(st.Ignore.Patterns, f.ignore) || st.Ignore.Strict {
		t.Errorf("%+v %+v", st.Scan, st.Ignore)
	}
	list, err := f.w.List(overlay.ListOptions{})
	f.must(err)
	if list[0].Dirty != 0 {
		t.Errorf("%d paths are told to have changed", list[0].Dirty)
	}
	r, err := f.w.Reconcile(context.Background(), "")
	f.must(err)
	if len(r.Created)+len(r.Modified)+len(r.Deleted)+len(r.Renamed) > 0 {
		t.Errorf("%+v", r)
	}
}

func TestThePatternsOfTheLastTimeStay(t *testing.T) {
	f := deps(t)
	f.must(f.w.Close())
	w, err := Open(overlay.Config{Workspace: f.dir, SameIgnored: true})
	f.must(err)
	f.w = w
	if st := w.Status(); st.Ignore == nil || !slices.Equal(st.Ignore.Patterns, f.ignore) {
		t.Errorf("%+v", st.Ignore)
	}
	f.use()
	if st := f.w.Status(); st.Ignore != nil {
		t.Errorf("%+v", st.Ignore)
	}
}

func TestADirectoryStaysForWhatIsIgnoredInIt(t *testing.T) {
	f := deps(t)
	id := f.snapshot()
	f.writeAll(map[string]string{"app/main.js": "app", "app/web/page.js": "page", "app/web/node_modules/x/index.js": "x", "app/other/y": "y"})
	there := f.capture()
	f.must(os.Chmod(f.path("app"), 0o700))
	if r := f.rollback(id); r.Kept != 1 || r.Removed != 3 {
		t.Errorf("%+v", r)
	}
	f.reads(map[string]string{"app/main.js": "", "app/web/page.js": "", "app/web/node_modules/x/index.js": "x", "app/other/y": ""})
	if _, err := os.Lstat(f.path("app/other")); err == nil {
		t.Error("a directory with nothing ignored in it has stayed")
	}
	if got := f.changes(id); got != "created app" {
		t.Error(got)
	}
	f.undo()
	f.must(os.Chmod(f.path("app"), 0o755))
	f.is(there)
	f.rollback(id)
	if r := f.rollback(id); r.Removed+r.Restored+r.Modified > 0 {
		t.Errorf("%+v", r)
	}
	f.sound()
}

func TestARollbackThatNeedsThePlaceOfSomethingIgnoredIsRefused(t *testing.T) {
	t.Run("an ignored directory", func(t *testing.T) {
		f := deps(t)
		f.removeAll("node_modules")
		f.write("node_modules", "a file")
		id := f.snapshot()
		f.must(os.Remove(f.path("node_modules")))
		f.write("node_modules/x", "x")
		f.write("src/main.js", "MAIN")
		f.refuses(id, errs.Rollback)
		f.rename("node_modules", "aside/node_modules")
		f.rollback(id)
		f.reads(map[string]string{"node_modules": "a file", "src/main.js": "main", "aside/node_modules/x": "x"})
	})
	t.Run("a directory with an ignored one in it", func(t *testing.T) {
		f := deps(t)
		id := f.snapshot()
		f.must(os.Remove(f.path("package.json")))
		f.write("package.json/a/node_modules/x", "x")
		f.refuses(id, errs.Rollback)
	})
	t.Run("a file in the place of an ignored directory", func(t *testing.T) {
		f := deps(t)
		id := f.snapshot()
		f.removeAll("node_modules")
		f.write("node_modules", "a file")
		f.rollback(id)
		f.reads(map[string]string{"node_modules": ""})
		f.undo()
		f.reads(map[string]string{"node_modules": "a file"})
	})
}

func TestARenameAcrossTheBorder(t *testing.T) {
	f := deps(t)
	id := f.snapshot()
	before := f.capture()
	f.rename("src/main.js", "node_modules/main.js")
	f.rename("src/lib", "node_modules/lib")
	f.rename("node_modules/left", "src/left")
	if got := f.changes(id); got != "deleted src/lib, deleted src/lib/util.js, deleted src/main.js, created src/left" &&
		got != "created src/left, deleted src/lib, deleted src/lib/util.js, deleted src/main.js" {
		t.Error(got)
	}
	f.rollback(id) // what is protected is made anew, and what is ignored now stays
	f.reads(map[string]string{
		"src/main.js": "main", "src/lib/util.js": "util", "node_modules/main.js": "main", "node_modules/lib/util.js": "util", "src/left/index.js": "",
	})
	f.undo()
	f.reads(map[string]string{"src/main.js": "", "src/lib/util.js": "", "node_modules/main.js": "main", "src/left/index.js": "left"})
	f.rename("src/left", "node_modules/left")
	f.rollback(id)
	f.removeAll("node_modules/lib")
	f.must(os.Remove(f.path("node_modules/main.js")))
	if diff := (treestate.Compare{Holes: holes}).Diff(protected(before), protected(f.capture())); len(diff) > 0 {
		t.Error(diff)
	}
}

// protected gives what is not in node_modules.
func protected(s treestate.State) treestate.State {
	s = maps.Clone(s)
	maps.DeleteFunc(s, func(p string, _ treestate.Entry) bool { return strings.HasPrefix(p, "node_modules") })
	return s
}

func TestALinkAcrossTheBorder(t *testing.T) {
	f := deps(t)
	f.must(os.Link(f.path("src/main.js"), f.path("node_modules/main.js")))
	id := f.snapshot()
	f.write("node_modules/main.js", "changed by the ignored name")
	f.reads(map[string]string{"src/main.js": "changed by the ignored name"})
	if got := f.changes(id); got != "modified src/main.js" {
		t.Error(got)
	}
	f.rollback(id)
	f.reads(map[string]string{"src/main.js": "main", "node_modules/main.js": "changed by the ignored name"})
	f.undo()
	f.reads(map[string]string{"src/main.js": "changed by the ignored name", "node_modules/main.js": "changed by the ignored name"})
	f.sound()
}

// TestOtherPatternsMakeNoHoles: what either side does not know is left, and comes back when both know it.
func TestOtherPatternsMakeNoHoles(t *testing.T) {
	f := deps(t)
	first := f.snapshot() // without node_modules
	f.writeAll(map[string]string{"node_modules/left/index.js": "LEFT", "src/main.js": "MAIN"})
	f.use("src/lib/")
	second := f.snapshot() // without src/lib
	f.writeAll(map[string]string{"node_modules/left/index.js": "left again", "src/lib/util.js": "UTIL"})
	f.use()
	third := f.snapshot() // with all
	f.writeAll(map[string]string{"src/lib/util.js": "util again", "node_modules/left/index.js": "left thrice"})
	if got := f.changes(second); got != "modified node_modules/left/index.js" {
		t.Error(got)
	}
	if got := f.changes(first); got != "modified src/lib/util.js, modified src/main.js" {
		t.Error(got)
	}
	f.rollback(third)
	f.reads(map[string]string{"src/lib/util.js": "UTIL", "node_modules/left/index.js": "left again", "src/main.js": "MAIN"})
	f.rollback(second)
	f.reads(map[string]string{"src/lib/util.js": "UTIL", "node_modules/left/index.js": "LEFT", "src/main.js": "MAIN"})
	f.use("node_modules/")
	f.write("src/lib/util.js", "util at last")
	f.rollback(third) // but for what is ignored now
	f.reads(map[string]string{"src/lib/util.js": "UTIL", "node_modules/left/index.js": "LEFT", "src/main.js": "MAIN"})
	f.rollback(first)
	f.reads(map[string]string{"src/lib/util.js": "util", "node_modules/left/index.js": "LEFT", "src/main.js": "main"})
	f.use()
	f.rollback(third) // which has kept what it left out twice
	f.reads(map[string]string{"src/lib/util.js": "UTIL", "node_modules/left/index.js": "left again", "src/main.js": "MAIN"})
	f.sound()
}

// TestWhatARollbackHasLeftOutIsStillKnownToBeOld: the manifest that it renews has parts that are older than its new time.
func TestWhatARollbackHasLeftOutIsStillKnownToBeOld(t *testing.T) {
	f := deps(t, "nothing")
	id := f.snapshot()
	f.use("node_modules/")
	f.write("src/main.js", "MAIN")
	f.rollback(id)
	f.use("nothing")
	meta := f.path("node_modules/left/index.js")
	st, err := os.Stat(meta)
	f.must(err)
	f.write("node_modules/left/index.js", "LEFT") // of the same size, within a tick of the clock perhaps
	f.must(os.Chtimes(meta, time.Time{}, st.ModTime()))
	f.rollback(id)
	f.reads(map[string]string{"node_modules/left/index.js": "left"})
}

func TestTrackedFilesAreRolledBack(t *testing.T) {
	f := deps(t)
	ctx := context.Background()
	const meta, lock = "node_modules/.cache/meta.json", "node_modules/.lock"
	old := f.snapshot()
	f.write(meta, "meta 2")
	all, err := f.w.Track(ctx, []string{meta, "./node_modules//.lock", "src/main.js"})
	f.must(err)
	if strings.Join(all, " ") != meta+" "+lock+" src/main.js" {
		t.Error(all)
	}
	first := f.snapshot()
	f.writeAll(map[string]string{meta: "meta 3", lock: "locked", "node_modules/other": "x"})
	if got := f.changes(first); got != "modified "+meta+", created "+lock {
		t.Error(got)
	}
	var patch bytes.Buffer
	f.must(f.w.Patch(ctx, first, "", &patch))
	for _, want := range []string{"-meta 2", "+meta 3", "+locked"} {
		if !strings.Contains(patch.String(), want) {
			t.Errorf("the patch has no %q:\n%s", want, patch.String())
		}
	}
	second := f.snapshot()
	f.removeAll("node_modules")
	if got := f.changes(second); got != "deleted "+meta+", deleted "+lock {
		t.Error(got)
	}
	f.rollback(second)
	f.reads(map[string]string{meta: "meta 3", lock: "locked", "node_modules/other": ""})
	f.write("node_modules/other", "again")
	f.reopen()
	root := f.capture()["node_modules"]
	f.rollback(first)
	f.reads(map[string]string{meta: "meta 2", lock: "", "node_modules/other": "again"})
	if is := f.capture()["node_modules"]; is.Mtime != root.Mtime {
		t.Error("the modification time of an ignored directory has changed")
	}
	f.undo()
	f.reads(map[string]string{meta: "meta 3", lock: "locked"})
	f.rollback(old) // for which what was there when it was declared counts
	f.reads(map[string]string{meta: "meta 2", lock: ""})
	d, err := f.w.Diff(ctx, first, second, false)
	f.must(err)
	if len(d.Changes) != 2 {
		t.Errorf("between two checkpoints: %+v", d.Changes)
	}
	f.sound()
}

func TestARollbackToBeforeAPathWasTrackedLeavesIt(t *testing.T) {
	f := deps(t)
	const meta = "node_modules/.cache/meta.json"
	first := f.snapshot()
	f.snapshot()
	f.track(meta)
	f.write(meta, "meta 2")
	f.rollback(first)
	f.reads(map[string]string{meta: "meta 2"})
	if got := f.changes(first); got != "" {
		t.Error(got)
	}
	f.sound()
}

func TestTrackedPathsInDirectoriesThatAreNotIgnored(t *testing.T) {
	f := deps(t, "*.log")
	f.snapshot()
	f.writeAll(map[string]string{"src/a.log": "a", "src/b.log": "b", "new/c.log": "c", "new/d.log": "d"})
	f.track("src/a.log", "new/c.log")
	id := f.snapshot()
	f.removeAll("new")
	f.writeAll(map[string]string{"src/a.log": "A", "src/b.log": "B"})
	f.rollback(id)
	f.reads(map[string]string{"src/a.log": "a", "src/b.log": "B", "new/c.log": "c", "new/d.log": ""})
	f.sound()
}

func TestWhatIsInTheWayOfATrackedFileEndsARollback(t *testing.T) {
	const meta = "node_modules/.cache/meta.json"
	for name, block := range map[string]func(f *fixture){
		"a directory in its place": func(f *fixture) { f.removeAll(meta); f.write(meta+"/x", "x") },
		"a file on the way":        func(f *fixture) { f.removeAll("node_modules/.cache"); f.write("node_modules/.cache", "x") },
	} {
		t.Run(name, func(t *testing.T) {
			f := deps(t)
			f.track(meta)
			id := f.snapshot()
			f.write("src/main.js", "MAIN")
			block(f)
			f.refuses(id, errs.Rollback)
			if got := f.changes(id); name == "a file on the way" && got != "deleted "+meta+", modified src/main.js" {
				t.Error(got)
			}
			f.snapshot()
			f.sound()
		})
	}
}

func TestDeclaredOutputsAreProtectedUntilTheirCheckpointEnds(t *testing.T) {
	f := deps(t)
	ctx := context.Background()
	id := f.snapshot()
	const out = "node_modules/.vite/meta.json"
	_, err := f.w.DeclareOutputs(ctx, overlay.OutputContract{Tool: "vite", Checkpoint: id, Outputs: []overlay.Output{{Path: out, Optional: true}}})
	f.must(err)
	f.write(out, "1")
	if got := f.changes(id); got != "created "+out {
		t.Error(got)
	}
	second := f.snapshot()
	f.write(out, "2")
	f.rollback(second)
	f.reads(map[string]string{out: "1"})
	f.rollback(id)
	f.reads(map[string]string{out: ""})
	f.must(f.w.Drop(ctx, id))
	f.write(out, "3")
	third := f.snapshot()
	f.write(out, "4")
	f.rollback(third) // nobody has asked for it any more
	f.reads(map[string]string{out: "4"})
	f.rollback(second) // which has it
	f.reads(map[string]string{out: "1"})
	f.sound()
}

func TestADamagedBackupOfATrackedFileEndsARollback(t *testing.T) {
	f := deps(t)
	const meta = "node_modules/.cache/meta.json"
	f.track(meta)
	f.snapshot()
	f.write(meta, "meta 2")
	id := f.snapshot()
	f.write(meta, "meta 3")
	list, err := filepath.Glob(filepath.Join(f.w.storeAt, backupsName, "*"))
	f.must(err)
	for _, name := range list {
		f.must(os.Chmod(name, 0o600))
		f.must(os.WriteFile(name, []byte("damaged"), 0o600))
	}
	f.refuses(id, errs.Integrity)
	recoverable, err := f.w.Recover(context.Background())
	f.must(err)
	if len(recoverable) != 0 {
		t.Errorf("%+v", recoverable) // they are of this session
	}
}

// TestAKilledRollbackOfTrackedFilesIsFinished, whatever is ignored then, and leaves no temporary file.
func TestAKilledRollbackOfTrackedFilesIsFinished(t *testing.T) {
	const meta, lock = "node_modules/.cache/meta.json", "node_modules/.lock"
	for _, at := range []string{"scan-committed", "scan-removed", "scan-made:1", "scan-made:2", "scan-made:3", "scan-placed", "scan-applied", "scan-renewed"} {
		t.Run(at, func(t *testing.T) {
			f := deps(t)
			f.track(meta, lock)
			id := f.snapshot()
			f.writeAll(map[string]string{meta: "meta 2", lock: "locked", "src/main.js": "MAIN", "src/lib/util.js": "UTIL", "node_modules/other": "x", "app/node_modules/y": "y"})
			f.must(f.w.Close())
			if !kill(t, f.dir, id, at) {
				t.Fatal("it was not killed")
			}
			f.use("src/lib/")
			after := map[string]string{meta: "meta 1", lock: "", "src/main.js": "main", "src/lib/util.js": "util", "node_modules/other": "x", "app/node_modules/y": "y"}
			f.reads(after)
			for p := range f.capture() {
				if isTemp(filepath.Base(p)) {
					t.Errorf("%s has stayed", p)
				}
			}
			f.use("node_modules/")
			f.undo()
			f.reads(map[string]string{meta: "meta 2", lock: "locked", "src/main.js": "MAIN", "src/lib/util.js": "UTIL"})
			f.sound()
		})
	}
}
