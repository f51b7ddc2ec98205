package control

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session/attempt"
)

// AttemptsReply is the answer to GET /v1/attempts, oldest first.
type AttemptsReply struct {
	Attempts []attempt.Attempt `json:"attempts"`
}

// AttemptReply is what has become of an attempt.
type AttemptReply struct {
	attempt.Result
	NotUTF8 NotUTF8 `json:"not_utf8,omitempty"`
}

// AttemptRollbackDetails are those of an ATTEMPT_ROLLBACK error.
type AttemptRollbackDetails struct {
	Checkpoint string    `json:"checkpoint,omitempty"` // what it goes back to
	Attempt    string    `json:"attempt"`              // why it failed, as its end said
	Rollback   WireError `json:"rollback"`             // why it is not rolled back
}

func beginAttempt(s *Server, ctx context.Context, _ *call, o *attempt.Options) (attempt.Attempt, error) {
	return s.attempts.Begin(ctx, *o)
}

func attempts(s *Server, _ context.Context, _ *call, _ *none) (AttemptsReply, error) {
	return AttemptsReply{s.attempts.Active()}, nil
}

func endAttempt(s *Server, ctx context.Context, c *call, o *attempt.EndOptions) (AttemptReply, error) {
	r, err := s.attempts.End(ctx, c.id, *o)
	return NewAttemptReply(r), withFaults(err)
}

// withFaults gives an ATTEMPT_ROLLBACK error its details. Others it leaves as they are.
func withFaults(err error) error {
	var both *attempt.RollbackError
	var e *Error
	if errors.As(err, &both) && errors.As(err, &e) {
		return e.WithDetails(AttemptRollbackDetails{both.Checkpoint, both.Attempt.Error(), NewErrorReply(both.Rollback).Error})
	}
	return err
}

func abandonAttempt(s *Server, ctx context.Context, c *call, _ *none) (AttemptReply, error) {
	r, err := s.attempts.Abandon(ctx, c.id)
	return NewAttemptReply(r), err
}

// NewAttemptReply gives r's wire form.
func NewAttemptReply(r attempt.Result) AttemptReply {
	reply := AttemptReply{Result: r}
	if r.Reconcile == nil {
		return reply
	}
	changed := NewReconcileReply(*r.Reconcile)
	reply.Reconcile = &changed.ReconcileResult
	eachReconcilePath(reply.Reconcile, func(at string, s *string) { reply.NotUTF8.add("/reconcile"+at, *s) })
	return reply
}

// restore puts back what JSON could not hold.
func (r *AttemptReply) restore() {
	if r.Reconcile != nil {
		eachReconcilePath(r.Reconcile, func(at string, s *string) { r.NotUTF8.restore("/reconcile"+at, s) })
	}
}

// BeginAttempt makes a checkpoint and begins an attempt. ATTEMPT_IN_PROGRESS says which one is in the way.
func (c *Client) BeginAttempt(ctx context.Context, o attempt.Options) (r attempt.Attempt, err error) {
	return r, c.call(ctx, "attempt", http.MethodPost, "/v1/attempts", nil, &o, &r)
}

// Attempts lists the attempts that are under way, oldest first.
func (c *Client) Attempts(ctx context.Context) ([]attempt.Attempt, error) {
	var r AttemptsReply
	err := c.call(ctx, "attempts", http.MethodGet, "/v1/attempts", nil, nil, &r)
	return r.Attempts, err
}

// EndAttempt ends an attempt. With ATTEMPT_ROLLBACK there is an attempt.RollbackError below the error.
func (c *Client) EndAttempt(ctx context.Context, id string, o attempt.EndOptions) (attempt.Result, error) {
	var r AttemptReply
	o = o.Shortened() // a larger request would be refused
	err := c.byAttempt(ctx, http.MethodPost, id, "/end", &o, &r)
	r.restore()
	return r.Result, bothFaults(err)
}

// AbandonAttempt gives an attempt up. The files stay as they are, and the checkpoint stays active.
func (c *Client) AbandonAttempt(ctx context.Context, id string) (attempt.Result, error) {
	var r AttemptReply
	err := c.byAttempt(ctx, http.MethodDelete, id, "", nil, &r)
	return r.Result, err
}

func (c *Client) byAttempt(ctx context.Context, method, id, sub string, body, reply any) error {
	if id == "" || id == "." || id == ".." {
		return errs.New(Usage, "attempt", id, "%q is no ID of an attempt", id)
	}
	return c.call(ctx, "attempt", method, "/v1/attempts/"+url.PathEscape(id)+sub, nil, body, reply)
}

// bothFaults gives an ATTEMPT_ROLLBACK error from the daemon the two that it is about. Others it leaves as they are.
func bothFaults(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Code != AttemptRollback {
		return err
	}
	raw, _ := e.Details.(json.RawMessage)
	var d AttemptRollbackDetails
	if json.Unmarshal(raw, &d) != nil {
		return err
	}
	both := &attempt.RollbackError{Checkpoint: d.Checkpoint, Attempt: errors.New(d.Attempt), Rollback: ErrorReply{d.Rollback}.Err()}
	return errs.New(AttemptRollback, e.Op, e.On, "%w", both).WithHint(e.Hint)
}
