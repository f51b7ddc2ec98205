//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// space is a workspace under test.
type space struct {
	*testing.T
	dir string
	cfg overlay.Config
	w   *overlay.Workspace
	tr  *overlay.Tree
}

func newSpace(t *testing.T, fill func(dir string)) *space {
	t.Helper()
	dir := t.TempDir()
	if fill != nil {
		fill(dir)
	}
	return spaceAt(t, dir)
}

func spaceAt(t *testing.T, dir string) *space {
	t.Helper()
	return spaceWith(t, overlay.Config{Workspace: dir})
}

// spaceWith opens a workspace. Its preimages in RAM are in a directory of their own, unless the configuration names one.
func spaceWith(t *testing.T, cfg overlay.Config) *space {
	t.Helper()
	if cfg.TmpfsDir == "" {
		cfg.TmpfsDir = ramDir(t)
	}
	s := &space{T: t, dir: cfg.Workspace, cfg: cfg}
	s.open()
	t.Cleanup(func() { _ = s.w.Close() })
	return s
}

func ramDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hyperfs-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *space) open() {
	s.Helper()
	w, err := overlay.Open(s.cfg)
	if err != nil {
		s.Fatal(err)
	}
	s.w, s.tr = w, w.Tree()
}

func (s *space) reopen() {
	s.Helper()
	if err := s.w.Close(); err != nil {
		s.Fatal(err)
	}
	s.open()
}

func (s *space) snapshot() string {
	s.Helper()
	c, err := s.w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return c.ID
}

func (s *space) rollback(id string) overlay.RollbackResult {
	s.Helper()
	r, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return r
}

func (s *space) undo() {
	s.Helper()
	if _, err := s.w.Undo(context.Background()); err != nil {
		s.Fatal(err)
	}
}

func (s *space) state() treestate.State {
	s.Helper()
	st, err := treestate.Capture(s.dir, treestate.Options{})
	if err != nil {
		s.Fatal(err)
	}
	return st
}

// sameTree compares the workspace with a state that it had.
func (s *space) sameTree(want treestate.State) {
	s.Helper()
	for _, d := range treestate.Diff(want, s.state()) {
		s.Error(d)
	}
}

// same is sameTree, and proves that the store is sound.
func (s *space) same(want treestate.State) {
	s.Helper()
	s.sameTree(want)
	problems, err := s.w.Fsck(context.Background(), true)
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range problems {
		s.Errorf("fsck: %s: %s", p.Where, p.What)
	}
}

// at walks to a node. The reference that it takes lasts until the end of the test.
func (s *space) at(path string) *overlay.Node {
	s.Helper()
	n := s.tr.Root()
	if path == "." {
		return n
	}
	for _, name := range split(path) {
		next, _, err := s.tr.Lookup(n, name)
		if err != nil {
			s.Fatalf("lookup %s: %v", path, err)
		}
		n = next
	}
	return n
}

func split(path string) []string {
	return strings.Split(path, "/")
}

func (s *space) parent(path string) (*overlay.Node, string) {
	s.Helper()
	return s.at(filepath.Dir(path)), filepath.Base(path)
}

func (s *space) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *space) write(path, content string) {
	s.Helper()
	dir, name := s.parent(path)
	var h *overlay.Handle
	n, _, err := s.tr.Lookup(dir, name)
	if err == unix.ENOENT {
		_, h, _, err = s.tr.Create(dir, name, unix.O_WRONLY, 0o644, false, nil)
	} else if err == nil {
		h, err = s.tr.Open(n, unix.O_WRONLY|unix.O_TRUNC, false, nil)
	}
	s.ok(err)
	defer h.Release()
	_, err = h.WriteAt([]byte(content), 0)
	s.ok(err)
}

func (s *space) overwrite(path, content string, off int64) {
	s.Helper()
	h, err := s.tr.Open(s.at(path), unix.O_WRONLY, false, nil)
	s.ok(err)
	defer h.Release()
	_, err = h.WriteAt([]byte(content), off)
	s.ok(err)
}

func (s *space) mkdir(path string) {
	s.Helper()
	dir, name := s.parent(path)
	_, _, err := s.tr.Mkdir(dir, name, 0o755, nil)
	s.ok(err)
}

func (s *space) unlink(path string) {
	s.Helper()
	dir, name := s.parent(path)
	s.ok(s.tr.Unlink(dir, name))
}

func (s *space) rmdir(path string) {
	s.Helper()
	dir, name := s.parent(path)
	s.ok(s.tr.Rmdir(dir, name))
}

