package fs_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestTmpfileGetsANameByLink(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		fd, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		must(t, err)
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte("content"))
		must(t, err)
		must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, m.path("named"), unix.AT_SYMLINK_FOLLOW))
		got, err := os.ReadFile(m.path("named"))
		must(t, err)
		if string(got) != "content" {
			t.Fatalf("got %q", got)
		}
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st))
		if st.Nlink != 1 || st.Mode != unix.S_IFREG|0o640 {
			t.Fatalf("%d links, mode %o", st.Nlink, st.Mode)
		}
	})
}

func TestUnlinkedFileStaysUsable(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		for _, protected := range []bool{false, true} {
			p := m.write(t, "f", "content")
			if protected {
				m.snapshot(t)
			}
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			must(t, err)
			must(t, os.Remove(p))
			_, err = f.WriteAt([]byte("more"), 7)
			must(t, err)
			b := make([]byte, 20)
			n, _ := f.ReadAt(b, 0)
			if string(b[:n]) != "contentmore" {
				t.Fatalf("got %q", b[:n])
			}
			must(t, f.Chmod(0o600))
			must(t, f.Truncate(3))
			var st unix.Stat_t
			must(t, unix.Fstat(int(f.Fd()), &st))
			if st.Nlink != 0 || st.Size != 3 || st.Mode != unix.S_IFREG|0o600 {
				t.Fatalf("%d links, %d bytes, mode %o", st.Nlink, st.Size, st.Mode)
			}
			must(t, f.Close())
		}
	})
}

func TestHolesOfASparseFileAreFound(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		f, err := os.Create(m.path("sparse"))
		must(t, err)
		defer f.Close()
		const far = 6 << 30
		_, err = f.WriteAt([]byte("end"), far)
		must(t, err)
		must(t, f.Sync())
		fd := int(f.Fd())
		if off, err := unix.Seek(fd, 0, unix.SEEK_DATA); err != nil || off != far {
			t.Errorf("data at %d, %v", off, err)
		}
		if off, err := unix.Seek(fd, 0, unix.SEEK_HOLE); err != nil || off != 0 {
			t.Errorf("a hole at %d, %v", off, err)
		}
		_, err = unix.Seek(fd, far+3, unix.SEEK_DATA)
		want(t, err, unix.ENXIO)
		var st unix.Stat_t
		must(t, unix.Stat(m.path("sparse"), &st))
		if st.Size != far+3 || st.Blocks > 64 {
			t.Errorf("%d bytes in %d blocks", st.Size, st.Blocks)
		}
	})
}

func TestFallocateTakesTheModesOfTheLower(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		f, err := os.Create(m.path("f"))
		must(t, err)
		defer f.Close()
		fd, block := int(f.Fd()), int64(4096)
		_, err = f.Write(bytes.Repeat([]byte("x"), int(4*block)))
		must(t, err)
		must(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, block))
		must(t, unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, block, block))
		must(t, unix.Fallocate(fd, 0, 4*block, block))
		must(t, unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 5*block, block))
		got, err := os.ReadFile(m.path("f"))
		must(t, err)
		want := append(append(make([]byte, 2*block), bytes.Repeat([]byte("x"), int(2*block))...), make([]byte, block)...)
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, and not those that were meant", len(got))
		}
		if err := unix.Fallocate(fd, 0xf000, 0, block); err == nil {
			t.Fatal("an unknown mode is taken")
		}
	})
}

func TestCopyFileRangeCopiesAndKeepsWhatIsAround(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		m.write(t, "from", "0123456789")
		m.write(t, "to", "aaaaaaaaaa")
		from, err := os.Open(m.path("from"))
		must(t, err)
		defer from.Close()
		to, err := os.OpenFile(m.path("to"), os.O_RDWR, 0)
		must(t, err)
		defer to.Close()
		in, out := int64(2), int64(4)
		n, err := unix.CopyFileRange(int(from.Fd()), &in, int(to.Fd()), &out, 3, 0)
		if n != 3 || err != nil {
			t.Fatal(n, err)
		}
		got, err := os.ReadFile(m.path("to"))
		must(t, err)
		if string(got) != "aaaa234aaa" {
			t.Fatalf("got %q", got)
		}
	})
}

func TestAppendsOfTwoOpensDoNotOverwrite(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		p := m.write(t, "log", "")
		var files []*os.File
		for range 2 {
			f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			defer f.Close()
			files = append(files, f)
		}
		for i := range 100 {
			_, err := fmt.Fprintf(files[i%2], "line %d\n", i)
			must(t, err)
		}
		got, err := os.ReadFile(p)
		must(t, err)
		if n := strings.Count(string(got), "\n"); n != 100 {
			t.Fatalf("%d lines are left", n)
		}
	})
}

