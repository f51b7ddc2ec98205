package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// tables gives one table for each lower filesystem and set of targets: medians, and ratios to the plain filesystem.
func (r *report) tables() [][][]string {
	var tables [][][]string
	for _, x := range r.Lines {
		n := len(tables) - 1
		if h := x.heading(r); n < 0 || !slices.Equal(h, tables[n][0]) {
			tables = append(tables, [][]string{h})
			n++
		}
		tables[n] = append(tables[n], x.cells())
	}
	return tables
}

// print writes all tables, those of the goals last.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s; medians of %d\n", r.describe(), r.Repeat)
	for _, rows := range append(r.tables(), r.goalTables()...) {
		printTable(w, rows)
	}
	for _, l := range r.LeftOut {
		fmt.Fprintf(w, "left out on %s: %s: %s\n", l.Lower, l.Name, l.Reason)
	}
}

// describe says in a paragraph where and when the figures were measured.
func (r *report) describe() string {
	s := fmt.Sprintf("%s, %s; load average %s before and %s after", r.Time.Format("2006-01-02"), r.Machine, r.LoadBefore, r.LoadAfter)
	if r.Stolen >= 0.005 {
		s += fmt.Sprintf("; a hypervisor gave %.0f %% of the wanted CPU time to others", 100*r.Stolen)
	}
	if r.Interrupted {
		s += "; interrupted"
	}
	if r.Quick {
		s += "; a quick run, a tenth of the size, nothing to rely on"
	}
	return s
}

func (m machine) String() string {
	var tools []string
	for _, t := range m.Tools {
		tools = append(tools, t.Name+" "+t.Version)
	}
	uring := "without"
	if m.Uring {
		uring = "with"
	}
	return fmt.Sprintf("%d × %s, %d GiB, Linux %s %s FUSE over io_uring, uid %d; %s",
		m.CPUs, m.CPU, (m.Memory+1<<29)>>30, m.Kernel, uring, m.UID, strings.Join(tools, ", "))
}

// markdown gives the figures for the docs.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; medians of %d. By `make bench%s`.\n", r.describe(), r.Repeat, r.flags)
	for _, rows := range append(r.goalTables(), r.tables()...) {
		printMarkdown(&b, rows)
	}
	for i, l := range r.LeftOut {
		if i == 0 {
			fmt.Fprint(&b, "\nLeft out:\n\n")
		}
		fmt.Fprintf(&b, "- on %s: %s: %s\n", l.Lower, l.Name, l.Reason)
	}
	return b.String()
}

// printTable puts the first column to the left, and the others to the right.
func printTable(w io.Writer, rows [][]string) {
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

// printMarkdown prints a table as Markdown has them, its columns as printTable puts them.
func printMarkdown(w io.Writer, rows [][]string) {
	fmt.Fprintln(w)
	for i, row := range rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(w, "|---|%s\n", strings.Repeat("--:|", len(row)-1))
		}
	}
}

// writeSection puts text between a Markdown file's comments <!-- name --> and <!-- end of name -->. A file that is not there yet gets text alone.
func writeSection(path, name, text string) error {
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	doc, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	before, rest, found := strings.Cut(string(doc), begin)
	_, after, closed := strings.Cut(rest, end)
	switch {
	case found && closed:
		text = before + begin + "\n" + strings.Trim(text, "\n") + "\n\n" + end + after
	case len(doc) > 0:
		return fmt.Errorf("%s has no lines %q and %q to write between", path, strings.TrimSpace(begin), end)
	}
	return writeOut(path, []byte(text))
}

func writeJSON(path string, v any) error {
	if path == "" {
		return nil
	}
	doc, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeOut(path, append(doc, '\n'))
}

// writeOut writes a file, and makes the directory it is in.
func writeOut(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// heading names a lower filesystem.
func (r *report) heading(lower string) string {
	for _, l := range r.Machine.Lowers {
		if l.Name == lower {
			return fmt.Sprintf("on %s (%s)", l.Name, l.Filesystem)
		}
	}
	return "on " + lower
}

// heading tells the lower filesystem and the targets of a line.
func (x *line) heading(r *report) []string {
	cells := []string{r.heading(x.Lower)}
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
