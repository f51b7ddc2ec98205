package attempt

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

// owner is the process that is going to end an attempt; the zero value is nobody.
type owner struct {
	pid   int
	start int64
}

func (o Options) owner() (owner, error) {
	switch {
	case o.PID < 0:
		return owner{}, errs.New(errs.Usage, op, "pid", "%d is negative", o.PID)
	case o.PID == 0 && o.PIDStart != 0:
		return owner{}, errs.New(errs.Usage, op, "pid_start", "no pid is given")
	case o.PID == 0:
		return owner{}, nil
	}
	start, err := startOf(o.PID)
	switch {
	case o.PIDStart == 0 && err != nil:
		return owner{}, errs.New(errs.Usage, op, "pid", "process %d: %w", o.PID, err)
	case o.PIDStart != 0 && (err != nil || start != o.PIDStart):
		return owner{}, nil
	}
	return owner{o.PID, start}, nil
}

// gone reports whether the owner can't end anything any more. Where that can't be told, they are taken to be there.
func (o owner) gone() bool {
	if o.pid == 0 {
		return false
	}
	start, err := startOf(o.pid)
	return errors.Is(err, errGone) || err == nil && start != o.start
}
