package fs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// come puts a branch on the shelf, go takes it away; both tell the mount.
func (s *shelved) come(name string, tree *overlay.Tree) {
	s.shelf.put(fs.Branches, name, tree)
	s.server.ShelfChanged(fs.Branches, name)
}

func (s *shelved) leave(name string) {
	s.shelf.remove(fs.Branches, name)
	s.server.ShelfChanged(fs.Branches, name)
}

func TestABranchThatComesOrGoesIsSeenAtOnce(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		dir, other := s.top+"/branches", openWorkspace(t).Tree()
		for i := range 20 {
			name := fmt.Sprint("new-", i%3)
			_, err := os.Lstat(dir + "/" + name) // the kernel remembers that there is none
			want(t, err, unix.ENOENT)
			if got := names(t, dir); got != "b" {
				t.Fatal(got)
			}
			s.come(name, other)
			if got := names(t, dir); got != "b "+name {
				t.Fatal(got)
			}
			if got := names(t, dir+"/"+name); got != "" {
				t.Fatal(got)
			}
			s.leave(name)
		}
	})
}

func TestACheckpointThatComesOrGoesIsSeenAtOnce(t *testing.T) {
	s := mountShelf(t, fs.Options{InPlace: true})
	dir, tree := s.top+"/checkpoints", openWorkspace(t).Tree()
	before := stat(t, dir)
	_, err := os.Lstat(dir + "/new")
	want(t, err, unix.ENOENT)
	s.shelf.put(fs.Checkpoints, "new", tree)
	s.server.ShelfChanged(fs.Checkpoints, "new")
	if got := names(t, dir) + ", " + names(t, dir+"/new"); got != "c new, " {
		t.Error(got)
	}
	if after := stat(t, dir); after.Mtim == before.Mtim {
		t.Error("the time of change stayed")
	}
	s.shelf.remove(fs.Checkpoints, "new")
	s.server.ShelfChanged(fs.Checkpoints, "new")
	if got := names(t, dir); got != "c" {
		t.Error(got)
	}
	_, err = os.Lstat(dir + "/new")
	want(t, err, unix.ENOENT)
}

func TestAChangeOfTheShelfLeavesOtherVolumesAlone(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		f, err := os.OpenFile(s.b+"/d/f", os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		s.server.ShelfChanged(fs.Branches, "b") // in vain: it is still the same
		s.server.ShelfChanged(fs.Branches, "c")
		s.server.ShelfChanged(fs.Checkpoints, "c")
		_, err = f.WriteAt([]byte("CON"), 0)
		must(t, err)
		got, err := os.ReadFile(s.b + "/d/f")
		if err != nil || string(got) != "CONtent\n" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestWhatIsInUseOfADroppedBranchIsStale(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		f, err := os.OpenFile(s.b+"/d/f", os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		_, err = f.ReadAt(make([]byte, 7), 0) // so that the pages are cached
		must(t, err)
		dir := openDir(t, s.b+"/d")
		readDir(t, dir, 0)
		var st unix.Stat_t
		must(t, unix.Fstatat(dir, "f", &st, 0))

		s.leave("b")

		_, err = f.ReadAt(make([]byte, 7), 0)
		want(t, err, unix.ESTALE)
		_, err = f.WriteAt([]byte("x"), 0)
		want(t, err, unix.ESTALE)
		want(t, f.Truncate(0), unix.ESTALE)
		want(t, f.Sync(), unix.ESTALE)
		_, err = f.Stat()
		want(t, err, unix.ESTALE)
		_, err = unix.Seek(dir, 0, unix.SEEK_SET)
		must(t, err)
		_, err = unix.Getdents(dir, make([]byte, 4096))
		want(t, err, unix.ESTALE)
		want(t, unix.Fstatat(dir, "f", &st, 0), unix.ESTALE)
		_, err = unix.Openat(dir, "f", unix.O_RDONLY, 0)
		want(t, err, unix.ESTALE)
		_, err = unix.Openat(dir, "new", unix.O_RDWR|unix.O_CREAT, 0o644)
		want(t, err, unix.ESTALE)
		want(t, unix.Mkdirat(dir, "new", 0o755), unix.ESTALE)
		_, err = os.Lstat(s.b)
		want(t, err, unix.ENOENT)
		got, err := os.ReadFile(s.branch.Status().Workspace + "/d/f")
		if err != nil || string(got) != "content\n" {
			t.Errorf("below: %q, %v", got, err)
		}
		if s.shelf.inUse() != 1 && !s.server.Features().NoOpen { // then nobody but the kernel knows
			t.Error("it was given back while it was in use")
		}
		must(t, f.Close())
		must(t, unix.Dup2(openDir(t, "/"), dir)) // which closes the directory
		eventually(t, "the branch is given back", func() bool { return s.shelf.inUse() == 0 })
	})
}

func TestWritesThroughAMappingOfADroppedBranchDoNotHang(t *testing.T) {
	s := mountShelf(t, fs.Options{InPlace: true})
	b := mapShared(t, s.b+"/d/f", 8)
	populate(t, b)
	b[0] = 'X'
	s.leave("b")
	must(t, unix.Munmap(b))
	if got := names(t, s.dir); got != "d fifo link run" {
		t.Error(got)
	}
	eventually(t, "the branch is given back", func() bool { return s.shelf.inUse() == 0 })
}

func TestANameThatMeansAnotherBranch(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		other := openWorkspace(t)
		must(t, os.WriteFile(other.Status().Workspace+"/run", []byte("of the other"), 0o644))
		f, err := os.Open(s.b + "/run")
		must(t, err)
		defer f.Close()
		names(t, s.b)
		s.come("b", other.Tree()) // the old one is replaced at once
		if got := names(t, s.b); got != "run" {
			t.Error(got)
		}
		got, err := os.ReadFile(s.b + "/run")
		if err != nil || string(got) != "of the other" {
			t.Errorf("%q, %v", got, err)
		}
		_, err = f.Stat()
		want(t, err, unix.ESTALE)
	})
}

