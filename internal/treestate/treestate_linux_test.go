package treestate

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// seed makes a tree that has one of everything, and returns its path.
func seed(t *testing.T) string {
	t.Helper()
	top := filepath.Join(t.TempDir(), "tree")
	must(t, os.Mkdir(top, 0o755))
	at := func(p string) string { return filepath.Join(top, p) }
	must(t, os.MkdirAll(at("dir/sub"), 0o750))
	must(t, os.WriteFile(at("file"), []byte("content"), 0o644))
	must(t, os.WriteFile(at("dir/one"), []byte("linked"), 0o600))
	must(t, os.Link(at("dir/one"), at("dir/sub/two")))
	must(t, os.WriteFile(at("other"), []byte("linked"), 0o600))
	must(t, os.Symlink("file", at("symlink")))
	must(t, unix.Mkfifo(at("fifo"), 0o640))
	must(t, os.WriteFile(at("name \xff\n"), nil, 0o644))
	must(t, unix.Setxattr(at("file"), "user.colour", []byte("red"), 0))
	must(t, unix.Setxattr(at("dir"), "user.colour", []byte("blue"), 0))
	f, err := os.Create(at("sparse"))
	must(t, err)
	_, err = f.WriteAt([]byte("end"), 4<<20)
	must(t, err)
	must(t, f.Close())
	for i, p := range []string{"file", "dir/one", "dir/sub", "dir", "symlink", "fifo", "."} {
		setMtime(t, at(p), int64(1_000_000_000_123_456_789+i))
	}
	return top
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func setMtime(t *testing.T, path string, ns int64) {
	t.Helper()
	ts := unix.NsecToTimespec(ns)
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
}

func capture(t *testing.T, dir string) State {
	t.Helper()
	s, err := Capture(dir, Options{Holes: true})
	must(t, err)
	return s
}

func TestEveryDifferenceIsFound(t *testing.T) {
	cases := []struct {
		name   string
		change func(t *testing.T, top string)
		want   []string // the beginning of each line
	}{
		{"content of the same size and mtime", func(t *testing.T, top string) {
			overwrite(t, top+"/file", "CONTENT")
		}, []string{`"file": checksum`}},
		{"size", func(t *testing.T, top string) {
			must(t, os.Truncate(top+"/sparse", 4<<20))
			copyMtime(t, top+"/sparse")
		}, []string{`"sparse": size`, `"sparse": mtime`, `"sparse": checksum`}},
		{"mode", func(t *testing.T, top string) { must(t, unix.Chmod(top+"/file", 0o4755)) }, []string{`"file": mode is 04755, should be 0644`}},
		{"mode of a directory", func(t *testing.T, top string) { must(t, os.Chmod(top+"/dir", 0o700)) }, []string{`"dir": mode`}},
		{"mtime by a nanosecond", func(t *testing.T, top string) { setMtime(t, top+"/file", 1_000_000_000_123_456_790) },
			[]string{`"file": mtime is 2001-09-09T01:46:40.123456790, should be 2001-09-09T01:46:40.123456789`}},
		{"mtime of a directory", func(t *testing.T, top string) { setMtime(t, top+"/dir/sub", 7) }, []string{`"dir/sub": mtime`}},
		{"mtime of the top", func(t *testing.T, top string) { setMtime(t, top, 7) }, []string{`".": mtime`}},
		{"mtime of a symlink", func(t *testing.T, top string) { setMtime(t, top+"/symlink", 7) }, []string{`"symlink": mtime`}},
		{"symlink target", func(t *testing.T, top string) {
			must(t, os.Remove(top+"/symlink"))
			must(t, os.Symlink("elif", top+"/symlink"))
			setMtime(t, top+"/symlink", 1_000_000_000_123_456_793)
			setMtime(t, top, 1_000_000_000_123_456_795)
		}, []string{`"symlink": symlink target is "elif", should be "file"`}},
		{"xattr changed", func(t *testing.T, top string) {
			must(t, unix.Setxattr(top+"/file", "user.colour", []byte("green"), 0))
		}, []string{`"file": xattr "user.colour" is "green", should be "red"`}},
		{"xattr removed", func(t *testing.T, top string) { must(t, unix.Removexattr(top+"/dir", "user.colour")) },
			[]string{`"dir": xattr "user.colour" is missing`}},
		{"xattr added", func(t *testing.T, top string) {
			must(t, unix.Setxattr(top+"/file", "user.empty", nil, 0))
		}, []string{`"file": xattr "user.empty" should not be there`}},
		{"ACL", func(t *testing.T, top string) {
			must(t, unix.Setxattr(top+"/file", "system.posix_acl_access", acl(), 0))
		}, []string{`"file": mode`, `"file": xattr "system.posix_acl_access" should not be there`}},
		{"missing", func(t *testing.T, top string) {
			must(t, os.Remove(top+"/fifo"))
			setMtime(t, top, 1_000_000_000_123_456_795)
		}, []string{`"fifo": missing, should be a fifo`}},
		{"created", func(t *testing.T, top string) {
			must(t, os.Mkdir(top+"/new", 0o755))
			setMtime(t, top, 1_000_000_000_123_456_795)
		}, []string{`"new": should not exist, is a directory`}},
		{"type", func(t *testing.T, top string) {
			must(t, os.Remove(top+"/fifo"))
			must(t, os.WriteFile(top+"/fifo", nil, 0o640))
			setMtime(t, top, 1_000_000_000_123_456_795)
		}, []string{`"fifo": type is file, should be fifo`}},
		{"hard link broken", func(t *testing.T, top string) {
			must(t, os.Remove(top+"/dir/sub/two"))
			must(t, os.WriteFile(top+"/dir/sub/two", []byte("linked"), 0o600))
			setMtime(t, top+"/dir/sub/two", 1_000_000_000_123_456_790)
			setMtime(t, top+"/dir/sub", 1_000_000_000_123_456_791)
		}, []string{`"dir/sub/two": hard-link group is that of "dir/sub/two", should be that of "dir/one"`}},
		{"hard link to an equal file", func(t *testing.T, top string) {
			must(t, os.Remove(top+"/other"))
			must(t, os.Link(top+"/dir/one", top+"/other"))
			setMtime(t, top, 1_000_000_000_123_456_795)
		}, []string{`"other": mtime`, `"other": hard-link group is that of "dir/one", should be that of "other"`}},
		{"hole filled", func(t *testing.T, top string) {
			st := stat(t, top+"/sparse")
			overwriteAt(t, top+"/sparse", make([]byte, 1<<20), 0)
			setMtime(t, top+"/sparse", st.Mtim.Nano())
		}, []string{`"sparse": data`}},
		{"name of other bytes", func(t *testing.T, top string) {
			must(t, os.Rename(top+"/name \xff\n", top+"/name \xfe\n"))
			setMtime(t, top, 1_000_000_000_123_456_795)
		}, []string{`"name \xfe\n": should not exist`, `"name \xff\n": missing`}},
	}
	if os.Getuid() == 0 {
		cases = append(cases, rootCases...)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			top := seed(t)
			before := capture(t, top)
			c.change(t, top)
			expect(t, Compare{Holes: true}.Diff(before, capture(t, top)), c.want)
		})
	}
}

