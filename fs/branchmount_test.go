package fs_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// twice is a branch that is shown in the mount of its workspace and by a mount of its own.
type twice struct {
	*shelved
	at string // the mount of its own
}

func mountTwice(t *testing.T) *twice {
	t.Helper()
	s := &twice{shelved: mountShelf(t, fs.Options{InPlace: true}), at: t.TempDir()}
	_, err := s.server.MountBranch("b", s.at)
	must(t, err)
	t.Cleanup(func() { _ = unix.Unmount(s.at, unix.MNT_DETACH) })
	noPolling(t, s.at)
	return s
}

// glance tells all that can be seen of a tree: so the kernel has all of it in its caches afterwards.
func glance(t *testing.T, top string) string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%q %o %d:%d %d %d", strings.TrimPrefix(p, top), st.Mode, st.Uid, st.Gid, st.Nlink, st.Mtim.Nano())
		buf := make([]byte, 100)
		switch {
		case d.Type()&os.ModeSymlink != 0:
			to, err := os.Readlink(p)
			all = append(all, line+" "+to)
			return err
		case d.Type().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %q", st.Size, b)
		}
		if n, err := unix.Getxattr(p, "user.x", buf); err == nil {
			line += " " + string(buf[:n])
		}
		all = append(all, line)
		return nil
	}))
	for _, absent := range []string{"new", "d/new", "there"} {
		_, err := os.Lstat(filepath.Join(top, absent))
		all = append(all, fmt.Sprint(absent, err == nil))
	}
	return strings.Join(all, "\n")
}

