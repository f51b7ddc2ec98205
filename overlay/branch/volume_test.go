//go:build linux

package branch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

func TestABranchShowsMainAndKeepsItsChangesToItself(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's", "dir/b": "also"})
	s.fork("one", "")
	s.fork("two", mainPoint)
	one, two := s.tree("one"), s.tree("two")
	one.has("dir/b", "also")
	one.write("a", "changed")
	one.write("dir/new", "new")
	one.unlink("dir/b")
	one.has("a", "changed")
	one.has("dir/new", "new")
	one.lacks("dir/b")
	two.has("a", "main's")
	two.has("dir/b", "also")
	two.lacks("dir/new")
	if b, err := os.ReadFile(filepath.Join(s.main, "a")); err != nil || string(b) != "main's" {
		t.Errorf("main has %q, %v", b, err)
	}
	s.reopen()
	one = s.tree("one")
	one.has("a", "changed")
	one.has("dir/new", "new")
	one.lacks("dir/b")
	s.sound()
}

func TestAReaderGoesOverToTheCopyWhenTheFileIsChanged(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "before"})
	s.fork("b", "")
	b := s.tree("b")
	r := b.openFile("a", unix.O_RDONLY)
	defer r.Release()
	if got := b.readFile(r); got != "before" {
		t.Fatalf("read %q", got)
	}
	w := b.openFile("a", unix.O_WRONLY)
	defer w.Release()
	b.writeFile(w, "AFTER!")
	if got := b.readFile(r); got != "AFTER!" {
		t.Errorf("after the copy-up an open file reads %q", got)
	}
	s.snapshot("b")
	b.writeFile(w, "again.")
	if got := b.readFile(r); got != "again." {
		t.Errorf("after a snapshot an open file reads %q", got)
	}
}

func TestAWriterDoesNotReachWhatASnapshotHolds(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's"})
	s.fork("b", "")
	b := s.tree("b")
	w := b.openFile("a", unix.O_RDWR)
	defer w.Release()
	var ids []string
	for i := range 4 {
		b.writeFile(w, fmt.Sprint("state ", i))
		ids = append(ids, s.snapshot("b"))
	}
	b.writeFile(w, "state !")
	for i, id := range ids {
		s.at(id).has("a", fmt.Sprint("state ", i))
	}
	b.has("a", "state !")
	s.sound()
}

func TestAReadOnlyViewRefusesChanges(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's"})
	s.fork("b", "")
	s.tree("b").write("a", "b's")
	fork, err := s.m.ForkPoint("b")
	s.ok(err)
	for name, v := range map[string]tree{"main": s.at(mainPoint), "branch": s.at(s.snapshot("b")), "fork point": {s, fork}} {
		n := v.node("a")
		if _, err := v.Open(n, unix.O_WRONLY, false, nil); err != unix.EROFS {
			t.Errorf("%s: open for writing gives %v", name, err)
		}
		if _, _, err := v.Mkdir(v.Root(), "d", 0o755, nil); err != unix.EROFS {
			t.Errorf("%s: mkdir gives %v", name, err)
		}
		if err := v.Unlink(v.Root(), "a"); err != unix.EROFS {
			t.Errorf("%s: unlink gives %v", name, err)
		}
		if _, err := v.SetAttr(n, nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600}); err != unix.EROFS {
			t.Errorf("%s: chmod gives %v", name, err)
		}
	}
	tree{s, fork}.has("a", "main's")
}

func TestAFileIsReadAndWrittenAfterItsLastNameIsGone(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's", "c": "other"})
	s.fork("b", "")
	b := s.tree("b")
	f := b.openFile("a", unix.O_RDWR)
	b.unlink("a")
	b.rename("c", "a")
	s.snapshot("b")
	b.writeFile(f, "nobody")
	if got := b.readFile(f); got != "nobody" {
		t.Errorf("it reads %q", got)
	}
	if a, err := b.GetAttr(f.Inode(), f); err != nil || a.Nlink != 0 {
		t.Errorf("it has %d names, %v", a.Nlink, err)
	}
	b.has("a", "other")
	b.Forget(f.Inode(), 1)
	f.Release()
	s.sound()
}

func TestHardLinksStayLinksOverACopyUp(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's"})
	s.ok(os.Link(filepath.Join(s.main, "a"), filepath.Join(s.main, "b")))
	s.reopen()
	s.fork("x", "")
	x := s.tree("x")
	x.link("a", "c")
	x.write("b", "changed")
	x.unlink("a")
	s.reopen()
	x = s.tree("x")
	x.has("c", "changed")
	x.lacks("a")
	if x.node("b") != x.node("c") {
		t.Error("two names of one inode lead to two")
	}
	if n := x.attr("b").Nlink; n != 2 {
		t.Errorf("it has %d names, want 2", n)
	}
}

