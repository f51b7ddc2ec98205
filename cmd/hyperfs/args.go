package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// completionFlag is what the shells' completion scripts add: the flag library wants it last.
const completionFlag = "--generate-bash-completion"

// permute puts the flags of a command before its arguments, since the flag library stops at the first argument:
// `rollback ID --json` works like `rollback --json ID`; and -C, which is the program's, before the command. What follows "--" stays where it is, and so
// does all of what run, exec, attempt and stats are to run.
func permute(app *cli.App, args []string) []string {
	args = helpOfSub(app, args)
	first, at, cmd := findCommand(app, args)
	if cmd == nil || args[len(args)-1] == completionFlag {
		return args
	}
	var place, flags, rest []string
	tail := args[at+1:]
	for i := 0; i < len(tail); i++ {
		a := tail[i]
		if a == "--" {
			rest = append(rest, tail[i+1:]...)
			break
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			if runsCommand(cmd) {
				rest = append(rest, tail[i:]...)
				break
			}
			rest = append(rest, a)
			continue
		}
		to := &flags
		if isPlace(a) {
			to = &place
		}
		*to = append(*to, a)
		if isPlace(a) && takesValue(app.Flags, a) || takesValue(cmd.Flags, a) {
			if i++; i == len(tail) {
				return args // a value is missing, and nothing may be put in its place
			}
			*to = append(*to, tail[i])
		}
	}
	between, early := splitPlace(args[first:at]) // the command of a command has one before it
	out := slices.Concat(args[:first], early, place, between, []string{cmd.Name}, flags, []string{"--"})
	return append(out, rest...)
}

// splitPlace takes -C and its values out of args.
func splitPlace(args []string) (rest, place []string) {
	value := false // of -C comes next
	for _, a := range args {
		if value || isPlace(a) {
			place = append(place, a)
			value = !value && !strings.Contains(a, "=")
		} else {
			rest = append(rest, a)
		}
	}
	return rest, place
}

// isPlace reports whether a flag is -C.
func isPlace(arg string) bool {
	name, _, _ := strings.Cut(arg, "=")
	return name == "-C" || name == "--C"
}

// runsCommand reports whether the arguments of a command are a command with flags of its own.
func runsCommand(cmd *cli.Command) bool {
	return slices.Contains([]string{"run", "exec", "attempt", "stats"}, cmd.Name)
}

// helpOfSub makes "help turns begin" what the flag library takes for that.
func helpOfSub(app *cli.App, args []string) []string {
	if len(args) != 4 || args[1] != "help" {
		return args
	}
	if cmd := app.Command(args[2]); cmd == nil || subcommand(cmd, args[3]) == nil {
		return args
	}
	return []string{args[0], args[2], args[3], "--help"}
}

// findCommand gives the command, which may be one of a command, its place in args, and that of the first; nil if there is none.
func findCommand(app *cli.App, args []string) (first, at int, cmd *cli.Command) {
	flags := app.Flags
	for i := 1; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--" && cmd != nil:
			return first, at, cmd
		case strings.HasPrefix(a, "-"):
			if takesValue(flags, a) || takesValue(app.Flags, a) {
				i++
			}
		case cmd == nil:
			if cmd = app.Command(a); cmd == nil || len(cmd.Subcommands) == 0 {
				return i, i, cmd
			}
			first, at, flags = i, i, cmd.Flags
		default:
			if sub := subcommand(cmd, a); sub != nil {
				return first, i, sub
			}
			return first, at, cmd
		}
	}
	return first, at, cmd
}

// subcommand gives the command of a command with a name, nil if there is none.
func subcommand(cmd *cli.Command, name string) *cli.Command {
	for _, c := range cmd.Subcommands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// takesValue reports whether the flag in arg takes the next argument as its value.
func takesValue(flags []cli.Flag, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return false
	}
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			d, ok := f.(cli.DocGenerationFlag)
			return ok && d.TakesValue()
		}
	}
	return false
}

// wantsJSON reports whether --json is among our flags, also where others of them are wrong.
func wantsJSON(app *cli.App, args []string) bool {
	_, at, cmd := findCommand(app, args)
	for i := 1; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--json" || a == "-json" || a == "--json=true":
			return true
		case a == "--", i > at && !strings.HasPrefix(a, "-"):
			return false
		case cmd != nil && takesValue(cmd.Flags, a), takesValue(app.Flags, a):
			i++
		}
	}
	return false
}
