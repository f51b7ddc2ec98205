package turn

import (
	"encoding/json"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
)

// CreatedBy is what checkpoints of turns are created by, and of their beginnings where that needs one of its own.
const (
	CreatedBy      = "turn"
	CreatedByBegin = "turn-begin"
)

// Finish reasons that have a meaning here. A completed turn may have any other, or none.
const (
	ReasonFailed      = "failed"
	ReasonAborted     = "aborted"
	ReasonInterrupted = "interrupted" // the process that had the turn is gone
	ReasonDetached    = "detached"    // of what a runner returns while the turn goes on
)

// Types of events. The data of EventUpdated is an UpdateEvent, that of the others a Turn.
const (
	EventState   = "turn-state" // how things are, at the beginning of a stream of turns' events; nobody has done anything
	EventBegun   = "turn-begun"
	EventUpdated = "turn-updated"
	EventAborted = "turn-aborted" // asked for; turn-ended follows when the files are back
	EventEnded   = "turn-ended"
)

// Turn is the record of a turn; see checkpoint.Turn for its fields.
type Turn = checkpoint.Turn

// Artifact is something that a conversation has made: an object of JSON with a name. One of the same name replaces it, in its place.
type Artifact struct {
	Name string          `json:"name"`
	Data json.RawMessage `json:"data"` // any JSON
}

// State is what a conversation holds. Whoever gets one may change it: it shares nothing.
type State struct {
	Conversation string            `json:"conversation"`
	Messages     []json.RawMessage `json:"messages"`           // objects with a role, a string
	Artifacts    []Artifact        `json:"artifacts"`          // by the order in which their names came
	Custom       json.RawMessage   `json:"custom,omitempty"`   // any JSON; none means that there is no custom state
	Bindings     json.RawMessage   `json:"bindings,omitempty"` // saved variables of a runtime session; any JSON
}

// BeginOptions say what to begin. All may be empty.
type BeginOptions struct {
	ID           string `json:"id,omitempty"`           // one that Reserve gave
	Conversation string `json:"conversation,omitempty"` // "" is that of From, or a new one

	// From is a completed turn to resume: the state is its, and the files are put back to its checkpoint, which Undo takes back. Without it the turn goes on
	// from the conversation's head, the newest completed turn that nothing follows, with the files as they are. A conversation that From does not
	// belong to must be new: it begins with a copy of the state.
	From string `json:"from,omitempty"`

	Branch string `json:"branch,omitempty"` // where to work; "" is where From or the head has worked, or main
	Fork   string `json:"fork,omitempty"`   // name of a branch to fork for it: from the checkpoint of From, or from now. Without Conversation, a new one

	Subagent string `json:"subagent,omitempty"` // tags of the checkpoint
	Agent    string `json:"agent,omitempty"`
	Message  string `json:"message,omitempty"`

	// PID is the owner, as in attempt.Options: once that process is gone, the turn can be ended by whoever comes next. 0 means that it stays under way until
	// somebody ends it. PIDStart is what attempt.StartOf gives of it, or 0.
	PID      int   `json:"pid,omitempty"`
	PIDStart int64 `json:"pid_start,omitempty"`

	NoState bool `json:"no_state,omitempty"` // the reply has no state
}

// Begun is a turn that has begun.
type Begun struct {
	Turn
	State    *State                  `json:"state,omitempty"`         // what it begins with
	Rollback *overlay.RollbackResult `json:"rollback,omitempty"`      // of the files, where From asked for it
	Settled  []Turn                  `json:"settled_turns,omitempty"` // earlier turns whose owners were gone, and which were ended
}

// Update changes the state of a pending turn, all or nothing, in the order of the fields. What it changes is kept if the turn completes. JSON is kept byte for byte, but for
// the space around values, and for a custom document that a patch changes, which becomes compact.
type Update struct {
	SetMessages  *[]json.RawMessage `json:"set_messages,omitempty"` // all messages anew
	AddMessages  []json.RawMessage  `json:"add_messages,omitempty"`
	AddArtifacts []Artifact         `json:"add_artifacts,omitempty"`
	Custom       json.RawMessage    `json:"custom,omitempty"`       // the document anew
	CustomPatch  json.RawMessage    `json:"custom_patch,omitempty"` // a JSON Patch (RFC 6902) of it
	Bindings     json.RawMessage    `json:"bindings,omitempty"`     // null removes them

	// WithPatch asks for UpdateEvent.CustomPatch in the reply, as the event has it.
	WithPatch bool `json:"with_patch,omitempty"`

	// Owner gives the turn to another process. Detached says that whoever had asked for the turn does not wait for it any more.
	Owner    *Owner `json:"owner,omitempty"`
	Detached *bool  `json:"detached,omitempty"`

	checked bool // Decode has made it
}