func TestInodeNumbersStayOverCopyUpAndRestart(t *testing.T) {
	s := newSpace(t, map[string]string{"dir/a": "main's"})
	s.fork("one", "")
	s.fork("two", "")
	one := s.tree("one")
	one.write("dir/new", "")
	before := map[string]uint64{}
	for _, p := range []string{".", "dir", "dir/a", "dir/new"} {
		before[p] = one.attr(p).Ino
	}
	if before["dir/a"] == s.tree("two").attr("dir/a").Ino {
		t.Error("two branches have the same number for a file")
	}
	one.write("dir/a", "changed")
	s.snapshot("one")
	one.write("dir/a", "again")
	one.rename("dir", "moved")
	s.reopen()
	one = s.tree("one")
	for old, now := range map[string]string{".": ".", "dir": "moved", "dir/a": "moved/a", "dir/new": "moved/new"} {
		if got := one.attr(now).Ino; got != before[old] || got>>63 != 0 {
			t.Errorf("%s had number %x and has %x", old, before[old], got)
		}
	}
}

func TestMovingADirectoryCopiesNothingBelow(t *testing.T) {
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprintf("big/%d/f", i)] = "content"
	}
	s := newSpace(t, files)
	s.fork("b", "")
	b := s.tree("b")
	b.rename("big", "moved")
	b.has("moved/77/f", "content")
	if n := s.poolSize(); n > 1 { // the root, for its time
		t.Errorf("moving a directory has put %d inodes into the pool", n)
	}
}

// poolSize counts what is in the pool.
func (s *space) poolSize() (n int) {
	s.Helper()
	dirs, err := os.ReadDir(filepath.Join(s.dir, "branches"))
	s.ok(err)
	for _, d := range dirs {
		list, err := os.ReadDir(filepath.Join(s.dir, "branches", d.Name()))
		s.ok(err)
		n += len(list)
	}
	return n
}

func TestChangingAttributesCopiesNoContent(t *testing.T) {
	s := newSpace(t, map[string]string{"large": strings.Repeat("x", 1<<20)})
	s.fork("b", "")
	b := s.tree("b")
	blocks := b.attr("large").Blocks
	_, err := b.SetAttr(b.node("large"), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600})
	s.ok(err)
	s.ok(b.SetXattr(b.node("large"), "user.x", []byte("y"), 0))
	if a := b.attr("large"); a.Mode&0o777 != 0o600 || a.Size != 1<<20 || a.Blocks != blocks {
		t.Errorf("mode %o, size %d, %d blocks, want 600, %d, %d", a.Mode&0o777, a.Size, a.Blocks, 1<<20, blocks)
	}
	var used int64
	s.ok(filepath.WalkDir(filepath.Join(s.dir, "branches"), func(path string, d os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && d.Type().IsRegular() {
			err = unix.Lstat(path, &st)
			used += st.Blocks * 512
		}
		return err
	}))
	if used > 64<<10 {
		t.Errorf("the copy takes %d bytes", used)
	}
	if got := b.read("large"); got != strings.Repeat("x", 1<<20) {
		t.Errorf("it reads %d other bytes", len(got))
	}
	f := b.openFile("large", unix.O_WRONLY)
	b.writeFile(f, "y")
	f.Release()
	s.reopen()
	b = s.tree("b")
	if got := b.read("large"); got != "y"+strings.Repeat("x", 1<<20-1) {
		t.Errorf("after a write it reads %d other bytes", len(got))
	}
	if a := b.attr("large"); a.Mode&0o777 != 0o600 {
		t.Errorf("the mode is %o after the write", a.Mode&0o777)
	}
	s.sound()
}

func TestListingsGoOnWhereTheyWereWhileNamesComeAndGo(t *testing.T) {
	files := map[string]string{}
	for i := range 300 {
		files[fmt.Sprintf("dir/%d", i)] = ""
	}
	s := newSpace(t, files)
	s.fork("b", "")
	b := s.tree("b")
	seen := map[string]int{}
	off := uint64(0)
	for step := 0; ; step++ {
		d, err := b.OpenDir(b.node("dir"))
		s.ok(err)
		more := true
		for range 7 {
			var e overlay.DirEntry
			if e, more, err = d.Next(off); err != nil || !more {
				break
			}
			seen[e.Name]++
			off = e.Off
		}
		s.ok(err)
		d.Release()
		if !more {
			break
		}
		b.write(fmt.Sprintf("dir/new %d", step), "")
		if name := fmt.Sprintf("dir/%d", step); step < 20 {
			b.unlink(name)
		}
	}
	for i := 20; i < 300; i++ {
		if seen[fmt.Sprint(i)] != 1 {
			t.Errorf("%d was listed %d times", i, seen[fmt.Sprint(i)])
		}
	}
	for name, n := range seen {
		if n > 1 {
			t.Errorf("%s was listed %d times", name, n)
		}
	}
}