func (s *space) rename(from, to string, flags uint32) {
	s.Helper()
	d1, n1 := s.parent(from)
	d2, n2 := s.parent(to)
	s.ok(s.tr.Rename(d1, n1, d2, n2, flags))
}

func (s *space) link(from, to string) {
	s.Helper()
	d, n := s.parent(to)
	_, err := s.tr.Link(s.at(from), d, n)
	s.ok(err)
}

func fillSmall(dir string) {
	for path, content := range map[string]string{
		"a.txt": "first", "b.txt": "second", "dir/c.txt": "third", "dir/sub/d.txt": "fourth", "dir/sub/e.txt": "fifth",
	} {
		p := filepath.Join(dir, path)
		_ = os.MkdirAll(filepath.Dir(p), 0o755)
		_ = os.WriteFile(p, []byte(content), 0o644)
	}
	_ = os.Link(filepath.Join(dir, "a.txt"), filepath.Join(dir, "dir/hard"))
	_ = os.Symlink("c.txt", filepath.Join(dir, "dir/soft"))
	for _, name := range []string{"b.txt", "dir", "dir/sub"} {
		_ = unix.Setxattr(filepath.Join(dir, name), "user.of", []byte(name), 0) // not every kernel has them on tmpfs
	}
}

// changes are what a workspace filled by fillSmall may go through.
var changes = map[string]func(s *space){
	"create":            func(s *space) { s.write("new.txt", "n"); s.mkdir("nd"); s.write("nd/x", "x") },
	"truncating write":  func(s *space) { s.write("b.txt", "changed") },
	"write in place":    func(s *space) { s.overwrite("dir/c.txt", "XX", 1) },
	"write hard link":   func(s *space) { s.overwrite("dir/hard", "XX", 1) },
	"unlink":            func(s *space) { s.unlink("b.txt"); s.unlink("dir/soft") },
	"unlink one link":   func(s *space) { s.unlink("a.txt") },
	"unlink both links": func(s *space) { s.unlink("a.txt"); s.unlink("dir/hard") },
	"remove tree": func(s *space) {
		s.unlink("dir/sub/d.txt")
		s.unlink("dir/sub/e.txt")
		s.rmdir("dir/sub")
	},
	"rename file": func(s *space) { s.rename("b.txt", "dir/b2.txt", 0) },
	"rename over": func(s *space) { s.rename("b.txt", "dir/c.txt", 0) },
	"rename dir":  func(s *space) { s.rename("dir", "moved", 0); s.write("moved/c.txt", "later") },
	"exchange":    func(s *space) { s.rename("b.txt", "dir", unix.RENAME_EXCHANGE) },
	"old dir below new": func(s *space) {
		s.mkdir("n")
		s.rename("dir", "n/dir", 0)
		s.overwrite("n/dir/c.txt", "Q", 0)
		s.unlink("n/dir/sub/d.txt")
	},
	"new then moved": func(s *space) {
		s.mkdir("n")
		s.rename("dir", "n/dir", 0)
		s.rename("n", "m", 0)
		s.rename("m/dir/sub", "sub", 0)
	},
	"temp and rename": func(s *space) { s.write("b.tmp", "whole"); s.rename("b.tmp", "b.txt", 0) },
	"link":            func(s *space) { s.link("b.txt", "b2"); s.unlink("b.txt"); s.overwrite("b2", "zz", 0) },
	"chmod": func(s *space) {
		_, err := s.tr.SetAttr(s.at("dir"), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o700})
		s.ok(err)
		_, err = s.tr.SetAttr(s.at("b.txt"), nil, &overlay.SetAttr{Valid: overlay.SetMode | overlay.SetSize, Mode: 0o600, Size: 2})
		s.ok(err)
	},
	"xattr": func(s *space) { s.ok(s.tr.SetXattr(s.at("b.txt"), "user.k", []byte("v"), 0)) },
	"recreate": func(s *space) {
		s.unlink("b.txt")
		s.write("b.txt", "second")
		s.unlink("b.txt")
		s.mkdir("b.txt")
	},
}

// lowers are the filesystems that behave differently underneath, each with a way to get a workspace on it.
var lowers = map[string]func(t *testing.T) (workspaces func() string){
	"the temporary directory": func(t *testing.T) func() string { return filled(t, t.TempDir()) },
	"tmpfs":                   func(t *testing.T) func() string { return filled(t, testfs.Tmpfs(t, 256<<20)) },
	"XFS":                     func(t *testing.T) func() string { return filled(t, testfs.XFS(t, 1<<30)) },
	"btrfs":                   func(t *testing.T) func() string { return filled(t, testfs.Btrfs(t, 1<<30)) },
	"overlayfs": func(t *testing.T) func() string {
		root := testfs.Overlay(t, func(lower string) {
			for i := range 2 * len(changes) {
				fillSmall(filepath.Join(lower, fmt.Sprint(i)))
			}
		})
		next := 0
		return func() string { next++; return filepath.Join(root, fmt.Sprint(next-1)) }
	},
}

