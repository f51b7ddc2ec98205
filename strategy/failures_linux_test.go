package strategy_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/strategy"
)

// writeFile makes a file of n bytes and opens it for reading and writing.
func writeFile(t testing.TB, path string, n int) *os.File {
	t.Helper()
	if err := os.WriteFile(path, bytes.Repeat([]byte("hyperfs\n"), n/8+1)[:n], 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestFullFilesystemLeavesNothingBehind(t *testing.T) {
	dir, small := t.TempDir(), testfs.Tmpfs(t, 1<<20)
	s := open(t, strategy.PureManifest, small, strategy.Options{})
	defer func() { _ = s.Close() }()
	for name, size := range map[string]int{"large": 4 << 20, "medium": 2 << 20} {
		if _, err := s.Save(writeFile(t, filepath.Join(dir, name), size), name); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Save says %v", err)
		}
	}
	if got := entries(t, filepath.Join(small, "backup")); len(got) != 0 {
		t.Errorf("there is left %v", got)
	}
	ref, err := s.Save(writeFile(t, filepath.Join(dir, "small"), 600<<10), "small")
	if err != nil {
		t.Fatalf("there is no space after a failed Save: %v", err)
	}
	target, err := os.Open(small)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Close() }()
	if err := s.Materialize(ref, int(target.Fd()), "made", false); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Materialize says %v", err)
	}
	if got := entries(t, small); len(got) != 1 {
		t.Errorf("there is left %v", got)
	}
}

func TestRestoreWorksOnAFullFilesystem(t *testing.T) {
	dir := testfs.Tmpfs(t, 2<<20)
	s := open(t, strategy.PureManifest, dir, strategy.Options{})
	f := writeFile(t, filepath.Join(dir, "file"), 800<<10)
	ref, err := s.Save(f, "preimage")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 300<<10), 1000); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 4<<20), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the filesystem could not be filled: %v", err)
	}
	s, probes, err := strategy.Open(strategy.Auto, backupDir(t, dir), strategy.Options{NoRAM: true})
	if err != nil {
		t.Fatalf("no tier opens on a full filesystem: %v; probes %v", err, probes)
	}
	defer func() { _ = s.Close() }()
	if err := s.Restore(ref, f); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.Repeat([]byte("hyperfs\n"), 100<<10)) {
		t.Error("the file isn't what was saved")
	}
}

func TestReadOnlyFilesystem(t *testing.T) {
	dir := testfs.Tmpfs(t, 1<<20)
	src := writeFile(t, filepath.Join(t.TempDir(), "file"), 100)
	s := open(t, strategy.PureManifest, dir, strategy.Options{})
	defer func() { _ = s.Close() }()
	ref, err := s.Save(src, "preimage")
	if err != nil {
		t.Fatal(err)
	}
	testfs.ReadOnly(t, dir)
	if _, err := s.Save(src, "other"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("Save says %v", err)
	}
	if err := s.Verify(ref); err != nil {
		t.Error(err)
	}
	if err := s.Restore(ref, src); err != nil {
		t.Error(err)
	}
	_, probes, err := strategy.Open(strategy.Auto, backupDir(t, dir), strategy.Options{NoRAM: true})
	if !errors.Is(err, syscall.EROFS) || errs.CodeOf(err) != errs.Unsupported {
		t.Errorf("Open says %v", err)
	}
	if len(probes) != len(strategy.Kinds()) || strings.Contains(err.Error(), "\n") {
		t.Errorf("probes %v, error %q", probes, err)
	}
}

func TestAutoTakesTheBestTierThatWorks(t *testing.T) {
	for name, c := range map[string]struct {
		mount func(testing.TB, int64) string
		o     strategy.Options
		want  strategy.Kind
	}{
		"btrfs":                 {testfs.Btrfs, strategy.Options{}, strategy.Reflink},
		"xfs":                   {testfs.XFS, strategy.Options{}, strategy.Reflink},
		"ext4":                  {testfs.Ext4, strategy.Options{}, strategy.Tmpfs},
		"ext4 without RAM":      {testfs.Ext4, strategy.Options{NoRAM: true}, strategy.PosixLink},
		"ext4, to survive all":  {testfs.Ext4, strategy.Options{Sync: true}, strategy.PosixLink},
		"ext4 with RAM missing": {testfs.Ext4, strategy.Options{RAM: "/proc/none"}, strategy.PosixLink},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.mount(t, 0)
			for _, kind := range []strategy.Kind{"", strategy.Auto} {
				s := open(t, kind, dir, c.o)
				if s.Kind() != c.want {
					t.Errorf("%q opens %s, want %s", kind, s.Kind(), c.want)
				}
				_ = s.Close()
			}
			if got := entries(t, filepath.Join(dir, "backup")); len(got) != 0 && !(c.want.Volatile() && slices.Equal(got, []string{".session"})) {
				t.Errorf("the probes left %v", got)
			}
		})
	}
}

func TestATierThatCannotBeHadIsRefused(t *testing.T) {
	dir := testfs.Tmpfs(t, 1<<20)
	_, probes, err := strategy.Open(strategy.Reflink, backupDir(t, dir), strategy.Options{})
	if errs.CodeOf(err) != errs.Unsupported || !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("Open says %v", err)
	}
	if !strings.Contains(err.Error(), "FICLONE") {
		t.Errorf("the error doesn't say what was tried: %v", err)
	}
	if len(probes) != len(strategy.Kinds()) || probes[0].Kind != strategy.Reflink || probes[0].OK || !probes[len(probes)-1].OK {
		t.Errorf("the probes are %+v", probes)
	}
	if _, _, err := strategy.Open("floppy", backupDir(t, dir), strategy.Options{}); errs.CodeOf(err) != errs.Unsupported {
		t.Errorf("an unknown tier says %v", err)
	}
}

