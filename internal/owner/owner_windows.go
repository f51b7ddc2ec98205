package owner

import (
	"errors"

	"golang.org/x/sys/windows"
)

// stillActive is the exit code of a process that has not ended (STILL_ACTIVE).
const stillActive = 259

// startOf gives the start of a process in units of 100 ns since 1601.
func startOf(pid int) (int64, error) {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) {
		return 0, errGone
	}
	if err != nil {
		return 0, err
	}
	defer windows.CloseHandle(h)
	var code uint32
	if err := windows.GetExitCodeProcess(h, &code); err != nil {
		return 0, err
	}
	if code != stillActive {
		return 0, errGone
	}
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return 0, err
	}
	return int64(created.HighDateTime)<<32 | int64(created.LowDateTime), nil
}