func TestABranchIsTheSameInBothItsMounts(t *testing.T) {
	s := mountTwice(t)
	for _, way := range [][2]string{{s.b, s.at}, {s.at, s.b}} {
		here, there := way[0], way[1]
		p := func(name string) string { return filepath.Join(here, name) }
		must(t, os.RemoveAll(p("t")))
		must(t, os.MkdirAll(p("t/d"), 0o755))
		here, there = p("t"), filepath.Join(there, "t")
		must(t, os.WriteFile(p("f"), []byte("one"), 0o644))
		f, err := os.OpenFile(p("f"), os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		for _, step := range []struct {
			name string
			do   func() error
		}{
			{"write", func() error { _, err := f.WriteAt([]byte("two"), 0); return err }},
			{"write again at once", func() error { _, err := f.WriteAt([]byte("six"), 0); return err }},
			{"append", func() error { _, err := f.WriteAt([]byte("more"), 3); return err }},
			{"truncate", func() error { return f.Truncate(2) }},
			{"fallocate", func() error { return unix.Fallocate(int(f.Fd()), 0, 0, 10) }},
			{"chmod", func() error { return os.Chmod(p("f"), 0o600) }},
			{"utimes", func() error { return os.Chtimes(p("f"), time.Unix(1, 2), time.Unix(3, 4)) }},
			{"setxattr", func() error { return unix.Setxattr(p("f"), "user.x", []byte("x"), 0) }},
			{"removexattr", func() error { return unix.Removexattr(p("f"), "user.x") }},
			{"create", func() error { return os.WriteFile(p("new"), []byte("new"), 0o644) }},
			{"link", func() error { return os.Link(p("new"), p("d/new")) }},
			{"unlink", func() error { return os.Remove(p("new")) }},
			{"symlink", func() error { return os.Symlink("f", p("l")) }},
			{"mkdir", func() error { return os.Mkdir(p("new"), 0o755) }},
			{"mkfifo", func() error { return unix.Mkfifo(p("d/pipe"), 0o600) }},
			{"rename", func() error { return os.Rename(p("d"), p("there")) }},
			{"exchange", func() error {
				return unix.Renameat2(unix.AT_FDCWD, p("there"), unix.AT_FDCWD, p("f"), unix.RENAME_EXCHANGE)
			}},
			{"rename over", func() error { return os.Rename(p("there"), p("l")) }},
			{"rmdir", func() error { return os.Remove(p("new")) }},
		} {
			if a, b := glance(t, here), glance(t, there); a != b {
				t.Fatalf("before %s:\n%s\nand there:\n%s", step.name, a, b)
			}
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			if a, b := glance(t, here), glance(t, there); a != b {
				t.Fatalf("after %s at %s:\n%s\nand there:\n%s", step.name, here, a, b)
			}
		}
	}
}

// helpMap has a file mapped, and does what it is told: read, or write and a text.
func helpMap(args []string) error {
	fd, err := unix.Open(args[0], unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if text, ok := strings.CutPrefix(in.Text(), "write "); ok {
			copy(b, text)
			if err := unix.Msync(b, unix.MS_SYNC); err != nil {
				return err
			}
		}
		fmt.Printf("%s\n", b[:3])
	}
	return nil
}

func (p *process) tell(t *testing.T, line string) string {
	t.Helper()
	_, err := fmt.Fprintln(p.in, line)
	must(t, err)
	answer, err := p.out.ReadString('\n')
	must(t, err)
	return strings.TrimSpace(answer)
}

func TestMappingsOfABranchAreTheSameInBothItsMounts(t *testing.T) {
	s := mountTwice(t)
	must(t, os.WriteFile(filepath.Join(s.b, "m"), slices.Repeat([]byte("000"), 2000), 0o644))
	one, two := startHelper(t, 0, "map", filepath.Join(s.b, "m")), startHelper(t, 0, "map", filepath.Join(s.at, "m"))
	read := func(top string) string {
		b, err := os.ReadFile(filepath.Join(top, "m"))
		must(t, err)
		return string(b[:3])
	}
	for i := range 30 {
		text := fmt.Sprintf("%03d", i)
		writer, reader, there := one, two, s.at
		if i%2 == 1 {
			writer, reader, there = two, one, s.b
		}
		reader.tell(t, "read") // so that it has the page
		writer.tell(t, "write "+text)
		if got := read(there); got != text {
			t.Fatalf("%d: a read gives %q, and %q was stored in a mapping of the other mount", i, got, text)
		}
		eventually(t, "the other mapping has it", func() bool { return reader.tell(t, "read") == text })
		text = fmt.Sprintf("%03d", 500+i)
		f, err := os.OpenFile(filepath.Join(there, "m"), os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte(text), 0)
		must(t, err)
		must(t, f.Close())
		for _, p := range []*process{one, two} {
			eventually(t, "both mappings have what was written", func() bool { return p.tell(t, "read") == text })
		}
	}
}

// Requests in both mounts must not wait for each other.
func TestWorkInBothMountsOfABranchGoesOn(t *testing.T) {
	s := mountTwice(t)
	must(t, os.MkdirAll(filepath.Join(s.b, "busy", "d"), 0o755))
	must(t, os.WriteFile(filepath.Join(s.b, "busy", "f"), []byte("x"), 0o644))
	var wg sync.WaitGroup
	stop := time.Now().Add(2 * time.Second)
	for i, top := range []string{s.b, s.at, s.b, s.at} {
		wg.Go(func() {
			p := func(name string) string { return filepath.Join(top, "busy", name) }
			mine := fmt.Sprint(i)
			for n := 0; time.Now().Before(stop); n++ {
				_ = os.WriteFile(p("f"), []byte(strings.Repeat(mine, n%5000)), 0o644)
				_, _ = os.ReadFile(p("f"))
				_ = os.WriteFile(p("d/"+mine), []byte(mine), 0o644)
				_ = os.Rename(p("d/"+mine), p("d/x"))
				_ = os.Link(p("f"), p("d/"+mine))
				_, _ = os.ReadDir(p("d"))
				_ = os.Chmod(p("f"), 0o600)
				_ = os.Remove(p("d/" + mine))
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("they wait for each other")
	}
	if a, b := glance(t, s.b), glance(t, s.at); a != b {
		t.Errorf("%s\nand there:\n%s", a, b)
	}
}

func TestABranchMountGoesWithTheMountOfTheWorkspace(t *testing.T) {
	s := mountTwice(t)
	if list := s.server.BranchMounts(); len(list) != 1 || list[0] != (fs.BranchMount{Branch: "b", Mountpoint: s.at}) {
		t.Errorf("the branch mounts are %v", list)
	}
	if name, of := fs.BoundBranch(s.at); name != "b" || of != s.server.Mountpoint() {
		t.Errorf("BoundBranch = %q of %q", name, of)
	}
	f, err := os.Open(filepath.Join(s.at, "."))
	must(t, err)
	if err := s.server.Unmount(false); errs.CodeOf(err) != errs.Busy {
		t.Errorf("Unmount while it is in use = %v, want BUSY", err)
	}
	must(t, f.Close())
	glance(t, s.at)
	must(t, os.WriteFile(filepath.Join(s.at, "last"), []byte("x"), 0o644))
	must(t, s.server.Unmount(false))
	if entries, err := os.ReadDir(s.at); err != nil || len(entries) > 0 {
		t.Errorf("%v is left, %v", entries, err)
	}
	if n := s.shelf.inUse(); n > 0 {
		t.Errorf("%d volumes were not given back", n)
	}
}

func TestABranchMountIsRefusedWhereItCannotBe(t *testing.T) {
	s := mountTwice(t)
	for at, want := range map[string]errs.Code{s.at: errs.Busy, s.b: errs.Path, filepath.Join(s.at, "none"): errs.Path} {
		if _, err := s.server.MountBranch("b", at); errs.CodeOf(err) != want {
			t.Errorf("MountBranch at %s = %v, want %s", at, err, want)
		}
	}
	if _, err := s.server.MountBranch("none", t.TempDir()); errs.CodeOf(err) != errs.NotFound {
		t.Errorf("MountBranch of none = %v", err)
	}
	want(t, os.Mkdir(filepath.Join(s.at, ".hyperfs"), 0o755), unix.EPERM)
}
