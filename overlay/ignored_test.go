//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// fillDeps makes a project with dependencies.
func fillDeps(dir string) {
	for name, content := range map[string]string{
		"package.json": "{}", "src/main.js": "main", "src/lib/util.js": "util",
		"node_modules/left/index.js": "left", "node_modules/.cache/meta.json": "meta 1",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			panic(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			panic(err)
		}
	}
}

// deps gives a project whose dependencies are ignored.
func deps(t *testing.T, patterns ...string) *space {
	t.Helper()
	dir := t.TempDir()
	fillDeps(dir)
	if patterns == nil {
		patterns = []string{"node_modules/"}
	}
	return spaceWith(t, overlay.Config{Workspace: dir, Ignore: patterns})
}

// reads compares what is in files; "" means that there is none.
func (s *space) reads(want map[string]string) {
	s.Helper()
	for name, content := range want {
		b, err := os.ReadFile(filepath.Join(s.dir, name))
		if content == "" {
			if !os.IsNotExist(err) {
				s.Errorf("%s is there: %q, %v", name, b, err)
			}
		} else if string(b) != content {
			s.Errorf("%s has %q, should have %q (%v)", name, b, content, err)
		}
	}
}

// sameProtected is sameTree but for what is in node_modules.
func (s *space) sameProtected(want treestate.State) {
	s.Helper()
	part := func(all treestate.State) treestate.State {
		all = maps.Clone(all)
		maps.DeleteFunc(all, func(p string, _ treestate.Entry) bool { return strings.HasPrefix(p, "node_modules") })
		return all
	}
	for _, d := range treestate.Diff(part(want), part(s.state())) {
		s.Error(d)
	}
}

// changes lists what a diff from a checkpoint says, one word for each.
func (s *space) changes(id string) string {
	s.Helper()
	d, err := s.w.Diff(context.Background(), id, "", false)
	s.ok(err)
	var all []string
	for _, c := range d.Changes {
		if len(c.What) == 1 && c.What[0] == "mtime" {
			continue
		}
		text := string(c.Kind) + " " + c.Path
		if c.OldPath != "" {
			text = string(c.Kind) + " " + c.OldPath + ">" + c.Path
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (s *space) removeAll(path string) {
	s.Helper()
	entries, err := os.ReadDir(filepath.Join(s.dir, path))
	s.ok(err)
	for _, e := range entries {
		below := path + "/" + e.Name()
		if e.IsDir() {
			s.removeAll(below)
		} else {
			s.unlink(below)
		}
	}
	s.rmdir(path)
}

func TestARollbackLeavesIgnoredPaths(t *testing.T) {
	s := deps(t)
	id := s.snapshot()
	s.overwrite("src/main.js", "MAIN", 0)
	s.overwrite("node_modules/left/index.js", "LEFT", 0)
	s.mkdir("node_modules/right")
	s.write("node_modules/right/index.js", "right")
	s.unlink("node_modules/.cache/meta.json")
	if st := s.w.Status(); st.Slots != 0 {
		t.Errorf("%d names were recorded", st.Slots)
	}
	if got := s.changes(id); got != "modified src/main.js" {
		t.Error(got)
	}
	s.rollback(id)
	after := map[string]string{
		"src/main.js": "main", "node_modules/left/index.js": "LEFT", "node_modules/right/index.js": "right", "node_modules/.cache/meta.json": "",
	}
	s.reads(after)
	s.undo()
	after["src/main.js"] = "MAIN"
	s.reads(after)
	s.reopen()
	s.rollback(id)
	after["src/main.js"] = "main"
	s.reads(after)
	s.sound()
}

func TestAnIgnoredRootThatIsMadeLaterStays(t *testing.T) {
	s := newSpace(t, nil)
	s.cfg.Ignore = []string{"node_modules/"}
	s.reopen()
	s.write("package.json", "{}")
	before := s.state()
	id := s.snapshot()
	s.mkdir("node_modules")
	s.mkdir("node_modules/a")
	s.write("node_modules/a/x", "x")
	s.write("package.json.new", "{}")
	s.rollback(id)
	s.reads(map[string]string{"node_modules/a/x": "x", "package.json.new": ""})
	s.removeAll("node_modules")
	s.rollback(id)
	s.same(before)
}

func TestAFileInThePlaceOfAnIgnoredRootIsProtected(t *testing.T) {
	s := deps(t)
	id := s.snapshot()
	s.removeAll("node_modules")
	s.write("node_modules", "a file")
	second := s.snapshot()
	s.unlink("node_modules")
	s.mkdir("node_modules")
	s.write("node_modules/x", "x")
	s.rollback(second) // the directory stands in the way
	s.reads(map[string]string{"node_modules": "a file"})
	s.undo()
	s.reads(map[string]string{"node_modules/x": "x"})
	s.rollback(second)
	s.rollback(id)
	s.reads(map[string]string{"node_modules": "", "node_modules/x": ""})
	s.sound()
}

func TestWhatIsMovedToAnIgnoredPlaceStaysProtected(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			s := deps(t)
			again := func() {
				if restart {
					s.reopen()
				}
			}
			before := s.state()
			id := s.snapshot()
			s.rename("src/main.js", "node_modules/main.js", 0)
			s.rename("src/lib", "node_modules/lib", 0)
			again()
			later := s.snapshot() // from here on the log must go on for the first checkpoint's sake
			s.overwrite("node_modules/main.js", "MAIN", 0)
			s.overwrite("node_modules/lib/util.js", "UTIL", 0)
			s.write("node_modules/lib/new.js", "new")
			again()
			s.unlink("node_modules/lib/util.js")
			moved := map[string]string{
				"src/main.js": "", "src/lib/new.js": "", "node_modules/main.js": "MAIN", "node_modules/lib/util.js": "", "node_modules/lib/new.js": "new",
			}
			s.reads(moved)
			if got := s.changes(later); got != "" {
				t.Error("ignored paths in a diff:", got)
			}
			s.rollback(later)
			s.reads(moved)
			again()
			s.rollback(id)
			s.sameProtected(before)
			s.sound()
			again()
			s.undo()
			s.reads(moved)
			s.rollback(id)
			s.sameProtected(before)
			s.sound()
		})
	}
}

