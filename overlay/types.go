package overlay

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
)

// StoreName is the name of the store in the workspace. The tree neither shows it nor lets anybody make it.
const StoreName = ".hyperfs"

// Error is the error type of the workspace's methods, but for those that come from a context.
type Error = errs.Error

// DefaultMaxCheckpoints is Config.MaxCheckpoints where that is 0.
const DefaultMaxCheckpoints = 1024

// Config says what to open and how. Only Workspace is required.
type Config struct {
	Workspace      string       // an existing directory
	Store          string       // where the undo log and the trash are; "" means <workspace>/.hyperfs
	Tier           string       // a strategy.Kind, or "auto" or "" for the first that works
	NoTmpfs        bool         // "auto" does not take the tier tmpfs, and nothing degrades to it
	TmpfsDir       string       // where the tier tmpfs keeps preimages; "" means below /dev/shm, see strategy.Options
	MaxCheckpoints int          // active checkpoints, at most; 0 means 1024
	Hot            HotConfig    // the hot buffer in front of the tier
	NoJournals     bool         // checkpoints end with the one who made them: at Close, or when the workspace is opened after a kill; branches stay
	Ignore         []string     // patterns of paths that have no history, as lines of a .gitignore at the root
	StrictIgnored  bool         // writes to these fail with EROFS
	SameIgnored    bool         // the patterns are those of the last time, whatever Ignore says
	Sync           bool         // preimages and records survive power loss, not only the end of the daemon
	Logger         *slog.Logger // nil means none

	// What measurements decide, and only tests have to change: 0 means the default.
	LargeMin  int64 // bytes: a larger old file that is changed in place is kept block by block
	BlockSize int64 // bytes: of such a block, a multiple of 4096
}

// HotConfig says what the hot buffer may take. The zero value means that it is on, with strategy.DefaultHotLimits.
type HotConfig struct {
	Off        bool  // everything goes to the tier
	FileBytes  int64 // of one preimage, at most; 0 means the default
	TotalBytes int64 // not mirrored to the disk yet, at most; 0 means the default
	Files      int   // not mirrored to the disk yet, at most; 0 means the default
}

// limits are what the configuration comes to.
func (c HotConfig) limits() strategy.HotLimits {
	if c.Off {
		return strategy.HotLimits{}
	}
	d := strategy.DefaultHotLimits
	return strategy.HotLimits{
		FileBytes:  cmp.Or(c.FileBytes, d.FileBytes),
		TotalBytes: cmp.Or(c.TotalBytes, d.TotalBytes),
		Files:      cmp.Or(c.Files, d.Files),
	}
}

// SnapshotOptions are the tags of a new checkpoint. All may be empty.
type SnapshotOptions struct {
	ID        string `json:"id,omitempty"` // one that Reserve gave
	Parent    string `json:"parent,omitempty"`
	Branch    string `json:"branch,omitempty"` // "" means main
	Subagent  string `json:"subagent,omitempty"`
	Agent     string `json:"agent,omitempty"`
	CreatedBy string `json:"created_by,omitempty"` // "" means snapshot
	Message   string `json:"message,omitempty"`

	// Commit is called inside the transaction that makes the checkpoint. Its error means that there is none. It is called with locks held: it must be quick, and call
	// nothing of the workspace. nil means nothing.
	Commit func(*checkpoint.Tx) error `json:"-"`
}

// RollbackOptions say how to roll back.
type RollbackOptions struct {
	Discard bool   `json:"discard,omitempty"` // keep no undo checkpoint
	Branch  string `json:"branch,omitempty"`  // what is rolled back, where the checkpoint is the fork point of a branch; "" means what the checkpoint is of

	// Commit is called inside the transaction before which a crash leaves what was there, and after which it leads to the state that is rolled back to, also where there
	// is nothing to put back. Its error means that nothing is rolled back. If the rollback stops halfway after that transaction, what Commit has written stays: the rollback
	// will be finished, and need not be asked for again. Otherwise as in SnapshotOptions.
	Commit func(*checkpoint.Tx) error `json:"-"`
}

