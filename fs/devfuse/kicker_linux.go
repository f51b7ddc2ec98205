package devfuse

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// kicker has a program leave a CPU. It is a thread that gets something to do there, so that for a moment the CPU is not idle. If the program is woken just then, the kernel looks for another
// one, and first of all at where it was before (recent_used_cpu in select_idle_sibling of kernel/sched/fair.c).
type kicker struct {
	bell  bell // which it waits for
	tid   atomic.Int32
	ended atomic.Bool
	over  chan struct{} // closed when it is
	cpu   int           // where it is bound; only who kicks uses it
}

// newKicker starts a kicker, which Wait waits for. Who gets it ends it.
func (p *Pool) newKicker() (*kicker, error) {
	bell, err := newBell(0)
	if err != nil {
		return nil, err
	}
	k := &kicker{bell: bell, over: make(chan struct{}), cpu: nowhere}
	p.all.Go(k.run)
	return k, nil
}

func (k *kicker) run() {
	runtime.LockOSThread() // for good: the thread, which is bound to a CPU, ends with the goroutine
	k.tid.Store(int32(unix.Gettid()))
	for !k.ended.Load() {
		k.bell.hear()
	}
	close(k.over)
}

// kick keeps a CPU from being idle for some microseconds. Only one goroutine may call it, and end.
func (k *kicker) kick(cpu int) {
	tid := int(k.tid.Load())
	if tid == 0 {
		return
	}
	if k.cpu != cpu {
		if bind(tid, cpu) != nil {
			return
		}
		k.cpu = cpu
	}
	k.bell.ring()
}

// end ends it.
func (k *kicker) end() {
	k.ended.Store(true)
	k.bell.ring()
	<-k.over
	_ = k.bell.close()
}
