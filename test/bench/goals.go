package main

import (
	"fmt"
	"regexp"
	"strings"
)

// goal is what a line must reach with a checkpoint active.
type goal struct {
	line    *regexp.Regexp
	target  string // whose figure counts
	measure measure
	bound   float64 // seconds, or a ratio
}

// measure is what of a line is compared with a goal's bound.
type measure int

const (
	ratio measure = iota // how many times as long as on the plain filesystem it takes, at most
	rate                 // how fast it is, as a share of the plain filesystem's speed, at least
	each                 // what one operation takes, at most
	extra                // how much longer than without a checkpoint it takes, at most
)

func goalOf(line, target string, m measure, bound float64) goal {
	return goal{regexp.MustCompile("^" + line + "$"), target, m, bound}
}

var goals = []goal{
	goalOf(`meta/stat .*, warm`, "hyperfs", ratio, 1.3),
	goalOf(`meta/find .*, warm`, "hyperfs", ratio, 1.3),
	goalOf(`git/git status, warm`, "hyperfs", ratio, 1.3),
	goalOf(`grep/.*, cold`, "hyperfs", ratio, 8),
	goalOf(`grep/.*, warm`, "hyperfs", ratio, 3),
	goalOf(`small/create, write, close .*`, "hyperfs", each, 60e-6),
	goalOf(`tree/tar x .*`, "hyperfs", ratio, 5),
	goalOf(`tree/cp -a .*`, "hyperfs", ratio, 5),
	goalOf(`tree/rm -rf .* old files`, "hyperfs", ratio, 6),
	goalOf(`large/write a new file, .*`, withPassthrough, rate, 0.95),
	goalOf(`large/read a file, .*`, withPassthrough, rate, 0.95),
	goalOf(`large/.* random 4 KiB reads`, withPassthrough, rate, 0.95),
	goalOf(`large/.* random 4 KiB writes, new file`, withPassthrough, rate, 0.95),
	goalOf(`large/.* random 4 KiB writes, by its creator`, withPassthrough, rate, 0.95),
	goalOf(`large/write a new file, .*`, "hyperfs", rate, 0.5),
	goalOf(`large/write a new file, .*`, ordinaryUser, rate, 0.5),
	goalOf(`large/read a file, .*`, "hyperfs", rate, 0.5),
	goalOf(`large/read a file, .*`, ordinaryUser, rate, 0.5),
	goalOf(`project/npm ci from cache`, "hyperfs", ratio, 1.05),
	goalOf(`project/tsc of rxjs`, "hyperfs", ratio, 1.05),
	goalOf(`go/go build of .*`, "hyperfs", ratio, 1.05),
	goalOf(`jest/.*`, "hyperfs", ratio, 1.05),
	goalOf(`first write/.* of 4 KiB`, withHotBuffer, extra, 30e-6),
	goalOf(`first write/.* of 1024 KiB`, withHotBuffer, extra, 300e-6),
}

// hasGoal reports whether a line has a goal.
func hasGoal(name string) bool {
	for _, g := range goals {
		if g.line.MatchString(name) {
			return true
		}
	}
	return false
}

// goalTables compares what was measured with the goals: a table for each lower filesystem, which is finished.
func (r *report) goalTables() [][][]string {
	var tables [][][]string
	for _, l := range r.Machine.Lowers {
		rows := [][]string{{r.heading(l.Name), "", "without", "with", "", "aim", ""}}
		for _, g := range goals {
			for _, x := range r.Lines {
				if x.Lower == l.Name && g.line.MatchString(x.Name) {
					rows = append(rows, g.row(x)...)
				}
			}
		}
		if len(rows) > 1 {
			tables = append(tables, rows)
		}
	}
	return tables
}

// row gives the row of a goal in its table, or nothing if the line has no such target.
func (g goal) row(x *line) [][]string {
	base, res := x.base(), x.find(g.target)
	if base == nil || res == nil {
		return nil
	}
	label := g.target
	if label == "hyperfs" || label == withHotBuffer {
		label = ""
	}
	if base.Median == 0 || res.Median == 0 || res.Error != "" {
		return [][]string{{x.Name, label, base.cell(), res.cell(), "", g.measure.text(g.bound, true), "unknown"}}
	}
	got, met := g.measure.of(x, base.Median, res.Median, g.bound)
	verdict := "missed"
	if met {
		verdict = "met"
	}
	return [][]string{{x.Name, label, duration(base.Median), duration(res.Median), g.measure.text(got, false), g.measure.text(g.bound, true), verdict}}
}

// of gives what is compared with the bound, and whether it is as good.
func (m measure) of(x *line, base, median, bound float64) (got float64, met bool) {
	switch m {
	case rate:
		got = base / median
		return got, got >= bound
	case each:
		got = median / float64(max(1, x.Each))
	case extra:
		got = median - base
	default:
		got = median / base
	}
	return got, got <= bound
}

// text shows a figure, with a sign of comparison if it is a bound.
func (m measure) text(f float64, bound bool) string {
	sign := "≤ "
	var s string
	switch m {
	case rate:
		sign, s = "≥ ", digits(f)+" of the rate"
	case each:
		s = duration(f) + " each"
	case extra:
		s = "+" + duration(f)
		s = strings.Replace(s, "+-", "-", 1)
	default:
		s = digits(f) + "×"
	}
	if bound {
		return sign + s
	}
	return s
}

// digits shows a ratio with no more digits than count.
func digits(f float64) string {
	if f >= 10 {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.2f", f)
}
