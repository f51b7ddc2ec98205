package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"
)

// progressDelay is how long something takes before it is worth a line.
const progressDelay = 500 * time.Millisecond

// progress shows on a terminal that something takes its time, until the function it gives is called. The daemon does the
// work and does not say how much is left: so it is a clock.
func progress(c *cli.Context, what string) (done func()) {
	w := c.App.ErrWriter
	if !isTerminal(w) {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		start := time.Now()
		tick := time.NewTicker(progressDelay)
		defer tick.Stop()
		shown := false
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(w, "\r%s… %.0f s", what, time.Since(start).Seconds())
				shown = true
			case <-stop:
				if shown {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}