func TestWhatIsMovedOutOfAnIgnoredPlaceIsNewThere(t *testing.T) {
	s := deps(t)
	first := s.snapshot()
	s.overwrite("node_modules/left/index.js", "LEFT", 0) // it is cached, and known to be new
	s.rename("node_modules/left", "src/left", 0)
	s.rename("node_modules/.cache/meta.json", "src/lib/util.js", 0)
	second := s.snapshot()
	there := s.state()
	s.overwrite("src/left/index.js", "again", 0)
	s.overwrite("src/lib/util.js", "again", 0)
	s.write("src/left/more.js", "more")
	if got := s.changes(second); got != "modified src/left, created src/left/more.js, modified src/left/index.js, modified src/lib/util.js" &&
		got != "modified src/left/index.js, created src/left/more.js, modified src/lib/util.js" {
		t.Error(got)
	}
	s.rollback(second)
	s.same(there)
	s.rollback(first)
	s.reads(map[string]string{"src/left/index.js": "", "src/lib/util.js": "util"})
	s.undo()
	s.same(there)
}

func TestAFileWithAProtectedNameIsProtectedByTheIgnoredOneToo(t *testing.T) {
	for name, made := range map[string]func(s *space){
		"before the daemon knew": func(s *space) { s.ok(os.Link(s.dir+"/src/main.js", s.dir+"/node_modules/main.js")); s.reopen() },
		"before the checkpoint":  func(s *space) { s.link("src/main.js", "node_modules/main.js"); s.reopen() },
	} {
		t.Run(name, func(t *testing.T) {
			s := deps(t)
			made(s)
			id := s.snapshot()
			s.overwrite("node_modules/main.js", "MAIN", 0) // the other name was not looked up
			s.reads(map[string]string{"src/main.js": "MAIN"})
			s.rollback(id)
			s.reads(map[string]string{"src/main.js": "main", "node_modules/main.js": "main"})
			s.unlink("src/main.js")
			s.overwrite("node_modules/main.js", "MAIN", 0)
			s.unlink("node_modules/main.js")
			s.rollback(id)
			s.reads(map[string]string{"src/main.js": "main", "node_modules/main.js": ""})
			s.sound()
		})
	}
}

