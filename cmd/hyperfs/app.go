package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// run is the program: it gives the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	app := newApp(stdin, stdout, stderr)
	// A second signal ends the program at once, since the handler is gone after the first.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop)
	defer stop()
	args = permute(app, args)
	err := app.RunContext(ctx, args)
	return report(err, wantsJSON(app, args), stdout, stderr)
}

// newApp makes the command line. Nothing in it is global.
func newApp(stdin io.Reader, stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:      "hyperfs",
		Usage:     "checkpoint a directory, let anything work in it, roll it back",
		UsageText: "hyperfs [-C DIR] COMMAND [flags] [arguments]",
		Description: "Every command finds its workspace from the current directory upwards, or from -C DIR, which may also\n" +
			"follow COMMAND, or in $HYPERFS_WORKSPACE.\n" +
			"Data goes to stdout, everything else to stderr.\n\n" + exitCodeText,
		Version:                   buildVersion().Version,
		Reader:                    stdin,
		Writer:                    stdout,
		ErrWriter:                 stderr,
		HideVersion:               true, // there is a command
		EnableBashCompletion:      true,
		DisableSliceFlagSeparator: true, // a value may have commas
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "C", Usage: "work as if started in `DIR`"},
			jsonFlag(),
		},
		Commands: []*cli.Command{
			runCommand(), execCommand(), attemptCommand(), turnsCommand(), mountCommand(), serveCommand(), unmountCommand(), statusCommand(), diagnosticsCommand(), statsCommand(), profileCommand(),
			snapshotCommand(), rollbackCommand(), undoCommand(), listCommand(), treeCommand(), showCommand(),
			diffCommand(), patchCommand(), reconcileCommand(), promoteCommand(), dropCommand(),
			forkCommand(), branchesCommand(), headsCommand(), mergeCommand(), dropBranchCommand(),
			outputsCommand(), trackCommand(),
			recoverCommand(), rehydrateCommand(), gcCommand(), fsckCommand(), versionCommand(), completionCommand(), docsCommand(),
		},
		OnUsageError:   usageFailed,
		ExitErrHandler: func(*cli.Context, error) {}, // report does it
		Action:         noCommand,
	}
	eachCommand(app.Commands, func(_ string, c *cli.Command) {
		c.OnUsageError = usageFailed
		c.HideHelpCommand = true
	})
	return app
}

// eachCommand calls fn with each command and its name behind that of the program, those of commands among them.
func eachCommand(list []*cli.Command, fn func(name string, c *cli.Command)) {
	for _, c := range list {
		fn(c.Name, c)
		eachCommand(c.Subcommands, func(name string, sub *cli.Command) { fn(c.Name+" "+name, sub) })
	}
}

// nameOf gives the name of the command that runs, behind that of the program.
func nameOf(c *cli.Context) string {
	var names []string
	for _, l := range c.Lineage() {
		if l.Command != nil && l.Command.Name != c.App.Name {
			names = append([]string{l.Command.Name}, names...)
		}
	}
	return strings.TrimSpace(strings.Join(names, " "))
}

// jsonFlag is on every command that prints data, and on the program.
func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print one JSON document instead of text"}
}

// noCommand runs where the first argument names no command.
func noCommand(c *cli.Context) error {
	if name := c.Args().First(); name != "" {
		return unknownCommand(c, name, c.App.Commands, "hyperfs help")
	}
	c.App.Writer = c.App.ErrWriter
	if err := cli.ShowAppHelp(c); err != nil {
		return err
	}
	return errs.New(control.Usage, "", "", "a command is missing")
}

// unknownCommand is the error of a command, or one of a command, that there isn't.
func unknownCommand(c *cli.Context, name string, among []*cli.Command, help string) error {
	e := errs.New(control.Usage, nameOf(c), "", "unknown command %q", name)
	if near := cli.SuggestCommand(among, name); near != "" {
		return e.WithHint(near)
	}
	return e.WithHint(help + " lists them")
}

// usageFailed gives wrong flags their code.
func usageFailed(c *cli.Context, err error, _ bool) error {
	name := nameOf(c)
	return errs.New(control.Usage, name, "", "%w", err).WithHint(strings.TrimSpace("hyperfs help " + name))
}

// wrongArguments is the error of too few or too many arguments.
func wrongArguments(c *cli.Context) error {
	var ways []string // an error is one line
	for l := range strings.SplitSeq(c.Command.UsageText, "\nhyperfs ") {
		ways = append(ways, strings.TrimPrefix(strings.Join(strings.Fields(l), " "), "hyperfs "))
	}
	return errs.New(control.Usage, nameOf(c), "", "usage: hyperfs %s", strings.Join(ways, "; or hyperfs ")).WithHint("hyperfs help " + nameOf(c))
}

// arguments checks how many arguments there are, and that none is empty.
func arguments(least, most int, then cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if n := c.Args().Len(); n < least || n > most {
			return wrongArguments(c)
		}
		for _, a := range c.Args().Slice() {
			if a == "" || strings.ContainsRune(a, 0) {
				return errs.New(control.Usage, nameOf(c), "", "an argument is empty").WithHint("hyperfs help " + nameOf(c))
			}
		}
		return then(c)
	}
}

// flagAnywhere reports whether a boolean flag is set on the command or on the program.
func flagAnywhere(c *cli.Context, name string) bool {
	for _, l := range c.Lineage() {
		if l.Bool(name) {
			return true
		}
	}
	return false
}

// given gives the value of a string flag that must not be empty if it is given at all.
func given(c *cli.Context, name string) (string, error) {
	v := c.String(name)
	if v == "" && c.IsSet(name) {
		return "", errs.New(control.Usage, nameOf(c), "--"+name, "it is empty")
	}
	return v, nil
}

// example gives the text below a command's usage: what it does in a few words, then examples, one a line.
func example(text string, lines ...string) string {
	return strings.TrimSpace(fmt.Sprintf("%s\n\nExample:\n  %s", text, strings.Join(lines, "\n  ")))
}
