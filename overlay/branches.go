package overlay

import (
	"context"
	"io"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
)

// History is what can be done with checkpoints: those of the whole workspace, or of one branch. An ID may be of any checkpoint; what names none is
// about the history itself.
type History interface {
	Snapshot(ctx context.Context, o SnapshotOptions) (checkpoint.Checkpoint, error)
	Rollback(ctx context.Context, id string, o RollbackOptions) (RollbackResult, error)
	Undo(ctx context.Context) (RollbackResult, error)
	List(o ListOptions) ([]checkpoint.Checkpoint, error)
	Get(id string) (checkpoint.Checkpoint, error)
	Lineage(id string) ([]checkpoint.Checkpoint, error)
	Children(id string, all bool) ([]checkpoint.Checkpoint, error)
	Diff(ctx context.Context, from, to string, expand bool) (Diff, error)
	Patch(ctx context.Context, from, to string, out io.Writer) error
	Reconcile(ctx context.Context, id string) (ReconcileResult, error)
	Promote(ctx context.Context, id string, patch io.Writer) (checkpoint.Checkpoint, error)
	Drop(ctx context.Context, id string) error

	// Unchanged reports whether it is known, without a look at the files, that nothing has changed since an active checkpoint, from which the live state comes.
	Unchanged(id string) bool
}

// MainBranch is the name of the live tree among branches.
const MainBranch = "main"

// ForkOptions say what to fork. Only Name is required.
type ForkOptions struct {
	Name     string `json:"name"`               // of the branch
	From     string `json:"from,omitempty"`     // a checkpoint of main or of a branch; "" means the newest of Branch, and one is made where there is none
	Branch   string `json:"branch,omitempty"`   // what is forked, where From does not say it; "" means main
	Subagent string `json:"subagent,omitempty"` // "" means that of From
	Agent    string `json:"agent,omitempty"`    // "" means that of From
	Message  string `json:"message,omitempty"`
}

// Policies of a merge: what becomes of a path that both sides have changed.
const (
	ConflictReject = "reject" // nothing is merged, and all conflicts are listed
	ConflictOurs   = "ours"   // the parent's is kept
	ConflictTheirs = "theirs" // the branch's is taken
	ConflictMerge  = "merge"  // text is merged line by line; what still conflicts is rejected
)

// MergeOptions say how to merge a branch into its parent.
type MergeOptions struct {
	OnConflict string `json:"on_conflict,omitempty"` // a policy; "" means reject
	DryRun     bool   `json:"dry_run,omitempty"`     // say what would be done, and do nothing
	Exclusive  bool   `json:"exclusive,omitempty"`   // drop the other branches of the parent too, if the merge is made
}

// MergeResult is what a merge did, or would do.
type MergeResult struct {
	Branch     string          `json:"branch"`
	Into       string          `json:"into"`                 // the parent
	Merged     bool            `json:"merged"`               // false of a dry run
	Checkpoint string          `json:"checkpoint,omitempty"` // of the parent, made before
	Undo       string          `json:"undo,omitempty"`       // what undo goes back to
	Steps      []MergeStep     `json:"steps"`                // what is done to the parent, in order
	Conflicts  []MergeConflict `json:"conflicts"`            // those that a policy has settled
	Dropped    []string        `json:"dropped,omitempty"`    // other branches, of an exclusive merge
	Duration   time.Duration   `json:"duration_ns"`
}

// MergeStep is one change of the parent.
type MergeStep struct {
	Op     string `json:"op"`               // remove, rename, mkdir, put, link, setattr
	Path   string `json:"path"`             // workspace-relative, as it is when the steps before were done
	From   string `json:"from,omitempty"`   // of a rename and a link: the other path
	Type   string `json:"type,omitempty"`   // file, dir, symlink, fifo, socket, char, block
	Source string `json:"source,omitempty"` // of a put: theirs, ours, or merge, where the text comes from both
}

// MergeConflict is a path that both sides have changed, each in its own way.
type MergeConflict struct {
	Path     string `json:"path"`
	Ours     string `json:"ours"`              // what the parent did: created, modified, deleted, renamed, …
	Theirs   string `json:"theirs"`            // what the branch did
	OursBy   string `json:"ours_by,omitempty"` // the agent of the parent's newest checkpoint
	TheirsBy string `json:"theirs_by,omitempty"`
	Detail   string `json:"detail,omitempty"`   // what exactly collides
	Resolved string `json:"resolved,omitempty"` // ours or theirs, where the policy has settled it
}
