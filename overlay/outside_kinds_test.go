//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// outsideChange is something that happens to the plain directory while nobody watches.
type outsideChange struct {
	before func(s *space)         // what the daemon does after the checkpoint; may be nil
	change func(dir string) error //
	named  []string               // what reconcile must list as modified beside what the daemon has changed; the first is what a rollback must name
	kept   bool                   // reconcile lists no more than what the daemon did
}

// keepingTimes changes a file's bytes, and puts its modification time back.
func keepingTimes(name, content string) error {
	st, err := os.Stat(name)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(content), 0)
	return errors.Join(err, f.Close(), os.Chtimes(name, st.ModTime(), st.ModTime()))
}

var outsideChanges = map[string]outsideChange{
	"content, mtime put back": {change: func(dir string) error { return keepingTimes(dir+"/dir/c.txt", "THIRD") }, named: []string{"dir/c.txt"}},
	"content, mtime put back, of a file whose mode the daemon has changed": {
		before: func(s *space) {
			_, err := s.tr.SetAttr(s.at("dir/c.txt"), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600})
			s.ok(err)
		},
		change: func(dir string) error { return keepingTimes(dir+"/dir/c.txt", "THIRD") }, named: []string{"dir/c.txt"}},
	"content, mtime put back, of a file that the daemon has renamed": {
		before: func(s *space) { s.rename("dir/c.txt", "dir/moved", 0) },
		change: func(dir string) error { return keepingTimes(dir+"/dir/moved", "THIRD") }, named: []string{"dir/moved"}},
	"a file replaced by rename": {change: func(dir string) error {
		return errors.Join(os.WriteFile(dir+"/dir/c.txt~", []byte("outside"), 0o644), os.Rename(dir+"/dir/c.txt~", dir+"/dir/c.txt"))
	}, named: []string{"dir", "dir/c.txt"}},
	"a file deleted":           {change: func(dir string) error { return os.Remove(dir + "/dir/sub/d.txt") }, named: []string{"dir/sub"}},
	"a file created":           {change: func(dir string) error { return os.WriteFile(dir+"/dir/sub/new", nil, 0o644) }, named: []string{"dir/sub", "dir/sub/new"}},
	"a directory moved":        {change: func(dir string) error { return os.Rename(dir+"/dir/sub", dir+"/sub") }, named: []string{".", "dir", "sub"}},
	"a chmod":                  {change: func(dir string) error { return os.Chmod(dir+"/b.txt", 0o600) }, named: []string{"b.txt"}},
	"a chmod of the workspace": {change: func(dir string) error { return os.Chmod(dir, 0o700) }, named: []string{"."}},
	"an xattr":                 {change: func(dir string) error { return unix.Setxattr(dir+"/b.txt", "user.of", []byte("outside"), 0) }, named: []string{"b.txt"}},
	"an xattr of a file whose content is saved": {
		before: func(s *space) { s.overwrite("dir/c.txt", "CHANGED", 0) },
		change: func(dir string) error { return unix.Setxattr(dir+"/dir/c.txt", "user.new", []byte("outside"), 0) },
		named:  []string{"dir/c.txt"}},
	"a hard link added": {change: func(dir string) error { return os.Link(dir+"/b.txt", dir+"/dir/link") }, named: []string{"b.txt", "dir"}},
	"an old file changed where it is kept": {
		before: func(s *space) { s.unlink("b.txt") },
		change: func(dir string) error {
			kept, err := filepath.Glob(dir + "/.hyperfs/trash/*")
			if err != nil || len(kept) != 1 {
				return errors.Join(err, errors.New("there is not one"))
			}
			return keepingTimes(kept[0], "SECOND")
		},
		named: []string{"b.txt"}, kept: true},
	"everything restored from a backup": {change: func(dir string) error {
		out, err := exec.Command("sh", "-c", `cp -a "$1/dir" "$1.backup" && rm -r "$1/dir" && mv "$1.backup" "$1/dir"`, "sh", dir).CombinedOutput()
		if err != nil {
			return errors.New(string(out))
		}
		return nil
	}, named: []string{"."}},
}

// TestEveryKindOfOutsideChangeIsFoundAndNamed by reconcile and rollback, and is in later checkpoints.
func TestEveryKindOfOutsideChangeIsFoundAndNamed(t *testing.T) {
	for name, c := range outsideChanges {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, fillSmall)
			id := s.snapshot()
			if c.before != nil {
				c.before(s)
			}
			s.ok(s.w.Close())
			s.ok(c.change(s.dir))
			s.open()
			s.wantOutside(id, c)
		})
	}
}

func (s *space) wantOutside(id string, c outsideChange) {
	s.Helper()
	changed := s.state()
	r, err := s.w.Reconcile(context.Background(), id)
	s.ok(err)
	for _, path := range c.named {
		if !slices.Contains(r.Modified, path) && !slices.Contains(r.Created, path) && !slices.ContainsFunc(r.Renamed, func(m overlay.Rename) bool { return m.To == path }) && !c.kept {
			s.Errorf("reconcile does not list %s: %+v", path, r)
		}
	}
	_, err = s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	wantCode(s.T, err, errs.Integrity)
	if !strings.HasPrefix(err.Error(), "rollback "+c.named[0]+":") {
		s.Errorf("the error does not name %s: %v", c.named[0], err)
	}
	s.sameTree(changed)
	later := s.snapshot()
	s.write("later", "l")
	s.rollback(later)
	s.sameTree(changed)
}

