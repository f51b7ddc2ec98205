package overlay

import (
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// IgnoredAction says what became of a write to an ignored path.
type IgnoredAction string

// The actions.
const (
	ActionBlocked  IgnoredAction = "blocked"  // strict mode let it fail
	ActionIgnored  IgnoredAction = "ignored"  // it was made, and is not protected
	ActionDeclared IgnoredAction = "declared" // the path is tracked, or an output of a tool
)

// IgnoredWrite is a change of an ignored path, by whomever. Changes of one path are counted as one.
type IgnoredWrite struct {
	Path   string        `json:"path"`
	Kind   string        `json:"kind"` // create, mkdir, mknod, symlink, link, modify, attributes, xattrs, delete, rename
	Action IgnoredAction `json:"action"`
	At     time.Time     `json:"at"`             // of the last one
	Count  int           `json:"count"`          // how often, since it is listed
	Code   errs.Code     `json:"code,omitempty"` // IGNORED_PATH, where it was blocked
}

// IgnoreStatus is what a workspace ignores.
type IgnoreStatus struct {
	Patterns []string `json:"patterns"`
	Strict   bool     `json:"strict"`
}
