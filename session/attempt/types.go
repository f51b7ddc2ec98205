package attempt

import (
	"fmt"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
)

// CreatedBy is what checkpoints of attempts are created by.
const CreatedBy = "run-attempt"

// Options say what to begin. All may be empty. Tags are those of Parent where they are not given.
type Options struct {
	ID       string `json:"id,omitempty"`     // one that Reserve gave
	Parent   string `json:"parent,omitempty"` // an active checkpoint
	Branch   string `json:"branch,omitempty"` // where to work, if there is such a branch; else the tag of an attempt in main
	Subagent string `json:"subagent,omitempty"`
	Agent    string `json:"agent,omitempty"`
	Message  string `json:"message,omitempty"`

	// PID is the owner: once that process is gone, the next attempt may begin. 0 means that it stays under way until somebody ends it.
	PID int `json:"pid,omitempty"`

	// PIDStart is what StartOf gives of the owner, or 0. With it nobody is taken for the owner who has only the same number, in another PID
	// namespace for example; an owner who can't be seen from here is as good as none then.
	PIDStart int64 `json:"pid_start,omitempty"`
}

// Attempt is one that is under way. Its ID is that of its checkpoint, which is what a failure goes back to.
type Attempt struct {
	checkpoint.Checkpoint
	WorksIn string `json:"works_in"`      // main, or a branch
	PID     int    `json:"pid,omitempty"` // of the owner
}

// Outcome is how an attempt ended.
type Outcome string

// The outcomes.
const (
	Success   Outcome = "success"
	Failure   Outcome = "failure"
	Abandoned Outcome = "abandoned" // nobody said; only events and replies have it
)

// EndOptions say how an attempt ended, and what is to be done about it.
type EndOptions struct {
	Outcome     Outcome `json:"outcome"` // success or failure
	Message     string  `json:"message,omitempty"`
	NoReconcile bool    `json:"no_reconcile,omitempty"` // after a success, do not find out what has changed
	NoRollback  bool    `json:"no_rollback,omitempty"`  // after a failure, leave the files as they are
}

// MaxMessage is how many bytes of an end's message count.
const MaxMessage = 4 << 10

// Shortened gives o with a message that is no longer than MaxMessage: what somebody says of a failure must not keep it from being rolled back.
func (o EndOptions) Shortened() EndOptions {
	if len(o.Message) > MaxMessage {
		o.Message = strings.ToValidUTF8(o.Message[:MaxMessage-len("…")], "") + "…"
	}
	return o
}

// Result is what has become of an attempt.
type Result struct {
	ID         string                   `json:"id"` // of its checkpoint, which is active unless it was rolled back to
	WorksIn    string                   `json:"works_in"`
	Outcome    Outcome                  `json:"outcome"`
	Message    string                   `json:"message,omitempty"`
	Duration   time.Duration            `json:"duration_ns"` // from its begin to the word that it has ended
	Reconcile  *overlay.ReconcileResult `json:"reconcile,omitempty"`
	RolledBack bool                     `json:"rolled_back"`
	Rollback   *overlay.RollbackResult  `json:"rollback,omitempty"`
}

// RollbackError is below the ATTEMPT_ROLLBACK error: an attempt has failed, and its rollback too. errors.Is and errors.As find both.
type RollbackError struct {
	Checkpoint string // is active
	Attempt    error  // why the attempt failed
	Rollback   error  // why it is not rolled back
}

func (e *RollbackError) Error() string {
	return fmt.Sprintf("the attempt failed: %v; it could not be rolled back: %v", e.Attempt, e.Rollback) // fmt bears with an Error method that panics
}

// Unwrap gives both errors.
func (e *RollbackError) Unwrap() []error { return []error{e.Attempt, e.Rollback} }
