package strategy_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/strategy"
	"github.com/hyperfs/hyperfs/strategy/strategytest"
)

// backupDir makes and opens dir/backup.
func backupDir(t testing.TB, dir string) *os.File {
	t.Helper()
	backup := filepath.Join(dir, "backup")
	if err := os.MkdirAll(backup, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(backup)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// open opens a tier with its durable preimages in dir/backup, and those in RAM in a directory of their own if o names none.
func open(t testing.TB, kind strategy.Kind, dir string, o strategy.Options) strategy.Strategy {
	t.Helper()
	if o.RAM == "" {
		o.RAM = ramDir(t)
	}
	s, _, err := strategy.Open(kind, backupDir(t, dir), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// conform runs the conformance test for one tier on the filesystem of dir.
func conform(t *testing.T, kind strategy.Kind, dir string, o strategy.Options) {
	strategytest.Run(t, func(t *testing.T) (strategy.Strategy, string, strategytest.Kept) {
		own, err := os.MkdirTemp(dir, "case")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(own) })
		o := o
		o.RAM = ramDir(t)
		return open(t, kind, own, o), own, strategytest.Kept{Dir: keptIn(t, kind, own, o)}
	})
}

// keptIn is where a tier keeps its preimages.
func keptIn(t testing.TB, kind strategy.Kind, dir string, o strategy.Options) string {
	t.Helper()
	backup := filepath.Join(dir, "backup")
	if !kind.Volatile() {
		return backup
	}
	id, err := os.ReadFile(filepath.Join(backup, ".session"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(o.RAM, strings.TrimSpace(string(id)))
}

// ramDir makes a directory for preimages in RAM, where there is such a thing.
func ramDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hyperfs-test-")
	if err != nil {
		return filepath.Join(t.TempDir(), "no-ram")
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestPureManifestConforms(t *testing.T) {
	conform(t, strategy.PureManifest, t.TempDir(), strategy.Options{})
}

func TestPureManifestConformsWithSync(t *testing.T) {
	conform(t, strategy.PureManifest, t.TempDir(), strategy.Options{Sync: true})
}

func TestLinkConforms(t *testing.T) {
	kind := strategy.PosixLink
	if runtime.GOOS == "windows" {
		kind = strategy.NtfsLink
	}
	conform(t, kind, t.TempDir(), strategy.Options{})
}
