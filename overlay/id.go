package overlay

import "github.com/oklog/ulid/v2"

const idPrefix = "ckpt_"

// NewID gives an ID for a checkpoint. No other one has it, and later ones sort after it.
func NewID() string { return idPrefix + ulid.Make().String() }