// RollbackResult is what a rollback did.
type RollbackResult struct {
	Branch     string        `json:"branch,omitempty"` // what was rolled back; "" is main
	Checkpoint string        `json:"checkpoint"`
	Undo       string        `json:"undo,omitempty"` // the undo checkpoint's ID; "" if it was discarded
	Restored   int           `json:"restored"`       // names that were put back
	Removed    int           `json:"removed"`        // names that were taken away
	Modified   int           `json:"modified"`       // files and directories whose content or attributes were put back
	Kept       int           `json:"kept,omitempty"` // directories that were not there, and stay for what is ignored in them; of the backend scan
	Duration   time.Duration `json:"duration_ns"`
}

// ListOptions filter checkpoints. An empty field lets everything through.
type ListOptions struct {
	Branch          string
	Subagent        string
	Agent           string
	IncludeInactive bool // also promoted and disposed ones
}

// ChangeKind says what happened to a path.
type ChangeKind string

// The kinds of change.
const (
	Created  ChangeKind = "created"
	Modified ChangeKind = "modified"
	Deleted  ChangeKind = "deleted"
	Renamed  ChangeKind = "renamed" // possibly modified too: see Change.What
)

// Change is one path that differs between two states.
type Change struct {
	Kind    ChangeKind `json:"kind"`
	Path    string     `json:"path"`               // workspace-relative; of a deleted one the old path
	OldPath string     `json:"old_path,omitempty"` // of a renamed one
	Type    string     `json:"type"`               // file, dir, symlink, fifo, socket, char, block; of a deleted one the old type
	OldType string     `json:"old_type,omitempty"` // where it differs
	What    []string   `json:"what,omitempty"`     // of a modified or renamed one: content, mode, owner, xattr, mtime, type
	OldMode uint32     `json:"old_mode,omitempty"` // st_mode
	Mode    uint32     `json:"mode,omitempty"`     // st_mode
	OldSize int64      `json:"old_size,omitempty"` // bytes
	Size    int64      `json:"size,omitempty"`     // bytes
	Tree    bool       `json:"tree,omitempty"`     // a created directory: all that is below it was created too, and is not listed
}

// typeNames are the types of inodes as Change has them, by the S_IFMT bits that Linux has for each. Other systems' are turned into those.
var typeNames = map[uint32]string{
	0o040000: "dir", 0o120000: "symlink", 0o010000: "fifo", 0o140000: "socket", 0o020000: "char", 0o060000: "block",
}

// TypeName names the type in an st_mode as Change.Type does.
func TypeName(mode uint32) string {
	if name, ok := typeNames[mode&0o170000]; ok {
		return name
	}
	return "file"
}

// Diff is what changed from one state to another, sorted by path.
type Diff struct {
	From    string   `json:"from"`         // checkpoint ID
	To      string   `json:"to,omitempty"` // checkpoint ID; "" is now
	Changes []Change `json:"changes"`
}

// Rename is a path that moved.
type Rename struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Reconcile gives the changes as plain lists.
func (d Diff) Reconcile() ReconcileResult {
	res := ReconcileResult{Checkpoint: d.From, Created: []string{}, Modified: []string{}, Deleted: []string{}, Renamed: []Rename{}}
	for _, c := range d.Changes {
		switch c.Kind {
		case Created:
			path := c.Path
			if c.Type == "dir" {
				path += "/"
			}
			res.Created = append(res.Created, path)
		case Modified:
			if slices.Equal(c.What, []string{"mtime"}) {
				continue // a touch alone is no modification, though a rollback puts it back
			}
			res.Modified = append(res.Modified, c.Path)
		case Deleted:
			res.Deleted = append(res.Deleted, c.Path)
		case Renamed:
			res.Renamed = append(res.Renamed, Rename{c.OldPath, c.Path})
		}
	}
	return res
}

// ReconcileResult is what changed since a checkpoint, as plain lists of paths.
type ReconcileResult struct {
	Checkpoint string   `json:"checkpoint"`
	Created    []string `json:"created"` // a directory whose whole content is new ends with a slash
	Modified   []string `json:"modified"`
	Deleted    []string `json:"deleted"`
	Renamed    []Rename `json:"renamed"`
}

