package control

import (
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

// NotUTF8 carries the exact bytes of strings that are not valid UTF-8, which JSON cannot hold: paths are arbitrary bytes.
// A key is the JSON Pointer (RFC 6901) of a string in the same document, a value its bytes in base64. The string in the
// document itself shows U+FFFD in the place of what is not UTF-8. The client puts the bytes back.
type NotUTF8 map[string][]byte

// StatusReply is the answer to GET /v1/status.
type StatusReply struct {
	overlay.Status
	Daemon   Daemon            `json:"daemon"`
	Attempts []attempt.Attempt `json:"attempts"` // under way, oldest first
	Turns    []turn.Turn       `json:"turns"`    // under way, in the order in which they began
}

// DiagnosticsReply is the answer to GET /v1/diagnostics.
type DiagnosticsReply struct {
	overlay.Diagnostics
	Daemon   Daemon            `json:"daemon"`
	Attempts []attempt.Attempt `json:"attempts"`           // under way, oldest first
	Turns    *turn.Stats       `json:"turns,omitempty"`    // of a workspace that keeps them
	Counters map[string]uint64 `json:"counters,omitempty"` // requests of the kernel since the mount, by kind
}

// StatsReply is the answer to GET /v1/stats: counters, of which the difference between two answers tells what happened between them.
type StatsReply struct {
	At      time.Time          `json:"at"`
	Since   time.Time          `json:"since"` // when counting began
	Process ProcessStats       `json:"process"`
	Mount   *MountStats        `json:"mount,omitempty"` // nil where nothing is mounted
	Tree    *overlay.TreeStats `json:"tree,omitempty"`  // nil of the backend scan
}

// CheckpointsReply is the answer to GET /v1/checkpoints, oldest first.
type CheckpointsReply struct {
	Checkpoints []checkpoint.Checkpoint `json:"checkpoints"`
}

// CheckpointReply is one checkpoint with its relatives.
type CheckpointReply struct {
	checkpoint.Checkpoint
	Lineage  []checkpoint.Checkpoint `json:"lineage"`  // oldest first, itself last
	Children []checkpoint.Checkpoint `json:"children"` // also inactive ones
}

// RecoverReply is what earlier daemons left, oldest first.
type RecoverReply struct {
	Checkpoints []overlay.Recoverable `json:"checkpoints"`
	Problem     string                `json:"problem,omitempty"` // why the store can't be opened, where that is so; a daemon has it open
}

// ReserveReply carries an ID that a later snapshot may use.
type ReserveReply struct {
	ID string `json:"id"`
}

// PromoteOptions say how to promote.
type PromoteOptions struct {
	Patch bool `json:"patch,omitempty"` // also give the patch from the checkpoint to now
}

// PromoteReply is a promoted checkpoint.
type PromoteReply struct {
	Checkpoint checkpoint.Checkpoint `json:"checkpoint"`
	Patch      string                `json:"patch,omitempty"` // if it was asked for
	NotUTF8    NotUTF8               `json:"not_utf8,omitempty"`
}

// BranchesReply is the answer to GET /v1/branches, oldest first.
type BranchesReply struct {
	Branches []checkpoint.Branch `json:"branches"`
}

// BranchReply is one branch with its checkpoints.
type BranchReply struct {
	checkpoint.Branch
	Checkpoints []checkpoint.Checkpoint `json:"checkpoints"` // active ones, oldest first
}

// MergeReply is the answer to a merge.
type MergeReply struct {
	overlay.MergeResult
	NotUTF8 NotUTF8 `json:"not_utf8,omitempty"`
}

// DropReply is the answer to a drop.
type DropReply struct {
	Dropped string `json:"dropped"`
}

// DiffReply is the answer to GET /v1/diff.
type DiffReply struct {
	overlay.Diff
	NotUTF8 NotUTF8 `json:"not_utf8,omitempty"`
}

// ReconcileReply is the answer to GET /v1/reconcile.
type ReconcileReply struct {
	overlay.ReconcileResult
	NotUTF8 NotUTF8 `json:"not_utf8,omitempty"`
}

// GCReply is the answer to POST /v1/gc.
type GCReply struct {
	overlay.GCResult
	Turns *turn.Freed `json:"turns,omitempty"` // what old turns had; their checkpoints' preimages are counted above
}

// FsckReply lists the invariants that do not hold. None is good news.
type FsckReply struct {
	Problems []overlay.Problem `json:"problems"`
}

// UnmountReply is given when the workspace is an ordinary directory again.
type UnmountReply struct {
	Workspace string `json:"workspace"`
	PID       int    `json:"pid"`   // of the daemon
	Ended     bool   `json:"ended"` // the store is free for another daemon; false only of a lazy one, while files are open
}
