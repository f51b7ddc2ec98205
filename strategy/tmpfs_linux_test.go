package strategy_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/strategy"
)

func TestTmpfsConforms(t *testing.T) {
	conform(t, strategy.Tmpfs, t.TempDir(), strategy.Options{})
}

// sessions are the names of all sessions in RAM.
func sessions(t *testing.T, ram string) []string {
	t.Helper()
	return entries(t, ram)
}

// abandon opens the tier tmpfs on dir, saves a preimage, and lets go of it as a daemon that was killed does.
func abandon(t *testing.T, dir, ram string) strategy.Ref {
	t.Helper()
	o := strategy.Options{RAM: ram}
	s := open(t, strategy.Tmpfs, dir, o)
	ref, err := s.Save(writeFile(t, filepath.Join(dir, "file"), 10000), "preimage")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return ref
}

func TestPreimagesInRAMAreFoundByTheNextDaemon(t *testing.T) {
	dir, ram := t.TempDir(), ramDir(t)
	ref := abandon(t, dir, ram)
	s, err := strategy.OpenSaved(strategy.Tmpfs, backupDir(t, dir), strategy.Options{RAM: ram})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	dst := writeFile(t, filepath.Join(dir, "dst"), 5)
	if err := errors.Join(s.Verify(ref), s.Restore(ref, dst)); err != nil {
		t.Fatal(err)
	}
	want, _ := os.ReadFile(filepath.Join(dir, "file"))
	if got, _ := os.ReadFile(dst.Name()); !bytes.Equal(got, want) {
		t.Error("the file isn't what was saved")
	}
}

func TestASessionWithoutPreimagesGoesAwayAtTheEnd(t *testing.T) {
	dir, ram := t.TempDir(), ramDir(t)
	ref := abandon(t, dir, ram)
	if got := sessions(t, ram); len(got) != 1 {
		t.Fatalf("there are the sessions %v", got)
	}
	s := open(t, strategy.Tmpfs, dir, strategy.Options{RAM: ram})
	if err := errors.Join(s.Remove(ref), s.Close()); err != nil {
		t.Fatal(err)
	}
	if got := sessions(t, ram); len(got) != 0 {
		t.Errorf("there is left %v", got)
	}
}

func TestPreimagesThatARebootTookAreMissing(t *testing.T) {
	dir, ram := t.TempDir(), ramDir(t)
	ref := abandon(t, dir, ram)
	for _, name := range sessions(t, ram) {
		if err := os.RemoveAll(filepath.Join(ram, name)); err != nil {
			t.Fatal(err)
		}
	}
	o := strategy.Options{RAM: ram}
	if _, err := strategy.OpenSaved(strategy.Tmpfs, backupDir(t, dir), o); !errors.Is(err, strategy.ErrMissing) {
		t.Errorf("OpenSaved says %v", err)
	}
	s := open(t, strategy.Tmpfs, dir, o)
	defer func() { _ = s.Close() }()
	if err := s.Verify(ref); !errors.Is(err, strategy.ErrMissing) {
		t.Errorf("Verify says %v", err)
	}
}

func TestASessionOfALiveDaemonIsRefused(t *testing.T) {
	dir, o := t.TempDir(), strategy.Options{RAM: ramDir(t)}
	s := open(t, strategy.Tmpfs, dir, o)
	defer func() { _ = s.Close() }()
	if _, _, err := strategy.Open(strategy.Tmpfs, backupDir(t, dir), o); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("a second one says %v", err)
	}
}

// TestStaleSessions has the sessions of several stores, and looks which are left when another daemon starts.
func TestStaleSessions(t *testing.T) {
	move := func(t *testing.T, dir string) {
		if err := os.Rename(dir, dir+"-moved"); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(t *testing.T, dir string) {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		age    time.Duration
		kept   bool
	}{
		"a store that is there":                     {func(*testing.T, string) {}, 1000 * time.Hour, true},
		"a store that was removed just now":         {remove, time.Hour, true},
		"a store that was moved just now":           {move, time.Hour, true},
		"a store that was removed long ago":         {remove, 25 * time.Hour, false},
		"a store in whose place there is a new one": {func(t *testing.T, dir string) { remove(t, dir); backupDir(t, dir) }, 25 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, ram := filepath.Join(t.TempDir(), "store"), ramDir(t)
			backupDir(t, dir)
			abandon(t, dir, ram)
			c.change(t, dir)
			old := time.Now().Add(-c.age)
			session := filepath.Join(ram, sessions(t, ram)[0])
			if err := os.Chtimes(session, old, old); err != nil {
				t.Fatal(err)
			}
			other := open(t, strategy.Tmpfs, t.TempDir(), strategy.Options{RAM: ram})
			defer func() { _ = other.Close() }()
			if _, err := os.Stat(session); (err == nil) != c.kept {
				t.Errorf("kept: %v, want %v", err == nil, c.kept)
			}
		})
	}
}