// GCResult is what garbage collection freed.
type GCResult struct {
	Trash       int   `json:"trash"`       // old inodes
	Backups     int   `json:"backups"`     // preimages
	Records     int   `json:"records"`     // of the undo log
	Checkpoints int   `json:"checkpoints"` // records of disposed ones
	Bytes       int64 `json:"bytes"`
}

// Problem is an invariant that does not hold.
type Problem struct {
	Where string `json:"where"`
	What  string `json:"what"`
}

// Status is one screen of state.
type Status struct {
	Workspace   string    `json:"workspace"`
	Store       string    `json:"store"`
	Session     string    `json:"session"` // name of this run of the daemon
	Tier        string    `json:"tier"`
	Checkpoints int       `json:"checkpoints"` // active ones, of main
	Branches    int       `json:"branches"`    // active ones
	Newest      string    `json:"newest,omitempty"`
	NewestAt    time.Time `json:"newest_at,omitzero"`
	Undo        string    `json:"undo,omitempty"` // what `undo` would go back to
	Slots       int       `json:"slots"`          // slot records since the newest checkpoint
	Inodes      int       `json:"inodes"`         // inodes with attribute, content or xattr records since then

	Halfway string `json:"halfway,omitempty"` // why a rollback is half made: until it is finished, nothing can be changed

	Hot *strategy.HotStats `json:"hot,omitempty"` // of the hot buffer; the backend scan has none

	Ignore *IgnoreStatus `json:"ignore,omitempty"` // nil where nothing is ignored

	Backend string      `json:"backend"`        // fuse or scan
	Scan    *ScanStatus `json:"scan,omitempty"` // of the backend scan, once it has made a checkpoint
}

// ScanStatus is what the last checkpoint of the backend scan has cost: every one walks the whole tree.
type ScanStatus struct {
	Entries     int           `json:"entries"` // names in the tree
	At          time.Time     `json:"at"`
	Duration    time.Duration `json:"duration_ns"`
	Unprotected []string      `json:"unprotected,omitempty"` // what something else is mounted on
}

// Diagnostics is everything that the workspace knows about itself. It is a copy of values; asking runs no scan.
type Diagnostics struct {
	Status
	Epoch       checkpoint.Epoch        `json:"epoch"`
	Probes      []strategy.Probe        `json:"probes"`
	Degraded    []Degraded              `json:"degraded"` // oldest first
	Active      []checkpoint.Checkpoint `json:"active"`
	StoreBytes  int64                   `json:"store_bytes"`
	TrashFiles  int                     `json:"trash_files"`
	Backups     int                     `json:"backups"` // preimages
	InRAM       int                     `json:"in_ram"`  // of these, how many a reboot would take
	Nodes       int                     `json:"nodes"`   // inodes held in memory
	Handles     int                     `json:"handles"` // open files and directories
	Descriptors int                     `json:"descriptors"`
	Limits      Limits                  `json:"limits"`
	Ignored     []IgnoredWrite          `json:"ignored_writes,omitempty"` // the last ones, newest first

	WindowsVolume *WindowsVolume `json:"windows_volume,omitempty"` // on Windows alone
}

// Degraded says that a tier failed while it was in use, and that preimages have gone to the next one since.
type Degraded struct {
	From   string    `json:"from"`
	To     string    `json:"to"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Limits are what keeps the daemon bounded.
type Limits struct {
	Descriptors int `json:"descriptors"` // RLIMIT_NOFILE
	DirCache    int `json:"dir_cache"`   // directory descriptors kept open
}

// Event is a change of state.
type Event struct {
	Type       string    `json:"type"` // snapshot, rollback, undo, promote, drop, rehydrate, gc, ignored-write; those of branches, of attempts and of others beside these
	Time       time.Time `json:"time"`
	Checkpoint string    `json:"checkpoint,omitempty"`
	Data       any       `json:"data,omitempty"`
}
