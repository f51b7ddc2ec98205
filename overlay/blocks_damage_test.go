//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

func TestDamagedBlocksStopARollbackBeforeItTouchesAnything(t *testing.T) {
	for name, damage := range map[string]func(s *space, file string){
		"a flipped bit":  func(s *space, file string) { flip(s.T, file) },
		"a missing file": func(s *space, file string) { s.ok(os.Remove(file)) },
		"a cut file":     func(s *space, file string) { s.ok(os.Truncate(file, 1000)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := largeSpace(t, "pure-manifest")
			id := s.snapshot()
			s.overwrite("large", "changed", 5000)
			s.overwrite("b.txt", "changed", 0)
			for _, file := range s.preimages() {
				if st, err := os.Stat(file); err == nil && st.Size() > 4096 {
					damage(s, file)
				}
			}
			changed := s.state()
			_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			wantCode(t, err, errs.Integrity)
			s.sameTree(changed)
		})
	}
}

// TestALargeFileThatLostBytesOutsideIsRefused cuts off what no preimage has, while nobody watches.
func TestALargeFileThatLostBytesOutsideIsRefused(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	id := s.snapshot()
	s.overwrite("large", "changed", 5000)
	s.ok(s.w.Close())
	f, err := os.OpenFile(filepath.Join(s.dir, "large"), os.O_RDWR, 0)
	s.ok(err)
	_, err = f.WriteAt([]byte("outside"), 15*4096)
	s.ok(errors.Join(err, f.Close()))
	s.open()
	changed := s.state()
	_, err = s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	wantCode(t, err, errs.Integrity)
	s.sameTree(changed)
}

func TestAFullStoreRefusesTheWriteAndLosesNothing(t *testing.T) {
	disk := testfs.Tmpfs(t, 48<<20)
	dir := filepath.Join(disk, "workspace")
	fillSmall(dir)
	s := spaceWith(t, overlay.Config{Workspace: dir, Tier: "pure-manifest"})
	s.ok(os.WriteFile(filepath.Join(dir, "large"), bytes.Repeat(pattern(1, 4096), 1024), 0o644))
	before := s.state()
	id := s.snapshot()
	s.overwrite("large", "changed", 0)
	filler(t, disk)
	h := s.handle("large")
	refused := 0
	for off := int64(0); off < 4<<20; off += 64 << 10 {
		if _, err := h.WriteAt([]byte("changed"), off); err == unix.ENOSPC {
			refused++
		}
	}
	if refused < 32 {
		t.Errorf("only %d writes were refused", refused)
	}
	if _, err := h.WriteAt([]byte("again"), 100); err != nil {
		t.Errorf("a write to what is kept already says %v", err)
	}
	s.ok(os.Remove(filepath.Join(disk, "filler")))
	s.rollback(id)
	s.same(before)
}

// TestWhereBlocksCantBeKeptRAMTakesTheWhole has the store refuse block preimages, before the first one and when one is begun.
func TestWhereBlocksCantBeKeptRAMTakesTheWhole(t *testing.T) {
	for name, begun := range map[string]bool{"from the beginning": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			s := largeSpaceAt(t, filledLarge(testfs.Ext4(t, 64<<20)), "tmpfs")
			before := s.state()
			id := s.snapshot()
			if begun {
				s.overwrite("large", "changed", 5000)
				s.truncate("large", 18*4096)
			}
			backup := filepath.Join(s.dir, overlay.StoreName, "backup")
			if begun {
				backup = s.storeFiles("backup")[0]
			}
			immutable(t, backup, true)
			s.overwrite("large", "CHANGED", 9000)
			s.truncate("large", 9*4096)
			immutable(t, backup, false)
			s.overwrite("large", "changed once more", 2*4096)
			after := s.state()
			s.rollback(id)
			s.same(before)
			s.undo()
			s.same(after)
			s.reopen()
			s.rollback(id)
			s.same(before)
		})
	}
}

// filledLarge makes a workspace with a large file on a filesystem.
func filledLarge(disk string) string {
	dir := filepath.Join(disk, "workspace")
	fillSmall(dir)
	fillLarge(dir)
	return dir
}

// immutable has the filesystem refuse all changes of a file or a directory, or not any more.
func immutable(t *testing.T, name string, on bool) {
	t.Helper()
	f, err := os.Open(name)
	if os.IsNotExist(err) && !on {
		return // it was removed since
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		t.Fatal(err)
	}
	const immutableFlag = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	if flags &^= immutableFlag; on {
		flags |= immutableFlag
		t.Cleanup(func() { immutable(t, name, false) })
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
		t.Fatal(err)
	}
}

func TestBlocksComeBackWithSync(t *testing.T) {
	dir := t.TempDir()
	fillLarge(dir)
	s := spaceWith(t, overlay.Config{Workspace: dir, Tier: "pure-manifest", Sync: true, LargeMin: testLargeMin, BlockSize: testBlockSize})
	before := s.state()
	id := s.snapshot()
	s.overwrite("large", "changed", 5000)
	s.overwrite("large", "changed", 9*4096)
	s.rollback(id)
	s.same(before)
}

// TestALargeFileThatCantBeClonedIsKeptByBlocks where all others can be.
func TestALargeFileThatCantBeClonedIsKeptByBlocks(t *testing.T) {
	dir := testfs.Btrfs(t, 256<<20)
	f, err := os.Create(filepath.Join(dir, "large"))
	if err != nil {
		t.Fatal(err)
	}
	const noCopyOnWrite = 0x00800000 // FS_NOCOW_FL of linux/fs.h
	err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, noCopyOnWrite)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	fillLarge(dir)
	s := largeSpaceAt(t, dir, "reflink")
	s.ok(os.WriteFile(filepath.Join(dir, "other"), pattern(4, largeSize), 0o644))
	before := s.state()
	id := s.snapshot()
	for _, name := range []string{"large", "other"} {
		h, err := s.tr.Open(s.at(name), unix.O_RDWR, true, nil)
		s.ok(err)
		defer h.Release()
		if h.Direct() != (name == "other") {
			t.Errorf("%s is direct: %v", name, h.Direct())
		}
		_, err = h.WriteAt([]byte("changed"), 5000)
		s.ok(err)
	}
	if got, want := s.kept(), int64(blockHeader+blockEntry+4096+largeSize); got != want {
		t.Errorf("%d bytes are kept, want a block of the one and a clone of the other: %d", got, want)
	}
	s.rollback(id)
	s.same(before)
}
