package main

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// signalled is a process that can be given signals.
type signalled interface{ Signal(os.Signal) error }

// forwarder passes on what should end us to the command that we run, and lets us live on to clean up after it. What the
// keyboard sends reaches the command by itself, being in the terminal's foreground like us.
type forwarder struct {
	ch     chan os.Signal
	target atomic.Pointer[signalled] // nil while no command runs: then signals have no effect
}

// newForwarder starts to catch signals.
func newForwarder() *forwarder {
	f := &forwarder{ch: make(chan os.Signal, 8)}
	signal.Notify(f.ch, os.Interrupt, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP)
	fromTerminal := isTerminal(os.Stdin)
	go func() {
		for s := range f.ch {
			keyboard := s == os.Interrupt || s == syscall.SIGQUIT
			if p := f.target.Load(); p != nil && !(keyboard && fromTerminal) {
				passOn(*p, s)
			}
		}
	}()
	return f
}

// to says which process gets the signals from now on; nil means none.
func (f *forwarder) to(p signalled) {
	if p == nil {
		f.target.Store(nil)
		return
	}
	f.target.Store(&p)
}

// stop gives signals their usual effect again.
func (f *forwarder) stop() {
	signal.Stop(f.ch)
	close(f.ch)
}
