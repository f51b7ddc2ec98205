package control

import (
	"context"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/latency"
	"github.com/hyperfs/hyperfs/overlay"
)

// History is what can be done with checkpoints.
type History = overlay.History

// Workspace is what the API offers of a workspace: *scan.Workspace has all of it, and what a daemon has mounted is Branches too. Its methods are
// called concurrently.
type Workspace interface {
	History
	Root() string
	Reserve() string
	Status() overlay.Status
	Diagnostics() overlay.Diagnostics
	GC(ctx context.Context) (overlay.GCResult, error)
	Fsck(ctx context.Context, deep bool) ([]overlay.Problem, error)
	Subscribe() (<-chan overlay.Event, func())
	Announce(overlay.Event)
}

// Branches is what a workspace offers that can be forked.
type Branches interface {
	Fork(ctx context.Context, o overlay.ForkOptions) (checkpoint.Branch, error)
	Branches(all bool) ([]checkpoint.Branch, error)
	Branch(name string) (checkpoint.Branch, error)
	DropBranch(ctx context.Context, name string) error
	Merge(ctx context.Context, name string, o overlay.MergeOptions) (overlay.MergeResult, error)

	// In gives the history of one branch, or NOT_FOUND.
	In(name string) (History, error)
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
	Version    Version       `json:"version"`
	PID        int           `json:"pid"`
	Socket     string        `json:"socket,omitempty"` // where it answers; on Windows the name of a pipe
	StartedAt  time.Time     `json:"started_at"`
	Mountpoint string        `json:"mountpoint,omitempty"` // "" where nothing is mounted
	InPlace    bool          `json:"in_place"`             // mounted over the workspace itself
	Detached   bool          `json:"detached"`             // lazily unmounted: it lives until the last open file is closed
	Branches   []BranchMount `json:"branches,omitempty"`   // that are mounted at paths of their own
	Requests   int64         `json:"requests"`             // API calls answered since the start
	TmpfsDir   string        `json:"tmpfs_dir,omitempty"`  // where the tier tmpfs keeps preimages, if it was told; else it is below /dev/shm
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

// Meter is a Host that counts and times what the kernel asks it for.
type Meter interface {
	// Stats is what there was since the start.
	Stats() MountStats
}

// MountStats is what the kernel has asked for since the mount. What it reads and writes past the daemon can't be seen.
type MountStats struct {
	Operations   []Operation       `json:"operations"` // those that there were
	Events       map[string]uint64 `json:"events"`     // notifications to the kernel, opens for passthrough, events for programs that watch files, requests by who has read them
	ReadBytes    uint64            `json:"read_bytes"` // by requests
	WrittenBytes uint64            `json:"written_bytes"`
	KernelNodes  int               `json:"kernel_nodes"` // inodes that the kernel holds
}

// Operation is one kind of request of the kernel, and how long the daemon took for them: from when it had read one until it had its answer.
type Operation struct {
	Name   string `json:"name"`
	Waits  bool   `json:"waits"`  // a program waits for the answer: a round trip
	Errors uint64 `json:"errors"` // of the requests, those that were refused
	latency.Snapshot
	Mean time.Duration `json:"mean_ns"`
	P50  time.Duration `json:"p50_ns"` // half of them took no longer; up to a quarter more than it need be
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
}

// NewOperation makes an Operation of what was counted.
func NewOperation(name string, waits bool, errors uint64, took latency.Snapshot) Operation {
	return Operation{
		Name: name, Waits: waits, Errors: errors, Snapshot: took,
		Mean: took.Mean(), P50: took.Quantile(0.5), P90: took.Quantile(0.9), P99: took.Quantile(0.99),
	}
}

// BranchMounter is a Host that can show a branch at a path of its own too.
type BranchMounter interface {
	// MountBranch returns when it is there. It ends when it is unmounted, or with the mount of the workspace.
	MountBranch(ctx context.Context, branch, at string) (BranchMount, error)
}

// MountBranchOptions say where.
type MountBranchOptions struct {
	At string `json:"at"` // an absolute path, of a directory
}

// BranchMount is a branch that is shown at a path of its own.
type BranchMount struct {
	Branch     string `json:"branch"`
	Mountpoint string `json:"mountpoint"`
}

// UnmountOptions say how to unmount.
type UnmountOptions struct {
	Lazy  bool `json:"lazy,omitempty"`  // detach now, even if files are open; they stay usable until closed
	Force bool `json:"force,omitempty"` // abort what is under way too
}
