package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

func stat(t testing.TB, path string) (st unix.Stat_t) {
	t.Helper()
	must(t, unix.Lstat(path, &st))
	return st
}

func TestTheShelfAnswersByNameOnly(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		for range 2 { // with cold and with warm caches
			if got := names(t, s.dir); strings.Contains(got, overlay.StoreName) {
				t.Error("listed:", got)
			}
			if got := names(t, s.top); got != "branches checkpoints" {
				t.Error("in the shelf:", got)
			}
			if got := names(t, s.top+"/branches") + ", " + names(t, s.top+"/checkpoints"); got != "b, c" {
				t.Error("on the shelf:", got)
			}
		}
		for _, root := range []string{s.b, s.c} {
			if got := names(t, root); got != "d fifo link run" {
				t.Errorf("%s has %s", root, got)
			}
			got, err := os.ReadFile(root + "/link")
			if err != nil || string(got) != "content\n" {
				t.Errorf("%q, %v", got, err)
			}
			_, err = os.Lstat(root + "/../../../" + overlay.StoreName) // the kernel knows the way up
			must(t, err)
		}
		for _, name := range []string{"branches/none", "checkpoints/b", "none", "db", "trash"} {
			_, err := os.Lstat(s.top + "/" + name)
			want(t, err, unix.ENOENT)
		}
		_, err := os.Lstat(s.top + "/branches/" + strings.Repeat("n", 256))
		want(t, err, unix.ENAMETOOLONG)
	})
}

func TestDirectoriesOfTheShelfLookLikeTheRoot(t *testing.T) {
	m := mountShelf(t, fs.Options{InPlace: true})
	must(t, os.Chown(m.dir, somebody, 77))
	must(t, os.Chmod(m.dir, 0o2771))
	seen := map[uint64]string{stat(t, m.dir).Ino: m.dir}
	for _, dir := range []string{m.top, m.top + "/branches", m.top + "/checkpoints"} {
		eventually(t, "the mode follows", func() bool { return stat(t, dir).Mode == unix.S_IFDIR|0o551 })
		st := stat(t, dir)
		if st.Uid != somebody || st.Gid != 77 || st.Nlink != 1 || st.Mtim.Sec == 0 {
			t.Errorf("%s: %+v", dir, st)
		}
		if other := seen[st.Ino]; other != "" {
			t.Errorf("%s and %s have the number %d", dir, other, st.Ino)
		}
		seen[st.Ino] = dir
		var sx unix.Statx_t
		must(t, unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_BTIME, &sx))
		if sx.Btime.Sec == 0 {
			t.Error("no birth time")
		}
		var free unix.Statfs_t
		if must(t, unix.Statfs(dir, &free)); free.Blocks == 0 {
			t.Errorf("%+v", free)
		}
	}
	for _, e := range readDir(t, openDir(t, m.top), 0) {
		if st := stat(t, m.top+"/"+e.name); st.Ino != e.ino {
			t.Errorf("%s: %d in the listing, %d from stat", e.name, e.ino, st.Ino)
		}
	}
}

