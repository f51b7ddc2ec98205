package control

import (
	"context"
	"io"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
)

// Workspace is what the API offers of a workspace. *overlay.Workspace and *scan.Workspace have all of it. Its methods are called concurrently.
type Workspace interface {
	Root() string
	Reserve() string
	Status() overlay.Status
	Diagnostics() overlay.Diagnostics
	Snapshot(ctx context.Context, o overlay.SnapshotOptions) (checkpoint.Checkpoint, error)
	Rollback(ctx context.Context, id string, o overlay.RollbackOptions) (overlay.RollbackResult, error)
	Undo(ctx context.Context) (overlay.RollbackResult, error)
	List(o overlay.ListOptions) ([]checkpoint.Checkpoint, error)
	Get(id string) (checkpoint.Checkpoint, error)
	Lineage(id string) ([]checkpoint.Checkpoint, error)
	Children(id string, all bool) ([]checkpoint.Checkpoint, error)
	Diff(ctx context.Context, from, to string, expand bool) (overlay.Diff, error)
	Patch(ctx context.Context, from, to string, out io.Writer) error
	Reconcile(ctx context.Context, id string) (overlay.ReconcileResult, error)
	Promote(ctx context.Context, id string, patch io.Writer) (checkpoint.Checkpoint, error)
	Drop(ctx context.Context, id string) error
	GC(ctx context.Context) (overlay.GCResult, error)
	Fsck(ctx context.Context, deep bool) ([]overlay.Problem, error)
	Subscribe() (<-chan overlay.Event, func())
}

// Host is the process around the workspace: what has a mount and can end.
type Host interface {
	// Info says what the process is. It must be quick and do no I/O.
	Info() Daemon

	// Counters gives counts since the start by name: what the kernel asked for, and the like. It may be nil.
	Counters() map[string]uint64

	// Unmount takes the mount away, or fails with BUSY and leaves all as it was. After a success the process must soon
	// call Server.Close; the reply to the caller waits for that.
	Unmount(ctx context.Context, o UnmountOptions) error
}

// Daemon says which process answers, and what it has mounted where.
type Daemon struct {
	Version    Version   `json:"version"`
	PID        int       `json:"pid"`
	StartedAt  time.Time `json:"started_at"`
	Mountpoint string    `json:"mountpoint,omitempty"` // "" where nothing is mounted
	InPlace    bool      `json:"in_place"`             // mounted over the workspace itself
	Detached   bool      `json:"detached"`             // lazily unmounted: it lives until the last open file is closed
	Requests   int64     `json:"requests"`             // API calls answered since the start
	TmpfsDir   string    `json:"tmpfs_dir,omitempty"`  // where the tier tmpfs keeps preimages, if it was told; else it is below /dev/shm
}

// Version says what was built from what, and what it runs on.
type Version struct {
	Version  string    `json:"version"`
	Revision string    `json:"revision,omitempty"` // of the version control system
	Go       string    `json:"go"`
	OS       string    `json:"os"`
	Arch     string    `json:"arch"`
	Kernel   string    `json:"kernel,omitempty"`
	Features []Feature `json:"features"` // of FUSE
}

// Feature is something that the kernel or our rights may or may not allow.
type Feature struct {
	Name string `json:"name"`
	On   bool   `json:"on"`
	Note string `json:"note,omitempty"` // why not, or how much
}

// UnmountOptions say how to unmount.
type UnmountOptions struct {
	Lazy  bool `json:"lazy,omitempty"`  // detach now, even if files are open; they stay usable until closed
	Force bool `json:"force,omitempty"` // abort what is under way too
}
