package runtime

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Languages of sessions.
const (
	JavaScript = "javascript"
	Python     = "python"
)

// CodeSession is a runtime that keeps its variables from one piece of a program to the next. Its methods may be called by any goroutine: all but Close wait
// for one another. A context that ends interrupts the program; if that doesn't stop it, the session ends.
//
// Errors: DISPOSED after Close; EXEC with a *DeathError below once the runtime has ended, however it did; EXEC_TIMEOUT where the deadline of a context has
// passed, EXEC where a context was cancelled; USAGE for names and values that the session can't have.
type CodeSession interface {
	// Language gives the language of the programs.
	Language() string

	// Execute runs a piece of a program. What it declares at its top level stays, as globals. The result has what the program wrote also where there is an
	// error: EXEC, with a *ProgramError below, for an exception that nothing caught, and for what is no program.
	Execute(ctx context.Context, code string) (Result, error)

	// Globals gives what is found under names, in their order; those that aren't there are left out.
	Globals(ctx context.Context, names ...string) ([]Entry, error)

	// SetGlobals sets variables: to what encoding/json makes of a value, a json.RawMessage as it is, and a Func as a function. Maps of type map[string]any may
	// have Funcs in them. Functions that were set before under these names can't be called any more, whoever has kept them.
	SetGlobals(ctx context.Context, values map[string]any) error

	// PatchGlobal changes single keys of a variable that holds an object, or makes it one. Other keys are not touched.
	PatchGlobal(ctx context.Context, name string, p Patch) error

	// DeleteGlobals removes variables, whoever has made them. Names that aren't there are fine.
	DeleteGlobals(ctx context.Context, names ...string) error

	// Snapshot gives the variables of the program by name, without those of ReservedNames and of except. What can't be restored is
	// there without a value, and says why.
	Snapshot(ctx context.Context, except ...string) ([]Entry, error)

	// Restore sets the variables of a snapshot, and gives those that it has set: not what has no value, and no reserved names.
	Restore(ctx context.Context, entries []Entry) ([]Entry, error)

	// ReservedNames gives the names that the runtime itself has brought.
	ReservedNames() []string

	// Done is closed when the session has ended, and nothing of it is left. Err says why then, and gives nil before.
	Done() <-chan struct{}
	Err() error

	// Close ends the session and what runs in it, and waits for that. It may be called more than once.
	Close() error
}

// Adopter is a session that both phases can have, one after the other: what the first one keeps never leaves it.
type Adopter interface {
	CodeSession

	// InstallFinal sets the function that ends the first phase: its second argument is kept in the session, its others are for fn.
	InstallFinal(ctx context.Context, name string, fn Func) error

	// Cross makes the kept value a global. What was not kept is not there.
	Cross(ctx context.Context, b Boundary) error
}

// Boundary is what happens inside of a session between two phases, in this order.
type Boundary struct {
	Evidence string   `json:"evidence"`         // name of the global that gets the kept value
	Delete   []string `json:"delete,omitempty"` // globals that go
	Inputs   string   `json:"inputs"`           // name of the global with the inputs
	Patch    Patch    `json:"-"`                // of the inputs
}

// Func is a function of this process that programs call. In JavaScript it gives a promise, and calls run side by side; in Python it waits. Arguments are JSON; so
// must be the result, and an error becomes an exception. ctx ends when the program is interrupted, or the session ends.
type Func func(ctx context.Context, args []json.RawMessage) (any, error)

// Patch changes an object, in this order.
type Patch struct {
	Set    map[string]any
	Delete []string // keys, and globals of the same names
	Alias  []string // keys that globals of the same names get the values of; those that aren't there are left out
}

// Result is what a piece of a program has given.
type Result struct {
	Value Entry // of the last expression; it has no name

	// What was written, up to Limits.Output bytes of each; for processes, also what came since the last result.
	Stdout, Stderr []byte
	Cut            bool // there was more

	Duration time.Duration
}

// Limits bound a session. Zero values mean the defaults.
type Limits struct {
	Output int           // bytes of each stream that a Result has; default 1 MiB
	Value  int           // bytes of JSON in one message; default 256 MiB
	Entry  int           // bytes of JSON of one variable of a snapshot; default 16 MiB
	Memory int64         // bytes that the program may have; 0 means as many as there are. For JavaScript a rough bound: see docs/runtimes.md
	Grace  time.Duration // what an interrupted program may take before the session is ended; default 2 s
}

// Complete gives l with its defaults, or says what is wrong with it.
func (l Limits) Complete() (Limits, error) {
	for _, n := range []struct {
		name  string
		value *int
		or    int
	}{{"Output", &l.Output, 1 << 20}, {"Value", &l.Value, 256 << 20}, {"Entry", &l.Entry, 16 << 20}} {
		if *n.value < 0 || *n.value > 1<<30 {
			return l, errs.New(errs.Usage, opStart, n.name, "%d is not between 0 and %d", *n.value, 1<<30)
		}
		if *n.value == 0 {
			*n.value = n.or
		}
	}
	if l.Memory < 0 {
		return l, errs.New(errs.Usage, opStart, "Memory", "%d is negative", l.Memory)
	}
	if l.Grace < 0 {
		return l, errs.New(errs.Usage, opStart, "Grace", "%v is negative", l.Grace)
	}
	if l.Grace == 0 {
		l.Grace = 2 * time.Second
	}
	return l, nil
}

// What fails, in errors.
const (
	opStart = "start runtime"
	opRun   = "run code"
)

// ProgramError is an exception that the program has not caught.
type ProgramError struct {
	Name    string `json:"name"` // of its type
	Message string `json:"message"`
	Stack   string `json:"stack"` // for people; may be empty
}

func (e *ProgramError) Error() string {
	if e.Message == "" {
		return e.Name
	}
	return e.Name + ": " + e.Message
}

// DeathError says that a runtime has ended by itself, or was ended as it could not be interrupted. Its variables are gone.
type DeathError struct{ Err error }

func (e *DeathError) Error() string { return "its runtime has ended: " + e.Err.Error() }

func (e *DeathError) Unwrap() error { return e.Err }

// Died is the error of a call of a session that has ended.
func Died(why error) error {
	return errs.Wrap(errs.Exec, opRun, "", &DeathError{why}).(*errs.Error).WithHint("its variables are gone: go on in a new one")
}

// Closed is the error of a call of a closed session.
func Closed() error { return errs.New(errs.Disposed, opRun, "", "the session is closed") }

// Interrupted is the error of a call whose context has ended.
func Interrupted(ctx context.Context) error {
	code := errs.Exec
	if ctx.Err() == context.DeadlineExceeded {
		code = errs.ExecTimeout
	}
	return errs.New(code, opRun, "", "it was interrupted: %w", context.Cause(ctx))
}

// Threw is the error of an execution that ended with an exception.
func Threw(e *ProgramError) error { return errs.Wrap(errs.Exec, opRun, "", e) }
