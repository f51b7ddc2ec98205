package scan

import (
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
)

func TestVolumeStateTellsDevDrives(t *testing.T) {
	for _, c := range []struct {
		flags        uint32
		dev, trusted overlay.Answer
	}{
		{0, overlay.No, overlay.No},
		{persistentVolumeStateDev, overlay.Yes, overlay.No},
		{persistentVolumeStateDev | persistentVolumeStateTrusted, overlay.Yes, overlay.Yes},
		{persistentVolumeStateTrusted | 1, overlay.No, overlay.No},
	} {
		v := unknownVolume()
		if v.DevDrive != overlay.Unknown || v.Trusted != overlay.Unknown {
			t.Errorf("before it is asked: %+v", v)
		}
		if addState(v, c.flags); v.DevDrive != c.dev || v.Trusted != c.trusted || v.HardLinks != overlay.Unknown {
			t.Errorf("%#x: %+v", c.flags, v)
		}
	}
}
