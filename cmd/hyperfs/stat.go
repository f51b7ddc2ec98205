package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// patchLine is what a line of a git patch is.
type patchLine int

const (
	lineMeta patchLine = iota // between hunks
	lineFile                  // the first one of a file: "diff --git"
	lineHunk                  // "@@ …"
	lineAdded
	lineRemoved
	lineSame
)

// patchReader tells the lines of a git patch apart. It counts the lines of each hunk, since a removed line "-- x" looks
// like a header.
type patchReader struct {
	oldLeft, newLeft int // lines left of the hunk
}

// kind tells what the next line is.
func (r *patchReader) kind(line []byte) patchLine {
	if r.oldLeft > 0 || r.newLeft > 0 {
		return r.inHunk(line)
	}
	switch {
	case bytes.HasPrefix(line, []byte("diff --git ")):
		return lineFile
	case bytes.HasPrefix(line, []byte("@@ -")):
		r.oldLeft, r.newLeft = hunkLengths(string(line))
		return lineHunk
	}
	return lineMeta
}

func (r *patchReader) inHunk(line []byte) patchLine {
	if len(line) == 0 {
		return lineMeta
	}
	switch line[0] {
	case '+':
		r.newLeft--
		return lineAdded
	case '-':
		r.oldLeft--
		return lineRemoved
	case '\\': // "\ No newline at end of file"
		return lineMeta
	}
	r.oldLeft--
	r.newLeft--
	return lineSame
}

// hunkLengths reads "@@ -1,2 +3,4 @@". A length that is left out is 1.
func hunkLengths(header string) (older, newer int) {
	f := strings.Fields(header)
	if len(f) < 3 {
		return 0, 0
	}
	length := func(s string) int {
		_, n, ok := strings.Cut(s, ",")
		if !ok {
			return 1
		}
		v, err := strconv.Atoi(n)
		if err != nil || v < 0 {
			return 0
		}
		return v
	}
	return length(f[1]), length(f[2])
}

// eachPatchLine calls fn with every line that make writes, its newline included.
func eachPatchLine(produce func(io.Writer) error, fn func(kind patchLine, line []byte) error) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(produce(w)) }()
	defer r.Close()
	lines := bufio.NewReaderSize(r, 64<<10)
	var state patchReader
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if err := fn(state.kind(line), line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// colourPatch prints a patch, coloured on a terminal.
func colourPatch(out io.Writer, produce func(io.Writer) error) error {
	if !colours(out) {
		return produce(out)
	}
	hues := map[patchLine]string{lineMeta: bold, lineFile: bold, lineHunk: cyan, lineAdded: green, lineRemoved: red}
	w := bufio.NewWriter(out)
	err := eachPatchLine(produce, func(kind patchLine, line []byte) error {
		_, err := fmt.Fprintln(w, paint(true, hues[kind], strings.TrimSuffix(string(line), "\n")))
		return err
	})
	return errors.Join(err, w.Flush())
}

// fileStat is what a patch does to one file.
type fileStat struct {
	name           string
	added, removed int // lines
	binary         bool
}

// readStats counts the lines of each file of a patch.
func readStats(produce func(io.Writer) error) ([]fileStat, error) {
	var list []fileStat
	err := eachPatchLine(produce, func(kind patchLine, line []byte) error {
		if kind == lineFile {
			list = append(list, fileStat{name: nameInHeader(string(line))})
			return nil
		}
		if len(list) == 0 {
			return nil
		}
		f := &list[len(list)-1]
		switch kind {
		case lineAdded:
			f.added++
		case lineRemoved:
			f.removed++
		case lineMeta:
			f.meta(strings.TrimSuffix(string(line), "\n"))
		}
		return nil
	})
	return list, err
}

// nameInHeader finds the name in "diff --git a/NAME b/NAME", where both are the same or a later line says better.
func nameInHeader(line string) string {
	rest := strings.TrimSuffix(strings.TrimPrefix(line, "diff --git "), "\n")
	half := rest[:len(rest)/2]
	if inner, ok := strings.CutPrefix(half, `"a/`); ok {
		return `"` + inner
	}
	return strings.TrimPrefix(half, "a/")
}

// meta takes what a line between hunks says.
func (f *fileStat) meta(line string) {
	if to, ok := strings.CutPrefix(line, "rename to "); ok {
		f.name = to
	}
	if line == "GIT binary patch" || strings.HasPrefix(line, "Binary files ") {
		f.binary = true
	}
}

// statWidth is the longest bar of signs.
const statWidth = 40

// printStat prints how many lines of each file changed, as git diff --stat does.
func printStat(out io.Writer, produce func(io.Writer) error) error {
	list, err := readStats(produce)
	if err != nil {
		return err
	}
	colour := colours(out)
	width, most, added, removed := 0, 0, 0, 0
	for _, f := range list {
		width = max(width, len(f.name))
		most = max(most, f.added+f.removed)
		added += f.added
		removed += f.removed
	}
	w := bufio.NewWriter(out)
	for _, f := range list {
		if f.binary {
			fmt.Fprintf(w, " %-*s | Bin\n", width, f.name)
			continue
		}
		plus, minus := bars(f, most)
		text := fmt.Sprintf(" %-*s | %4d %s%s", width, f.name, f.added+f.removed,
			paint(colour && plus != "", green, plus), paint(colour && minus != "", red, minus))
		fmt.Fprintln(w, strings.TrimRight(text, " "))
	}
	fmt.Fprintf(w, " %s changed, %s(+), %s(-)\n", plural(len(list), "file"), plural(added, "insertion"), plural(removed, "deletion"))
	return w.Flush()
}

// bars gives the signs for a file, scaled so that the largest change has statWidth of them.
func bars(f fileStat, most int) (plus, minus string) {
	scale := func(n int) int {
		if most <= statWidth || n == 0 {
			return n
		}
		return max(1, n*statWidth/most)
	}
	return strings.Repeat("+", scale(f.added)), strings.Repeat("-", scale(f.removed))
}
