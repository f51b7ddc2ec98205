package control

import (
	"time"

	"golang.org/x/sys/windows"
)

// usage gives the CPU time of this process.
func usage() (user, system time.Duration, maxRSS int64) {
	var created, exited, kernel, inUser windows.Filetime
	if windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &inUser) != nil {
		return 0, 0, 0
	}
	return elapsed(inUser), elapsed(kernel), 0
}

// elapsed is a time that is no date: it counts 100 ns.
func elapsed(t windows.Filetime) time.Duration {
	return time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime)) * 100
}
