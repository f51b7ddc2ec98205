package checkpoint

import (
	"fmt"
	"time"
)

// ID is the identity of an inode: its number, and when it was born, so that a number that was used again is not
// mistaken for the inode that had it before. It holds within one filesystem.
type ID struct {
	Ino   uint64
	Birth int64 // ns since 1970; 0 where the filesystem tells none, or one that isn't stable
}

// IsZero reports whether id names no inode.
func (id ID) IsZero() bool { return id.Ino == 0 }

// String gives a form that is also used for names in the trash.
func (id ID) String() string { return fmt.Sprintf("%x-%x", id.Ino, uint64(id.Birth)) }

// Epoch numbers what happened between a checkpoint and the next one. It only grows; the first is 1.
type Epoch uint64

// Slot is one name in one directory.
type Slot struct {
	Dir  ID
	Name string // raw bytes, no slash
}

// Occupant is what a slot held: the value of a slot record. The zero value says that the slot was empty.
type Occupant struct {
	ID    ID
	Mode  uint32 // type and permission bits as in stat(2)
	Size  int64  // bytes; of regular files and symlinks
	Mtime int64  // ns since 1970
}

// Attr are the attributes that rollback restores: the value of an attribute record. Every inode that has a content or
// xattr record in an epoch has an attribute record in it too.
type Attr struct {
	At    Slot // where the inode was when the record was made
	Mode  uint32
	UID   uint32
	GID   uint32
	Rdev  uint64
	Size  int64  // bytes
	Mtime int64  // ns since 1970
	Ctime int64  // ns since 1970; 0 where it was too young to tell a later change (see overlay's unchanged)
	Nlink uint32 // names outside the trash
}

// Xattr is one extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// Loc says where an inode that the log names can be found: it is in one of Slots, or in the trash. There are two only
// while a rename is under way, or if the daemon died in one.
type Loc struct {
	Slots []Slot
}

// Status of a checkpoint.
type Status string

// The statuses. Only an active checkpoint can be rolled back to.
const (
	Active      Status = "active"
	RollingBack Status = "rolling-back"
	Promoted    Status = "promoted"
	Disposed    Status = "disposed"
)

// What Checkpoint.Recoverable says.
const (
	RecoverableAlways      = "always"
	RecoverableMirroring   = "until power loss" // preimages are in the hot buffer, and the disk is about to get them: within a second
	RecoverableUntilReboot = "until reboot"     // preimages are in RAM; they survive the daemon, and unmounting moves them to disk
	RecoverableNot         = "no"               // preimages were in RAM and are gone
)

// Checkpoint is a point in the history of a branch. Its JSON form is what the socket shows.
type Checkpoint struct {
	ID          string    `json:"id"`
	Parent      string    `json:"parent,omitempty"`
	Branch      string    `json:"branch"`
	Subagent    string    `json:"subagent,omitempty"`
	Agent       string    `json:"agent,omitempty"`
	CreatedBy   string    `json:"created_by"` // snapshot, fork, run-attempt, run-in-branch, turn, rehydrate, rollback, unknown
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
	Message     string    `json:"message,omitempty"`
	Status      Status    `json:"status"`
	Tier        string    `json:"tier"`
	Session     string    `json:"session,omitempty"` // the run of a daemon, or of a command without one, that made it or has taken it over; "" in records of older versions
	GitHead     string    `json:"git_head,omitempty"`
	Epoch       Epoch     `json:"epoch"`                 // the first epoch that has to be undone to get back to it
	Seq         uint64    `json:"seq"`                   // the order in which checkpoints were made
	RollbackOf  string    `json:"rollback_of,omitempty"` // of an undo checkpoint: what was rolled back to when it was made
	Dirty       int       `json:"dirty"`                 // slots and inodes changed between it and the next one; counted when it is asked for
	Recoverable string    `json:"recoverable,omitempty"` // of an active one: always, until power loss, until reboot, no; found out when it is asked for
}
