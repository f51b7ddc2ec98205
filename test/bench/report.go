package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// report collects what was measured, in the order of the first sample of each line.
type report struct {
	Time    time.Time `json:"time"`
	Machine machine   `json:"machine"`
	Quick   bool      `json:"quick,omitempty"`
	Repeat  int       `json:"repeat"`
	Lines   []*line   `json:"lines"`
	LeftOut []leftOut `json:"left_out,omitempty"`

	LoadBefore string `json:"load_before"` // the load average over 1, 5 and 15 minutes
	LoadAfter  string `json:"load_after"`

	Stolen float64 `json:"stolen"` // the share of the wanted CPU time that a hypervisor has given to others during the run
	began  cpuTime

	Interrupted bool `json:"interrupted,omitempty"`

	flags string // of the run, as make takes them
}

// line is one workload on one lower filesystem, on all targets.
type line struct {
	Lower   string    `json:"lower"`
	Name    string    `json:"name"`
	Each    int       `json:"each,omitempty"` // how many operations each sample is
	Results []*result `json:"results"`
}

// result is one target's part of a line.
type result struct {
	Target  string    `json:"target"`
	Seconds []float64 `json:"seconds,omitempty"`
	Bytes   []float64 `json:"bytes,omitempty"`  // of a line about memory, which has no seconds
	Median  float64   `json:"median,omitempty"` // seconds or bytes
	Ratio   float64   `json:"ratio,omitempty"`  // to the plain filesystem, or to what takes its place; 0 if that has no figure
	Error   string    `json:"error,omitempty"`
}

type leftOut struct {
	Lower  string `json:"lower"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

func newReport(o options) *report {
	return &report{Time: time.Now().UTC(), Machine: newMachine(o), Quick: o.quick, Repeat: o.repeat, LoadBefore: loadAverage(), began: readCPUTime(), flags: o.flags}
}

// add puts down one sample, or why there is none.
func (r *report) add(l lower, name, target string, took time.Duration, err error) {
	res := r.line(l, name).result(target)
	if err != nil {
		res.Error = err.Error()
		fmt.Fprintf(os.Stderr, "\r\x1b[Kbench: %s: %s on %s: %v\n", l.name, name, target, err)
		return
	}
	res.Seconds = append(res.Seconds, took.Seconds())
}

// addBytes is add for what was not timed but weighed.
func (r *report) addBytes(l lower, name, target string, bytes float64) {
	res := r.line(l, name).result(target)
	res.Bytes = append(res.Bytes, bytes)
}

func (r *report) leftOut(l lower, name, reason string) {
	fmt.Fprintf(os.Stderr, "bench: %s: %s is left out: %s\n", l.name, name, reason)
	r.LeftOut = append(r.LeftOut, leftOut{l.name, name, reason})
}

func (r *report) line(l lower, name string) *line {
	for _, x := range r.Lines {
		if x.Lower == l.name && x.Name == name {
			return x
		}
	}
	r.Lines = append(r.Lines, &line{Lower: l.name, Name: name})
	return r.Lines[len(r.Lines)-1]
}

func (x *line) result(target string) *result {
	if res := x.find(target); res != nil {
		return res
	}
	x.Results = append(x.Results, &result{Target: target})
	return x.Results[len(x.Results)-1]
}

// find gives a target's part; nil if it has none.
func (x *line) find(target string) *result {
	for _, res := range x.Results {
		if res.Target == target {
			return res
		}
	}
	return nil
}

// base gives what the others are compared with; nil if there is no such thing.
func (x *line) base() *result {
	for _, res := range x.Results {
		if res.isBase() {
			return res
		}
	}
	return nil
}

// finish works out medians and ratios.
func (r *report) finish() {
	r.LoadAfter = loadAverage()
	r.Stolen = readCPUTime().since(r.began).stolenShare()
	for _, x := range r.Lines {
		for _, res := range x.Results {
			res.Median = median(append(res.Seconds, res.Bytes...))
		}
		base := x.base()
		if base == nil || base.Median == 0 {
			continue
		}
		for _, res := range x.Results {
			res.Ratio = res.Median / base.Median
		}
	}
}

// isBase reports whether the others of a line are compared with it.
func (res *result) isBase() bool {
	return res.Target == "plain" || res.Target == withoutCheckpoint || res.Target == viewMain
}

func median(samples []float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(samples))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// write prints the tables, and puts them and the JSON into files.
func (r *report) write(o options) error {
	r.finish()
	var text strings.Builder
	r.print(&text)
	fmt.Fprint(os.Stderr, "\r\x1b[K")
	fmt.Print(text.String())
	if o.textTo != "" {
		if err := writeOut(o.textTo, []byte(text.String())); err != nil {
			return err
		}
	}
	if o.markdownTo != "" {
		if err := writeSection(o.markdownTo, "figures", r.markdown()); err != nil {
			return err
		}
	}
	return writeJSON(o.jsonTo, r)
}

// done says on stderr how long a part of the run took.
func done(l lower, part string, since time.Time) {
	fmt.Fprintf(os.Stderr, "\r\x1b[Kbench: %s: %s: done in %.0f s\n", l.name, part, time.Since(since).Seconds())
}

// progress overwrites one line on a terminal.
func progress(format string, args ...any) {
	if st, err := os.Stderr.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		fmt.Fprintf(os.Stderr, "\r\x1b[K"+format, args...)
	}
}
