//go:build linux

package overlay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// envEditor makes this test binary make the edit of the tests and die in that. Its value is the
// workspace, the checkpoint, and how many more files it is to make, a line each.
const envEditor = "HYPERFS_TEST_EDIT"

func editAndDie(of string) {
	lines := strings.Split(of, "\n")
	more, _ := strconv.Atoi(lines[2])
	w, err := overlay.Open(overlay.Config{Workspace: lines[0], Tier: "pure-manifest"})
	if err == nil {
		_, err = w.Edit(context.Background(), overlay.EditOptions{Since: lines[1], Event: "merge"}, func(e *overlay.Editor) error {
			for i := range more {
				if err := e.Make(fmt.Sprint("more", i), file(0o600, "more")); err != nil {
					return err
				}
			}
			return editAll(e)
		})
	}
	fmt.Println("alive:", err)
	os.Exit(1)
}

// editTime is the mtime of what the edit makes.
var editTime = unix.Timespec{Sec: 1_000_000_000, Nsec: 123_456_789}

func file(mode uint32, content string) overlay.Made {
	return overlay.Made{
		Attr:   overlay.Attr{Mode: unix.S_IFREG | mode, Mtime: editTime, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())},
		Xattrs: []checkpoint.Xattr{{Name: "user.made", Value: []byte(content)}},
		Fill:   func(f *os.File) error { _, err := f.WriteString(content); return err },
	}
}

