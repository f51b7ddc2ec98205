package overlay

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/oklog/ulid/v2"
)

// sessionPrefix begins the name of every session.
const sessionPrefix = "session_"

// NewSession gives a name for a run of a daemon, or of a command that works without one. It sorts by time.
func NewSession() string { return sessionPrefix + ulid.Make().String() }

// RehydrateStatus says why a checkpoint can't be had back for its status, as a ROLLBACK error, or nil.
func RehydrateStatus(c checkpoint.Checkpoint) error {
	refuse := func(why string) error {
		return errs.New(errs.Rollback, "rehydrate", c.ID, "%s", why).WithHint("`hyperfs list` shows the checkpoints that are left")
	}
	switch c.Status {
	case checkpoint.Active:
		return nil
	case checkpoint.Promoted:
		return refuse("it was promoted: what came after it is accepted, and its preimages are freed")
	case checkpoint.Disposed:
		return refuse("it is disposed: its preimages are freed")
	}
	return refuse("it is " + string(c.Status))
}

// NewRecoverable says of a checkpoint whether it can be rehydrated: that is so where err is nil.
func NewRecoverable(c checkpoint.Checkpoint, err error) Recoverable {
	r := Recoverable{Checkpoint: c, CanRehydrate: err == nil}
	if err != nil {
		r.Reason = err.Error()
	}
	return r
}

// DamagedRecord is the error of whoever wants a checkpoint whose record can't be read.
func DamagedRecord(op, id string, err error) error {
	return errs.New(errs.Integrity, op, id, "its record is damaged: %w", err).
		WithHint("`hyperfs drop " + id + "` removes it; other checkpoints are not affected")
}
