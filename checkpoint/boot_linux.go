package checkpoint

import (
	"hash/fnv"
	"os"
	"sync"
)

// bootID tells this run of the system from others.
var bootID = sync.OnceValue(func() uint64 {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(b)
	return max(h.Sum64(), 1)
})
