//go:build linux

package overlay

import (
	"slices"
	"testing"

	"github.com/hyperfs/hyperfs/strategy"
)

func TestADurableTierDegradesToRAMOnlyIfThatWasLeftOpen(t *testing.T) {
	for _, c := range []struct {
		noRAM bool
		from  strategy.Kind
		want  []strategy.Kind
	}{
		{false, strategy.Reflink, []strategy.Kind{strategy.Tmpfs, strategy.PosixLink, strategy.PureManifest}},
		{true, strategy.Reflink, []strategy.Kind{strategy.PosixLink, strategy.PureManifest}},
		{true, strategy.Tmpfs, []strategy.Kind{strategy.PosixLink, strategy.PureManifest}},
		{false, strategy.PureManifest, nil},
	} {
		if got := (&tiers{noRAM: c.noRAM}).below(c.from); !slices.Equal(got, c.want) {
			t.Errorf("below %s there are %v, want %v", c.from, got, c.want)
		}
	}
}
