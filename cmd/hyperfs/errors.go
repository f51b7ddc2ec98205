package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

const exitCodeText = "Exit codes: 0 fine, 1 other failure, 2 wrong usage, 3 conflict, 4 integrity, 5 not found, 6 busy, 7 capacity, 8 timeout,\n" +
	"9 ignored path refused. run, exec and attempt pass on the command's own code."

// exitCodes maps the codes of errors to those of the process. What is not in it is 1.
var exitCodes = map[control.Code]int{
	control.Usage:             2,
	control.ExecOptions:       2,
	control.BranchConflict:    3,
	control.Integrity:         4,
	control.NotFound:          5,
	control.Busy:              6,
	control.AttemptInProgress: 6,
	control.Capacity:          7,
	control.ExecTimeout:       8,
	control.IgnoredPath:       9,
}

// exited is the error of a command that was run and did not end with 0: nothing more is to be said.
type exited int

func (e exited) Error() string { return "exit code " + strconv.Itoa(int(e)) }

// report prints err, one line on stderr and with --json a document on stdout too, and gives the exit code.
func report(err error, asJSON bool, stdout, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	var code exited
	if errors.As(err, &code) {
		return int(code)
	}
	err = coded(err)
	if asJSON {
		// Where stdout is broken, stderr and the exit code still say it.
		_ = printJSON(stdout, control.NewErrorReply(err))
	}
	fmt.Fprintf(stderr, "hyperfs: %s\n", oneLine(err.Error()))
	return exitCode(err)
}

// failed is an error with an exit code of its own.
type failed struct {
	code int
	error
}

func (f *failed) Unwrap() error { return f.error }

// exitCode gives the process's exit code for err.
func exitCode(err error) int {
	var own *failed
	if errors.As(err, &own) {
		return own.code
	}
	if n, ok := exitCodes[errs.CodeOf(err)]; ok {
		return n
	}
	return 1
}

// coded gives the errors that the flag library makes itself their code. Below one of ours there can be an exec.ExitError, which looks like theirs.
func coded(err error) error {
	var ours *control.Error
	var lib cli.ExitCoder
	if !errors.As(err, &ours) && errors.As(err, &lib) {
		return errs.New(control.Usage, "", "", "%s", lib.Error()).WithHint("hyperfs help")
	}
	return err
}

// oneLine makes one line of text, whatever names it quotes.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
