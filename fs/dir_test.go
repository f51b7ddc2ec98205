package fs_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"golang.org/x/sys/unix"
)

// dirent is an entry as getdents gives it.
type dirent struct {
	name string
	ino  uint64
	off  int64
}

// readDir reads a directory from an offset to its end.
func readDir(t *testing.T, fd int, off int64) []dirent {
	t.Helper()
	_, err := unix.Seek(fd, off, unix.SEEK_SET)
	must(t, err)
	var all []dirent
	buf := make([]byte, 8192)
	for {
		n, err := unix.Getdents(fd, buf)
		must(t, err)
		if n == 0 {
			return all
		}
		all = append(all, parseDirents(buf[:n])...)
	}
}

// parseDirents reads struct linux_dirent64: inode, offset, length, type, name.
func parseDirents(b []byte) []dirent {
	var all []dirent
	for len(b) > 0 {
		u64 := func(at int) (v uint64) {
			for i := range 8 {
				v |= uint64(b[at+i]) << (8 * i)
			}
			return v
		}
		size := int(b[16]) | int(b[17])<<8
		name, _, _ := strings.Cut(string(b[19:size]), "\x00")
		all = append(all, dirent{name, u64(0), int64(u64(8))})
		b = b[size:]
	}
	return all
}

func openDir(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestListingHasTheInodeNumbersOfStat(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		must(t, os.MkdirAll(m.path("d", "sub"), 0o755))
		m.write(t, "d/file", "x")
		must(t, os.Symlink("x", m.path("d/link")))
		fd := openDir(t, m.path("d"))
		for range 2 { // from the tree, then from the kernel's cache
			entries := readDir(t, fd, 0)
			if len(entries) != 5 {
				t.Fatalf("%v", entries)
			}
			for _, e := range entries {
				var st unix.Stat_t
				must(t, unix.Lstat(m.path("d")+"/"+e.name, &st))
				if st.Ino != e.ino {
					t.Errorf("%s: %d in the listing, %d from stat", e.name, e.ino, st.Ino)
				}
			}
		}
	})
}

func TestListingGoesOnAtAnyOffset(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		for i := range 500 {
			m.write(t, fmt.Sprintf("a-rather-long-name-so-that-they-do-not-fit-into-one-reply-%03d", i), "")
		}
		fd := openDir(t, m.dir)
		all := readDir(t, fd, 0)
		for i := 0; i < len(all); i += 37 {
			rest := readDir(t, fd, all[i].off)
			if len(rest) != len(all)-i-1 {
				t.Fatalf("%d entries after number %d, want %d", len(rest), i, len(all)-i-1)
			}
			if len(rest) > 0 && rest[0].name != all[i+1].name {
				t.Fatalf("number %d is %s, then %s", i+1, all[i+1].name, rest[0].name)
			}
		}
	})
}

func TestNothingIsSkippedWhileADirectoryIsEmptied(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		must(t, os.Mkdir(m.path("d"), 0o755))
		const files = 600
		for i := range files {
			must(t, os.WriteFile(m.path("d", strconv.Itoa(i)), nil, 0o644))
		}
		fd := openDir(t, m.path("d"))
		buf := make([]byte, 4096)
		removed := 0
		for {
			n, err := unix.Getdents(fd, buf)
			must(t, err)
			if n == 0 {
				break
			}
			for _, e := range parseDirents(buf[:n]) {
				if e.name != "." && e.name != ".." {
					must(t, unix.Unlinkat(fd, e.name, 0))
					removed++
				}
			}
		}
		if removed != files {
			t.Fatalf("%d of %d were listed", removed, files)
		}
		must(t, os.Remove(m.path("d")))
	})
}

func TestAHundredThousandEntries(t *testing.T) {
	const entries = 100_000
	dir := t.TempDir()
	lower := openDir(t, dir)
	for i := range entries - 2 {
		must(t, unix.Symlinkat("x", lower, strconv.Itoa(i)))
	}
	m := mountDir(t, dir, fs.Options{InPlace: true})
	m.write(t, "first", "")
	fd := openDir(t, m.dir)
	for round := range 2 {
		if round == 1 {
			m.write(t, "second", "")
		}
		seen := map[string]bool{}
		for _, e := range readDir(t, fd, 0) {
			seen[e.name] = true
		}
		if len(seen) != entries+1+round { // "." and ".." too
			t.Fatalf("%d entries are listed", len(seen))
		}
	}
}

func TestConcurrentReadersOfOneDirectoryEachSeeAll(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		for i := range 300 {
			must(t, os.WriteFile(m.path(fmt.Sprintf("entry-%d", i)), nil, 0o644))
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				entries, err := os.ReadDir(m.dir)
				if err != nil || len(entries) != 300 {
					t.Errorf("%d entries, %v", len(entries), err)
				}
			})
		}
		wg.Wait()
	})
}

func TestWarmListingAsksNothing(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true})
	must(t, os.MkdirAll(m.path("a", "b"), 0o755))
	m.write(t, "a/f", "x")
	walk := func() {
		for _, d := range []string{m.dir, m.path("a"), m.path("a", "b")} {
			entries, err := os.ReadDir(d)
			must(t, err)
			for _, e := range entries {
				_, err := e.Info()
				must(t, err)
			}
		}
	}
	walk()
	walk() // the first listing has invalidated access times
	before := requests(m.server)
	walk()
	if after := requests(m.server); after != before {
		t.Errorf("%d requests: %v", after-before, m.server.Counts())
	}
}

// requests is how many there were of any kind.
func requests(s *fs.Server) (n uint64) {
	for _, c := range s.Counts() {
		n += c
	}
	return n
}