// rootCases are the differences that only root can make.
var rootCases = []struct {
	name   string
	change func(t *testing.T, top string)
	want   []string
}{
	{"owner", func(t *testing.T, top string) { must(t, os.Chown(top+"/file", 1234, 0)) }, []string{`"file": owner is 1234:0, should be 0:0`}},
	{"owner of a symlink", func(t *testing.T, top string) { must(t, os.Lchown(top+"/symlink", 0, 77)) }, []string{`"symlink": owner`}},
	{"trusted xattr of a symlink", func(t *testing.T, top string) {
		must(t, unix.Lsetxattr(top+"/symlink", "trusted.x", []byte("1"), 0))
	}, []string{`"symlink": xattr "trusted.x"`}},
	{"file capabilities", func(t *testing.T, top string) {
		capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		must(t, unix.Setxattr(top+"/file", "security.capability", capability, 0))
	}, []string{`"file": xattr "security.capability"`}},
	{"rdev", func(t *testing.T, top string) {
		must(t, os.Remove(top+"/fifo"))
		must(t, unix.Mknod(top+"/fifo", unix.S_IFCHR|0o640, int(unix.Mkdev(1, 3))))
		setMtime(t, top, 1_000_000_000_123_456_795)
	}, []string{`"fifo": type is character device, should be fifo`}},
}