func TestNothingOfTheShelfCanBeChanged(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		f := s.path("d", "f")
		for _, dir := range []string{s.top, s.top + "/branches", s.top + "/checkpoints"} {
			want(t, os.Mkdir(dir+"/new", 0o755), unix.EPERM)
			want(t, os.WriteFile(dir+"/new", nil, 0o644), unix.EPERM)
			want(t, os.Symlink("x", dir+"/new"), unix.EPERM)
			want(t, unix.Mkfifo(dir+"/new", 0o644), unix.EPERM)
			want(t, os.Link(f, dir+"/new"), unix.EPERM)
			want(t, os.Rename(f, dir+"/new"), unix.EPERM)
			want(t, os.Rename(s.path("d"), dir+"/new"), unix.EPERM)
			want(t, os.Rename(dir, s.path("new")), unix.EPERM)
			want(t, os.Remove(dir), unix.EPERM)
			want(t, os.Chmod(dir, 0o777), unix.EPERM)
			want(t, os.Chown(dir, 1, 1), unix.EPERM)
			want(t, unix.Setxattr(dir, "user.x", []byte("x"), 0), unix.EPERM)
			_, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
			want(t, err, unix.EPERM)
			_, err = unix.Getxattr(dir, "user.x", nil)
			want(t, err, unix.ENODATA)
			d, err := os.Open(dir)
			must(t, err)
			must(t, d.Sync())
			must(t, d.Close())
		}
		for _, root := range []string{s.b, s.c} {
			want(t, os.Rename(root, root+"-moved"), unix.EPERM)
			want(t, os.Rename(root, s.path("moved")), unix.EPERM)
			want(t, unix.Rmdir(root), unix.EPERM)
			want(t, unix.Renameat2(unix.AT_FDCWD, root, unix.AT_FDCWD, s.path("d"), unix.RENAME_EXCHANGE), unix.EPERM)
		}
		for _, err := range []error{os.Mkdir(s.top, 0o755), os.Symlink("x", s.top), os.Link(f, s.top)} {
			want(t, err, unix.EEXIST)
		}
		must(t, os.Mkdir(s.path("empty"), 0o755))
		want(t, unix.Rename(s.path("empty"), s.top), unix.EPERM)
		if got := names(t, s.dir); got != "d empty fifo link run" {
			t.Error(got)
		}
	})
}

func TestABranchIsWrittenAndACheckpointIsNot(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		below := s.branch.Status().Workspace
		must(t, os.WriteFile(s.b+"/d/new", []byte("in the branch"), 0o644))
		must(t, os.Rename(s.b+"/d/f", s.b+"/g"))
		must(t, os.Remove(s.b+"/link"))
		got, err := os.ReadFile(below + "/d/new")
		if err != nil || string(got) != "in the branch" {
			t.Errorf("%q, %v", got, err)
		}
		if got := names(t, s.b); got != "d fifo g run" {
			t.Error(got)
		}
		if got := names(t, s.path("d")); got != "f sub" {
			t.Error("the live tree has", got)
		}
		want(t, os.WriteFile(s.c+"/d/f", nil, 0o644), unix.EROFS)
		want(t, os.WriteFile(s.c+"/new", nil, 0o644), unix.EROFS)
		want(t, os.Remove(s.c+"/run"), unix.EROFS)
		want(t, os.Rename(s.c+"/run", s.c+"/ran"), unix.EROFS)
		want(t, os.Chmod(s.c+"/run", 0o600), unix.EROFS)
		if got := names(t, s.c); got != "d fifo link run" {
			t.Error(got)
		}
	})
}

func TestAVolumeHasNoStore(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		store := s.b + "/" + overlay.StoreName
		_, err := os.Lstat(store)
		want(t, err, unix.ENOENT)
		want(t, os.Mkdir(store, 0o755), unix.EPERM)
		want(t, os.WriteFile(store, nil, 0o644), unix.EPERM)
		want(t, os.Symlink("x", store), unix.EPERM)
		want(t, os.Link(s.b+"/run", store), unix.EPERM)
		want(t, os.Rename(s.b+"/run", store), unix.EPERM)
		must(t, os.Mkdir(s.b+"/d/"+overlay.StoreName, 0o755)) // only a root has none
	})
}

