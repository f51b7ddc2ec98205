//go:build unix

package control

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// usage gives the CPU time of this process, and the most memory in bytes that it has had.
func usage() (user, system time.Duration, maxRSS int64) {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0, 0, 0
	}
	unit := int64(1024)
	if runtime.GOOS == "darwin" {
		unit = 1
	}
	return time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano()), int64(r.Maxrss) * unit
}
