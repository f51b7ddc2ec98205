package test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/test/ops"
	"golang.org/x/sys/unix"
)

// What a daemon may use, however big the workspace is (invariant I13).
const (
	maxRSS         = 200 << 20 // bytes
	maxDescriptors = 2000
)

// newWorkspace makes an empty workspace, in memory where that can be: it is about numbers, not about disks.
func newWorkspace(t *testing.T) string {
	t.Helper()
	ws := filepath.Join(memory(t), "workspace")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	return ws
}

func mustSnapshot(t *testing.T, sub subject) string {
	t.Helper()
	id, err := sub.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func mustRollback(t *testing.T, sub subject, id string) {
	t.Helper()
	if _, err := sub.Rollback(id, false); err != nil {
		t.Fatal(err)
	}
}

func TestPathsLongerThanPathMaxAreRolledBack(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws := newWorkspace(t)
	sub := mountForTest(t, ws, mountOptions{})
	names := []string{strings.Repeat("\xff\x01n", 85), strings.Repeat("d", 255)}
	dir, err := unix.Open(ws, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 { // more than 10,000 bytes
		name := names[i%2]
		if err := unix.Mkdirat(dir, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(dir)
		if err != nil {
			t.Fatal(err)
		}
		dir = next
	}
	leaf := strings.Repeat("\xfe", 255)
	writeAtFd(t, dir, leaf, "before")
	writeAtFd(t, dir, "gone", "before")
	before := captureOf(t, sub)
	id := mustSnapshot(t, sub)
	writeAtFd(t, dir, leaf, "after, and longer")
	writeAtFd(t, dir, "new", "after")
	if err := unix.Unlinkat(dir, "gone", 0); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(dir)
	mustRollback(t, sub, id)
	mustBe(t, sub, before, "after the rollback")
}

func writeAtFd(t *testing.T, dir int, name, content string) {
	t.Helper()
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(content)); err != nil {
		t.Fatal(err)
	}
}

func TestADirectoryOf100000EntriesIsRolledBack(t *testing.T) {
	t.Parallel()
	needMount(t)
	const n = 100_000
	ws := newWorkspace(t)
	makeFiles(t, ws, 1, n)
	sub := mountForTest(t, ws, mountOptions{plain: true, big: true})
	id := mustSnapshot(t, sub)
	list, err := os.ReadDir(filepath.Join(ws, "d0"))
	if err != nil || len(list) != n {
		t.Fatalf("%d entries are listed (%v), want %d", len(list), err, n)
	}
	for i := 0; i < n; i += 1000 {
		if err := os.Remove(filepath.Join(ws, "d0", strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(ws, "d0", fmt.Sprintf("new%d", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mustRollback(t, sub, id)
	list, err = os.ReadDir(filepath.Join(ws, "d0"))
	if err != nil || len(list) != n {
		t.Fatalf("%d entries are listed after the rollback (%v), want %d", len(list), err, n)
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), "new") {
			t.Fatalf("%s is still there after the rollback", e.Name())
		}
	}
}

// makeFiles makes dirs directories with n empty files each.
func makeFiles(t *testing.T, ws string, dirs, n int) {
	t.Helper()
	for d := range dirs {
		dir := filepath.Join(ws, fmt.Sprintf("d%d", d))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := unix.Mknodat(fd, strconv.Itoa(i), unix.S_IFREG|0o644, 0); err != nil {
				t.Fatal(err)
			}
		}
		_ = unix.Close(fd)
	}
}

func TestASparseFileOf6GBIsRolledBack(t *testing.T) {
	t.Parallel()
	needMount(t)
	const size = 6 << 30
	ws := newWorkspace(t)
	name := filepath.Join(ws, "sparse")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{0, 1 << 30, 5 << 30} {
		if _, err := f.WriteAt(ops.Data(uint64(off), 70_000), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	sub := mountForTest(t, ws, mountOptions{big: true})
	before := sparseState(t, name)
	id := mustSnapshot(t, sub)
	if f, err = os.OpenFile(name, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{100, 3 << 30, size + 5000} {
		if _, err := f.WriteAt([]byte("changed"), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	mustRollback(t, sub, id)
	diff := treestate.Compare{Holes: true}.Diff(before, sparseState(t, name))
	if len(diff) > 0 {
		t.Error(strings.Join(diff, "\n"))
	}
	got := make([]byte, 70_000)
	if f, err = os.Open(name); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, off := range []int64{0, 1 << 30, 5 << 30} {
		if _, err := f.ReadAt(got, off); err != nil || string(got) != string(ops.Data(uint64(off), 70_000)) {
			t.Errorf("the content at %d is not what it was (%v)", off, err)
		}
	}
}

// sparseState captures a file without reading all of its holes.
func sparseState(t *testing.T, name string) treestate.State {
	t.Helper()
	s, err := treestate.Capture(filepath.Dir(name), treestate.Options{Holes: true, NoHash: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// usage is what a daemon uses.
type usage struct {
	rss, descriptors int64 // bytes, number
}

func usageOf(t *testing.T, pid int) usage {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return usage{rss: pages * int64(os.Getpagesize()), descriptors: int64(len(fds))}
}

func (u usage) String() string {
	return fmt.Sprintf("%d MiB and %d descriptors", u.rss>>20, u.descriptors)
}

func TestDaemonStaysSmallAfterWalking200000Files(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws := newWorkspace(t)
	makeFiles(t, ws, 200, 1000)
	sub := mountForTest(t, ws, mountOptions{plain: true, big: true})
	mustSnapshot(t, sub)
	for range 2 {
		out, err := exec.Command("find", ws, "-newermt", "2100-01-01").CombinedOutput()
		if err != nil {
			t.Fatalf("find: %v\n%s", err, out)
		}
	}
	u := usageOf(t, int(sub.pid.Load()))
	t.Log(u)
	if u.descriptors > maxDescriptors || u.rss > maxRSS {
		t.Errorf("after walking 200,000 files the daemon uses %v", u)
	}
}

func TestThousandRoundsDoNotGrow(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws := newWorkspace(t)
	if err := seedTree(ws); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(filepath.Dir(ws), "store")
	sub := mountForTest(t, ws, mountOptions{flags: []string{"--store", store}, plain: true})
	before := captureOf(t, sub)
	var start usage
	var size int64
	const rounds = 1000
	for i := range rounds {
		id := mustSnapshot(t, sub)
		for _, o := range []ops.Op{
			{Kind: ops.Write, Path: "old-1", Off: 3, Len: 500, Seed: uint64(i)},
			{Kind: ops.Rewrite, Path: "old-2", Len: 3000, Seed: uint64(i), Mode: 0o644},
			{Kind: ops.Create, Path: "new", Len: 10, Mode: 0o644},
			{Kind: ops.Unlink, Path: "old-3"},
		} {
			_ = sub.Apply(o) // some of the paths may be elsewhere: what can be done is done every round
		}
		mustRollback(t, sub, id)
		if err := sub.Drop(id); err != nil {
			t.Fatal(err)
		}
		if i == rounds/5 {
			start, size = usageOf(t, int(sub.pid.Load())), storeSize(t, sub, store)
		}
	}
	mustBe(t, sub, before, "after all rounds")
	end, endSize := usageOf(t, int(sub.pid.Load())), storeSize(t, sub, store)
	t.Logf("from %v and a store of %d KiB to %v and %d KiB", start, size>>10, end, endSize>>10)
	if end.descriptors > start.descriptors+50 || end.rss > start.rss+64<<20 {
		t.Errorf("the daemon used %v after %d rounds, and %v after %d", start, rounds/5, end, rounds)
	}
	if endSize > size+16<<20 {
		t.Errorf("the store had %d bytes after %d rounds, and %d after %d", size, rounds/5, endSize, rounds)
	}
}

// storeSize is what the store takes on disk after garbage collection, in bytes.
func storeSize(t *testing.T, sub *mountSubject, store string) int64 {
	t.Helper()
	if err := sub.GC(); err != nil {
		t.Fatal(err)
	}
	var total int64
	err := filepath.WalkDir(store, func(name string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(name, &st) == nil { // what is deleted meanwhile takes nothing
			total += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}
