package scan

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// variety makes something of every kind.
func variety(f *fixture) {
	f.Helper()
	f.write("a", "one")
	f.write("empty", "")
	f.write("dir/b", "two")
	f.write("dir/deep/c", strings.Repeat("three", 5000))
	f.write("odd \xff\nname", "bytes")
	f.must(os.Symlink("nowhere\xfe", f.path("dir/symlink")))
	f.must(os.Link(f.path("a"), f.path("dir/link-of-a")))
	f.must(unix.Mkfifo(f.path("fifo"), 0o640))
	f.must(os.Mkdir(f.path("hollow"), 0o700))
	f.must(os.Chmod(f.path("dir/b"), 0o751))
	f.must(unix.Setxattr(f.path("dir/b"), "user.x", []byte("y\x00z"), 0))
	f.must(os.Truncate(f.path("dir/deep/c"), 3<<20))
	old := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	f.must(os.Chtimes(f.path("dir/b"), old, old))
	f.must(os.Chtimes(f.path("dir"), old, old))
}

// havoc changes it in every way.
func havoc(f *fixture) {
	f.Helper()
	f.write("a", "ONE") // in place, so that its other name sees it
	f.must(os.Remove(f.path("dir/symlink")))
	f.must(os.Symlink("elsewhere", f.path("dir/symlink")))
	f.must(os.RemoveAll(f.path("dir/deep")))
	f.write("dir/deep", "a file now")
	f.must(os.Remove(f.path("fifo")))
	f.write("fifo/inside", "a directory now")
	f.must(os.Remove(f.path("hollow")))
	f.write("new/tree/x", "x")
	f.must(os.Rename(f.path("empty"), f.path("new/moved")))
	f.must(unix.Removexattr(f.path("dir/b"), "user.x"))
	f.must(os.Chmod(f.path("dir/b"), 0o600))
	f.must(os.Link(f.path("dir/b"), f.path("b-too")))
	f.must(os.Remove(f.path("odd \xff\nname")))
}

func TestPathsMayBeLongerThanPathMax(t *testing.T) {
	f := newFixture(t)
	d, err := f.w.top.again()
	f.must(err)
	long := strings.Repeat("n", 250)
	for range 20 {
		f.must(d.mkdir(long))
		sub, err := d.sub(long)
		f.must(err)
		d.close()
		d = sub
	}
	defer d.close()
	f.must(unix.Symlinkat("target", d.fd, "deepest"))
	id := f.snapshot()
	f.must(d.unlink("deepest"))
	f.rollback(id)
	if got, err := d.readlink("deepest"); got != "target" {
		t.Errorf("the symlink is %q, %v", got, err)
	}
}

// Of a clone, which has no checksum yet, it is not known that another clone has the same bytes.
func TestAFileThatWasChangedBackIsRolledBackOnAFilesystemThatClones(t *testing.T) {
	f := newFixtureAt(t, testfs.Btrfs(t, 0))
	f.write("a", "one")
	want := f.capture()
	id := f.snapshot()
	f.write("a", "two")
	f.snapshot()
	f.write("a", "one")
	f.rollback(id)
	f.is(want)
	f.sound()
}

