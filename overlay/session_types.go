package overlay

import (
	"context"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
)

// Contracts is what can be said about ignored paths: outputs of tools that are expected below an ignored root, and paths there that are protected
// all the same. Both are kept in the store. A workspace without ignore patterns takes them too; they change nothing there.
type Contracts interface {
	// DeclareOutputs adds a contract. A path outside of the workspace is a PATH error, an unknown checkpoint NOT_FOUND, one that is not
	// active a ROLLBACK error; then none of the paths is declared.
	DeclareOutputs(ctx context.Context, c OutputContract) (OutputContract, error)

	// Outputs gives the contracts for a checkpoint, those for all checkpoints among them, oldest first; "" gives every one that there is.
	Outputs(ctx context.Context, checkpoint string) ([]OutputContract, error)

	// Track protects exact paths, which need not exist, from the next change on. It gives all that are tracked, sorted.
	Track(ctx context.Context, paths []string) ([]string, error)

	// Tracked gives the paths that are tracked, sorted.
	Tracked() []string
}

// Output is one path that a tool may write.
type Output struct {
	Path     string `json:"path"`               // workspace-relative, exact: no pattern
	Optional bool   `json:"optional,omitempty"` // it is no failure if the tool doesn't write it
	Missing  bool   `json:"missing,omitempty"`  // when it was asked for, there was no such file
}

// OutputContract says that a tool writes these paths, though they may be below an ignored root. They are protected like any other path, and
// strict mode lets them through.
type OutputContract struct {
	Tool       string    `json:"tool"`
	Checkpoint string    `json:"checkpoint,omitempty"` // it ends with this one; "" means that it holds until the store is removed
	Outputs    []Output  `json:"outputs"`
	DeclaredAt time.Time `json:"declared_at"`
}

// Journals is what is left of the work of earlier daemons.
type Journals interface {
	// Recover lists the checkpoints that earlier daemons left, active or not, oldest first. It changes nothing.
	Recover(ctx context.Context) ([]Recoverable, error)

	// Rehydrate makes a checkpoint of an earlier daemon this one's own, after it has proved that all it needs is there and whole. It refuses with ROLLBACK where
	// it was disposed or promoted, with INTEGRITY where something is missing or damaged, and then changes nothing. One that is this daemon's own
	// already is proved again.
	Rehydrate(ctx context.Context, id string) (checkpoint.Checkpoint, error)
}

// Recoverable is a checkpoint that an earlier daemon left.
type Recoverable struct {
	checkpoint.Checkpoint
	CanRehydrate bool   `json:"can_rehydrate"`
	Reason       string `json:"reason,omitempty"` // why not
}
