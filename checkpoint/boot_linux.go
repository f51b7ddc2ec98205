package checkpoint

import (
	"hash/fnv"
	"os"
	"sync"
)

// BootID tells this run of the system from others; 0 says that it can't.
func BootID() uint64 { return boot() }

var boot = sync.OnceValue(func() uint64 {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(b)
	return max(h.Sum64(), 1)
})
