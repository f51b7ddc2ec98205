package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// docsCommand makes docs/cli.md. It is for whoever changes the commands.
func docsCommand() *cli.Command {
	return &cli.Command{
		Name:      "docs",
		Usage:     "print the reference of the command line as Markdown",
		UsageText: "hyperfs docs",
		Hidden:    true,
		Action: arguments(0, 0, func(c *cli.Context) error {
			return writeDocs(c.App, c.App.Writer)
		}),
	}
}

//go:generate sh -c "go run . docs > ../../docs/cli.md"

func writeDocs(app *cli.App, out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Command line\n\n<!-- Made from the commands by `go generate ./cmd/hyperfs`. -->\n\n")
	fmt.Fprintf(&b, "hyperfs: %s.\n\n```\n%s\n```\n\n%s\n\n", app.Usage, app.UsageText, paragraphs(app.Description))
	writeFlags(&b, app.Flags)
	fmt.Fprint(&b, "A flag may stand before or after the arguments of its command, but for `run`, `exec`, `attempt` and `stats`, where all after the command's name is its own.\n\n")
	eachCommand(app.Commands, func(name string, cmd *cli.Command) {
		if cmd.Hidden || cmd.Name == "help" {
			return
		}
		text, examples, _ := strings.Cut(cmd.Description, "Example:\n")
		fmt.Fprintf(&b, "## %s\n\n%s.\n\n```\n%s\n```\n\n", name, capital(cmd.Usage), cmd.UsageText)
		if text = strings.TrimSpace(text); text != "" {
			fmt.Fprintf(&b, "%s\n\n", paragraphs(text))
		}
		writeFlags(&b, cmd.Flags)
		fmt.Fprintf(&b, "Example:\n\n```sh\n%s\n```\n\n", strings.TrimSpace(strings.ReplaceAll(examples, "\n  ", "\n")))
	})
	_, err := io.WriteString(out, strings.TrimSuffix(b.String(), "\n"))
	return err
}

func writeFlags(b *strings.Builder, flags []cli.Flag) {
	rows := 0
	for _, f := range flags {
		d, ok := f.(cli.DocGenerationFlag)
		if v, hideable := f.(cli.VisibleFlag); !ok || hideable && !v.IsVisible() || f.Names()[0] == "help" {
			continue
		}
		if rows == 0 {
			fmt.Fprint(b, "| flag | environment | meaning |\n|---|---|---|\n")
		}
		rows++
		fmt.Fprintf(b, "| %s | %s | %s |\n", flagNames(f, d), codes(d.GetEnvVars()), flagUsage(d))
	}
	if rows > 0 {
		fmt.Fprintln(b)
	}
}

func flagNames(f cli.Flag, d cli.DocGenerationFlag) string {
	var list []string
	for _, n := range f.Names() {
		dash := "--"
		if len(n) == 1 {
			dash = "-"
		}
		if d.TakesValue() {
			n += " " + valueName(d)
		}
		list = append(list, "`"+dash+n+"`")
	}
	return strings.Join(list, ", ")
}

// valueName gives the name between backquotes in a flag's usage, as the help has it.
func valueName(d cli.DocGenerationFlag) string {
	if _, after, ok := strings.Cut(d.GetUsage(), "`"); ok {
		name, _, _ := strings.Cut(after, "`")
		return name
	}
	return "VALUE"
}

func flagUsage(d cli.DocGenerationFlag) string {
	s := strings.ReplaceAll(d.GetUsage(), "|", `\|`)
	if def := d.GetDefaultText(); def != "" && d.TakesValue() {
		s += " (default: " + strings.Trim(def, `"`) + ")"
	}
	return s
}

func codes(names []string) string {
	for i, n := range names {
		names[i] = "`$" + n + "`"
	}
	return strings.Join(names, " ")
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// paragraphs makes what was broken into lines for a terminal flow.
func paragraphs(s string) string {
	list := strings.Split(s, "\n\n")
	for i, p := range list {
		list[i] = strings.ReplaceAll(p, "\n", " ")
	}
	return strings.Join(list, "\n\n")
}
