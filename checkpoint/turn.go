package checkpoint

import (
	"encoding/json"
	"time"
)

// TurnStatus is what has become of a turn.
type TurnStatus string

// The statuses.
const (
	TurnPending   TurnStatus = "pending"
	TurnCompleted TurnStatus = "completed"
	TurnFailed    TurnStatus = "failed"
	TurnAborted   TurnStatus = "aborted"
)

// Turn is the record of one turn of a conversation. Package session/turn says what turns are.
type Turn struct {
	ID           string     `json:"id"` // of the checkpoint that was made, or would have been made, when it completed
	Conversation string     `json:"conversation"`
	Parent       string     `json:"parent,omitempty"` // the completed turn whose state it began with
	Index        int        `json:"index"`            // how many completed turns are before it
	WorksIn      string     `json:"works_in"`         // main, or a branch
	Base         string     `json:"base"`             // the checkpoint that its files go back to
	Status       TurnStatus `json:"status"`
	FinishReason string     `json:"finish_reason,omitempty"`
	Error        *TurnError `json:"error,omitempty"`
	Subagent     string     `json:"subagent,omitempty"`
	Agent        string     `json:"agent,omitempty"`
	Message      string     `json:"message,omitempty"`
	PID          int        `json:"pid,omitempty"` // the owner, while it is under way
	PIDStart     int64      `json:"pid_start,omitempty"`
	Detached     bool       `json:"detached,omitempty"`
	Settled      bool       `json:"settled"` // nothing is to be done for it any more: completed, or its files are back
	CreatedAt    time.Time  `json:"created_at"`
	UpdatedAt    time.Time  `json:"updated_at"`
	State        TurnState  `json:"state"` // of a completed one, and of a pending one that an engine had when it closed

	// Unsaved says of a pending turn that what its state was given since it began is in the memory of an engine alone. After a crash of its process it is lost, and
	// the turn can't complete any more.
	Unsaved bool `json:"unsaved,omitempty"`

	// FilesGone says that its checkpoint is not active any more, so that only its state can be had. It is found out when it is asked for, and not stored.
	FilesGone bool `json:"files_gone,omitempty"`
}

// TurnError says why a turn failed.
type TurnError struct {
	Message string          `json:"message"`
	Code    string          `json:"code,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
}

// TurnState says what a state holds, and in which blobs.
type TurnState struct {
	Messages  int            `json:"messages"`            // how many
	Pages     []Blob         `json:"pages,omitempty"`     // lists of the blobs of messages, in order; see EncodePage
	Artifacts []TurnArtifact `json:"artifacts,omitempty"` // in order
	Custom    *Blob          `json:"custom,omitempty"`
	Bindings  *Blob          `json:"bindings,omitempty"`
	Bytes     int64          `json:"bytes"` // of the whole state, as JSON
}

// TurnArtifact names an artifact and its blob.
type TurnArtifact struct {
	Name string `json:"name"`
	Data Blob   `json:"data"`
}

// Blob names bytes by their content: "SUM-SIZE", where SUM is their BLAKE3 sum (256 bits) in hexadecimal and SIZE their number.
type Blob string
