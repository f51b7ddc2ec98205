package fs

import (
	"fmt"
	"os"
)

// readahead is how much the kernel reads ahead of a program, in KiB: one request. Its default for FUSE is 128 KiB, which
// the protocol can lower but not raise.
const readahead = maxWrite >> 10

// raiseReadahead raises it as root can, for files that are read through the daemon. Where it can't be, reads take more requests.
func raiseReadahead(mountpoint string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	device := topMount(string(mounts), mountpoint).device
	return os.WriteFile("/sys/class/bdi/"+device+"/read_ahead_kb", fmt.Append(nil, readahead), 0)
}