func special(mode uint32, target string) overlay.Made {
	return overlay.Made{Attr: overlay.Attr{Mode: mode, Mtime: editTime, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, Target: target}
}

// editAll makes every kind of change to what fillSmall has made.
func editAll(e *overlay.Editor) error {
	return errors.Join(
		e.Make("new.txt", file(0o640, "new")),
		e.Make("nd", special(unix.S_IFDIR|0o750, "")),
		e.Make("nd/deep", special(unix.S_IFDIR|0o700, "")),
		e.Make("nd/deep/x", file(0o600, "x")),
		e.Make("nd/link", special(unix.S_IFLNK|0o777, "deep/x")),
		e.Make("nd/pipe", special(unix.S_IFIFO|0o600, "")),
		e.Link("nd/deep/x", "nd/again"),
		e.Put("b.txt", file(0o755, "changed by the edit")), // one name
		e.Put("a.txt", file(0o600, "changed in all its names")),
		e.Remove("dir/soft"),
		e.Rename("dir/sub/d.txt", "d.txt"),
		e.Remove("dir/sub/e.txt"),
		e.Remove("dir/sub"),
		e.Rename("dir", "moved"),
		e.SetAttr("moved/c.txt", overlay.Attr{Mode: 0o400, Mtime: editTime, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, nil),
		e.Link("moved/c.txt", "c2"),
	)
}

// wantEdited is what editAll leads to: content or target of each path.
var wantEdited = map[string]string{
	"new.txt": "new", "nd": "", "nd/deep": "", "nd/deep/x": "x", "nd/link": "deep/x", "nd/pipe": "", "nd/again": "x",
	"b.txt": "changed by the edit", "a.txt": "changed in all its names", "moved/hard": "changed in all its names",
	"d.txt": "fourth", "moved": "", "moved/c.txt": "third", "c2": "third",
}

func (s *space) edit(since string, fn func(e *overlay.Editor) error) error {
	_, err := s.w.Edit(context.Background(), overlay.EditOptions{Since: since, Message: "before the merge", Event: "merge"}, fn)
	return err
}

// takeAway removes n files whose names are numbered.
func (s *space) takeAway(prefix string, n int) {
	s.Helper()
	for i := range n {
		s.unlink(fmt.Sprint(prefix, i))
	}
}

func (s *space) isEdited() treestate.State {
	s.Helper()
	st := s.state()
	for path, want := range wantEdited {
		e, ok := st[path]
		got := e.Target
		if e.Mode&unix.S_IFMT == unix.S_IFREG {
			b, err := os.ReadFile(filepath.Join(s.dir, path))
			s.ok(err)
			got = string(b)
		}
		if !ok || got != want {
			s.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	if len(st.Paths()) != len(wantEdited)+1 {
		s.Errorf("there are %v", st.Paths())
	}
	for path, mode := range map[string]uint32{"new.txt": 0o640, "nd": 0o750, "nd/deep": 0o700, "b.txt": 0o755, "moved/hard": 0o600, "c2": 0o400} {
		if got := st[path].Mode & 0o7777; got != mode {
			s.Errorf("%s has mode %o, want %o", path, got, mode)
		}
	}
	for _, path := range []string{"new.txt", "nd", "nd/deep", "nd/deep/x", "nd/link", "nd/pipe", "b.txt", "a.txt", "c2"} {
		if got := st[path].Mtime; got != editTime.Nano() {
			s.Errorf("%s has mtime %v, want %v", path, time.Unix(0, got), time.Unix(0, editTime.Nano()))
		}
	}
	if got := st["new.txt"].Xattrs["user.made"]; got != "new" {
		s.Errorf("new.txt has the xattr %q", got)
	}
	if st["nd/again"].First != st["nd/deep/x"].First || st["c2"].First != st["moved/c.txt"].First || st["a.txt"].First != st["moved/hard"].First {
		s.Error("hard links are none")
	}
	return st
}

// editLowers are the filesystems that edits are different on, with what fillSmall makes: on overlayfs a directory of the lower layer can't be moved.
var editLowers = map[string]func(t *testing.T) string{
	"temp": func(t *testing.T) string {
		dir := t.TempDir()
		fillSmall(dir)
		return dir
	},
	"overlayfs": func(t *testing.T) string {
		hard := filepath.Join("dir", "hard")
		dir := testfs.Overlay(t, func(lower string) {
			fillSmall(lower)
			_ = os.Remove(filepath.Join(lower, hard))
		})
		if err := os.Link(filepath.Join(dir, "a.txt"), filepath.Join(dir, hard)); err != nil { // the lower layer's links break
			t.Fatal(err)
		}
		return dir
	},
}

func onEditLowers(t *testing.T, test func(t *testing.T, dir string)) {
	for name, lower := range editLowers {
		t.Run(name, func(t *testing.T) { test(t, lower(t)) })
	}
}

func TestAnEditIsMadeWholeAndCanBeUndone(t *testing.T) { onEditLowers(t, editAndUndo) }

func editAndUndo(t *testing.T, dir string) {
	s := spaceAt(t, dir)
	first := s.snapshot()
	before := s.state()
	s.overwrite("dir/c.txt", "third", 0)
	since := s.snapshot()
	old := s.state()
	s.ok(s.edit(since, editAll))
	edited := s.isEdited()
	s.same(edited)
	s.undo()
	s.same(old)
	s.undo()
	s.same(edited)
	s.rollback(first)
	s.same(before)
	s.rollback(since)
	s.same(old)
	s.reopen()
	s.same(old)
}

func TestAnEditChangesTheRoot(t *testing.T) {
	s := newSpace(t, fillSmall)
	since := s.snapshot()
	before := s.state()
	s.ok(s.edit(since, func(e *overlay.Editor) error {
		for _, err := range []error{e.Remove("."), e.Rename(".", "root")} {
			if err != unix.EBUSY {
				t.Errorf("the root was moved or removed: %v", err)
			}
		}
		a, xs, err := e.Stat(".")
		s.ok(err)
		a.Mode, a.Mtime = 0o750, editTime
		return errors.Join(e.Make("new.txt", file(0o600, "new")), e.SetAttr(".", a, append(xs, checkpoint.Xattr{Name: "user.made", Value: []byte("x")})))
	}))
	root := s.state()["."]
	if root.Mode&0o7777 != 0o750 || root.Xattrs["user.made"] != "x" || root.Mtime != editTime.Nano() {
		t.Errorf("the root is %+v", root)
	}
	s.undo()
	s.same(before)
	s.sound()
}

func TestAnEditGivesASymlinkItsXattrs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a symlink one")
	}
	s := newSpace(t, fillSmall)
	since := s.snapshot()
	link := special(unix.S_IFLNK|0o777, "nowhere")
	link.Xattrs = []checkpoint.Xattr{{Name: "trusted.of", Value: []byte("link")}}
	s.ok(s.edit(since, func(e *overlay.Editor) error {
		s.ok(e.Make("link", link))
		_, xs, err := e.Stat("link")
		if len(xs) != 1 || xs[0].Name != "trusted.of" {
			t.Errorf("the staged link has the xattrs %v", xs)
		}
		return err
	}))
	if got := s.state()["link"]; got.Xattrs["trusted.of"] != "link" || got.Mtime != editTime.Nano() {
		t.Errorf("the link is %+v", got)
	}
}

func TestAnEditorShowsWhatWillBe(t *testing.T) {
	s := newSpace(t, fillSmall)
	since := s.snapshot()
	s.ok(s.edit(since, func(e *overlay.Editor) error {
		for _, tt := range []struct {
			path, content, xattr string
			mode                 uint32
		}{
			{"b.txt", "second", "user.of", 0o644},
			{"new.txt", "new", "user.made", 0o640},
			{"moved/hard", "changed in all its names", "user.made", 0o600},
			{"c2", "third", "", 0o400},
			{"nd/again", "x", "user.made", 0o600},
		} {
			if tt.path == "new.txt" {
				s.ok(editAll(e))
			}
			a, xs, err := e.Stat(tt.path)
			if err != nil || a.Mode != unix.S_IFREG|tt.mode || (tt.xattr == "") != (len(xs) == 0) || len(xs) > 0 && xs[0].Name != tt.xattr {
				t.Errorf("Stat of %s = %o %v, %v, want mode %o and xattr %q", tt.path, a.Mode, xs, err, tt.mode, tt.xattr)
			}
			s.ok(e.Read(tt.path, func(r overlay.ReaderAt) error {
				buf := make([]byte, 100)
				n, err := r.ReadAt(buf, 0)
				if string(buf[:n]) != tt.content || err != nil && err != io.EOF {
					t.Errorf("%s holds %q, %v, want %q", tt.path, buf[:n], err, tt.content)
				}
				return nil
			}))
		}
		if a, _, err := e.Stat("nd"); err != nil || a.Mode != unix.S_IFDIR|0o750 || a.Mtime != editTime {
			t.Errorf("Stat of the new directory = %+v, %v", a, err)
		}
		return nil
	}))
	s.isEdited()
}

func TestTheCheckpointOfAnEditIsNotSeen(t *testing.T) {
	s := newSpace(t, fillSmall)
	since := s.snapshot()
	s.ok(s.edit(since, editAll))
	list, err := s.w.List(overlay.ListOptions{})
	s.ok(err)
	if len(list) != 2 || list[0].ID != since || list[1].CreatedBy != "rollback" || list[1].Message != "before the merge" {
		t.Errorf("List = %+v, want the checkpoint before and the undo checkpoint", list)
	}
	d, err := s.w.Diff(context.Background(), "", "", false)
	s.ok(err)
	if d.From != since || len(d.Changes) == 0 {
		t.Errorf("Diff = %+v, want what the edit has changed", d)
	}
}

func TestAnEditThatFailsChangesNothing(t *testing.T) {
	s := newSpace(t, fillSmall)
	since := s.snapshot()
	before := s.state()
	for name, tt := range map[string]struct {
		fn   func(e *overlay.Editor) error
		want error
	}{
		"taken":             {func(e *overlay.Editor) error { return e.Make("a.txt", file(0o600, "")) }, unix.EEXIST},
		"missing":           {func(e *overlay.Editor) error { return e.Remove("nothing") }, unix.ENOENT},
		"missing directory": {func(e *overlay.Editor) error { return e.Make("no/file", file(0o600, "")) }, unix.ENOENT},
		"file as directory": {func(e *overlay.Editor) error { return e.Make("a.txt/file", file(0o600, "")) }, unix.ENOTDIR},
		"not empty":         {func(e *overlay.Editor) error { return e.Remove("dir") }, unix.ENOTEMPTY},
		"filled again": {func(e *overlay.Editor) error {
			return errors.Join(e.Remove("dir/sub/d.txt"), e.Remove("dir/sub/e.txt"), e.Make("dir/sub/f", file(0o600, "")), e.Remove("dir/sub"))
		}, unix.ENOTEMPTY},
		"escape":          {func(e *overlay.Editor) error { return e.Remove("dir/../a.txt") }, unix.EINVAL},
		"absolute":        {func(e *overlay.Editor) error { return e.Remove("/a.txt") }, unix.EINVAL},
		"store":           {func(e *overlay.Editor) error { return e.Make(".hyperfs/x", file(0o600, "")) }, unix.EPERM},
		"into itself":     {func(e *overlay.Editor) error { return e.Rename("dir", "dir/sub/dir") }, unix.EINVAL},
		"directory link":  {func(e *overlay.Editor) error { return e.Link("dir", "dir2") }, unix.EPERM},
		"put a directory": {func(e *overlay.Editor) error { return e.Put("dir", file(0o600, "")) }, unix.EINVAL},
		"after changes":   {func(e *overlay.Editor) error { return errors.Join(editAll(e), unix.EIO) }, unix.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.edit(since, tt.fn); !errors.Is(err, tt.want) {
				t.Errorf("Edit = %v, want %v", err, tt.want)
			}
			s.same(before)
			if left := s.storeFiles("tmp"); len(left) > 0 {
				t.Errorf("tmp holds %v", left)
			}
		})
	}
}

func TestAnEditRefusesWhatWasChangedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(s *space){
		"its file":                    func(s *space) { s.overwrite("b.txt", "X", 0) },
		"a name that it takes":        func(s *space) { s.write("new.txt", "mine") },
		"a directory that it empties": func(s *space) { s.write("dir/sub/mine", "mine") },
		"a file that it removes":      func(s *space) { s.overwrite("dir/sub/e.txt", "X", 0) },
		"a directory above":           func(s *space) { s.rename("dir", "elsewhere", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, fillSmall)
			since := s.snapshot()
			var changed treestate.State
			err := s.edit(since, func(e *overlay.Editor) error {
				err := editAll(e)
				change(s)
				changed = s.state()
				return err
			})
			if errs.CodeOf(err) != errs.Busy {
				t.Errorf("Edit = %v, want BUSY", err)
			}
			s.same(changed)
		})
	}
	t.Run("a directory that is made anew", func(t *testing.T) {
		s := spaceAt(t, editLowers["overlayfs"](t))
		since := s.snapshot()
		err := s.edit(since, func(e *overlay.Editor) error {
			err := e.Rename("dir", "moved")
			_, errMode := s.w.Tree().SetAttr(s.at("dir"), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: unix.S_IFDIR | 0o700})
			s.ok(errMode)
			return err
		})
		if errs.CodeOf(err) != errs.Busy {
			t.Errorf("Edit = %v, want BUSY", err)
		}
	})
	t.Run("but not anything else", func(t *testing.T) {
		s := newSpace(t, fillSmall)
		since := s.snapshot()
		s.ok(s.edit(since, func(e *overlay.Editor) error {
			s.write("mine", "mine")
			return e.Put("b.txt", file(0o600, "edited"))
		}))
		if b, err := os.ReadFile(filepath.Join(s.dir, "mine")); err != nil || string(b) != "mine" {
			t.Errorf("what was made meanwhile holds %q, %v", b, err)
		}
	})
}

