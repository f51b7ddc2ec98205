package control

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
)

func TestClientMakesAttempts(t *testing.T) {
	s := start(t, &fakeWorkspace{changed: overlay.ReconcileResult{Created: []string{"a\xff"}, Renamed: []overlay.Rename{{From: "b\xfe", To: "c"}}}})
	a, err := s.BeginAttempt(ctx, attempt.Options{Agent: "planner", Message: "", PID: os.Getpid()})
	if err != nil || a.ID == "" || a.Agent != "planner" || a.WorksIn != overlay.MainBranch || a.PID != os.Getpid() {
		t.Fatalf("%+v, %v", a, err)
	}
	_, err = s.BeginAttempt(ctx, attempt.Options{ID: "ckpt_another"})
	wantCode(t, err, AttemptInProgress, a.ID)
	if list, err := s.Attempts(ctx); err != nil || len(list) != 1 || list[0].ID != a.ID {
		t.Errorf("under way are %+v, %v", list, err)
	}
	r, err := s.EndAttempt(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Success})
	if err != nil || r.Reconcile == nil || r.Reconcile.Created[0] != "a\xff" || r.Reconcile.Renamed[0].From != "b\xfe" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = s.EndAttempt(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Success})
	wantCode(t, err, NotFound, a.ID)
	_, err = s.EndAttempt(ctx, "..", attempt.EndOptions{Outcome: attempt.Success})
	wantCode(t, err, Usage, "..")
	if a, err = s.BeginAttempt(ctx, attempt.Options{ID: "ckpt_another"}); err != nil {
		t.Fatal(err)
	}
	if r, err := s.AbandonAttempt(ctx, a.ID); err != nil || r.Outcome != attempt.Abandoned {
		t.Errorf("%+v, %v", r, err)
	}
}

// stuck is a workspace that cannot be rolled back.
type stuck struct{ fakeWorkspace }

func (*stuck) Rollback(context.Context, string, overlay.RollbackOptions) (overlay.RollbackResult, error) {
	return overlay.RollbackResult{}, errs.New(Integrity, "rollback", "some/file", "its preimage is damaged").WithHint("hyperfs fsck")
}

func TestClientGetsBothFaultsOfAnAttempt(t *testing.T) {
	s := start(t, &stuck{})
	a, err := s.BeginAttempt(ctx, attempt.Options{ID: "ckpt_one"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.EndAttempt(ctx, a.ID, attempt.EndOptions{Outcome: attempt.Failure, Message: "tests fail"})
	wantCode(t, err, AttemptRollback, "tests fail")
	var both *attempt.RollbackError
	if !errors.As(err, &both) || both.Checkpoint != a.ID || both.Attempt.Error() != "tests fail" {
		t.Fatalf("%v does not have both", err)
	}
	wantCode(t, both.Rollback, Integrity, "some/file")
	var e *Error
	if !errors.As(both.Rollback, &e) || e.Hint != "hyperfs fsck" || e.On != "some/file" {
		t.Errorf("the rollback's error is %+v", both.Rollback)
	}
}

func TestFieldsOfAttemptsAreChecked(t *testing.T) {
	s := start(t, &fakeWorkspace{})
	for _, tt := range []struct{ path, body, names string }{
		{"/v1/attempts", `{"agent":""}`, "agent"},
		{"/v1/attempts", `{"branch":""}`, "branch"},
		{"/v1/attempts", `{"pid":"1"}`, "pid"},
		{"/v1/attempts", `{"pid":-1}`, "pid"},
		{"/v1/attempts", `{"pid_start":7}`, "pid_start"},
		{"/v1/attempts", `{"created_by":"me"}`, "created_by"},
		{"/v1/attempts/x/end", `{}`, "outcome"},
		{"/v1/attempts/x/end", `{"outcome":"abandoned"}`, "outcome"},
		{"/v1/attempts/x/end", `{"outcome":"success","rollback":false}`, "rollback"},
	} {
		status, reply, _ := s.do(t, "POST", tt.path, strings.NewReader(tt.body))
		if err := decodeError("attempt", status, reply); status != 400 || errOn(err) != tt.names {
			t.Errorf("%s %s: %d %s", tt.path, tt.body, status, reply)
		}
	}
}

// errOn gives what an error is about.
func errOn(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.On
	}
	return ""
}