func TestDirectIO(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		fd, err := unix.Open(m.path("f"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT|unix.O_CLOEXEC, 0o644)
		must(t, err)
		defer unix.Close(fd)
		b := aligned(8192)
		copy(b, bytes.Repeat([]byte("direct"), 1000))
		if n, err := unix.Pwrite(fd, b, 4096); n != 8192 || err != nil {
			t.Fatal(n, err)
		}
		got := aligned(8192)
		if n, err := unix.Pread(fd, got, 4096); n != 8192 || err != nil {
			t.Fatal(n, err)
		}
		if !bytes.Equal(got, b) {
			t.Fatal("read something else than was written")
		}
		through, err := os.ReadFile(m.path("f"))
		must(t, err)
		if !bytes.Equal(through[4096:], b) {
			t.Fatal("cached reads see something else")
		}
	})
}

// aligned makes a buffer that direct I/O takes.
func aligned(size int) []byte {
	b := make([]byte, size+4096)
	off := 4096 - int(uintptr(unsafe.Pointer(&b[0]))%4096)
	return b[off : off+size]
}

func TestStatxHasTheBirthTime(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		p := m.write(t, "f", "x")
		var before, after unix.Statx_t
		must(t, unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_ALL, &before))
		must(t, os.Chmod(p, 0o600))
		must(t, unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_ALL, &after))
		if before.Mask&unix.STATX_BTIME == 0 || before.Btime.Sec == 0 || before.Btime != after.Btime {
			t.Fatalf("%+v, then %+v", before.Btime, after.Btime)
		}
		if after.Mode != unix.S_IFREG|0o600 {
			t.Fatalf("mode %o", after.Mode)
		}
	})
}

func TestTruncatingOpenEmptiesTheFile(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		for _, protected := range []bool{false, true} {
			p := m.write(t, "f", strings.Repeat("long ", 50_000))
			if protected {
				m.snapshot(t)
			}
			m.write(t, "f", "short")
			got, err := os.ReadFile(p)
			must(t, err)
			if string(got) != "short" {
				t.Fatalf("got %q", got)
			}
			var st unix.Stat_t
			must(t, unix.Stat(p, &st))
			if st.Size != 5 {
				t.Fatalf("%d bytes", st.Size)
			}
		}
	})
}

func TestSpecialFilesAreWhatTheyShouldBe(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		for _, c := range []struct {
			mode uint32
			dev  uint64
		}{
			{unix.S_IFIFO | 0o600, 0},
			{unix.S_IFSOCK | 0o640, 0},
			{unix.S_IFCHR | 0o666, unix.Mkdev(1, 3)},
			{unix.S_IFBLK | 0o600, unix.Mkdev(259, 70000)},
			{unix.S_IFREG | 0o604, 0},
		} {
			p := m.path(fmt.Sprintf("node-%o", c.mode))
			must(t, unix.Mknod(p, c.mode, int(c.dev)))
			var st unix.Stat_t
			must(t, unix.Lstat(p, &st))
			if st.Mode != c.mode&^0o022 || st.Rdev != c.dev {
				t.Errorf("mode %o, device %#x; want %o, %#x", st.Mode, st.Rdev, c.mode, c.dev)
			}
		}
		fd, err := unix.Open(m.path(fmt.Sprintf("node-%o", unix.S_IFCHR|0o666)), unix.O_WRONLY, 0)
		must(t, err) // a mount by root does not forbid devices
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte("to nowhere"))
		must(t, err)
	})
}

func TestTimesAreExact(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		p := m.write(t, "f", "x")
		for _, ts := range []unix.Timespec{{Sec: 1, Nsec: 999_999_999}, {Sec: -1, Nsec: 1}, {Sec: 4_000_000_000, Nsec: 123_456_789}} {
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, 0))
			var st unix.Stat_t
			must(t, unix.Stat(p, &st))
			if st.Mtim != ts || st.Atim != ts {
				t.Errorf("got %v and %v, want %v", st.Mtim, st.Atim, ts)
			}
		}
	})
}

func TestIoctlOfInodeFlagsIsRefused(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		f, err := os.Open(m.write(t, "f", "x"))
		must(t, err)
		defer f.Close()
		_, err = unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		want(t, err, unix.ENOTTY)
	})
}
