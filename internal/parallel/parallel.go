// Package parallel does the same to many things at once.
package parallel

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// maxWorkers bounds what one call takes of the machine: what it waits for is the filesystem underneath, whose locks more
// workers would only wait for.
const maxWorkers = 4

// Each calls fn for every item, from as many goroutines as there are processors. After an error it calls fn no more, and
// gives the error; what has begun by then is finished first.
func Each[T any](items []T, fn func(T) error) error {
	workers := min(runtime.GOMAXPROCS(0), maxWorkers, len(items))
	if workers < 2 {
		for _, item := range items {
			if err := fn(item); err != nil {
				return err
			}
		}
		return nil
	}
	var next atomic.Int64
	var first atomic.Pointer[error]
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for first.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(items) {
					return
				}
				if err := fn(items[i]); err != nil {
					first.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}
