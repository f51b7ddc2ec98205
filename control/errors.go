package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Error is a failure with a stable code. The client gives the same Error that the daemon had.
type Error = errs.Error

// Code is a stable name for a kind of failure.
type Code = errs.Code

// The codes, for users of this package.
const (
	Capacity          = errs.Capacity
	BranchConflict    = errs.BranchConflict
	Integrity         = errs.Integrity
	Path              = errs.Path
	IgnoredPath       = errs.IgnoredPath
	Rollback          = errs.Rollback
	NotFound          = errs.NotFound
	Busy              = errs.Busy
	Exec              = errs.Exec
	ExecOptions       = errs.ExecOptions
	ExecTimeout       = errs.ExecTimeout
	AttemptInProgress = errs.AttemptInProgress
	AttemptRollback   = errs.AttemptRollback
	Disposed          = errs.Disposed
	Unsupported       = errs.Unsupported
	Usage             = errs.Usage
	Internal          = errs.Internal
)

// CodeOf gives the code of err: Internal where it has none, "" for nil.
func CodeOf(err error) Code { return errs.CodeOf(err) }

// httpStatus maps each code to the status of the reply. What is not in it is a 500.
var httpStatus = map[Code]int{
	Path:              http.StatusBadRequest,
	Usage:             http.StatusBadRequest,
	ExecOptions:       http.StatusBadRequest,
	IgnoredPath:       http.StatusForbidden,
	NotFound:          http.StatusNotFound,
	Busy:              http.StatusConflict,
	Rollback:          http.StatusConflict,
	BranchConflict:    http.StatusConflict,
	AttemptInProgress: http.StatusConflict,
	Disposed:          http.StatusGone,
	Exec:              http.StatusUnprocessableEntity,
	AttemptRollback:   http.StatusUnprocessableEntity,
	Integrity:         http.StatusInternalServerError,
	Internal:          http.StatusInternalServerError,
	Unsupported:       http.StatusNotImplemented,
	ExecTimeout:       http.StatusGatewayTimeout,
	Capacity:          http.StatusInsufficientStorage,
}

// statusOf gives the status of a reply that says err.
func statusOf(err error) int {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errMethod):
		return http.StatusMethodNotAllowed
	}
	if s, ok := httpStatus[errs.CodeOf(err)]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// WireError is an Error on the wire.
type WireError struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`           // why
	Op      string `json:"op"`                // what was being done
	On      string `json:"on"`                // what it was done to: a path, a checkpoint ID, or the name of a wrong field
	Hint    string `json:"hint"`              // what to do about it
	Details any    `json:"details,omitempty"` // what more there is to say; of a BRANCH_CONFLICT, what merge replies otherwise
}

// ErrorReply is the body of every reply whose status is not 2xx, and what --json shows of a failure.
type ErrorReply struct {
	Error WireError `json:"error"`
}

// NewErrorReply gives err's wire form. An error that is no *Error becomes INTERNAL with its whole text.
func NewErrorReply(err error) ErrorReply {
	var e *Error
	if !errors.As(err, &e) {
		return ErrorReply{WireError{Code: Internal, Message: err.Error()}}
	}
	return ErrorReply{WireError{Code: e.Code, Message: e.Err.Error(), Op: e.Op, On: e.On, Hint: e.Hint, Details: e.Details}}
}

// Err turns the wire form back into an *Error.
func (r ErrorReply) Err() error {
	w := r.Error
	return &Error{Code: w.Code, Op: w.Op, On: w.On, Err: errors.New(w.Message), Hint: w.Hint, Details: w.Details}
}

// decodeError turns the body of a failed reply into an *Error. A body that is not ours is quoted in part.
func decodeError(op string, status int, body []byte) error {
	var details json.RawMessage // left as it is: only who asked knows what it says
	r := ErrorReply{WireError{Details: &details}}
	if err := json.Unmarshal(body, &r); err == nil && r.Error.Code != "" {
		if r.Error.Details = nil; len(details) > 0 {
			r.Error.Details = details
		}
		return r.Err()
	}
	const most = 200
	if len(body) > most {
		body = body[:most]
	}
	return errs.New(Internal, op, "", "the daemon answered %d: %s", status, fmt.Sprintf("%q", body))
}
