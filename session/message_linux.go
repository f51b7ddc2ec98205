package session

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// launch is what a helper is to do. It travels as gob, since names need not be UTF-8.
type launch struct {
	Args, Env []string
	Dir       string
	Grace     time.Duration

	// What the helper was started in.
	Private bool // a mount namespace of its own
	PIDs    bool // it is the init of a PID namespace
	User    bool // it has its rights from a user namespace alone
	Offline bool // a network namespace, whose loopback device is down

	Workspace, Source string // symlinks resolved; "" for none
	Sandbox           *Sandbox
	RuntimeDir        string   // XDG_RUNTIME_DIR
	Sockets           []string // what there is of sockets with a path, for a sandbox
}

// request is what the caller wants later. The end of the connection means the same as End.
type request struct {
	Signal syscall.Signal // for the command
	End    bool           // everything
}

// reply is what the helper says: first Started or Failed, and at last Ended.
type reply struct {
	Started bool
	Failed  *failure
	Ended   bool
	Status  uint32 // of the command, as wait(2) has it
	Left    int    // processes that could not be ended
}

// failure is an error on its way from the helper.
type failure struct {
	Code     errs.Code
	On       string
	Text     string
	Hint     string
	Errno    syscall.Errno
	Start    bool // the command could not be started
	NotFound bool // there is no such program
	NoProc   bool // /proc could not be mounted for a PID namespace
}

func (f *failure) Error() string { return f.Text }

// failureOf makes err ready for its way. What has no code stays without one.
func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	f = &failure{Code: errs.CodeOf(err), Text: err.Error()}
	errors.As(err, &f.Errno)
	var e *errs.Error
	if errors.As(err, &e) {
		f.On, f.Hint, f.Text = e.On, e.Hint, e.Err.Error()
	}
	return f
}

// err gives the error again.
func (f *failure) err() error {
	var cause error = errors.New(f.Text)
	if f.Errno != 0 && f.Errno.Error() == f.Text {
		cause = f.Errno // so that errors.Is finds it
	}
	if f.Start {
		cause = &StartError{NotFound: f.NotFound, Err: cause}
	}
	return errs.New(f.Code, op, f.On, "%w", cause).WithHint(f.Hint)
}

// bare gives the errno below an error that repeats a path.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	var s *os.SyscallError
	if errors.As(err, &s) {
		return s.Err
	}
	return err
}
