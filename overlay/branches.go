package overlay

import "time"

// MainBranch is the name of the live tree among branches.
const MainBranch = "main"

// ForkOptions say what to fork. Only Name is required.
type ForkOptions struct {
	Name     string `json:"name"`               // of the branch
	From     string `json:"from,omitempty"`     // a checkpoint of main or of a branch; "" means the newest of main, and one is made where there is none
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
	Op   string `json:"op"`             // remove, mkdir, put, text, rename, attr, link
	Path string `json:"path"`           // workspace-relative
	From string `json:"from,omitempty"` // of a rename and a link: the other path
}

// MergeConflict is a path that both sides have changed, each in its own way.
type MergeConflict struct {
	Path     string `json:"path"`
	Ours     string `json:"ours"`               // what the parent did: created, modified, deleted, renamed to …
	Theirs   string `json:"theirs"`             // what the branch did
	Detail   string `json:"detail,omitempty"`   // what exactly collides
	Resolved string `json:"resolved,omitempty"` // ours or theirs, where the policy has settled it
}
