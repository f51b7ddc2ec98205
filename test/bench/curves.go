package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// curve is how long things take, depending on how much there is of something: one chart.
type curve struct {
	Name   string    `json:"name"` // of its file
	Title  string    `json:"title"`
	X      string    `json:"x"` // what there is more and more of
	Series []*series `json:"series"`
}

// series is one line of a chart.
type series struct {
	Name   string   `json:"name"`
	Points []*point `json:"points"` // from left to right
}

type point struct {
	X       int       `json:"x"`
	Seconds []float64 `json:"seconds"`
	Median  float64   `json:"median"` // seconds
}

// add puts down one sample.
func (c *curve) add(name string, x int, took time.Duration) {
	i := slices.IndexFunc(c.Series, func(s *series) bool { return s.Name == name })
	if i < 0 {
		c.Series, i = append(c.Series, &series{Name: name}), len(c.Series)
	}
	p := c.Series[i].at(x)
	p.Seconds = append(p.Seconds, took.Seconds())
	p.Median = median(p.Seconds)
}

// at gives the point at x, which is there afterwards.
func (s *series) at(x int) *point {
	i, found := slices.BinarySearchFunc(s.Points, x, func(p *point, x int) int { return cmp.Compare(p.X, x) })
	if !found {
		s.Points = slices.Insert(s.Points, i, &point{X: x})
	}
	return s.Points[i]
}

// timed adds what something takes.
func (c *curve) timed(name string, x int, fn func() error) error {
	start := time.Now()
	err := fn()
	if err != nil {
		return fmt.Errorf("%s of %s, %d %s: %w", name, c.Name, x, c.X, err)
	}
	c.add(name, x, time.Since(start))
	return nil
}

// growth gives the exponent by which a series grows from its first point to its last: 0 is the same everywhere, 1 is linear.
func (s *series) growth() float64 {
	first, last := s.Points[0], s.Points[len(s.Points)-1]
	if first.X == last.X {
		return 0
	}
	return math.Log(last.Median/first.Median) / math.Log(float64(last.X)/float64(first.X))
}

// steepest is growth between the two neighbours between which it is the largest.
func (s *series) steepest() float64 {
	worst := math.Inf(-1)
	for i := range s.Points[1:] {
		worst = max(worst, (&series{Points: s.Points[i : i+2]}).growth())
	}
	return worst
}

// curvesReport is what curves.json holds.
type curvesReport struct {
	Curves []*curve `json:"curves"`
	*report
}

// curves measures them all on the first lower filesystem.
func (b *bench) curves() error {
	r := curvesReport{report: b.report}
	failed := b.inTemp(lowers(b.o)[0], func(l lower) error {
		for _, part := range []func(lower, *curve) error{b.processesCurve, b.filesCurve, b.checkpointsCurve, b.changesCurve} {
			c := &curve{}
			start := time.Now()
			if err := part(l, c); err != nil {
				return err
			}
			if len(c.Series) > 0 {
				r.Curves = append(r.Curves, c)
				done(l, c.Name, start)
			}
		}
		return nil
	})
	if len(r.Curves) == 0 {
		return failed
	}
	r.Interrupted = b.ctx.Err() != nil
	return errors.Join(failed, r.write(b.o))
}

func (r *curvesReport) write(o options) error {
	r.finish()
	for _, c := range r.Curves {
		if err := writeOut(filepath.Join(o.curvesTo, c.Name+".svg"), c.svg()); err != nil {
			return err
		}
	}
	text := r.markdown(o)
	fmt.Print(text)
	if o.markdownTo != "" {
		if err := writeSection(o.markdownTo, "curves", text); err != nil {
			return err
		}
	}
	return writeJSON(filepath.Join(o.curvesTo, "curves.json"), r)
}

// markdown gives the charts and their figures for the docs.
func (r *curvesReport) markdown(o options) string {
	dir, err := filepath.Rel(filepath.Dir(o.markdownTo), o.curvesTo)
	if err != nil {
		dir = o.curvesTo
	}
	var b strings.Builder
	fmt.Fprintf(&b, "On %s: %s. By `make bench%s`.\n", lowers(o)[0].kind, r.describe(), r.flags)
	for _, c := range r.Curves {
		fmt.Fprintf(&b, "\n![%s](%s)\n", c.Title, filepath.ToSlash(filepath.Join(dir, c.Name+".svg")))
		printMarkdown(&b, c.table())
	}
	for _, l := range r.LeftOut {
		fmt.Fprintf(&b, "\nLeft out: %s: %s.\n", l.Name, l.Reason)
	}
	return b.String()
}

// table has a row for each series, and in the last two columns how it grows: from the first point to the last, and where it grows most.
func (c *curve) table() [][]string {
	xs := c.xs()
	head := []string{c.X}
	for _, x := range xs {
		head = append(head, thousands(x))
	}
	rows := [][]string{append(head, "exponent", "steepest")}
	for _, s := range c.Series {
		row := []string{s.Name}
		for _, x := range xs {
			cell := "–"
			if i := slices.IndexFunc(s.Points, func(p *point) bool { return p.X == x }); i >= 0 {
				cell = duration(s.Points[i].Median)
			}
			row = append(row, cell)
		}
		growth, steepest := "–", "–"
		if len(s.Points) > 1 {
			growth, steepest = fmt.Sprintf("%.2f", s.growth()), fmt.Sprintf("%.2f", s.steepest())
		}
		rows = append(rows, append(row, growth, steepest))
	}
	return rows
}

// xs gives where there are points, from left to right.
func (c *curve) xs() []int {
	var all []int
	for _, s := range c.Series {
		for _, p := range s.Points {
			all = append(all, p.X)
		}
	}
	slices.SortFunc(all, func(a, b int) int { return cmp.Compare(a, b) })
	return slices.Compact(all)
}

// thousands writes a number with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
