package crash

import (
	"os"
	"syscall"
)

// die ends the process at once: no deferred call runs, no buffer is flushed. It does not return.
func die() {
	self, err := syscall.GetCurrentProcess()
	if err == nil {
		_ = syscall.TerminateProcess(self, 137)
	}
	os.Exit(137)
}
