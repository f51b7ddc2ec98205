package scan

import "github.com/hyperfs/hyperfs/overlay"

// Flags of FILE_FS_PERSISTENT_VOLUME_INFORMATION, as winioctl.h has them since Windows 11.
const (
	persistentVolumeStateDev     = 0x2000
	persistentVolumeStateTrusted = 0x4000
)

// unknownVolume is what is known before anything was asked.
func unknownVolume() *overlay.WindowsVolume {
	return &overlay.WindowsVolume{HardLinks: overlay.Unknown, BlockClone: overlay.Unknown, DevDrive: overlay.Unknown, Trusted: overlay.Unknown}
}

// addState takes over what the persistent state of a volume says. Trust is a matter of Dev Drives alone.
func addState(v *overlay.WindowsVolume, flags uint32) {
	dev := flags&persistentVolumeStateDev != 0
	v.DevDrive = overlay.AnswerOf(dev)
	v.Trusted = overlay.AnswerOf(dev && flags&persistentVolumeStateTrusted != 0)
}
