package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestEveryGoalHasALineOfTheRun(t *testing.T) {
	b := &bench{o: options{sizeMiB: 256}}
	var names []string
	for _, g := range b.groups() {
		for _, w := range g.workloads {
			names = append(names, g.name+"/"+w.name)
		}
	}
	names = append(names, firstWriteLine(4<<10), firstWriteLine(1<<20))
	for _, g := range goals {
		n := 0
		for _, name := range names {
			if g.line.MatchString(name) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d lines are what %v says, not one", n, g.line)
		}
	}
}

func TestGoalsAreMetUpToTheirBound(t *testing.T) {
	x := &line{Each: 1000}
	for _, c := range []struct {
		m            measure
		base, median float64
		bound, got   float64
		met          bool
	}{
		{ratio, 2, 2.6, 1.3, 1.3, true},
		{ratio, 2, 2.7, 1.3, 1.35, false},
		{rate, 1, 2, 0.5, 0.5, true},
		{rate, 1, 2.5, 0.5, 0.4, false},
		{each, 1, 0.06, 60e-6, 60e-6, true},
		{each, 0.001, 0.07, 60e-6, 70e-6, false},
		{extra, 100e-6, 125e-6, 30e-6, 25e-6, true},
		{extra, 100e-6, 140e-6, 30e-6, 40e-6, false},
	} {
		got, met := c.m.of(x, c.base, c.median, c.bound)
		if math.Abs(got-c.got) > 1e-12 || met != c.met {
			t.Errorf("%+v: %v, %v", c, got, met)
		}
	}
}

func TestGoalTableTellsWhatFailed(t *testing.T) {
	l := lower{name: "tmpfs", kind: "tmpfs"}
	r := &report{Machine: machine{Lowers: []lowerKind{{"tmpfs", "tmpfs"}}}}
	const line = "git/git status, warm"
	r.add(l, line, "plain", 10*time.Millisecond, nil)
	r.add(l, line, "hyperfs", 0, io.ErrUnexpectedEOF)
	r.finish()
	tables := r.goalTables()
	if len(tables) != 1 || len(tables[0]) != 2 || tables[0][1][6] != "unknown" {
		t.Fatalf("%q", tables)
	}
	r.line(l, line).result("hyperfs").Error = ""
	r.add(l, line, "hyperfs", 12*time.Millisecond, nil)
	r.finish()
	if row := r.goalTables()[0][1]; strings.Join(row, "|") != "git/git status, warm||10 ms|12 ms|1.20×|≤ 1.30×|met" {
		t.Errorf("%q", row)
	}
}

func TestSectionsReplaceWhatIsBetweenTheirComments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "docs", "a.md")
	expect := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if err := writeSection(path, "figures", "alone\n"); err != nil {
		t.Fatal(err)
	}
	expect("alone\n")
	if err := writeSection(path, "figures", "lost"); err == nil {
		t.Error("a file without the comments was overwritten")
	}
	expect("alone\n")
	doc := func(text string) string {
		return "before\n<!-- figures -->\n" + text + "<!-- end of figures -->\nafter\n"
	}
	for _, old := range []string{"", "\nold\n\n", "\n1\n2\n3\n\n"} {
		if err := os.WriteFile(path, []byte(doc(old)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := writeSection(path, "figures", "\nnew\n"); err != nil {
			t.Fatal(err)
		}
		expect(doc("\nnew\n\n"))
	}
}

func TestGrowthIsTheExponent(t *testing.T) {
	c := &curve{}
	for _, x := range []int{100, 1, 10} { // in whatever order they come
		c.add("same", x, time.Millisecond)
		c.add("linear", x, time.Duration(x)*time.Millisecond)
		c.add("square", x, time.Duration(x*x)*time.Millisecond)
	}
	c.add("jump", 1, time.Millisecond)
	c.add("jump", 10, time.Millisecond)
	c.add("jump", 100, 100*time.Millisecond)
	c.add("jump", 100, 90*time.Millisecond)
	c.add("jump", 100, 1000*time.Millisecond)
	want := map[string][2]float64{"same": {0, 0}, "linear": {1, 1}, "square": {2, 2}, "jump": {1, 2}}
	for _, s := range c.Series {
		if math.Abs(s.growth()-want[s.Name][0]) > 1e-9 || math.Abs(s.steepest()-want[s.Name][1]) > 1e-9 {
			t.Errorf("%s grows by %v, %v at most", s.Name, s.growth(), s.steepest())
		}
	}
	if xs := c.xs(); len(xs) != 3 || xs[0] != 1 || xs[2] != 100 {
		t.Error(xs)
	}
}

func TestChartsAreXMLWithAllPointsInside(t *testing.T) {
	c := &curve{Name: "a", Title: "a < b & c", X: "files"}
	for i, x := range []int{1, 1000, 1_000_000} {
		c.add("roll back", x, time.Duration(i*i+1)*37*time.Microsecond)
		c.add("stat, plain", x, time.Duration(x)*time.Microsecond)
	}
	points := 0
	for d := xml.NewDecoder(bytes.NewReader(c.svg())); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		e, ok := token.(xml.StartElement)
		if !ok || e.Name.Local != "circle" {
			continue
		}
		points++
		var x, y float64
		for _, a := range e.Attr {
			switch a.Name.Local {
			case "cx":
				x, _ = strconv.ParseFloat(a.Value, 64)
			case "cy":
				y, _ = strconv.ParseFloat(a.Value, 64)
			}
		}
		if x < svgLeft || x > svgWidth-svgRight || y < svgTop || y > svgHeight-svgBelow {
			t.Errorf("a point is at %v, %v", x, y)
		}
	}
	if points != 6 {
		t.Errorf("%d points", points)
	}
}

func TestFlagsThatFiguresDependOnAreNamed(t *testing.T) {
	for args, want := range map[string]string{
		"":                             "",
		"-json x -markdown y":          "",
		"-lower tmpfs -quick -json x":  " BENCH='-lower=tmpfs -quick'",
		"-only ^go|tar -peers=false":   ` BENCH='-only="^go|tar" -peers=false'`,
		"-curves -curves-to x -size 9": " BENCH='-curves -size=9'",
	} {
		if o, err := parse(strings.Fields(args)); err != nil || o.flags != want {
			t.Errorf("%q becomes %q, %v", args, o.flags, err)
		}
	}
}

func TestStolenTimeIsAShareOfWhatWasWanted(t *testing.T) {
	before := cpuTime{used: 100, stolen: 10}
	if share := (cpuTime{used: 160, stolen: 30}).since(before).stolenShare(); share != 0.25 {
		t.Errorf("20 of 80 ticks are %g", share)
	}
	if share := before.since(before).stolenShare(); share != 0 {
		t.Errorf("none of none are %g", share)
	}
	if now := readCPUTime(); now.used == 0 {
		t.Errorf("/proc/stat: %+v", now)
	}
}