// A volume hides the name by itself. Should one not do so, the mount does.
func TestAVolumeThatHasAStoreDoesNotShowIt(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		w := openWorkspace(t)
		must(t, os.MkdirAll(w.Status().Workspace+"/below/"+overlay.StoreName+"/db", 0o755))
		must(t, os.WriteFile(w.Status().Workspace+"/below/f", nil, 0o644))
		root, _, err := w.Tree().Lookup(w.Tree().Root(), "below")
		must(t, err)
		s.shelf.put(fs.Branches, "full", w.Tree()).root = root
		s.server.ShelfChanged(fs.Branches, "full")
		dir := s.top + "/branches/full"
		if got := names(t, dir); got != "f" {
			t.Error("listed:", got)
		}
		store := dir + "/" + overlay.StoreName
		_, err = os.Lstat(store)
		want(t, err, unix.ENOENT)
		_, err = os.Lstat(store + "/db")
		want(t, err, unix.ENOENT)
		want(t, os.Mkdir(store, 0o755), unix.EPERM)
		want(t, os.WriteFile(store, nil, 0o644), unix.EPERM)
		want(t, os.Symlink("x", store), unix.EPERM)
		want(t, unix.Mkfifo(store, 0o644), unix.EPERM)
		want(t, os.Link(dir+"/f", store), unix.EPERM)
		want(t, os.Rename(dir+"/f", store), unix.EPERM)
	})
}

func TestNothingMovesFromOneVolumeToAnother(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		for _, pair := range [][2]string{{s.dir, s.b}, {s.b, s.dir}, {s.dir, s.c}, {s.c, s.dir}, {s.b, s.c}} {
			from, to := pair[0]+"/run", pair[1]+"/elsewhere"
			want(t, os.Rename(from, to), unix.EXDEV)
			want(t, os.Rename(pair[0]+"/d", to), unix.EXDEV)
			want(t, os.Link(from, to), unix.EXDEV)
			want(t, unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, pair[1]+"/run", unix.RENAME_EXCHANGE), unix.EXDEV)
		}
		in, err := os.Open(s.b + "/d/f")
		must(t, err)
		defer in.Close()
		out, err := os.Create(s.path("copy"))
		must(t, err)
		defer out.Close()
		n, err := unix.CopyFileRange(int(in.Fd()), nil, int(out.Fd()), nil, 100, 0)
		if err != nil || n != len("content\n") {
			t.Error(n, err)
		}
	})
}

// command runs a program in a directory and gives what it wrote.
func command(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), err
}

// silent runs a program that must neither fail nor say anything.
func silent(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	if out, err := command(t, dir, name, args...); err != nil || out != "" {
		t.Errorf("%s %q: %v\n%s", name, args, err, out)
	}
}

func TestRealProgramsOnTheShelf(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		same := func(a, b string) {
			t.Helper()
			silent(t, "/", "diff", "-r", "--no-dereference", "--exclude=fifo", a, b)
			silent(t, "/", "git", "diff", "--no-index", a+"/d", b+"/d")
		}
		same(s.b, s.c)
		same(s.dir, s.b)
		silent(t, "/", "cp", "-a", s.c, s.path("copy"))
		same(s.c, s.path("copy"))
		silent(t, "/", "cp", "-a", s.c, s.b+"/copy")
		same(s.c, s.b+"/copy")
		if a, b := stat(t, s.b+"/copy/d/f"), stat(t, s.b+"/copy/d/sub/linked"); a.Ino != b.Ino || a.Nlink != 2 {
			t.Error("cp -a has lost a hard link")
		}
		silent(t, s.b, "mv", "copy", s.path("moved"))
		same(s.c, s.path("moved"))
		if _, err := os.Lstat(s.b + "/copy"); !os.IsNotExist(err) {
			t.Error("what was moved is still there:", err)
		}
		out, err := command(t, s.dir, "find", overlay.StoreName, "-type", "f")
		if got := strings.Count(out, "\n"); err != nil || got != 6 {
			t.Errorf("find: %v\n%s", err, out)
		}
		if out, err := command(t, s.dir, "find", ".", "-name", "linked"); err != nil || strings.Contains(out, overlay.StoreName) {
			t.Errorf("find in the root: %v\n%s", err, out)
		}
		out, err = command(t, s.dir, "ls", "-lR", overlay.StoreName)
		if err != nil || strings.Contains(out, "?") || strings.Count(out, "linked") != 2 {
			t.Errorf("ls: %v\n%s", err, out)
		}
		var archive bytes.Buffer
		tar := exec.Command("tar", "-C", s.c, "-cf", "-", ".")
		tar.Stdout = &archive
		must(t, tar.Run())
		must(t, os.Mkdir(s.b+"/unpacked", 0o755))
		untar := exec.Command("tar", "-C", s.b+"/unpacked", "-xf", "-")
		untar.Stdin = &archive
		must(t, untar.Run())
		same(s.c, s.b+"/unpacked")
	})
}