func TestBranchesComeAndGoWhileTheyAreUsed(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) {
		const branches, rounds = 4, 40
		dir := s.top + "/branches"
		var trees []*overlay.Tree
		for i := range branches {
			w := openWorkspace(t)
			must(t, os.MkdirAll(w.Status().Workspace+"/d", 0o755))
			must(t, os.WriteFile(w.Status().Workspace+"/d/id", fmt.Append(nil, i), 0o644))
			trees = append(trees, w.Tree())
		}
		var stop atomic.Bool
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for !stop.Load() {
					useBranches(t, dir, branches)
				}
			})
		}
		var changes sync.WaitGroup
		for i := range branches {
			changes.Go(func() {
				name := fmt.Sprint(i)
				for range rounds {
					s.come(name, trees[i])
					got, err := os.ReadFile(filepath.Join(dir, name, "d", "id"))
					if err != nil || string(got) != name {
						t.Errorf("branch %s has %q, %v", name, got, err)
					}
					s.leave(name)
					if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, unix.ENOENT) {
						t.Errorf("branch %s is still there: %v", name, err)
					}
				}
			})
		}
		changes.Wait()
		stop.Store(true)
		wg.Wait()
		if got := names(t, dir); got != "b" {
			t.Error(got)
		}
		eventually(t, "all are given back", func() bool { return s.shelf.inUse() == 0 })
	})
}

// useBranches reads, lists and writes in branches that may be dropped at any time. No error but that of a dropped one may come.
func useBranches(t *testing.T, dir string, branches int) {
	if _, err := os.ReadDir(dir); err != nil {
		t.Error(err)
	}
	for i := range branches {
		root := filepath.Join(dir, fmt.Sprint(i))
		got, err := os.ReadFile(root + "/d/id")
		if err == nil && string(got) != fmt.Sprint(i) {
			t.Errorf("%d has the file of %s", i, got)
		}
		for _, err := range []error{err, os.WriteFile(root+"/d/scratch", []byte("x"), 0o644), os.Remove(root + "/d/scratch"), useFrom(t, root, fmt.Sprint(i))} {
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESTALE) {
				t.Error(err)
			}
		}
	}
}

// useFrom keeps a directory and a file of a branch open, and reads from there until it is dropped, or for a while.
func useFrom(t *testing.T, root, id string) error {
	dir, err := os.Open(root + "/d")
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := os.Open(root + "/d/id")
	if err != nil {
		return err
	}
	defer f.Close()
	b, entries := make([]byte, 10), make([]byte, 4096)
	for range 50 {
		var st unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), "id", &st, 0); err != nil {
			return err
		}
		if _, err := unix.Seek(int(dir.Fd()), 0, unix.SEEK_SET); err != nil {
			return err
		}
		if _, err := unix.Getdents(int(dir.Fd()), entries); err != nil {
			return err
		}
		fd, err := unix.Openat(int(dir.Fd()), "id", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		n, err := unix.Pread(fd, b, 0)
		unix.Close(fd)
		if err != nil {
			return err
		}
		if string(b[:n]) != id {
			t.Errorf("%s has the file of %q", root, b[:n])
		}
	}
	return nil
}

