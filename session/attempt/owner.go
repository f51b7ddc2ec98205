package attempt

import "github.com/hyperfs/hyperfs/internal/owner"

// StartOf gives when a process was started, as a number that a later process with the same PID does not have; 0 where it can't be found out.
func StartOf(pid int) int64 { return owner.StartOf(pid) }
