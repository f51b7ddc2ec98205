//go:build linux

package overlay_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// What is open is what a change by its node reaches, also when somebody has put another file in its place underneath.
func TestChangesOfAnOpenFileReachItAndNotWhatIsInItsPlace(t *testing.T) {
	for _, flags := range []int{unix.O_RDONLY, unix.O_WRONLY} {
		s := newSpace(t, func(dir string) { fill(t, dir, "f", 10) })
		n := s.at("f")
		h, err := s.tr.Open(n, flags, false, nil)
		s.ok(err)
		fill(t, s.dir, "other", 10)
		s.ok(os.Rename(filepath.Join(s.dir, "other"), filepath.Join(s.dir, "f")))
		_, err = s.tr.SetAttr(n, nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o640})
		s.ok(err)
		s.ok(s.tr.SetXattr(n, "user.x", []byte("1"), 0))
		var st unix.Stat_t
		s.ok(unix.Fstat(h.Fd(), &st))
		if st.Mode&0o7777 != 0o640 {
			t.Errorf("the open file has mode %o", st.Mode)
		}
		b := make([]byte, 10)
		if k, err := s.tr.GetXattr(n, "user.x", b); err != nil || string(b[:k]) != "1" {
			t.Errorf("its xattr: %q, %v", b[:max(k, 0)], err)
		}
		s.ok(unix.Lstat(filepath.Join(s.dir, "f"), &st))
		if st.Mode&0o7777 != 0o644 {
			t.Errorf("the other file has mode %o", st.Mode)
		}
		if k, err := unix.Getxattr(filepath.Join(s.dir, "f"), "user.x", b); err != unix.ENODATA {
			t.Errorf("its xattr: %d, %v", k, err)
		}
		h.Release()
		if _, err := s.tr.SetAttr(n, nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600}); err != unix.ESTALE {
			t.Errorf("when it is closed: %v", err)
		}
	}
}

// A descriptor that is in use for a change stays open until that is made, and no longer.
func TestAFileMayBeClosedWhileItIsChanged(t *testing.T) {
	s := newSpace(t, func(dir string) { fill(t, dir, "f", 10) })
	s.snapshot()
	n := s.at("f")
	before := openFiles(t)
	var g sync.WaitGroup
	for i := range 4 {
		g.Go(func() {
			for k := range 200 {
				if i < 2 {
					h, err := s.tr.Open(n, unix.O_RDONLY, false, nil)
					if err != nil {
						t.Error(err)
						return
					}
					h.Release()
				} else if _, err := s.tr.SetAttr(n, nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600 + uint32(k&7)}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	g.Wait()
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors are open, before it were %d", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// That a file has no xattrs is found out once in an epoch, and holds until it is given some.
func TestXattrsThatCameAfterAnotherChangeGoWithTheRollback(t *testing.T) {
	chmod := func(s *space, n *overlay.Node, mode uint32) {
		_, err := s.tr.SetAttr(n, nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: mode})
		s.ok(err)
	}
	set := func(s *space, n *overlay.Node, value string) { s.ok(s.tr.SetXattr(n, "user.x", []byte(value), 0)) }
	for name, change := range map[string]func(s *space, n *overlay.Node){
		"after a chmod": func(s *space, n *overlay.Node) { chmod(s, n, 0o600); set(s, n, "1"); chmod(s, n, 0o644) },
		"after a write": func(s *space, _ *overlay.Node) { s.overwrite("f", "x", 0); set(s, s.at("f"), "1") },
		"between checkpoints": func(s *space, n *overlay.Node) {
			chmod(s, n, 0o600)
			s.snapshot()
			chmod(s, n, 0o644)
			set(s, n, "1")
			s.snapshot()
			chmod(s, n, 0o600)
			set(s, n, "2")
		},
		"through a handle": func(s *space, n *overlay.Node) {
			h, err := s.tr.Open(n, unix.O_RDWR, true, nil)
			s.ok(err)
			chmod(s, n, 0o600)
			set(s, n, "1")
			s.ok(s.tr.RemoveXattr(n, "user.x"))
			set(s, n, "2")
			h.Release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, func(dir string) { fill(t, dir, "f", 10) })
			id, was := s.snapshot(), s.state()
			change(s, s.at("f"))
			changed := s.state()
			s.rollback(id)
			s.same(was)
			s.undo()
			s.same(changed)
		})
	}
}

// While there is no checkpoint nothing is recorded; what is found out before that must not hold afterwards.
func TestXattrsThatCameWithoutACheckpointAreRecordedInTheNext(t *testing.T) {
	s := newSpace(t, func(dir string) { fill(t, dir, "f", 10) })
	n := s.at("f")
	id := s.snapshot()
	chmod := func(mode uint32) {
		_, err := s.tr.SetAttr(n, nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: mode})
		s.ok(err)
	}
	chmod(0o600) // it is known to have no xattrs
	s.ok(s.w.Drop(context.Background(), id))
	s.ok(s.tr.SetXattr(n, "user.x", []byte("1"), 0))
	id, was := s.snapshot(), s.state()
	chmod(0o640)
	s.ok(s.tr.RemoveXattr(n, "user.x"))
	s.rollback(id)
	s.same(was)
}

// Bare is only what nobody has given an xattr, whether that was recorded or not.
func TestAFileIsBareUntilItIsGivenXattrs(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		s := newSpace(t, func(dir string) { fill(t, dir, "f", 10) })
		n := s.at("f")
		isBare := func() bool {
			h, err := s.tr.Open(n, unix.O_WRONLY, true, nil)
			s.ok(err)
			defer h.Release()
			return h.Bare()
		}
		id := s.snapshot()
		for range 2 {
			if !isBare() {
				t.Error("it has no xattrs, and that is not known")
			}
		}
		if !recorded {
			s.ok(s.w.Drop(context.Background(), id))
		}
		s.ok(s.tr.SetXattr(n, "user.x", []byte("1"), 0))
		if isBare() {
			t.Error("it has an xattr, and is thought to have none")
		}
		s.snapshot()
		if isBare() {
			t.Error("it has an xattr in the next epoch, and is thought to have none")
		}
		s.ok(s.tr.RemoveXattr(n, "user.x"))
		back := s.snapshot()
		if !isBare() {
			t.Error("it has no xattr any more, and that is not known")
		}
		if recorded {
			s.rollback(id)
			s.rollback(back)
		}
	}
}

func TestNewDirectoriesThatAreNotEmptyStay(t *testing.T) {
	s := newSpace(t, nil)
	s.snapshot()
	s.mkdir("a")
	s.mkdir("a/b")
	s.write("a/b/f", "x")
	if err := s.tr.Rmdir(s.at("a"), "b"); err != unix.ENOTEMPTY {
		t.Errorf("got %v, want ENOTEMPTY", err)
	}
	s.ok(s.tr.Unlink(s.at("a/b"), "f"))
	s.ok(s.tr.Rmdir(s.at("a"), "b"))
	s.ok(s.tr.Rmdir(s.tr.Root(), "a"))
}