// Owner is a process that has a turn.
type Owner struct {
	PID      int   `json:"pid"`
	PIDStart int64 `json:"pid_start,omitempty"`
}

// UpdateEvent tells of an update.
type UpdateEvent struct {
	Turn         string `json:"turn"`
	Conversation string `json:"conversation"`
	Seq          int    `json:"seq"` // of this update in its turn, from 1

	// CustomPatch is a JSON Patch (RFC 6902) that leads from the custom document before to the one after. The first of each turn replaces the whole document, so that
	// a subscriber needs no earlier one.
	CustomPatch json.RawMessage `json:"custom_patch,omitempty"`

	Messages    int      `json:"messages"`               // how many there are
	Added       int      `json:"added,omitempty"`        // how many of these are new, at the end
	Artifacts   []string `json:"artifacts,omitempty"`    // names that were added or replaced
	Bindings    bool     `json:"bindings,omitempty"`     // changed
	MessagesSet bool     `json:"messages_set,omitempty"` // all anew
}

// Outcome is how a turn ends.
type Outcome string

// The outcomes.
const (
	Completed Outcome = "completed"
	Failed    Outcome = "failed"
)

// EndOptions say how a turn ends.
type EndOptions struct {
	Outcome      Outcome               `json:"outcome"`
	FinishReason string                `json:"finish_reason,omitempty"` // of a completed turn
	Error        *checkpoint.TurnError `json:"error,omitempty"`         // of a failed one
	Update       *Update               `json:"update,omitempty"`        // a last one, which counts if the turn completes
	NoRollback   bool                  `json:"no_rollback,omitempty"`   // after a failure or an abort, leave the files as they are
	WithState    bool                  `json:"with_state,omitempty"`    // the result has the last good state
}

// Result is what has become of a turn. One that somebody has aborted meanwhile is aborted, whatever its end says; that is no error.
type Result struct {
	Turn     Turn                    `json:"turn"`
	LastGood string                  `json:"last_good,omitempty"` // this turn if it is completed, else its parent; "" where there is none
	State    *State                  `json:"state,omitempty"`     // of LastGood
	Rollback *overlay.RollbackResult `json:"rollback,omitempty"`  // where the files were put back
}

// AbortOptions say how to abort.
type AbortOptions struct {
	Reason string `json:"reason,omitempty"` // a word for people
	Force  bool   `json:"force,omitempty"`  // put the files back now, though the owner may still be at work
}

// ListOptions say which turns. They come by the order in which they began.
type ListOptions struct {
	Conversation string `json:"conversation,omitempty"` // "" means all
	Status       string `json:"status,omitempty"`
	Limit        int    `json:"limit,omitempty"` // only the newest; 0 means all
}

// Conversation sums up the turns of one.
type Conversation struct {
	Name      string    `json:"name"`
	Turns     int       `json:"turns"`             // that there are records of
	Head      string    `json:"head,omitempty"`    // the newest completed turn that no completed turn follows
	Pending   string    `json:"pending,omitempty"` // the turn under way
	WorksIn   string    `json:"works_in"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Freed is what collecting old turns has freed.
type Freed struct {
	Turns int   `json:"turns"`
	Blobs int   `json:"blobs"`
	Bytes int64 `json:"bytes"`
}

// Leaves says which turns' files a rollback of the files alone leaves behind: the conversation goes on from its head, whose files these are not.
type Leaves struct {
	Conversation string `json:"conversation"`
	Head         string `json:"head"`         // the conversation's last good turn
	At           string `json:"at,omitempty"` // the turn whose checkpoint the files are at now, if it is one's
}