func TestALinkMovedOutOfAnIgnoredPlaceIsKnownToBeOld(t *testing.T) {
	s := deps(t)
	s.ok(os.Link(s.dir+"/src/main.js", s.dir+"/node_modules/main.js"))
	s.reopen()
	id := s.snapshot()
	s.rename("node_modules/main.js", "other.js", 0)
	s.overwrite("other.js", "MAIN", 0)
	s.rollback(id)
	s.reads(map[string]string{"src/main.js": "main", "other.js": ""})
	s.sound()
}

// TestADirectoryThatIsRenamedKeepsWhatIsProtected where the pattern names a path: what was not ignored before must not be lost by the new name.
func TestADirectoryThatIsRenamedKeepsWhatIsProtected(t *testing.T) {
	s := deps(t, "/app/lib/")
	id := s.snapshot()
	before := s.state()
	s.rename("src", "app", 0)
	s.overwrite("app/lib/util.js", "UTIL", 0)
	s.write("app/lib/more.js", "more")
	s.unlink("app/lib/util.js")
	s.reopen()
	second := s.snapshot()
	s.write("app/lib/third.js", "third")
	if got := s.changes(second); got != "" {
		t.Error(got)
	}
	s.rollback(id)
	s.same(before)
}

func TestOtherPatternsMakeNoHoles(t *testing.T) {
	s := deps(t)
	first := s.snapshot()
	s.overwrite("node_modules/left/index.js", "LEFT", 0)
	s.overwrite("src/main.js", "MAIN", 0)
	s.cfg.Ignore = []string{"src/lib/"}
	s.reopen()
	second := s.snapshot()
	s.overwrite("node_modules/left/index.js", "left again", 0)
	s.overwrite("src/lib/util.js", "UTIL", 0)
	s.cfg.Ignore = nil
	s.reopen()
	third := s.snapshot()
	s.overwrite("src/lib/util.js", "util again", 0)
	s.overwrite("node_modules/left/index.js", "left thrice", 0)
	s.rollback(third)
	s.reads(map[string]string{"src/lib/util.js": "UTIL", "node_modules/left/index.js": "left again", "src/main.js": "MAIN"})
	s.rollback(second) // src/lib was ignored since
	s.reads(map[string]string{"src/lib/util.js": "UTIL", "node_modules/left/index.js": "LEFT", "src/main.js": "MAIN"})
	s.rollback(first) // and node_modules, too
	s.reads(map[string]string{"src/lib/util.js": "UTIL", "node_modules/left/index.js": "LEFT", "src/main.js": "main"})
	s.sound()
}

func TestIgnoredPathsMayChangeWhileNobodyWatches(t *testing.T) {
	s := deps(t)
	id := s.snapshot()
	s.overwrite("src/main.js", "MAIN", 0)
	s.ok(s.w.Close())
	time.Sleep(20 * time.Millisecond)
	s.ok(os.WriteFile(s.dir+"/node_modules/left/index.js", []byte("outside"), 0o644))
	s.ok(os.WriteFile(s.dir+"/node_modules/left/more.js", []byte("outside"), 0o644))
	s.open()
	if got := s.changes(id); got != "modified src/main.js" {
		t.Error(got)
	}
	s.rollback(id)
	s.reads(map[string]string{"src/main.js": "main", "node_modules/left/index.js": "outside", "node_modules/left/more.js": "outside"})
}

// TestWhatWasMovedToAnIgnoredPlaceIsWatchedThere though ignored directories are not walked else.
func TestWhatWasMovedToAnIgnoredPlaceIsWatchedThere(t *testing.T) {
	for _, path := range []string{"node_modules/main.js", "node_modules/lib/util.js"} {
		t.Run(path, func(t *testing.T) {
			s := deps(t)
			id := s.snapshot()
			s.rename("src/main.js", "node_modules/main.js", 0)
			s.rename("src/lib", "node_modules/lib", 0)
			s.ok(s.w.Close())
			time.Sleep(20 * time.Millisecond)
			s.ok(os.WriteFile(filepath.Join(s.dir, path), []byte("outside"), 0o644))
			s.ok(os.WriteFile(s.dir+"/node_modules/left/index.js", []byte("outside"), 0o644))
			s.open()
			_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			wantCode(t, err, errs.Integrity)
			if !strings.Contains(fmt.Sprint(err), path) {
				t.Error(err)
			}
		})
	}
}