func TestADirectoryWithAHundredThousandNames(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const many = 100_000
	s := newSpace(t, map[string]string{"a": ""})
	s.fork("b", "")
	b := s.tree("b")
	b.mkdir("dir")
	dir := b.node("dir")
	n, f, _, err := b.Create(dir, "0", unix.O_WRONLY, 0o644, false, nil)
	s.ok(err)
	f.Release()
	for i := 1; i < many; i++ {
		_, err := b.Link(n, dir, fmt.Sprint(i))
		s.ok(err)
	}
	if a := b.attr("dir/5"); a.Nlink != many {
		t.Errorf("the file has %d names", a.Nlink)
	}
	list := func() (names []string) {
		d, err := b.OpenDir(dir)
		s.ok(err)
		defer d.Release()
		for off := uint64(0); ; {
			e, ok, err := d.Next(off)
			s.ok(err)
			if !ok {
				return names
			}
			names, off = append(names, e.Name), e.Off
		}
	}
	names := list()
	slices.Sort(names)
	if len(slices.Compact(names)) != many+2 {
		t.Errorf("%d names are listed", len(names))
	}
	for i := range many {
		s.ok(b.Unlink(dir, fmt.Sprint(i)))
	}
	if names := list(); len(names) != 2 {
		t.Errorf("%d names are left", len(names))
	}
	s.ok(b.Rmdir(b.Root(), "dir"))
}

func TestErrnosAreThoseOfAPlainDirectory(t *testing.T) {
	s := newSpace(t, map[string]string{"file": "f", "full/x": "", "other/y": ""})
	s.fork("b", "")
	b := s.tree("b")
	b.mkdir("empty")
	root := b.Root()
	long := strings.Repeat("n", 256)
	mkdir := func(name string) error { _, _, err := b.Mkdir(root, name, 0o755, nil); return err }
	rename := func(from, to string, flags uint32) error { return b.Rename(root, from, root, to, flags) }
	for what, c := range map[string]struct{ got, want error }{
		"mkdir over a name":                       {mkdir("file"), unix.EEXIST},
		"mkdir of a long name":                    {mkdir(long), unix.ENAMETOOLONG},
		"mkdir of the store's name":               {mkdir(overlay.StoreName), unix.EPERM},
		"rmdir of a file":                         {b.Rmdir(root, "file"), unix.ENOTDIR},
		"rmdir of a full directory":               {b.Rmdir(root, "full"), unix.ENOTEMPTY},
		"unlink of a directory":                   {b.Unlink(root, "full"), unix.EISDIR},
		"unlink of nothing":                       {b.Unlink(root, "none"), unix.ENOENT},
		"rename of nothing":                       {rename("none", "x", 0), unix.ENOENT},
		"rename of a file over a directory":       {rename("file", "empty", 0), unix.EISDIR},
		"rename of a directory over a file":       {rename("empty", "file", 0), unix.ENOTDIR},
		"rename over a full directory":            {rename("empty", "full", 0), unix.ENOTEMPTY},
		"rename without replacing":                {rename("file", "full", unix.RENAME_NOREPLACE), unix.EEXIST},
		"exchange with nothing":                   {rename("file", "none", unix.RENAME_EXCHANGE), unix.ENOENT},
		"rename with a whiteout":                  {rename("file", "none", unix.RENAME_WHITEOUT), unix.EINVAL},
		"rename of a directory into itself":       {b.Rename(root, "full", b.node("full"), "x", 0), unix.EINVAL},
		"exchange of a directory with one inside": {b.Rename(b.node("full"), "x", root, "full", unix.RENAME_EXCHANGE), unix.EINVAL},
		"rename over a directory above":           {b.Rename(b.node("full"), "x", root, "full", 0), unix.ENOTEMPTY},
		"a name in a file":                        {b.Unlink(b.node("file"), "x"), unix.ENOTDIR},
	} {
		if c.got != c.want {
			t.Errorf("%s gives %v, want %v", what, c.got, c.want)
		}
	}
	if _, _, _, err := b.Create(root, "file", unix.O_WRONLY, 0o644, false, nil); err != unix.EEXIST {
		t.Errorf("create over a file gives %v", err)
	}
	if _, err := b.Link(b.node("full"), root, "l"); err != unix.EPERM {
		t.Errorf("a link to a directory gives %v", err)
	}
	if _, err := b.Open(b.node("full"), unix.O_RDONLY, false, nil); err != unix.EISDIR {
		t.Errorf("open of a directory gives %v", err)
	}
	gone := b.node("empty")
	s.ok(b.Rmdir(root, "empty"))
	if _, _, err := b.Mkdir(gone, "x", 0o755, nil); err != unix.ENOENT {
		t.Errorf("mkdir in a directory that is gone gives %v", err)
	}
	r := b.openFile("file", unix.O_RDONLY)
	defer r.Release()
	if _, err := r.WriteAt([]byte("x"), 0); err != unix.EBADF {
		t.Errorf("a write to a file that is open for reading gives %v", err)
	}
}

func TestOpeningAnEmptyFileToTruncateItChangesItsTime(t *testing.T) {
	s := newSpace(t, map[string]string{"a": ""})
	s.ok(os.Chtimes(filepath.Join(s.main, "a"), time.Unix(1, 0), time.Unix(1, 0)))
	s.reopen()
	s.fork("x", "")
	x := s.tree("x")
	x.openFile("a", unix.O_WRONLY|unix.O_TRUNC).Release()
	if a := x.attr("a"); a.Mtime.Sec == 1 {
		t.Error("O_TRUNC does not change its time")
	}
}
