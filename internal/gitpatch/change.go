package gitpatch

import (
	"bufio"
	"bytes"
	"fmt"

	"github.com/rogpeppe/go-internal/diff"
)

// writeChange writes the part of the patch for one file. Both sides, if they are there, are of one type.
func writeChange(out *bufio.Writer, c Change) error {
	before, err := readBlob(c.Old)
	if err != nil {
		return err
	}
	after, err := readBlob(c.New)
	if err != nil {
		return err
	}
	if c.Old != nil && c.New != nil && sameFile(c.Old, c.New) && before.name == after.name {
		return nil
	}
	if err := writeHeader(out, c, before, after); err != nil {
		return err
	}
	return writeContent(out, c, before, after)
}

// sameFile reports whether git knows both by the same name and mode.
func sameFile(a, b *File) bool { return a.Path == b.Path && a.Mode == b.Mode }

// writeHeader writes the extended header: what happens to the name, the mode and the blob.
func writeHeader(out *bufio.Writer, c Change, before, after blob) error {
	from, to := c.Old, c.New
	if from == nil {
		from = to
	}
	if to == nil {
		to = from
	}
	fmt.Fprintf(out, "diff --git %s %s\n", quote("a/", from.Path), quote("b/", to.Path))
	switch {
	case c.Old == nil:
		fmt.Fprintf(out, "new file mode %o\n", c.New.Mode)
	case c.New == nil:
		fmt.Fprintf(out, "deleted file mode %o\n", c.Old.Mode)
	case from.Mode != to.Mode:
		fmt.Fprintf(out, "old mode %o\nnew mode %o\n", from.Mode, to.Mode)
	}
	if from.Path != to.Path {
		score, err := similarity(before, after)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "similarity index %d%%\n", score)
		fmt.Fprintf(out, "rename from %s\nrename to %s\n", quote("", from.Path), quote("", to.Path))
	}
	writeIndex(out, c, before, after)
	return nil
}

// writeIndex names both blobs in full, as git apply needs it for binary content. The mode is added where no other line
// tells it.
func writeIndex(out *bufio.Writer, c Change, before, after blob) {
	if before.name == after.name {
		return
	}
	fmt.Fprintf(out, "index %s..%s", before.name, after.name)
	if c.Old != nil && c.New != nil && c.Old.Mode == c.New.Mode {
		fmt.Fprintf(out, " %o", c.New.Mode)
	}
	out.WriteByte('\n')
}

// writeContent writes the difference of the content, if there is one.
func writeContent(out *bufio.Writer, c Change, before, after blob) error {
	if before.name == after.name || before.size() == 0 && after.size() == 0 {
		return nil
	}
	if !before.isText || !after.isText {
		return writeBinary(out, before, after)
	}
	from, to := "/dev/null", "/dev/null"
	if c.Old != nil {
		from = quote("a/", c.Old.Path)
	}
	if c.New != nil {
		to = quote("b/", c.New.Path)
	}
	fmt.Fprintf(out, "--- %s\n+++ %s\n", from, to)
	writeHunks(out, before.text, after.text)
	return nil
}

// writeHunks writes the difference of two texts that differ, with three lines of context. The algorithm takes
// O(n log n) time at most.
func writeHunks(out *bufio.Writer, before, after []byte) {
	switch {
	case len(before) == 0:
		fmt.Fprintf(out, "@@ -0,0 +1,%d @@\n", countLines(after))
		writeLines(out, '+', after)
	case len(after) == 0:
		fmt.Fprintf(out, "@@ -1,%d +0,0 @@\n", countLines(before))
		writeLines(out, '-', before)
	default:
		out.Write(withoutFileHeader(diff.Diff("a", before, "b", after)))
	}
}

// withoutFileHeader takes off the lines above the first hunk.
func withoutFileHeader(unified []byte) []byte {
	return unified[bytes.Index(unified, []byte("\n@@ "))+1:]
}

// writeLines writes every line of text behind sign.
func writeLines(out *bufio.Writer, sign byte, text []byte) {
	for line := range bytes.Lines(text) {
		out.WriteByte(sign)
		out.Write(line)
	}
	if text[len(text)-1] != '\n' {
		out.WriteString("\n\\ No newline at end of file\n")
	}
}

func countLines(text []byte) int {
	n := bytes.Count(text, []byte{'\n'})
	if text[len(text)-1] != '\n' {
		n++
	}
	return n
}