func TestASessionOfALiveDaemonIsNotCollected(t *testing.T) {
	dir, o := filepath.Join(t.TempDir(), "store"), strategy.Options{RAM: ramDir(t)}
	backupDir(t, dir)
	s := open(t, strategy.Tmpfs, dir, o)
	defer func() { _ = s.Close() }()
	session := filepath.Join(o.RAM, sessions(t, o.RAM)[0])
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-1000 * time.Hour)
	if err := os.Chtimes(session, old, old); err != nil {
		t.Fatal(err)
	}
	other := open(t, strategy.Tmpfs, t.TempDir(), o)
	defer func() { _ = other.Close() }()
	if _, err := os.Stat(session); err != nil {
		t.Error(err)
	}
}

func TestASessionWhoseFilesystemIsNotMountedIsKept(t *testing.T) {
	disk, ram := testfs.Tmpfs(t, 1<<20), ramDir(t)
	dir := filepath.Join(disk, "store")
	backupDir(t, dir)
	abandon(t, dir, ram)
	session := filepath.Join(ram, sessions(t, ram)[0])
	old := time.Now().Add(-1000 * time.Hour)
	if err := os.Chtimes(session, old, old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, ""); err != nil { // hides it, as if it were not there
		t.Fatal(err)
	}
	defer func() { _ = syscall.Unmount(disk, 2) }()
	other := open(t, strategy.Tmpfs, t.TempDir(), strategy.Options{RAM: ram})
	defer func() { _ = other.Close() }()
	if _, err := os.Stat(session); err != nil {
		t.Error(err)
	}
}

func TestTmpfsLeavesRoomForOthers(t *testing.T) {
	ram, dir := testfs.Tmpfs(t, 4<<20), t.TempDir()
	o := strategy.Options{RAM: filepath.Join(ram, "hyperfs")}
	s := open(t, strategy.Tmpfs, dir, o)
	defer func() { _ = s.Close() }()
	large := writeFile(t, filepath.Join(dir, "large"), 4<<20-100<<10)
	if _, err := s.Save(large, "large"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Save says %v", err)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(ram, &fs); err != nil || fs.Blocks-fs.Bfree > 16 {
		t.Errorf("%d blocks are in use after that (%v)", fs.Blocks-fs.Bfree, err)
	}
	if _, err := s.Save(writeFile(t, filepath.Join(dir, "small"), 1<<20), "small"); err != nil {
		t.Error(err)
	}
}

func TestTmpfsIsNotHadWhere(t *testing.T) {
	tmpfs := testfs.Tmpfs(t, 4<<20)
	for name, o := range map[string]strategy.Options{
		"it is no RAM":           {RAM: filepath.Join(t.TempDir(), "disk")},
		"others can write":       {RAM: tmpfs},
		"it is to survive power": {RAM: filepath.Join(tmpfs, "hyperfs"), Sync: true},
	} {
		if _, _, err := strategy.Open(strategy.Tmpfs, backupDir(t, t.TempDir()), o); errs.CodeOf(err) != errs.Unsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := testfs.Tmpfs(t, 64<<10)
	_, _, err := strategy.Open(strategy.Tmpfs, backupDir(t, t.TempDir()), strategy.Options{RAM: filepath.Join(full, "hyperfs")})
	if errs.CodeOf(err) != errs.Capacity {
		t.Errorf("a full one: %v", err)
	}
}

func TestAutoGoesOnWhereTheSessionCannotBeHad(t *testing.T) {
	dir, o := testfs.Ext4(t, 0), strategy.Options{RAM: ramDir(t)}
	first := open(t, strategy.Tmpfs, dir, o)
	defer func() { _ = first.Close() }()
	s := open(t, strategy.Auto, dir, o)
	defer func() { _ = s.Close() }()
	if s.Kind() != strategy.PosixLink {
		t.Errorf("auto opens %s", s.Kind())
	}
}