func TestWhatIsMountedBelowIsLeftAlone(t *testing.T) {
	f := newFixtureAt(t, testfs.Tmpfs(t, 1<<30))
	other := testfs.Tmpfs(t, 1<<20)
	f.must(os.WriteFile(other+"/env", []byte("theirs"), 0o644))
	f.write("a", "one")
	f.write("env", "under it")
	f.must(os.Mkdir(f.path("volume"), 0o755))
	mount := func(from, to string) {
		f.must(unix.Mount(from, f.path(to), "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(f.path(to), unix.MNT_DETACH) })
	}
	mount(other, "volume")
	mount(other+"/env", "env")
	id := f.snapshot()
	f.write("a", "changed")
	f.write("env", "changed")
	f.write("volume/new", "new")
	f.rollback(id)
	if a, env, n := f.read("a"), f.read("env"), f.read("volume/new"); a != "one" || env != "changed" || n != "new" {
		t.Errorf("they hold %q, %q and %q", a, env, n)
	}
	if got := f.w.Status().Scan.Unprotected; len(got) != 2 {
		t.Errorf("status lists %q", got)
	}
	f.sound()
	f.must(unix.Unmount(f.path("env"), 0))
	f.write("a", "changed again")
	_, err := f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	f.wantCode(err, errs.Integrity)
	if got := f.read("a"); got != "changed again" {
		t.Errorf("a refused rollback has made it %q", got)
	}
}

func TestModesThatWereLiftedComeBackAfterAKill(t *testing.T) {
	{
		f := newFixture(t)
		f.write("a", "one")
		f.must(os.Chmod(f.path("a"), 0o000))
		f.must(f.w.lifts.note("a", 0o100000))
		f.must(os.Chmod(f.path("a"), 0o400))
		f.reopen()
		st, err := os.Stat(f.path("a"))
		f.must(err)
		if st.Mode().Perm() != 0 {
			t.Errorf("its mode is %v", st.Mode())
		}
		if _, err := os.Stat(f.w.lifts.path); !os.IsNotExist(err) {
			t.Errorf("what was lifted is still written down: %v", err)
		}
	}
}

func TestACopiedWorkspaceHasItsCheckpointsToo(t *testing.T) {
	f := newFixture(t)
	variety(f)
	want := f.capture()
	id := f.snapshot()
	havoc(f)
	f.must(f.w.Close())
	copied := f.dir + "-copied"
	if out, err := exec.Command("cp", "-a", f.dir, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.must(treestate.Remove(f.dir))
	f.dir = copied
	f.open()
	if r := f.recover()[id]; !r.CanRehydrate {
		t.Errorf("it is recovered as %+v", r)
	}
	f.rollback(id)
	f.is(want)
	f.sound()
}

// TestARollbackThatStoppedIsFinishedOnceAndUndone has the filesystem refuse one of the changes of a rollback. Whoever comes next finishes it, and the state
// from before can still be had back.
func TestARollbackThatStoppedIsFinishedOnceAndUndone(t *testing.T) {
	for name, finish := range map[string]func(f *fixture, id string){
		"rollback": func(f *fixture, id string) {
			ended := false
			r, err := f.w.Rollback(context.Background(), id, overlay.RollbackOptions{Commit: func(*checkpoint.Tx) error { ended = true; return nil }})
			f.must(err)
			if c, ok := f.w.history.undoPoint(); !ended || !ok || r.Undo != c.ID || r.Checkpoint != id {
				f.Errorf("the rollback says %+v, its transaction was made: %v", r, ended)
			}
		},
		"rollback to the newest": func(f *fixture, _ string) { f.rollback("") },
		"snapshot":               func(f *fixture, _ string) { f.snapshot() },
		"a new start":            func(f *fixture, _ string) { f.reopen() },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureAt(t, testfs.Ext4(t, 64<<20))
			f.write("a", "one")
			f.write("gone", "two")
			before, id := f.capture(), f.snapshot()
			f.write("a", "changed")
			f.must(os.Remove(f.path("gone")))
			f.write("refused", "new")
			f.write("zero/new", "new")
			after := f.capture()
			f.immutable("refused", true)
			for range 2 { // the second time it is tried to be finished
				if _, err := f.w.Rollback(context.Background(), id, overlay.RollbackOptions{}); err == nil {
					t.Fatal("an immutable file was removed")
				}
			}
			f.immutable("refused", false)
			finish(f, id)
			f.is(before)
			_, err := f.w.Undo(context.Background())
			f.must(err)
			f.is(after)
			f.sound()
		})
	}
}

// immutable has the filesystem refuse all changes of a file, or not any more.
func (f *fixture) immutable(name string, on bool) {
	f.Helper()
	file, err := os.Open(f.path(name))
	if os.IsNotExist(err) && !on {
		return
	}
	f.must(err)
	defer file.Close()
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	f.must(err)
	const immutableFlag = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	if flags &^= immutableFlag; on {
		flags |= immutableFlag
		f.Cleanup(func() { f.immutable(name, false) })
	}
	f.must(unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags))
}
