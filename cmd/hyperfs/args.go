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
	at, cmd := findCommand(app, args)
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
	out := slices.Concat(args[:at], place, []string{cmd.Name}, flags, []string{"--"})
	return append(out, rest...)
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

// findCommand gives the command and its place in args, nil if there is none.
func findCommand(app *cli.App, args []string) (int, *cli.Command) {
	for i := 1; i < len(args); i++ {
		a := args[i]
		if !strings.HasPrefix(a, "-") {
			return i, app.Command(a)
		}
		if takesValue(app.Flags, a) {
			i++
		}
	}
	return 0, nil
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
	at, cmd := findCommand(app, args)
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