func TestATrialThatWasCutOffIsNoObstacle(t *testing.T) {
	dir := t.TempDir()
	backup := backupDir(t, dir)
	for _, name := range []string{".trial-src", ".trial-dst"} {
		writeFile(t, filepath.Join(backup.Name(), name), 10)
	}
	s := open(t, strategy.PureManifest, dir, strategy.Options{})
	defer func() { _ = s.Close() }()
	if got := entries(t, backup.Name()); len(got) != 0 {
		t.Errorf("there is left %v", got)
	}
}

func TestEachDurableTierTakesTheOthersPreimages(t *testing.T) {
	dir := testfs.Btrfs(t, 0)
	kinds := []strategy.Kind{strategy.Reflink, strategy.PosixLink, strategy.PureManifest}
	for i, from := range kinds {
		src := writeFile(t, filepath.Join(dir, "src"), 100000)
		s := open(t, from, dir, strategy.Options{})
		ref, err := s.Save(src, string(from))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
		other := open(t, kinds[(i+1)%len(kinds)], dir, strategy.Options{})
		dst := writeFile(t, filepath.Join(dir, "dst"), 5)
		if err := errors.Join(other.Verify(ref), other.Restore(ref, dst), other.Remove(ref)); err != nil {
			t.Error(err)
		}
		_ = other.Close()
		want, _ := os.ReadFile(src.Name())
		if got, _ := os.ReadFile(dst.Name()); !bytes.Equal(got, want) {
			t.Errorf("a preimage of %s came back changed", from)
		}
	}
}

func TestReflinkCopiesWhatCannotBeCloned(t *testing.T) {
	dir, elsewhere := testfs.Btrfs(t, 0), testfs.Tmpfs(t, 1<<20)
	s := open(t, strategy.Reflink, dir, strategy.Options{})
	defer func() { _ = s.Close() }()
	f := writeFile(t, filepath.Join(elsewhere, "file"), 100000)
	want, _ := os.ReadFile(f.Name())
	ref, err := s.Save(f, "preimage")
	if err != nil {
		t.Fatal(err)
	}
	if !ref.HasSum {
		t.Error("the bytes were read, but there is no checksum")
	}
	if err := os.WriteFile(f.Name(), []byte("changed"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(ref, f); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(f.Name()); !bytes.Equal(got, want) {
		t.Error("the file isn't what was saved")
	}
}

func TestMaterializeOnAnotherFilesystemCopies(t *testing.T) {
	dir, elsewhere := t.TempDir(), testfs.Tmpfs(t, 1<<20)
	s := open(t, strategy.PureManifest, dir, strategy.Options{})
	defer func() { _ = s.Close() }()
	ref, err := s.Save(writeFile(t, filepath.Join(dir, "file"), 100000), "preimage")
	if err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if err := s.Materialize(ref, int(d.Fd()), "made", true); err != nil {
		t.Fatal(err)
	}
	want, _ := os.ReadFile(filepath.Join(dir, "file"))
	if got, _ := os.ReadFile(filepath.Join(elsewhere, "made")); !bytes.Equal(got, want) {
		t.Error("the file isn't what was saved")
	}
	if err := s.Materialize(ref, int(d.Fd()), "made", true); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a taken name says %v", err)
	}
}

func TestRestoreMakesHolesWhereNoneCanBePunched(t *testing.T) {
	dir := testfs.Ramfs(t)
	s := open(t, strategy.PureManifest, t.TempDir(), strategy.Options{})
	defer func() { _ = s.Close() }()
	src := writeFile(t, filepath.Join(t.TempDir(), "src"), 5000)
	if err := src.Truncate(3 << 20); err != nil {
		t.Fatal(err)
	}
	ref, err := s.Save(src, "preimage")
	if err != nil {
		t.Fatal(err)
	}
	dst := writeFile(t, filepath.Join(dir, "dst"), 4<<20)
	if err := s.Restore(ref, dst); err != nil {
		t.Fatal(err)
	}
	want, _ := os.ReadFile(src.Name())
	if got, _ := os.ReadFile(dst.Name()); !bytes.Equal(got, want) {
		t.Error("the file isn't what was saved")
	}
}

func TestAFifoInPlaceOfAPreimageIsDamageAndHoldsNobodyUp(t *testing.T) {
	dir := t.TempDir()
	s := open(t, strategy.PureManifest, dir, strategy.Options{})
	defer func() { _ = s.Close() }()
	if err := syscall.Mkfifo(filepath.Join(dir, "backup", "preimage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(strategy.Ref{Tier: strategy.PureManifest, Name: "preimage"}); !errors.Is(err, strategy.ErrCorrupt) {
		t.Errorf("Verify says %v", err)
	}
}

func TestTheDirectoryMayBeClosedAfterOpen(t *testing.T) {
	dir := t.TempDir()
	backup := backupDir(t, dir)
	s, _, err := strategy.Open(strategy.PureManifest, backup, strategy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := backup.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Save(writeFile(t, filepath.Join(dir, "file"), 10), "preimage"); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