func TestGitWorksInABranch(t *testing.T) {
	s := mountShelf(t, fs.Options{InPlace: true})
	git := func(args ...string) string {
		t.Helper()
		out, err := command(t, s.b, "git", append([]string{"-c", "user.name=x", "-c", "user.email=x@y", "-c", "init.defaultBranch=b"}, args...)...)
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return out
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "all")
	must(t, os.WriteFile(s.b+"/d/f", []byte("changed\n"), 0o640))
	if out := git("status", "--short"); out != " M d/f\n M d/sub/linked\n" {
		t.Errorf("%q", out)
	}
	git("checkout", "-q", ".")
	if out := git("status", "--short"); out != "" {
		t.Errorf("%q", out)
	}
}

// rm cannot know what the shelf is: it empties the branches as any directory that may be written, and nothing else.
func TestRemovingTheShelfLeavesAllButTheFilesOfBranches(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		out, err := command(t, s.dir, "rm", "-rf", overlay.StoreName)
		if err == nil || !strings.Contains(out, "Operation not permitted") || !strings.Contains(out, "Read-only file system") {
			t.Errorf("%v\n%s", err, out)
		}
		if got := names(t, s.top+"/branches") + ", " + names(t, s.top+"/checkpoints"); got != "b, c" {
			t.Error("on the shelf:", got)
		}
		silent(t, "/", "diff", "-r", "--no-dereference", "--exclude=fifo", s.dir, s.c)
		out, err = command(t, s.dir, "mv", overlay.StoreName, "elsewhere")
		if err == nil || !strings.Contains(out, "Operation not permitted") {
			t.Errorf("%v\n%s", err, out)
		}
		if _, err := os.Lstat(s.path("elsewhere")); !os.IsNotExist(err) {
			t.Error("the shelf was moved:", err)
		}
	})
}

func TestABranchIsNotOpenedToBeListed(t *testing.T) {
	s := mountShelf(t, fs.Options{InPlace: true})
	for range 2 {
		entries, err := os.ReadDir(s.top + "/branches")
		if err != nil || len(entries) != 1 || !entries[0].IsDir() {
			t.Fatal(entries, err)
		}
	}
	if n := s.shelf.openCount(); n != 0 {
		t.Errorf("%d were opened", n)
	}
}

func TestWarmBranchAsksNothing(t *testing.T) {
	for _, v := range []variant{inPlace, elsewhere} {
		t.Run(v.name, func(t *testing.T) {
			s := mountShelf(t, v.opts)
			dirs := []int{openDir(t, s.b), openDir(t, s.b+"/d"), openDir(t, s.c)}
			walk := func() {
				for _, fd := range dirs {
					for _, e := range readDir(t, fd, 0) {
						var st unix.Stat_t
						must(t, unix.Fstatat(fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW))
						if st.Mode&unix.S_IFMT == unix.S_IFLNK {
							_, err := unix.Readlinkat(fd, e.name, make([]byte, 100))
							must(t, err)
						}
					}
					var st unix.Stat_t
					if err := unix.Fstatat(fd, "none", &st, 0); err != unix.ENOENT {
						t.Fatal(err)
					}
				}
			}
			walk()
			walk() // the first listing has invalidated access times
			before := requests(s.server)
			walk()
			if after := requests(s.server); after != before {
				t.Errorf("%d requests: %v", after-before, s.server.Counts())
			}
		})
	}
}

