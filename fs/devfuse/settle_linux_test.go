package devfuse

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSettleWaitsForTheWritesThatThereAre has some writes wait, and others come all the time.
func TestSettleWaitsForTheWritesThatThereAre(t *testing.T) {
	k := newKernel(t)
	var answered sync.WaitGroup
	answered.Go(func() {
		for {
			if h, _ := k.answer(); h.Unique == last {
				return
			}
		}
	})
	k.send(opStall, 999, 7, "") // no write: nobody waits for it
	for i := range 5 {
		k.send([]uint32{opcodeWrite, opcodeSetattr}[i%2], uint64(1000+i), 7, "")
	}
	var asked atomic.Uint64
	settled := make(chan struct{})
	go func() {
		k.pool.Settle(func() { k.send(opEcho, 2000+asked.Add(1), 9, ""); time.Sleep(time.Millisecond) })
		close(settled)
	}()
	k.until("they are written", func() bool { return k.waiting.Load() == 6 }, sleep)
	select {
	case <-settled:
		t.Fatal("it does not wait")
	case <-time.After(50 * time.Millisecond):
	}
	for range 5 {
		k.gate <- struct{}{}
	}
	<-settled
	close(k.stall)
	k.send(opEcho, last, 7, "")
	answered.Wait()
	if asked.Load() == 0 {
		t.Error("it asked for nothing")
	}
}

// last is the request after which no answers are read.
const last = 9999

// TestSettleKnowsNothingFromBeforeItsFirstNudge has a worker that seemed to wait for a request take one that was there, and then a WRITE that was there too. That it has the WRITE, it says only later.
func TestSettleKnowsNothingFromBeforeItsFirstNudge(t *testing.T) {
	w := &worker{}
	p := &Pool{workers: map[*worker]struct{}{w: {}}}
	w.reading.Store(true)
	w.taken.Store(5)
	var nudges atomic.Int32
	var written atomic.Bool
	var all sync.WaitGroup
	p.Settle(func() {
		switch nudges.Add(1) {
		case 1:
			w.taken.Add(1) // it has read both, and answered the first
		case 3:
			w.writing.Store(true)
			w.taken.Add(1)
			w.reading.Store(false)
			all.Go(func() {
				time.Sleep(20 * time.Millisecond)
				written.Store(true)
				w.writing.Store(false)
			})
		}
	})
	if !written.Load() {
		t.Errorf("the write was not waited for, after %d nudges", nudges.Load())
	}
	all.Wait()
}

func TestSettleEndsWithTheConnection(t *testing.T) {
	k := newKernel(t)
	settled := make(chan struct{})
	go func() {
		k.pool.Settle(func() { time.Sleep(time.Millisecond) }) // which reaches nobody
		close(settled)
	}()
	time.Sleep(10 * time.Millisecond)
	_ = unix.Shutdown(k.fd, unix.SHUT_RDWR)
	<-settled
}
