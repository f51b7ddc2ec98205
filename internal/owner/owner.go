// Package owner says whether a process that has promised to end something is still there.
package owner

import (
	"errors"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// errGone says that there is no such process. Any other failure to look at one says nothing about it.
var errGone = errors.New("there is no such process")

// StartOf gives when a process was started, as a number that a later process with the same PID does not have; 0 where it can't be found out.
func StartOf(pid int) int64 {
	start, err := startOf(pid)
	if err != nil {
		return 0
	}
	return start
}

// Process is an owner; the zero value is nobody. Without a start, nothing is known of it.
type Process struct {
	PID   int
	Start int64 // what StartOf gives
}

// Find gives the process with a PID. Where start is not 0 and the process that is seen here was not started then, the owner can't be seen from here, and is as good as
// nobody. Errors: USAGE, about pid or pid_start, for one that is not there.
func Find(op string, pid int, start int64) (Process, error) {
	switch {
	case pid < 0:
		return Process{}, errs.New(errs.Usage, op, "pid", "%d is negative", pid)
	case pid == 0 && start != 0:
		return Process{}, errs.New(errs.Usage, op, "pid_start", "no pid is given")
	case pid == 0:
		return Process{}, nil
	}
	seen, err := startOf(pid)
	switch {
	case start == 0 && err != nil:
		return Process{}, errs.New(errs.Usage, op, "pid", "process %d: %w", pid, err)
	case start != 0 && (err != nil || seen != start):
		return Process{}, nil
	}
	return Process{pid, seen}, nil
}

// Gone reports whether the owner can't end anything any more. Where that can't be told, they are taken to be there.
func (p Process) Gone() bool {
	if p.PID == 0 || p.Start == 0 {
		return false
	}
	start, err := startOf(p.PID)
	return errors.Is(err, errGone) || err == nil && start != p.Start
}
