package scan

import (
	"path/filepath"
	"unsafe"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/windows"
)

// What winioctl.h and winnt.h have, and x/sys has not.
const (
	fsctlQueryPersistentVolumeState = 0x9023C
	persistentVolumeStateVersion    = 1
	fileSupportsBlockRefcounting    = 0x08000000
)

// persistentVolumeState is FILE_FS_PERSISTENT_VOLUME_INFORMATION.
type persistentVolumeState struct{ flags, mask, version, reserved uint32 }

// volumeAround tells what volume a directory is on, whose path is given too. What the system does not say is unknown.
func volumeAround(d dir, path string) *overlay.WindowsVolume {
	v := unknownVolume()
	var flags uint32
	name := make([]uint16, windows.MAX_PATH+1)
	if windows.GetVolumeInformationByHandle(d.h, nil, 0, nil, nil, &flags, &name[0], uint32(len(name))) == nil {
		v.FileSystem = windows.UTF16ToString(name)
		v.HardLinks = overlay.AnswerOf(flags&windows.FILE_SUPPORTS_HARD_LINKS != 0)
		v.BlockClone = overlay.AnswerOf(flags&fileSupportsBlockRefcounting != 0)
	}
	if state, err := persistentState(d.h); err == nil {
		addState(v, state)
		return v
	}
	// Some filesystems answer on the volume itself alone, which may be opened for that by everybody.
	device, err := windows.UTF16PtrFromString(`\\.\` + filepath.VolumeName(path))
	if err != nil {
		return v
	}
	h, err := windows.CreateFile(device, 0, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE, nil, windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		return v
	}
	defer windows.CloseHandle(h)
	if state, err := persistentState(h); err == nil {
		addState(v, state)
	}
	return v
}

// persistentState asks for the flags of a volume. Systems that do not know the flags that are asked for refuse to answer.
func persistentState(h windows.Handle) (uint32, error) {
	in := persistentVolumeState{mask: persistentVolumeStateDev | persistentVolumeStateTrusted, version: persistentVolumeStateVersion}
	out, n := persistentVolumeState{}, uint32(0)
	err := windows.DeviceIoControl(h, fsctlQueryPersistentVolumeState, (*byte)(unsafe.Pointer(&in)), uint32(unsafe.Sizeof(in)),
		(*byte)(unsafe.Pointer(&out)), uint32(unsafe.Sizeof(out)), &n, nil)
	if err == nil && n < uint32(unsafe.Sizeof(out)) {
		err = windows.ERROR_INSUFFICIENT_BUFFER
	}
	return out.flags, err
}
