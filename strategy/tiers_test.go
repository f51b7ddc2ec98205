package strategy_test

import (
	"os"
	"path/filepath"
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

func open(t testing.TB, kind strategy.Kind, dir string, o strategy.Options) strategy.Strategy {
	t.Helper()
	s, _, err := strategy.Open(kind, backupDir(t, dir), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// conform runs the conformance test for one tier on the filesystem of dir.
func conform(t *testing.T, kind strategy.Kind, dir string, o strategy.Options) {
	strategytest.Run(t, func(t *testing.T) (strategy.Strategy, string) {
		own, err := os.MkdirTemp(dir, "case")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(own) })
		return open(t, kind, own, o), own
	})
}

func TestPureManifestConforms(t *testing.T) {
	conform(t, strategy.PureManifest, t.TempDir(), strategy.Options{})
}

func TestPureManifestConformsWithSync(t *testing.T) {
	conform(t, strategy.PureManifest, t.TempDir(), strategy.Options{Sync: true})
}
