package owner

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// startOf gives the start of a process in clock ticks since boot. One that has ended and is not waited for is gone.
func startOf(pid int) (int64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0, errGone
	}
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything. Behind the last one: state, and as the 20th the start.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 {
		return 0, errors.New("/proc cannot be read")
	}
	if f[0] == "Z" || f[0] == "X" {
		return 0, errGone
	}
	return strconv.ParseInt(f[19], 10, 64)
}