func TestDiagnosticsAreASnapshot(t *testing.T) {
	s := deps(t)
	s.snapshot()
	s.overwrite("node_modules/left/index.js", "LEFT", 0)
	before, again := s.w.Diagnostics(), s.w.Diagnostics()
	again.Probes[0].Reason, again.Active[0].Message, again.Ignore.Patterns[0], again.Ignored[0].Path = "x", "x", "x", "x"
	now := s.w.Diagnostics()
	now.Descriptors, before.Descriptors = 0, 0
	if !reflect.DeepEqual(now, before) {
		t.Errorf("they are %+v,\nand were %+v", now, before)
	}
}

func TestAnIgnoredWriteIsListed(t *testing.T) {
	s := deps(t)
	s.snapshot()
	s.overwrite("node_modules/left/index.js", "LEFT", 0)
	s.overwrite("node_modules/left/index.js", "left", 0)
	s.mkdir("node_modules/d")
	s.write("src/new.js", "protected")
	list := s.w.Diagnostics().Ignored
	if len(list) != 2 || list[0].Path != "node_modules/d" || list[0].Kind != "mkdir" || list[1].Path != "node_modules/left/index.js" || list[1].Count != 2 {
		t.Errorf("%+v", list)
	}
	for _, w := range list {
		if w.Action != overlay.ActionIgnored {
			t.Errorf("%+v", w)
		}
	}
	for i := range 400 {
		s.write(fmt.Sprint("node_modules/d/", i), "x")
	}
	list = s.w.Diagnostics().Ignored
	if len(list) != 256 || list[0].Path != "node_modules/d/399" {
		t.Errorf("%d, first %+v", len(list), list[0])
	}
	if st := s.w.Status(); st.Ignore == nil || st.Ignore.Strict || len(st.Ignore.Patterns) != 1 {
		t.Errorf("%+v", st.Ignore)
	}
}

// TestStrictModeStopsEveryChange of what is ignored, and lets through what is declared.
func TestStrictModeStopsEveryChange(t *testing.T) {
	dir := t.TempDir()
	fillDeps(dir)
	s := spaceWith(t, overlay.Config{Workspace: dir, Ignore: []string{"node_modules/", "*.log"}, StrictIgnored: true})
	s.ok(os.WriteFile(dir+"/x.log", nil, 0o644))
	before := s.state()
	events, end := s.w.Subscribe()
	defer end()
	file, root, left := s.at("node_modules/left/index.js"), s.tr.Root(), s.at("node_modules/left")
	src := s.at("src")
	for name, change := range map[string]func() error{
		"create": func() error { _, _, _, err := s.tr.Create(left, "n", unix.O_RDWR, 0o644, false, nil); return err },
		"mkdir":  func() error { _, _, err := s.tr.Mkdir(left, "n", 0o755, nil); return err },
		"mknod":  func() error { _, _, err := s.tr.Mknod(left, "n", unix.S_IFIFO|0o644, 0, nil); return err },
		"symlink": func() error {
			_, _, err := s.tr.Symlink(left, "n", "x", nil)
			return err
		},
		"a name":   func() error { _, _, err := s.tr.Mknod(root, "n.log", unix.S_IFREG|0o644, 0, nil); return err },
		"link in":  func() error { _, err := s.tr.Link(s.at("src/main.js"), left, "n"); return err },
		"link out": func() error { _, err := s.tr.Link(file, src, "n"); return err },
		"unlink":   func() error { return s.tr.Unlink(left, "index.js") },
		"rmdir":    func() error { return s.tr.Rmdir(s.at("node_modules"), "left") },
		"rename":   func() error { return s.tr.Rename(left, "index.js", left, "n", 0) },
		"rename in": func() error {
			return s.tr.Rename(src, "main.js", left, "n", 0)
		},
		"rename out":    func() error { return s.tr.Rename(left, "index.js", src, "n", 0) },
		"rename over":   func() error { return s.tr.Rename(src, "main.js", left, "index.js", 0) },
		"exchange":      func() error { return s.tr.Rename(src, "main.js", left, "index.js", unix.RENAME_EXCHANGE) },
		"rename root":   func() error { return s.tr.Rename(root, "node_modules", root, "n", 0) },
		"open to write": func() error { _, err := s.tr.Open(file, unix.O_WRONLY, false, nil); return err },
		"open directly": func() error { _, err := s.tr.Open(file, unix.O_RDWR, true, nil); return err },
		"truncate":      func() error { _, err := s.tr.Open(file, unix.O_RDONLY|unix.O_TRUNC, false, nil); return err },
		"set size":      func() error { _, err := s.tr.SetAttr(file, nil, &overlay.SetAttr{Valid: overlay.SetSize}); return err },
		"chmod": func() error {
			_, err := s.tr.SetAttr(file, nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600})
			return err
		},
		"utimes": func() error {
			_, err := s.tr.SetAttr(left, nil, &overlay.SetAttr{Valid: overlay.SetMtimeNow})
			return err
		},
		"set an xattr":    func() error { return s.tr.SetXattr(file, "user.a", []byte("x"), 0) },
		"remove an xattr": func() error { return s.tr.RemoveXattr(file, "user.a") },
	} {
		if err := change(); err != unix.EROFS {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case ev := <-events:
			if w, ok := ev.Data.(overlay.IgnoredWrite); !ok || ev.Type != "ignored-write" || w.Action != overlay.ActionBlocked || w.Code != errs.IgnoredPath || w.Path == "" || w.Kind == "" {
				t.Errorf("%s: %+v", name, ev)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: no event", name)
		}
	}
	s.sameTree(before)
	s.write("src/fine.js", "fine")
	if h, err := s.tr.Open(file, unix.O_RDONLY, false, nil); err != nil {
		t.Error("read:", err)
	} else {
		h.Release()
	}
}

