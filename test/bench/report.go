package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// report collects what was measured, in the order of the first sample of each line.
type report struct {
	Time    time.Time `json:"time"`
	Machine machine   `json:"machine"`
	Quick   bool      `json:"quick,omitempty"`
	Repeat  int       `json:"repeat"`
	Lines   []*line   `json:"lines"`
	LeftOut []leftOut `json:"left_out,omitempty"`
}

type machine struct {
	Kernel string            `json:"kernel"`
	Go     string            `json:"go"`
	CPUs   int               `json:"cpus"`
	UID    int               `json:"uid"`
	Lowers map[string]string `json:"lowers"` // filesystem by name of the lower
}

// line is one workload on one lower filesystem, on all targets.
type line struct {
	Lower   string    `json:"lower"`
	Name    string    `json:"name"`
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
	r := &report{Time: time.Now().UTC(), Quick: o.quick, Repeat: o.repeat}
	r.Machine = machine{Go: runtime.Version(), CPUs: runtime.NumCPU(), UID: os.Geteuid(), Lowers: map[string]string{}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		r.Machine.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	for _, l := range lowers(o) {
		r.Machine.Lowers[l.name] = l.kind
	}
	return r
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
	for _, res := range x.Results {
		if res.Target == target {
			return res
		}
	}
	x.Results = append(x.Results, &result{Target: target})
	return x.Results[len(x.Results)-1]
}

// finish works out medians and ratios.
func (r *report) finish() {
	for _, x := range r.Lines {
		var plain float64
		for _, res := range x.Results {
			res.Median = median(append(res.Seconds, res.Bytes...))
			if res.isBase() {
				plain = res.Median
			}
		}
		for _, res := range x.Results {
			if plain > 0 {
				res.Ratio = res.Median / plain
			}
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

// write prints the table, and puts it and the JSON into files.
func (r *report) write(o options) error {
	r.finish()
	var text strings.Builder
	r.print(&text)
	fmt.Fprint(os.Stderr, "\r\x1b[K")
	fmt.Print(text.String())
	doc, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	for path, data := range map[string][]byte{o.jsonTo: append(doc, '\n'), o.textTo: []byte(text.String())} {
		if path == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// print writes one table for each lower filesystem and set of targets: medians, and ratios to the plain filesystem.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "kernel %s, %s, %d CPUs, uid %d, medians of %d\n", r.Machine.Kernel, r.Machine.Go, r.Machine.CPUs, r.Machine.UID, r.Repeat)
	if r.Quick {
		fmt.Fprintln(w, "a quick run: a tenth of the size, nothing to rely on")
	}
	var rows [][]string
	for _, x := range r.Lines {
		if h := x.heading(r); len(rows) == 0 || !slices.Equal(h, rows[0]) {
			printTable(w, rows)
			rows = [][]string{h}
		}
		rows = append(rows, x.cells())
	}
	printTable(w, rows)
	for _, l := range r.LeftOut {
		fmt.Fprintf(w, "left out on %s: %s: %s\n", l.Lower, l.Name, l.Reason)
	}
}

// printTable puts the first column to the left, and the others to the right.
func printTable(w io.Writer, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		fmt.Fprintf(w, "%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(w, "  %*s", widths[i+1], cell)
		}
		fmt.Fprintln(w)
	}
}

// heading tells the lower filesystem and the targets of a line.
func (x *line) heading(r *report) []string {
	cells := []string{fmt.Sprintf("on %s (%s)", x.Lower, r.Machine.Lowers[x.Lower])}
	for _, res := range x.Results {
		cells = append(cells, res.Target)
	}
	return cells
}

func (x *line) cells() []string {
	cells := []string{x.Name}
	for _, res := range x.Results {
		cells = append(cells, res.cell())
	}
	return cells
}

func (res *result) cell() string {
	switch {
	case res.Error != "":
		return "failed"
	case len(res.Bytes) > 0:
		return fmt.Sprintf("%.1f KiB", res.Median/1024)
	case len(res.Seconds) == 0:
		return "–"
	case res.isBase() || res.Ratio == 0:
		return duration(res.Median)
	}
	return fmt.Sprintf("%s %.2f×", duration(res.Median), res.Ratio)
}

// duration gives three digits and a unit.
func duration(seconds float64) string {
	switch {
	case seconds < 1e-3:
		return fmt.Sprintf("%.0f µs", seconds*1e6)
	case seconds < 1e-2:
		return fmt.Sprintf("%.2f ms", seconds*1e3)
	case seconds < 1:
		return fmt.Sprintf("%.0f ms", seconds*1e3)
	}
	return fmt.Sprintf("%.2f s", seconds)
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