// A death leaves all of an edit or nothing, and what is changed after it is protected.
func TestACutEditIsWholeOrNothing(t *testing.T) {
	for _, at := range []string{
		"edit-pretended:1", "epoch-saved:1", "epoch-begun:1", "epoch-saved:2", "epoch-begun:2", "rollback-apply:1", "rollback-aside:1", "rollback-aside:4",
		"rollback-put:1", "rollback-put:6", "rollback-inode:1", "rollback-inode:3", "rollback-applied:1", "epoch-saved:3", "rollback-done:1",
	} {
		t.Run(at, func(t *testing.T) { cutEdit(t, editLowers["temp"](t), at, 0) })
	}
	for _, at := range []string{ // names of directories are moved one by one there
		"edit-staged:2", "edit-pretended:1", "rollback-intent:1", "rollback-apply:1", "rollback-aside:1", "rollback-aside:4", "rollback-aside:7", "rollback-aside:9",
		"rollback-aside:10", "rollback-put:3", "rollback-applied:1",
	} {
		t.Run("overlayfs/"+at, func(t *testing.T) { cutEdit(t, editLowers["overlayfs"](t), at, 0) })
	}
	// Where the records of the rollback don't fit into one commit.
	for _, at := range []string{"edit-pretended:1", "rollback-intent:1", "rollback-apply:1", "rollback-put:50", "rollback-applied:1"} {
		t.Run("many "+at, func(t *testing.T) { cutEdit(t, editLowers["temp"](t), at, 100) })
	}
}