func TestStrictModeLetsDeclaredOutputsThrough(t *testing.T) {
	dir := t.TempDir()
	fillDeps(dir)
	s := spaceWith(t, overlay.Config{Workspace: dir, Ignore: []string{"node_modules/"}, StrictIgnored: true})
	ctx := context.Background()
	_, err := s.w.DeclareOutputs(ctx, overlay.OutputContract{Tool: "vite", Outputs: []overlay.Output{{Path: "node_modules/.vite/deps/meta.json"}}})
	s.ok(err)
	_, err = s.w.Track(ctx, []string{"node_modules/.cache/meta.json"})
	s.ok(err)
	s.mkdir("node_modules/.vite")
	s.mkdir("node_modules/.vite/deps")
	s.write("node_modules/.vite/deps/meta.json", "1")
	s.overwrite("node_modules/.cache/meta.json", "META", 0)
	s.unlink("node_modules/.vite/deps/meta.json")
	for _, w := range s.w.Diagnostics().Ignored {
		if w.Action != overlay.ActionDeclared {
			t.Errorf("%+v", w)
		}
	}
	if _, _, _, err := s.tr.Create(s.at("node_modules/.vite/deps"), "meta.json.tmp", unix.O_RDWR, 0o644, false, nil); err != unix.EROFS {
		t.Error("a file beside it:", err)
	}
	if err := s.tr.Rmdir(s.at("node_modules/.vite"), "deps"); err != unix.EROFS {
		t.Error("a directory above it:", err)
	}
}

// TestANewFileInAnIgnoredDirectoryCostsNoRecord however many there are.
func TestANewFileInAnIgnoredDirectoryCostsNoRecord(t *testing.T) {
	s := deps(t)
	s.snapshot()
	for i := range 200 {
		s.write(fmt.Sprint("node_modules/left/", i), "x")
		s.rename(fmt.Sprint("node_modules/left/", i), fmt.Sprint("node_modules/left/n", i), 0)
	}
	s.removeAll("node_modules/left")
	st := s.w.Status()
	if st.Slots != 0 || st.Inodes != 0 {
		t.Errorf("%d names and %d inodes were recorded", st.Slots, st.Inodes)
	}
	if d := s.w.Diagnostics(); d.TrashFiles != 0 {
		t.Errorf("%d files in the trash", d.TrashFiles)
	}
}

