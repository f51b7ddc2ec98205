//go:build linux

package merge

import (
	"github.com/hyperfs/hyperfs/internal/linemerge"
	"github.com/hyperfs/hyperfs/overlay"
)

// Policy says what becomes of conflicts.
type Policy string

// The policies.
const (
	Reject Policy = "reject" // any conflict: nothing is to be done. A file that both sides edited is one
	Ours   Policy = "ours"   // what conflicts stays as the parent has it, the rest is merged
	Theirs Policy = "theirs" // what conflicts becomes what the branch has, the rest is merged
	Text   Policy = "merge"  // texts are merged line by line; then as Reject
)

// Side is one of the two trees that are merged.
type Side struct {
	Volume  overlay.Volume
	Changes []overlay.Change // since the fork point, with what is below created directories
	Agent   string           // who worked there; for the reports
}

// Input is what is to be merged. No tree may change while the plan is made, and neither of them before it was carried out.
type Input struct {
	Base         overlay.Volume // the fork point
	Ours, Theirs Side           // the parent, and the branch
	Policy       Policy         // "" means Reject
	MaxText      int64          // bytes: a larger file counts as binary; 0 means DefaultMaxText
	SpoolDir     string         // where merged texts are kept until Plan.Close; "" means os.TempDir
}

// DefaultMaxText is Input.MaxText where that is 0.
const DefaultMaxText = 16 << 20

// Plan is what has to be done to ours. It is the same for the same input.
type Plan struct {
	Policy    Policy     `json:"policy"`
	Ops       []Op       `json:"ops"`       // to be done one after the other; none where a conflict is unresolved
	Conflicts []Conflict `json:"conflicts"` // sorted by path
	Merged    []string   `json:"merged"`    // paths in ours after the merge, whose text comes from both sides

	spool *spool
}

// Action is what an Op does.
type Action string

// The actions.
const (
	Remove  Action = "remove"  // a name, or an empty directory
	Rename  Action = "rename"  // From to Path, which is free
	Mkdir   Action = "mkdir"   // its attributes come with a setattr, when all is in it
	Put     Action = "put"     // content and attributes of what is no directory
	Link    Action = "link"    // another name, Path, for the file at From
	SetAttr Action = "setattr" // attributes alone
)

// Op is one step. Paths are those in ours, as they are when the steps before it were done.
type Op struct {
	Do      Action `json:"do"`
	Path    string `json:"path"`
	From    string `json:"from,omitempty"`    // of a put from theirs: in theirs; else in ours
	Type    string `json:"type"`              // as overlay.Change has it
	Source  Source `json:"source,omitempty"`  // of a put
	Replace bool   `json:"replace,omitempty"` // the name gets another inode; the one that it had keeps its other names unchanged
	Target  string `json:"target,omitempty"`  // of a symlink
	Rdev    uint64 `json:"rdev,omitempty"`    // of a device
	Size    int64  `json:"size,omitempty"`    // bytes, of a file
	Attrs   *Attrs `json:"attrs,omitempty"`

	text piece
}

// Source tells where the content of a put comes from.
type Source string

// The sources.
const (
	FromTheirs Source = "theirs" // the file at Op.From
	FromOurs   Source = "ours"   // the file at Op.From, which may be Op.Path
	FromMerge  Source = "merge"  // Plan.Text
)

// Attrs are attributes to be set. What is nil stays as it is.
type Attrs struct {
	Mode   *uint32 `json:"mode,omitempty"` // permission bits
	UID    *uint32 `json:"uid,omitempty"`
	GID    *uint32 `json:"gid,omitempty"`
	Mtime  *int64  `json:"mtime,omitempty"` // ns since 1970
	Xattrs []Xattr `json:"xattrs,omitempty"`
	All    bool    `json:"all,omitempty"` // xattrs that are not listed are not to be there
}

// Xattr is an extended attribute to be set or removed.
type Xattr struct {
	Name   string `json:"name"`
	Value  []byte `json:"value,omitempty"`
	Remove bool   `json:"remove,omitempty"`
}

// Conflict is something that both sides changed, not alike.
type Conflict struct {
	Path       string   `json:"path"`                  // in ours, or where ours has it no more, in theirs
	BasePath   string   `json:"base_path,omitempty"`   // at the fork point
	OursPath   string   `json:"ours_path,omitempty"`   // "" where ours does not have it
	TheirsPath string   `json:"theirs_path,omitempty"` // "" where theirs does not have it
	Other      string   `json:"other,omitempty"`       // the path of what else has part in it
	Type       string   `json:"type"`
	Ours       []Kind   `json:"ours"` // what was done there
	Theirs     []Kind   `json:"theirs"`
	What       []string `json:"what"` // what collides: existence, name, place, loop, content, mode, owner, xattr NAME
	Why        string   `json:"why"`
	OursAgent  string   `json:"ours_agent,omitempty"`
	TheirAgent string   `json:"theirs_agent,omitempty"`
	Resolved   Policy   `json:"resolved,omitempty"` // ours or theirs, where the policy says so

	Lines []linemerge.Conflict `json:"lines,omitempty"` // of a text, where lines were compared
}

// Kind says what a side did.
type Kind string

// The kinds.
const (
	Created      Kind = "created"
	Deleted      Kind = "deleted"
	Renamed      Kind = "renamed"
	Modified     Kind = "modified" // the content
	ModeChanged  Kind = "mode changed"
	OwnerChanged Kind = "owner changed"
	XattrChanged Kind = "xattr changed"
)

// Clean reports whether the plan can be carried out.
func (p *Plan) Clean() bool {
	for _, c := range p.Conflicts {
		if c.Resolved == "" {
			return false
		}
	}
	return true
}
