package strategy_test

import (
	"testing"

	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/strategy"
)

func TestTiersConformOnEachFilesystem(t *testing.T) {
	const size = 512 << 20
	others := strategy.Kinds()[1:] // all but reflink
	for _, c := range []struct {
		name  string
		mount func(testing.TB, int64) string
		kinds []strategy.Kind
	}{
		{"btrfs", testfs.Btrfs, strategy.Kinds()},
		{"xfs", testfs.XFS, strategy.Kinds()},
		{"ext4", testfs.Ext4, others},
		{"tmpfs", testfs.Tmpfs, others},
		{"overlay", func(t testing.TB, _ int64) string { return testfs.Overlay(t, nil) }, others},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.mount(t, size)
			for _, kind := range c.kinds {
				t.Run(string(kind), func(t *testing.T) { conform(t, kind, dir, strategy.Options{}) })
			}
		})
	}
}