func TestPagesOfABranchAreKept(t *testing.T) {
	for _, v := range []variant{inPlace, elsewhere} {
		t.Run(v.name, func(t *testing.T) {
			s := mountShelf(t, v.opts)
			for _, p := range []string{s.b + "/d/f", s.c + "/d/f"} {
				var before uint64
				for range 3 {
					got, err := os.ReadFile(p)
					if err != nil || string(got) != "content\n" {
						t.Fatalf("%q, %v", got, err)
					}
					if n := s.server.Counts()["read"]; before == 0 {
						before = n
					} else if n != before {
						t.Errorf("%s: %d reads more", p, n-before)
					}
				}
			}
		})
	}
}

func TestRollbackOfABranchIsSeenAtOnce(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		c, err := s.branch.Snapshot(t.Context(), overlay.SnapshotOptions{})
		must(t, err)
		must(t, os.WriteFile(s.b+"/d/f", []byte("something new that is longer"), 0o640))
		must(t, os.Rename(s.b+"/d/sub", s.b+"/moved"))
		names(t, s.b)
		names(t, s.b+"/d")
		_, err = s.branch.Rollback(t.Context(), c.ID, overlay.RollbackOptions{})
		must(t, err)
		if got := names(t, s.b) + ", " + names(t, s.b+"/d"); got != "d fifo link run, f sub" {
			t.Error(got)
		}
		got, err := os.ReadFile(s.b + "/d/f")
		if err != nil || string(got) != "content\n" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// The kernel takes a file handle for a node that it knows: so whoever may open handles can try all. The store's inodes must not be among them.
func TestTheStoreCannotBeReached(t *testing.T) {
	s := mountShelf(t, fs.Options{InPlace: true})
	_, err := s.w.Snapshot(t.Context(), overlay.SnapshotOptions{})
	must(t, err)
	store := map[uint64]string{}
	fd, err := unix.Open(s.w.Status().Store, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	unix.Close(fd)
	// The lower is below the mount: what of the store is open shows its inodes.
	links, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, l := range links {
		var st unix.Stat_t
		target, _ := os.Readlink("/proc/self/fd/" + l.Name())
		if strings.HasPrefix(target, s.top) && unix.Stat("/proc/self/fd/"+l.Name(), &st) == nil {
			store[st.Ino] = target
		}
	}
	if len(store) < 3 {
		t.Fatal("the store's inodes are not known:", store)
	}
	check := func(how string, ino uint64) {
		if path := store[ino]; path != "" {
			t.Errorf("%s leads to %s", how, path)
		}
	}
	must(t, filepath.Walk(s.top, func(path string, info os.FileInfo, err error) error {
		must(t, err)
		check(path, stat(t, path).Ino)
		return nil
	}))
	handle, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, s.top, 0)
	must(t, err)
	_ = mount
	root, err := unix.Open(s.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(root)
	opened := 0
	for num := range uint64(1000) {
		b := bytes.Clone(handle.Bytes())
		for i := range 8 {
			b[i] = byte(num >> (8 * (i ^ 4))) // the kernel has the high half first
		}
		fd, err := unix.OpenByHandleAt(root, unix.NewFileHandle(handle.Type(), b), unix.O_PATH)
		if err != nil {
			continue
		}
		opened++
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st))
		check(fmt.Sprint("handle ", num), st.Ino)
		unix.Close(fd)
	}
	if opened < 4 {
		t.Errorf("only %d handles could be tried", opened)
	}
	for _, dir := range []string{s.dir, s.top, s.top + "/branches", s.b} {
		fd := openDir(t, dir)
		for off := range int64(300) {
			if off > 100 {
				off <<= 54 - off%50 // cookies of a lower may be hashes
			}
			if _, err := unix.Seek(fd, off, unix.SEEK_SET); err != nil {
				continue
			}
			for _, e := range readDir(t, fd, max(off, 0)) {
				if e.name != ".." {
					check(fmt.Sprintf("cookie %d of %s: %s", off, dir, e.name), e.ino)
				}
				if dir != s.top && e.name == overlay.StoreName {
					t.Errorf("cookie %d of %s lists the store", off, dir)
				}
			}
		}
	}
}
