package owner

import (
	"errors"

	"golang.org/x/sys/unix"
)

// startOf gives the start of a process in microseconds since 1970.
func startOf(pid int) (int64, error) {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.ESRCH) { // EIO: the kernel has answered with nothing
		return 0, errGone
	}
	if err != nil {
		return 0, err
	}
	return p.Proc.P_starttime.Sec*1e6 + int64(p.Proc.P_starttime.Usec), nil
}