func TestAThousandBranchesAreGivenBack(t *testing.T) {
	s := mountShelf(t, fs.Options{InPlace: true})
	const branches = 1000
	tree := openWorkspace(t).Tree()
	names(t, s.top)
	before := s.server.Nodes() // .hyperfs, and maybe what is in it
	for i := range branches {
		s.come(fmt.Sprint(i), tree)
	}
	if got := strings.Count(names(t, s.top+"/branches"), " "); got != branches {
		t.Errorf("%d branches are listed", got+1)
	}
	for i := range branches {
		stat(t, s.top+"/branches/"+fmt.Sprint(i))
	}
	if n := s.shelf.inUse(); n != branches {
		t.Errorf("%d are in use", n)
	}
	for i := range branches {
		s.server.ForgetName(fs.Branches, fmt.Sprint(i))
	}
	eventually(t, "all are given back", func() bool { return s.shelf.inUse() == 0 })
	if n := s.server.Nodes(); n > before+2 {
		t.Errorf("the kernel has %d nodes, of which %d are old", n, before)
	}
	stat(t, s.top+"/branches/17") // and it can be had again
	if n := s.shelf.inUse(); n != 1 {
		t.Errorf("%d are in use", n)
	}
}

// A branch may be bound over another path, where programs then live.
func TestABranchCanBeBoundElsewhere(t *testing.T) {
	s := mountShelf(t, fs.Options{InPlace: true})
	at := t.TempDir()
	must(t, unix.Mount(s.b, at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	work := func() {
		t.Helper()
		must(t, os.WriteFile(at+"/d/new", []byte("new"), 0o644))
		must(t, os.Rename(at+"/d/new", at+"/moved"))
		if got := names(t, at); got != "d fifo link moved run" {
			t.Error(got)
		}
		must(t, os.Remove(at+"/moved"))
	}
	work()
	must(t, unix.Mount("tmpfs", s.b+"/d/sub", "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(s.b+"/d/sub", unix.MNT_DETACH) })
	s.come("other", openWorkspace(t).Tree())
	s.server.ShelfChanged(fs.Branches, "b") // in vain
	work()
	if a, b := stat(t, at+"/d"), stat(t, s.b+"/d"); a.Ino != b.Ino {
		t.Error("two directories of one branch")
	}
	if inside := stat(t, s.b+"/d/sub"); inside.Dev == stat(t, s.b).Dev {
		t.Error("what was mounted in the branch is gone")
	}
	s.leave("b")
	_, err := os.Stat(at + "/d")
	want(t, err, unix.ESTALE)
	must(t, unix.Unmount(at, 0))
	eventually(t, "the branch is given back", func() bool { return s.shelf.inUse() == 0 })
}

func TestUnmountGivesAllBack(t *testing.T) {
	needRoot(t)
	shelf := newTestShelf()
	w, b := openWorkspace(t), openWorkspace(t)
	shelf.put(fs.Branches, "b", b.Tree())
	dir := w.Status().Workspace
	server, err := fs.Mount(w.Tree(), dir, fs.Options{InPlace: true, Shelf: shelf})
	must(t, err)
	t.Cleanup(func() { _ = server.Unmount(true); server.Wait() }) // or nobody can remove dir, if it fails
	noPolling(t, dir)
	root := filepath.Join(dir, overlay.StoreName, "branches", "b")
	must(t, os.MkdirAll(root+"/d/e", 0o755))
	must(t, os.WriteFile(root+"/d/e/f", []byte("x"), 0o644))
	names(t, root+"/d")
	must(t, server.Unmount(false))
	server.Wait()
	if n := shelf.inUse(); n != 0 {
		t.Errorf("%d are in use", n)
	}
	server.ShelfChanged(fs.Branches, "b") // too late, which does no harm
}

func TestAFileKeepsItsBranchOpen(t *testing.T) {
	s := mountShelf(t, fs.Options{InPlace: true})
	f, err := os.Open(s.b + "/d/f")
	must(t, err)
	must(t, os.Remove(s.b+"/d/f"))
	must(t, os.Remove(s.b+"/d/sub/linked"))
	s.server.ForgetName(fs.Branches, "b")
	got := make([]byte, 7)
	if _, err = f.ReadAt(got, 0); err != nil || string(got) != "content" {
		t.Errorf("%q, %v", got, err)
	}
	if s.shelf.inUse() != 1 {
		t.Error("the branch was given back")
	}
	must(t, f.Close())
	stat(t, s.b)
	s.server.ForgetName(fs.Branches, "b")
	eventually(t, "the branch is given back", func() bool { return s.shelf.inUse() == 0 })
}