func TestTrackedFilesAreRolledBack(t *testing.T) {
	s := deps(t)
	ctx := context.Background()
	const meta, lock = "node_modules/.cache/meta.json", "node_modules/.lock"
	s.snapshot()
	s.overwrite(meta, "meta 2", 0) // it is cached, and known to be ignored
	all, err := s.w.Track(ctx, []string{meta, "./node_modules//.lock", "src/main.js"})
	s.ok(err)
	if strings.Join(all, " ") != meta+" "+lock+" src/main.js" {
		t.Error(all)
	}
	first := s.snapshot()
	s.overwrite(meta, "meta 3", 0)
	s.write(lock, "locked")
	s.write("node_modules/other", "x")
	if got := s.changes(first); got != "modified "+meta+", created "+lock {
		t.Error(got)
	}
	var patch bytes.Buffer
	s.ok(s.w.Patch(ctx, first, "", &patch))
	for _, want := range []string{"-meta 2", "+meta 3", "+locked"} {
		if !strings.Contains(patch.String(), want) {
			t.Errorf("the patch has no %q:\n%s", want, patch.String())
		}
	}
	second := s.snapshot()
	s.removeAll("node_modules")
	if got := s.changes(second); got != "deleted "+meta+", deleted "+lock {
		t.Error(got)
	}
	s.rollback(second)
	s.reads(map[string]string{meta: "meta 3", lock: "locked", "node_modules/other": ""})
	s.reopen()
	s.rollback(first)
	s.reads(map[string]string{meta: "meta 2", lock: ""})
	s.undo()
	s.reads(map[string]string{meta: "meta 3", lock: "locked"})
	d, err := s.w.Diff(ctx, first, second, false)
	s.ok(err)
	if len(d.Changes) != 2 {
		t.Errorf("between two checkpoints: %+v", d.Changes)
	}
	s.sound()
}

func TestAnIgnoredDirectoryIsNotTracked(t *testing.T) {
	s := deps(t)
	ctx := context.Background()
	for _, path := range []string{"node_modules", "node_modules/left/", s.dir + "/node_modules/.cache"} {
		_, err := s.w.Track(ctx, []string{"node_modules/.lock", path})
		wantCode(t, err, errs.IgnoredPath)
		_, err = s.w.DeclareOutputs(ctx, overlay.OutputContract{Tool: "x", Outputs: []overlay.Output{{Path: path}}})
		wantCode(t, err, errs.IgnoredPath)
	}
	if all := s.w.Tracked(); len(all) > 0 {
		t.Error("a refused call has tracked", all)
	}
	_, err := s.w.Track(ctx, []string{"src", "node_modules/left/index.js", "node_modules/none"}) // the first is protected anyway
	s.ok(err)
}

func TestTrackingCountsForTheCheckpointBefore(t *testing.T) {
	s := deps(t)
	const meta = "node_modules/.cache/meta.json"
	id := s.snapshot()
	s.overwrite(meta, "meta 2", 0)
	_, err := s.w.Track(context.Background(), []string{meta})
	s.ok(err)
	s.overwrite(meta, "meta 3", 0)
	s.rollback(id)
	s.reads(map[string]string{meta: "meta 2"})
}

func TestADamagedCopyOfATrackedFileEndsARollback(t *testing.T) {
	s := deps(t)
	const meta = "node_modules/.cache/meta.json"
	_, err := s.w.Track(context.Background(), []string{meta})
	s.ok(err)
	id := s.snapshot()
	s.overwrite(meta, "meta 2", 0)
	s.overwrite("src/main.js", "MAIN", 0)
	copies, err := filepath.Glob(s.dir + "/.hyperfs/tracked/*")
	if err != nil || len(copies) != 1 {
		t.Fatal(copies, err)
	}
	s.ok(os.WriteFile(copies[0], []byte("meta X"), 0o600))
	_, err = s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	wantCode(t, err, errs.Integrity)
	s.reads(map[string]string{meta: "meta 2", "src/main.js": "MAIN"})
	problems, err := s.w.Fsck(context.Background(), true)
	s.ok(err)
	if len(problems) != 1 {
		t.Error(problems)
	}
}

func TestWhatIsInTheWayOfATrackedFileEndsARollback(t *testing.T) {
	s := deps(t)
	const meta = "node_modules/.cache/meta.json"
	_, err := s.w.Track(context.Background(), []string{meta})
	s.ok(err)
	id := s.snapshot()
	s.overwrite("src/main.js", "MAIN", 0)
	s.removeAll("node_modules/.cache")
	s.ok(os.Symlink("/tmp", s.dir+"/node_modules/.cache"))
	_, err = s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	wantCode(t, err, errs.IgnoredPath)
	s.reads(map[string]string{"src/main.js": "MAIN"})
	if _, err := os.Lstat("/tmp/meta.json"); err == nil {
		t.Error("a symlink was followed")
	}
}