func expect(t *testing.T, got, want []string) {
	t.Helper()
	ok := len(got) == len(want)
	for i := range want {
		ok = ok && i < len(got) && strings.HasPrefix(got[i], want[i])
	}
	if !ok {
		t.Errorf("got the differences\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st
}

// overwrite changes bytes in place and puts the mtime back.
func overwrite(t *testing.T, path, content string) {
	t.Helper()
	st := stat(t, path)
	overwriteAt(t, path, []byte(content), 0)
	setMtime(t, path, st.Mtim.Nano())
}

func overwriteAt(t *testing.T, path string, content []byte, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(content, off)
	must(t, err)
	must(t, f.Close())
}

func copyMtime(t *testing.T, path string) {
	t.Helper()
	setMtime(t, path, time.Now().UnixNano())
}

// acl is the binary form of user::rw-, user:1234:rwx, group::r--, mask::rwx, other::r--.
func acl() []byte {
	entry := func(tag, perm uint16, id uint32) []byte {
		return []byte{byte(tag), byte(tag >> 8), byte(perm), byte(perm >> 8), byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)}
	}
	const none = 0xffffffff
	out := []byte{2, 0, 0, 0}
	out = append(out, entry(0x01, 6, none)...)
	out = append(out, entry(0x02, 7, 1234)...)
	out = append(out, entry(0x04, 4, none)...)
	out = append(out, entry(0x10, 7, none)...)
	return append(out, entry(0x20, 4, none)...)
}

func TestCaptureChangesNothingAndRepeats(t *testing.T) {
	top := seed(t)
	first := capture(t, top)
	expect(t, Compare{Holes: true, Nlink: true}.Diff(first, capture(t, top)), nil)
	if got := len(first.Paths()); got != 11 || first.Paths()[0] != "." {
		t.Errorf("the state has the paths %q, want 11 that start with the top", first.Paths())
	}
}

func TestStoreIsLeftOutAtTheTopOnly(t *testing.T) {
	top := seed(t)
	must(t, os.MkdirAll(top+"/"+StoreName+"/db", 0o700))
	must(t, os.MkdirAll(top+"/dir/"+StoreName, 0o700))
	s := capture(t, top)
	if _, ok := s[StoreName]; ok {
		t.Error("the store was captured")
	}
	if _, ok := s["dir/"+StoreName]; !ok {
		t.Error("a directory that only has the store's name was left out")
	}
}

func TestCopyIsExact(t *testing.T) {
	top := seed(t)
	must(t, unix.Setxattr(top+"/file", "system.posix_acl_access", acl(), 0))
	must(t, os.Chmod(top+"/dir/sub", 0o555))
	defer os.Chmod(top+"/dir/sub", 0o755) // so that it can be removed
	dst := filepath.Join(t.TempDir(), "copy")
	must(t, Copy(top, dst))
	before := capture(t, top)
	expect(t, Compare{Holes: true, Nlink: true}.Diff(before, capture(t, dst)), nil)
	must(t, Remove(dst))
	if _, err := os.Lstat(dst); !os.IsNotExist(err) {
		t.Errorf("the copy is still there after Remove: %v", err)
	}
}

func TestPathsLongerThanPathMaxAreCaptured(t *testing.T) {
	top := t.TempDir()
	deepest := makeDeep(t, top, 40, strings.Repeat("d", 200))
	s := capture(t, top)
	if _, ok := s[deepest+"/leaf"]; !ok || len(deepest) < unix.PathMax {
		t.Errorf("a file below a path of %d bytes was not captured", len(deepest))
	}
	dst := filepath.Join(t.TempDir(), "copy")
	must(t, Copy(top, dst))
	expect(t, Diff(s, capture(t, dst)), nil)
}

// makeDeep makes depth directories inside one another, with a file "leaf" in the last, and returns that one's path.
func makeDeep(t *testing.T, top string, depth int, name string) string {
	t.Helper()
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	path := "."
	for range depth {
		must(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd, path = next, join(path, name)
	}
	leaf, err := unix.Openat(fd, "leaf", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	must(t, err)
	unix.Close(leaf)
	unix.Close(fd)
	return path
}

func TestUnreadableThingsAreRecordedAsSuch(t *testing.T) {
	top := seed(t)
	must(t, os.Chmod(top+"/file", 0))
	must(t, os.Mkdir(top+"/closed", 0))
	must(t, os.Chmod(filepath.Dir(top), 0o755))
	must(t, os.Chmod(filepath.Dir(filepath.Dir(top)), 0o755))
	var s State
	var err error
	asOrdinaryUser(func() { s, err = Capture(top, Options{}) })
	must(t, err)
	if s["file"].Unreadable == "" || s["closed"].Unreadable == "" || s["fifo"].Unreadable != "" {
		t.Errorf("file: %q, closed: %q, fifo: %q", s["file"].Unreadable, s["closed"].Unreadable, s["fifo"].Unreadable)
	}
	must(t, os.Chmod(top+"/closed", 0o700))
}

// asOrdinaryUser calls fn on a thread whose filesystem identity is an ordinary user's. The thread is not used again.
func asOrdinaryUser(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if os.Getuid() == 0 {
			_ = unix.Setfsuid(65534)
		}
		fn()
	}()
	<-done
}

func TestAStateIsMadeAgainFromKeptContents(t *testing.T) {
	top := seed(t)
	var kept Contents
	s, err := Capture(top, Options{Contents: &kept})
	must(t, err)
	must(t, Remove(top))
	again := filepath.Join(t.TempDir(), "again")
	must(t, s.Make(again, kept.Fill))
	if diff := (Compare{Nlink: true}).Diff(s, capture(t, again)); len(diff) > 0 {
		t.Errorf("what was made is something else:\n\t%s", strings.Join(diff, "\n\t"))
	}
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(again, "sparse"), &st))
	if st.Blocks*512 >= 1<<20 {
		t.Errorf("the holes are filled: %d bytes are allocated", st.Blocks*512)
	}

	delete(s, "sparse")
	all := kept.Size()
	kept.KeepOnly(s)
	if want := all - 4<<20 - 3; kept.Size() != want {
		t.Errorf("%d bytes are kept, want %d", kept.Size(), want)
	}
	must(t, s.Make(filepath.Join(t.TempDir(), "third"), kept.Fill))
	kept.KeepOnly()
	if err := s.Make(filepath.Join(t.TempDir(), "none"), kept.Fill); err == nil {
		t.Error("a tree was made of which no content is kept")
	}
}
