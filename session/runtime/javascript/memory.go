package javascript

import (
	goruntime "runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// watchEvery is how often the heap is looked at.
const watchEvery = 10 * time.Millisecond

// watch interrupts the program when the heap of the whole process has grown by more than the limit. The function ends that, and waits for it.
func (e *engine) watch() (end func()) {
	if e.limits.Memory == 0 {
		return func() {}
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	before := heap()
	watching.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			if heap()-before <= e.limits.Memory {
				continue
			}
			goruntime.GC() // much of it may be garbage
			if heap()-before > e.limits.Memory {
				e.vm.Interrupt(errMemory)
				return
			}
		}
	})
	return func() {
		close(over)
		watching.Wait()
	}
}

// heap gives the bytes of objects in the heap of this process, dead ones too.
func heap() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