func TestCopiesOfTrackedFilesAreFreed(t *testing.T) {
	s := deps(t)
	ctx := context.Background()
	const meta = "node_modules/.cache/meta.json"
	_, err := s.w.Track(ctx, []string{meta})
	s.ok(err)
	var ids []string
	for i := range 5 {
		s.overwrite(meta, fmt.Sprint("meta ", i), 0)
		time.Sleep(60 * time.Millisecond) // so that its change time tells whether it has changed
		ids = append(ids, s.snapshot(), s.snapshot())
	}
	for _, id := range ids[1:] {
		s.ok(s.w.Drop(ctx, id))
	}
	_, err = s.w.GC(ctx)
	s.ok(err)
	copies, err := filepath.Glob(s.dir + "/.hyperfs/tracked/*")
	if err != nil || len(copies) > 2 { // of the checkpoint, and of the last epoch
		t.Error(copies, err)
	}
	s.rollback(ids[0])
	s.reads(map[string]string{meta: "meta 0"})
}

func TestContractsAreKeptAndEndWithTheirCheckpoint(t *testing.T) {
	s := deps(t)
	ctx := context.Background()
	id := s.snapshot()
	declare := func(c overlay.OutputContract) error { _, err := s.w.DeclareOutputs(ctx, c); return err }
	outputs := []overlay.Output{{Path: "node_modules/.cache/meta.json"}, {Path: "node_modules/out", Optional: true}}
	s.ok(declare(overlay.OutputContract{Tool: "vite", Checkpoint: id, Outputs: outputs}))
	s.ok(declare(overlay.OutputContract{Tool: "tsc", Outputs: []overlay.Output{{Path: s.dir + "/node_modules/info"}}}))
	for _, bad := range []string{"", "/etc/passwd", "../x", "a/../../x", "a\x00b", ".", ".hyperfs/db", "\xff"} {
		err := declare(overlay.OutputContract{Tool: "x", Outputs: []overlay.Output{{Path: "fine"}, {Path: bad}}})
		wantCode(t, err, errs.Path)
	}
	wantCode(t, declare(overlay.OutputContract{Tool: "x", Checkpoint: "ckpt_none", Outputs: outputs}), errs.NotFound)
	s.reopen()
	list, err := s.w.Outputs(ctx, id)
	s.ok(err)
	if len(list) != 2 || list[0].Tool != "vite" || list[0].Outputs[0].Missing || !list[0].Outputs[1].Missing || !list[0].Outputs[1].Optional || list[1].Outputs[0].Path != "node_modules/info" {
		t.Errorf("%+v", list)
	}
	_, err = s.w.Outputs(ctx, "ckpt_none")
	wantCode(t, err, errs.NotFound)
	s.ok(s.w.Drop(ctx, id))
	wantCode(t, declare(overlay.OutputContract{Tool: "x", Checkpoint: id, Outputs: outputs}), errs.Rollback)
	if list, err = s.w.Outputs(ctx, ""); err != nil || len(list) != 1 || list[0].Tool != "tsc" {
		t.Errorf("%+v, %v", list, err)
	}
	s.reopen()
	if list, err = s.w.Outputs(ctx, ""); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestAStateShowsIgnoredPathsAsTheyAreNow(t *testing.T) {
	s := deps(t)
	id := s.snapshot()
	st, err := s.w.OpenCheckpoint(id)
	s.ok(err)
	defer st.Close()
	walk := func(path string) (checkpoint.ID, error) {
		at := st.Root()
		for _, name := range strings.Split(path, "/") {
			e, err := st.Lookup(at, name)
			if err != nil {
				return at, err
			}
			at = e.ID
		}
		return at, nil
	}
	gone, err := walk("node_modules/left/index.js")
	s.ok(err)
	s.overwrite("src/main.js", "MAIN", 0)
	s.write("node_modules/left/more.js", "more")
	_, err = walk("node_modules/left/more.js")
	s.ok(err)
	s.removeAll("node_modules")
	if _, err := st.Attr(gone); err != unix.ESTALE && err != unix.ENOENT {
		t.Error("an ignored file that has gone:", err)
	}
	if _, err := walk("node_modules/left"); err != unix.ENOENT {
		t.Error(err)
	}
	main, err := walk("src/main.js")
	s.ok(err)
	f, err := st.Open(main)
	s.ok(err)
	defer f.Close()
	b := make([]byte, 10)
	if n, err := f.ReadAt(b, 0); err != nil || string(b[:n]) != "main" {
		t.Errorf("%q, %v", b[:n], err)
	}
}
