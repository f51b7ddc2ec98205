//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// linkSpace opens a filled workspace whose preimages are kept by links, those of small files too.
func linkSpace(t *testing.T, root string) *space {
	t.Helper()
	return spaceWith(t, overlay.Config{Workspace: filled(t, root)(), Tier: string(strategy.PosixLink), Hot: withoutHot})
}

func (s *space) inode(path string) uint64 {
	s.Helper()
	var st unix.Stat_t
	s.ok(unix.Stat(filepath.Join(s.dir, path), &st))
	return st.Ino
}

// keeps checks how many preimages are kept as old inodes and as copies.
func (s *space) keeps(inodes, copies int) {
	s.Helper()
	if i, c := len(s.storeFiles("trash")), len(s.preimages()); i != inodes || c != copies {
		s.Errorf("%d inodes and %d copies are kept, want %d and %d", i, c, inodes, copies)
	}
}

func TestPosixLinkKeepsTheOldInode(t *testing.T) {
	for name, change := range map[string]func(s *space){
		"written in place": func(s *space) { s.overwrite("b.txt", "X", 0) },
		"truncated":        func(s *space) { s.write("b.txt", "X") },
		"only opened": func(s *space) {
			h, err := s.tr.Open(s.at("b.txt"), unix.O_RDWR, false, nil)
			s.ok(err)
			h.Release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := linkSpace(t, t.TempDir())
			before, inode := s.state(), s.inode("b.txt")
			id := s.snapshot()
			change(s)
			s.keeps(1, 0)
			if s.inode("b.txt") == inode {
				t.Error("the old inode is in its place")
			}
			changed := s.state()
			s.rollback(id)
			s.same(before)
			if s.inode("b.txt") != inode {
				t.Error("the old inode did not come back")
			}
			s.undo()
			s.same(changed)
		})
	}
}

func TestPosixLinkShowsNoChangeForAnOpen(t *testing.T) {
	s := linkSpace(t, t.TempDir())
	before := s.state()
	id := s.snapshot()
	h, err := s.tr.Open(s.at("b.txt"), unix.O_RDWR, false, nil)
	s.ok(err)
	h.Release()
	s.sameTree(before)
	d, err := s.w.Diff(context.Background(), id, "", false)
	if err != nil || len(d.Changes) != 0 {
		t.Errorf("the diff has %+v (%v)", d.Changes, err)
	}
}

func TestPosixLinkKeepsModeOwnerXattrsAndHoles(t *testing.T) {
	s := linkSpace(t, testfs.Ext4(t, 64<<20))
	name := filepath.Join(s.dir, "odd")
	s.ok(os.WriteFile(name, bytes.Repeat([]byte("x"), 5000), 0o644))
	s.ok(os.Truncate(name, 256<<10))
	s.ok(unix.Chown(name, 12, 34))
	s.ok(unix.Chmod(name, 0o6751))
	s.ok(unix.Setxattr(name, "user.kept", []byte("value"), 0))
	s.ok(unix.Setxattr(name, "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	before := s.state()
	id := s.snapshot()
	h, err := s.tr.Open(s.at("odd"), unix.O_WRONLY, false, nil)
	s.ok(err)
	s.keeps(1, 0)
	s.sameTree(before)
	_, err = h.WriteAt([]byte("Y"), 100)
	s.ok(err)
	h.Release()
	s.rollback(id)
	s.same(before)
}

func TestPosixLinkCopiesWhatItCannotReplace(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(s *space)
		held    func(s *space) func() // while the file is opened for writing
	}{
		"a file with two names": {func(s *space) { s.ok(os.Link(filepath.Join(s.dir, "b.txt"), filepath.Join(s.dir, "other"))) }, nil},
		"a large file":          {func(s *space) { s.ok(os.Truncate(filepath.Join(s.dir, "b.txt"), 2<<20)) }, nil},
		"a file that is open": {nil, func(s *space) func() {
			h, err := s.tr.Open(s.at("b.txt"), unix.O_RDONLY, false, nil)
			s.ok(err)
			return h.Release
		}},
		"a file that is mapped": {nil, func(s *space) func() {
			f, err := os.Open(filepath.Join(s.dir, "b.txt"))
			s.ok(err)
			m, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_SHARED)
			s.ok(err)
			s.ok(f.Close())
			return func() { s.ok(unix.Munmap(m)) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := linkSpace(t, t.TempDir())
			if c.prepare != nil {
				c.prepare(s)
			}
			before, inode := s.state(), s.inode("b.txt")
			id := s.snapshot()
			if c.held != nil {
				defer c.held(s)()
			}
			s.overwrite("b.txt", "X", 0)
			s.keeps(0, 1)
			if s.inode("b.txt") != inode {
				t.Error("the inode was replaced")
			}
			s.rollback(id)
			s.same(before)
		})
	}
}

func TestPosixLinkCopiesOnOverlayfs(t *testing.T) {
	s := linkSpace(t, testfs.Overlay(t, nil))
	before := s.state()
	id := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	s.keeps(0, 1)
	s.rollback(id)
	s.same(before)
}

func TestPosixLinkProtectsEachCheckpoint(t *testing.T) {
	s := linkSpace(t, t.TempDir())
	first := s.state()
	a := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	second := s.state()
	b := s.snapshot()
	s.overwrite("b.txt", "Y", 1)
	s.overwrite("b.txt", "Z", 0)
	s.keeps(2, 0)
	s.reopen()
	s.rollback(b)
	s.same(second)
	s.rollback(a)
	s.same(first)
	s.rollback(b)
	s.same(second)
}
