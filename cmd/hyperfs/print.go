package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"
)

// printJSON prints one document, indented.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// output prints v as JSON if that is asked for, and calls text otherwise.
func output(c *cli.Context, v any, text func(w io.Writer) error) error {
	if flagAnywhere(c, "json") {
		return printJSON(c.App.Writer, v)
	}
	return text(c.App.Writer)
}

// table prints rows of cells in columns.
func table(w io.Writer, rows func(row func(cells ...any))) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	rows(func(cells ...any) {
		text := make([]string, len(cells))
		for i, c := range cells {
			text[i] = fmt.Sprint(c)
		}
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(text, "\t"), "\t"))
	})
	return tw.Flush()
}

// isTerminal reports whether f, a reader or writer, is a terminal.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// colours decides whether to colour: on a terminal that wants it (no-color.org).
func colours(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)
}

// Colours, as ECMA-48 parameters.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
	bold   = "1"
)

// paint colours s if on.
func paint(on bool, colour, s string) string {
	if !on || colour == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[m"
}

// quote gives a name as it is, or in C's quotes, as git does, where it has control characters, quotes, backslashes or
// bytes that are not UTF-8: so that a name is one word on one line, and can do nothing to the terminal. Where backslashes
// separate names, they alone are no reason for quotes.
func quote(name string) string {
	plain := utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return r == '"' || r == '\\' && filepath.Separator != '\\' || !unicode.IsPrint(r)
	})
	if plain {
		return name
	}
	var b strings.Builder
	b.WriteByte('"')
	for len(name) > 0 {
		r, n := utf8.DecodeRuneInString(name)
		quoteRune(&b, r, name[:n])
		name = name[n:]
	}
	b.WriteByte('"')
	return b.String()
}

// quoteRune writes one rune, or byte that is none, of a quoted name.
func quoteRune(b *strings.Builder, r rune, raw string) {
	const escapes = "\aa\bb\tt\nn\vv\ff\rr\"\"\\\\"
	for i := 0; i < len(escapes); i += 2 {
		if raw == escapes[i:i+1] {
			b.WriteByte('\\')
			b.WriteByte(escapes[i+1])
			return
		}
	}
	if r != utf8.RuneError && unicode.IsPrint(r) {
		b.WriteString(raw)
		return
	}
	for i := range len(raw) {
		fmt.Fprintf(b, `\%03o`, raw[i])
	}
}

// line gives the first line of a message, quoted if it could confuse.
func line(message string) string {
	first, _, _ := strings.Cut(message, "\n")
	return oneLine(first)
}

// clock gives a time for people.
func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// ago gives how long ago t was, in one unit.
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return fmt.Sprintf("%dd ago", int(d.Hours()/24))
}

// bytesText gives a size for people.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n), -1
	for f >= unit && i < 5 {
		f /= unit
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGTPE"[i])
}

// plural gives "1 file", "2 files".
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