func cutEdit(t *testing.T, dir, at string, more int) {
	s := spaceWith(t, overlay.Config{Workspace: dir, Tier: "pure-manifest"})
	since := s.snapshot()
	before := s.state()
	s.ok(s.w.Close())
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%s\n%d", envEditor, dir, since, more), crash.EnvAt+"="+at)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("it was not killed: %v: %s", err, out)
	}
	s.open()
	if len(treestate.Diff(before, s.state())) > 0 {
		s.takeAway("more", more)
		s.same(s.isEdited())
	}
	s.overwrite("b.txt", "AFTER", 0)
	s.overwrite("a.txt", "AFTER", 0)
	s.write("later", "later")
	s.rollback(since)
	s.same(before)
}

func TestAnEditOnOverlayfsKeepsWhatDirectoriesAreLike(t *testing.T) {
	s := spaceAt(t, editLowers["overlayfs"](t))
	since := s.snapshot()
	before := s.state()
	want := treestate.State{}
	for p, e := range before {
		if moved, ok := strings.CutPrefix(p, "dir"); ok {
			e.Path, e.First = "moved"+moved, "moved"+moved
			if e.First == "moved/hard" {
				e.First = "a.txt"
			}
			want[e.Path] = e
		} else if p != "." {
			want[p] = e
		}
	}
	s.ok(s.edit(since, func(e *overlay.Editor) error { return e.Rename("dir", "moved") }))
	moved := s.state()
	root := moved["."]
	delete(moved, ".")
	for _, d := range treestate.Diff(want, moved) {
		t.Error(d)
	}
	moved["."] = root
	s.undo()
	s.same(before)
	s.undo()
	s.same(moved)
	s.rollback(since)
	s.same(before)
}

func TestAnEditOnOverlayfsReadsPinnedStates(t *testing.T) {
	s := spaceAt(t, editLowers["overlayfs"](t))
	before := s.state()
	p := s.pinNow()
	s.ok(s.edit(s.snapshot(), func(e *overlay.Editor) error {
		return errors.Join(e.Remove("dir/sub/d.txt"), e.Remove("dir/sub/e.txt"), e.Remove("dir/sub"), e.Rename("dir", "moved"))
	}))
	p.same()
	s.undo()
	s.same(before)
	p.same()
}