func TestAChangeThroughAnotherMountOfTheLowerIsFound(t *testing.T) {
	disk := testfs.Tmpfs(t, 32<<20)
	dir := filepath.Join(disk, "workspace")
	fillSmall(dir)
	other := t.TempDir()
	if err := unix.Mount(disk, other, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("no right to mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(other, unix.MNT_DETACH) })
	s := spaceAt(t, dir)
	id := s.snapshot()
	s.ok(s.w.Close())
	s.ok(os.WriteFile(filepath.Join(other, "workspace", "b.txt"), []byte("outside"), 0o644))
	s.open()
	s.wantOutside(id, outsideChange{named: []string{"b.txt"}})
}

// storeValues changes values of the store, which nobody has open.
func (s *space) storeValues(fn func(tx *checkpoint.Tx) error) {
	s.Helper()
	store, err := checkpoint.Open(filepath.Join(s.dir, overlay.StoreName), checkpoint.Options{})
	s.ok(err)
	s.ok(errors.Join(store.Update(fn), store.Close()))
}

// shiftedClock makes the store say that the clock was ahead of what it is now when the daemon ended, in this run of the system or in another.
func (s *space) shiftedClock(by time.Duration, rebooted bool) {
	s.storeValues(func(tx *checkpoint.Tx) error {
		b, err := tx.Meta("clock")
		if err != nil || len(b) != 16 {
			return errors.Join(err, errors.New("there is no clock"))
		}
		if rebooted {
			b[0] ^= 1
		}
		binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+uint64(by))
		seen, err := tx.Number("seen")
		return errors.Join(err, tx.PutMeta("clock", b), tx.PutNumber("seen", seen+uint64(by)))
	})
}

func TestAChangeWithTheClockSetBackIsFound(t *testing.T) {
	for name, rebooted := range map[string]bool{"the same run": false, "after a reboot": true} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, fillSmall)
			id := s.snapshot()
			s.ok(s.w.Close())
			by := time.Hour
			if rebooted {
				by = 10 * 365 * 24 * time.Hour // as after the battery of the clock is empty
			}
			s.shiftedClock(by, rebooted)
			s.ok(os.WriteFile(filepath.Join(s.dir, "b.txt"), []byte("outside"), 0o644))
			s.open()
			_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			wantCode(t, err, errs.Integrity)
		})
	}
}

// TestAChangeAfterAKillIsFound though the daemon wrote no last beat.
func TestAChangeAfterAKillIsFound(t *testing.T) {
	s := newSpace(t, fillSmall)
	id, _ := s.killedAtWork()
	time.Sleep(1200 * time.Millisecond) // what comes within a second may have been begun by the daemon
	s.ok(os.WriteFile(filepath.Join(s.dir, "dir/c.txt"), []byte("outside"), 0o644))
	s.open()
	s.wantOutside(id, outsideChange{named: []string{"dir/c.txt"}})
}

// TestXattrsSetOutsideAreNotTakenForThoseThatWereSaved with the content, in an epoch before.
func TestXattrsSetOutsideAreNotTakenForThoseThatWereSaved(t *testing.T) {
	for name, refused := range map[string]bool{"dir/c.txt": true, "b.txt": false} { // which had none; had one, that is saved
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, fillSmall)
			before := s.state()
			id := s.snapshot()
			s.overwrite(name, "CHANGED", 0)
			s.snapshot()
			s.ok(s.w.Close())
			s.ok(unix.Setxattr(filepath.Join(s.dir, name), "user.of", []byte("outside"), 0))
			s.open()
			s.overwrite(name, "AGAIN", 0)
			_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			if refused {
				wantCode(t, err, errs.Integrity)
				return
			}
			s.ok(err)
			s.sameTree(before)
		})
	}
}

// TestAStateDoesNotShowXattrsThatWereSetOutside for those of a file whose content was saved before.
func TestAStateDoesNotShowXattrsThatWereSetOutside(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	s.overwrite("dir/c.txt", "CHANGED", 0)
	s.snapshot()
	s.ok(s.w.Close())
	s.ok(unix.Setxattr(filepath.Join(s.dir, "dir/c.txt"), "user.of", []byte("outside"), 0))
	s.open()
	st, err := s.w.OpenCheckpoint(id)
	s.ok(err)
	defer st.Close()
	dir, err := st.Lookup(st.Root(), "dir")
	s.ok(err)
	f, err := st.Lookup(dir.ID, "c.txt")
	s.ok(err)
	if xs, err := st.Xattrs(f.ID); err == nil && len(xs) > 0 {
		t.Errorf("the checkpoint has the xattrs %v", xs)
	}
}

// TestBlocksOverALaterPreimageDoNotMakeUpForAnOutsideChange that is in that.
func TestBlocksOverALaterPreimageDoNotMakeUpForAnOutsideChange(t *testing.T) {
	s := largeSpace(t, "pure-manifest")
	first := s.snapshot()
	s.overwrite("large", "in", 10)
	s.truncate("large", 5000)
	second := s.snapshot()
	s.ok(s.w.Close())
	f, err := os.OpenFile(filepath.Join(s.dir, "large"), os.O_WRONLY, 0)
	s.ok(err)
	_, err = f.WriteAt([]byte("out"), 4000)
	s.ok(errors.Join(err, f.Close()))
	s.open()
	third := s.snapshot()
	s.overwrite("large", "again", 100)
	s.ok(s.w.Drop(context.Background(), second))
	s.ok(s.w.Drop(context.Background(), third))
	_, err = s.w.GC(context.Background())
	s.ok(err)
	wantCode(t, s.w.Patch(context.Background(), first, "", &bytes.Buffer{}), errs.Integrity)
	_, err = s.w.Rollback(context.Background(), first, overlay.RollbackOptions{})
	wantCode(t, err, errs.Integrity)
}
