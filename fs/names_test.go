package fs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

func TestNamesAreBytes(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		var every []byte
		for c := 1; c < 256; c++ {
			if c != '/' {
				every = append(every, byte(c))
			}
		}
		names := []string{string(every), strings.Repeat("\xff", 255), strings.Repeat("n", 255), "new\nline", "\\", " "}
		for _, name := range names {
			must(t, os.WriteFile(m.dir+"/"+name, []byte(name), 0o644))
		}
		entries, err := os.ReadDir(m.dir)
		must(t, err)
		if len(entries) != len(names) {
			t.Fatalf("%d entries, want %d", len(entries), len(names))
		}
		for _, e := range entries {
			got, err := os.ReadFile(m.dir + "/" + e.Name())
			if err != nil || string(got) != e.Name() {
				t.Errorf("%q: %q, %v", e.Name(), got, err)
			}
		}
		err = os.WriteFile(m.path(strings.Repeat("n", 256)), nil, 0o644)
		want(t, err, unix.ENAMETOOLONG)
	})
}

func TestPathsMayBeLongerThanPathMax(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		name := strings.Repeat("d", 250)
		fd, err := unix.Open(m.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		for range 40 { // 10,000 bytes
			must(t, unix.Mkdirat(fd, name, 0o755))
			next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			must(t, err)
			unix.Close(fd)
			fd = next
		}
		defer unix.Close(fd)
		f, err := unix.Openat(fd, "f", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		must(t, err)
		_, err = unix.Write(f, []byte("deep"))
		must(t, err)
		unix.Close(f)
		m.snapshot(t)
		must(t, unix.Renameat(fd, "f", fd, "g"))
		f, err = unix.Openat(fd, "g", unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(f)
		b := make([]byte, 10)
		n, err := unix.Read(f, b)
		if err != nil || string(b[:n]) != "deep" {
			t.Fatalf("%q, %v", b[:n], err)
		}
	})
}

func TestTheStoreIsHidden(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		entries, err := os.ReadDir(m.dir)
		must(t, err)
		if len(entries) != 0 {
			t.Errorf("%v is listed", entries)
		}
		store := m.path(overlay.StoreName)
		_, err = os.Lstat(store)
		want(t, err, unix.ENOENT)
		want(t, os.Mkdir(store, 0o755), unix.EPERM)
		want(t, os.WriteFile(store, nil, 0o644), unix.EPERM)
		want(t, os.Symlink("x", store), unix.EPERM)
		p := m.write(t, "f", "x")
		want(t, os.Link(p, store), unix.EPERM)
		want(t, os.Rename(p, store), unix.EPERM)
		must(t, os.Mkdir(m.path("d"), 0o755))
		must(t, os.Mkdir(m.path("d", overlay.StoreName), 0o755)) // only the root has one
	})
}

func TestRenameFlags(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		a, b := m.write(t, "a", "was a"), m.write(t, "b", "was b")
		rename := func(from, to string, flags uint) error {
			return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
		}
		want(t, rename(a, b, unix.RENAME_NOREPLACE), unix.EEXIST)
		must(t, rename(a, b, unix.RENAME_EXCHANGE))
		if got, _ := os.ReadFile(a); !bytes.Equal(got, []byte("was b")) {
			t.Fatalf("a is %q", got)
		}
		must(t, rename(a, m.path("c"), unix.RENAME_NOREPLACE))
		want(t, rename(m.path("c"), m.path("none"), unix.RENAME_EXCHANGE), unix.ENOENT)
		must(t, os.MkdirAll(m.path("dir", "sub"), 0o755))
		must(t, rename(m.path("dir"), m.path("c"), unix.RENAME_EXCHANGE))
		if _, err := os.Stat(m.path("c", "sub")); err != nil {
			t.Fatal(err)
		}
		want(t, rename(m.path("c"), m.path("c", "sub", "below"), 0), unix.EINVAL)
		want(t, os.Remove(m.path("c")), unix.ENOTEMPTY)
	})
}

func TestLinksShareTheirInode(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		a := m.write(t, "a", "one")
		must(t, os.Mkdir(m.path("d"), 0o755))
		must(t, os.Link(a, m.path("d", "b")))
		must(t, os.Chmod(m.path("d", "b"), 0o600))
		var x, y unix.Stat_t
		must(t, unix.Stat(a, &x))
		must(t, unix.Stat(m.path("d", "b"), &y))
		if x.Ino != y.Ino || x.Nlink != 2 || x.Mode != y.Mode {
			t.Fatalf("%+v and %+v", x, y)
		}
		must(t, os.Remove(a))
		must(t, unix.Stat(m.path("d", "b"), &y))
		if y.Nlink != 1 {
			t.Fatalf("%d links", y.Nlink)
		}
	})
}

func TestSymlinksAreNotFollowedByTheDaemon(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true})
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("untouched"), 0o644))
	must(t, os.Symlink(outside, m.path("link")))
	must(t, unix.Lutimes(m.path("link"), []unix.Timeval{{Sec: 1}, {Sec: 2}}))
	must(t, os.Lchown(m.path("link"), 7, 8))
	var st unix.Stat_t
	must(t, unix.Lstat(m.path("link"), &st))
	if st.Mtim.Sec != 2 || st.Uid != 7 || st.Gid != 8 {
		t.Errorf("%+v", st)
	}
	must(t, unix.Stat(outside, &st))
	if st.Uid != 0 || st.Mtim.Sec == 2 {
		t.Errorf("what it points to was changed: %+v", st)
	}
	if target, err := os.Readlink(m.path("link")); err != nil || target != outside {
		t.Error(target, err)
	}
}