// filled makes and fills directories below root.
func filled(t *testing.T, root string) func() string {
	return func() string {
		dir, err := os.MkdirTemp(root, "space-")
		if err != nil {
			t.Fatal(err)
		}
		fillSmall(dir)
		return dir
	}
}

func TestRollbackRestoresEverything(t *testing.T) {
	for lower, prepare := range lowers {
		t.Run(lower, func(t *testing.T) {
			next := prepare(t)
			for name, change := range changes {
				if reason := cannot[lower][name]; reason != "" {
					t.Logf("%s: %s", name, reason)
					continue
				}
				t.Run(name, func(t *testing.T) { rollbackAndUndo(t, next(), change) })
				t.Run(name+" after a restart", func(t *testing.T) { rollbackAfterRestart(t, next(), change) })
			}
		})
	}
}

// cannot says what the filesystem underneath does not allow.
var cannot = map[string]map[string]string{"overlayfs": {
	"rename dir":        "overlayfs gives EXDEV for a directory of its lower layer",
	"old dir below new": "overlayfs gives EXDEV for a directory of its lower layer",
	"new then moved":    "overlayfs gives EXDEV for a directory of its lower layer",
	"exchange":          "overlayfs gives EXDEV for a directory of its lower layer",
	"write hard link":   "overlayfs breaks a link of its lower layer; see TestLinksOfALowerLayerKeepTheirContent",
	"unlink one link":   "overlayfs breaks a link of its lower layer; see TestLinksOfALowerLayerKeepTheirContent",
	"unlink both links": "overlayfs breaks a link of its lower layer; see TestLinksOfALowerLayerKeepTheirContent",
}}

func TestTruncateToTheSameSizeIsWhatItIsUnderneath(t *testing.T) {
	for lower, prepare := range lowers {
		t.Run(lower, func(t *testing.T) {
			next := prepare(t)
			mtimeAfter := func(truncate func(s *space)) int64 {
				s := spaceAt(t, next())
				past := []unix.Timespec{{Sec: 1e9}, {Sec: 1e9}}
				s.ok(unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(s.dir, "b.txt"), past, 0))
				truncate(s)
				return s.state()["b.txt"].Mtime
			}
			size := int64(len("second"))
			plain := mtimeAfter(func(s *space) { s.ok(os.Truncate(filepath.Join(s.dir, "b.txt"), size)) })
			ours := mtimeAfter(func(s *space) {
				_, err := s.tr.SetAttr(s.at("b.txt"), nil, &overlay.SetAttr{Valid: overlay.SetSize, Size: size})
				s.ok(err)
			})
			if (plain == 1e18) != (ours == 1e18) {
				t.Errorf("the mtime is %d, and would be %d", ours, plain)
			}
		})
	}
}

func TestLinksOfALowerLayerKeepTheirContent(t *testing.T) {
	root := testfs.Overlay(t, func(lower string) {
		for _, name := range []string{"write hard link", "unlink one link", "unlink both links"} {
			fillSmall(filepath.Join(lower, name))
		}
	})
	for _, name := range []string{"write hard link", "unlink one link", "unlink both links"} {
		t.Run(name, func(t *testing.T) {
			s := spaceAt(t, filepath.Join(root, name))
			id := s.snapshot()
			changes[name](s)
			s.rollback(id)
			for _, path := range []string{"a.txt", "dir/hard"} {
				if b, err := os.ReadFile(filepath.Join(s.dir, path)); err != nil || string(b) != "first" {
					t.Errorf("%s holds %q, %v", path, b, err)
				}
			}
		})
	}
}

func rollbackAndUndo(t *testing.T, dir string, change func(*space)) {
	s := spaceAt(t, dir)
	before := s.state()
	id := s.snapshot()
	change(s)
	after := s.state()
	s.rollback(id)
	s.same(before)
	s.undo()
	s.same(after)
	s.undo()
	s.same(before)
	s.reopen()
	s.same(before)
	s.undo()
	s.same(after)
	s.rollback(id)
	s.same(before)
}

func rollbackAfterRestart(t *testing.T, dir string, change func(*space)) {
	s := spaceAt(t, dir)
	before := s.state()
	id := s.snapshot()
	change(s)
	s.reopen()
	s.rollback(id)
	s.same(before)
}
