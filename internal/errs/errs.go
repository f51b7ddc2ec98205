// Package errs holds the one error type of hyperfs. Every failure that a user can act on carries a stable Code, which
// is what the socket and --json show and what decides the exit code of the command line.
package errs

import (
	"errors"
	"fmt"
)

// Code is a stable name for a kind of failure. Its text is part of the API.
type Code string

// The codes. Their order has no meaning.
const (
	Capacity          Code = "CAPACITY"
	BranchConflict    Code = "BRANCH_CONFLICT"
	Integrity         Code = "INTEGRITY"
	Path              Code = "PATH"
	IgnoredPath       Code = "IGNORED_PATH"
	Rollback          Code = "ROLLBACK"
	NotFound          Code = "NOT_FOUND"
	Busy              Code = "BUSY"
	Exec              Code = "EXEC"
	ExecOptions       Code = "EXEC_OPTIONS"
	ExecTimeout       Code = "EXEC_TIMEOUT"
	AttemptInProgress Code = "ATTEMPT_IN_PROGRESS"
	AttemptRollback   Code = "ATTEMPT_ROLLBACK"
	Disposed          Code = "DISPOSED"
	Unsupported       Code = "UNSUPPORTED"
	Usage             Code = "USAGE"    // wrong arguments, fields or options
	Internal          Code = "INTERNAL" // anything that has no code of its own
)

// Error is a failure with a code. Its text is one line: what failed, on what, why, and what to do.
type Error struct {
	Code Code
	Op   string // what was being done: "rollback", "mount"
	On   string // what it was done to: a workspace-relative path or a checkpoint ID; may be empty
	Err  error  // why; never nil
	Hint string // what to do about it; may be empty

	Details any // what more there is to say, for programs: it has a JSON form; mostly nil
}

// Error gives "op on: why (hint)".
func (e *Error) Error() string {
	s := e.Op
	if e.On != "" {
		s += " " + e.On
	}
	if s != "" {
		s += ": "
	}
	s += e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap gives the cause, so that errors.Is finds an errno below it.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error that has the same code and nothing else set, so that
// errors.Is(err, &Error{Code: NotFound}) works as a test of the code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Op == "" && t.On == "" && t.Err == nil
}

// New makes an Error from a format.
func New(code Code, op, on, format string, args ...any) *Error {
	return &Error{Code: code, Op: op, On: on, Err: fmt.Errorf(format, args...)}
}

// Wrap makes an Error around err; it gives nil where err is nil.
func Wrap(code Code, op, on string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Code: code, Op: op, On: on, Err: err}
}

// Ensure gives err as it is where it is an Error already, and wraps it in one without a code of its own otherwise, but for a full
// disk, which is CAPACITY.
func Ensure(op, on string, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	if NoSpace(err) {
		return New(Capacity, op, on, "%w", err).WithHint("make room on the filesystem of the store")
	}
	return &Error{Code: Internal, Op: op, On: on, Err: err}
}

// WithHint adds what to do.
func (e *Error) WithHint(hint string) *Error {
	c := *e
	c.Hint = hint
	return &c
}

// WithDetails adds what more there is to say.
func (e *Error) WithDetails(details any) *Error {
	c := *e
	c.Details = details
	return &c
}

// CodeOf gives the code of the outermost Error in err's chain, Internal where there is none, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}
