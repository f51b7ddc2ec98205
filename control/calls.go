package control

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// Status gives one screen of state.
func (c *Client) Status(ctx context.Context) (r StatusReply, err error) {
	return r, c.call(ctx, "status", http.MethodGet, "/v1/status", nil, nil, &r)
}

// Diagnostics gives everything that the workspace knows about itself.
func (c *Client) Diagnostics(ctx context.Context) (r DiagnosticsReply, err error) {
	return r, c.call(ctx, "diagnostics", http.MethodGet, "/v1/diagnostics", nil, nil, &r)
}

// Stats tells what the kernel has asked for, and what the process has used.
func (c *Client) Stats(ctx context.Context) (r StatsReply, err error) {
	return r, c.call(ctx, "stats", http.MethodGet, "/v1/stats", nil, nil, &r)
}

// Profile writes a profile of the daemon to w, one of ProfileKinds. If the kind takes time, the daemon is watched for 1 to 300 seconds.
func (c *Client) Profile(ctx context.Context, kind string, seconds int, text bool, w io.Writer) error {
	q := values("seconds", strconv.Itoa(seconds))
	setFlag(q, "text", text)
	if !slices.Contains(profileKinds, any(kind)) {
		return noSuchProfile(kind)
	}
	resp, err := c.stream(ctx, "pprof", "/v1/debug/pprof/"+kind, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	in := &readFailure{r: resp.Body}
	if _, err = io.Copy(w, in); err != nil && in.err != nil {
		return unreachable(ctx, "pprof", err)
	}
	return errs.Wrap(Internal, "pprof", "", err)
}

// Version says what the daemon was built from, and the features it found.
func (c *Client) Version(ctx context.Context) (r Version, err error) {
	return r, c.call(ctx, "version", http.MethodGet, "/v1/version", nil, nil, &r)
}

// Snapshot makes a checkpoint.
func (c *Client) Snapshot(ctx context.Context, o overlay.SnapshotOptions) (r checkpoint.Checkpoint, err error) {
	return r, c.call(ctx, "snapshot", http.MethodPost, "/v1/checkpoints", nil, &o, &r)
}

// Reserve gives an ID for a later snapshot.
func (c *Client) Reserve(ctx context.Context) (string, error) {
	var r ReserveReply
	err := c.call(ctx, "reserve", http.MethodPost, "/v1/checkpoints/reserve", nil, nil, &r)
	return r.ID, err
}

// List gives the checkpoints that o lets through, oldest first.
func (c *Client) List(ctx context.Context, o overlay.ListOptions) ([]checkpoint.Checkpoint, error) {
	var r CheckpointsReply
	err := c.call(ctx, "list", http.MethodGet, "/v1/checkpoints", listValues(o), nil, &r)
	return r.Checkpoints, err
}

func listValues(o overlay.ListOptions) url.Values {
	q := values("branch", o.Branch, "subagent", o.Subagent, "agent", o.Agent)
	setFlag(q, "all", o.IncludeInactive)
	return q
}

// Show gives one checkpoint with its relatives.
func (c *Client) Show(ctx context.Context, id string) (r CheckpointReply, err error) {
	return r, c.byID(ctx, "show", http.MethodGet, id, "", nil, &r)
}

// Drop forgets a checkpoint. The workspace stays as it is.
func (c *Client) Drop(ctx context.Context, id string) error {
	return c.byID(ctx, "drop", http.MethodDelete, id, "", nil, new(DropReply))
}

// Rollback puts the workspace back to a checkpoint.
func (c *Client) Rollback(ctx context.Context, id string, o overlay.RollbackOptions) (r RollbackReply, err error) {
	return r, c.byID(ctx, "rollback", http.MethodPost, id, "/rollback", &o, &r)
}

// Recover lists the checkpoints that earlier daemons left, oldest first.
func (c *Client) Recover(ctx context.Context) ([]overlay.Recoverable, error) {
	var r RecoverReply
	err := c.call(ctx, "recover", http.MethodGet, "/v1/recover", nil, nil, &r)
	return r.Checkpoints, err
}

// Rehydrate takes over a checkpoint that an earlier daemon left, after it is proved that a rollback to it would work.
func (c *Client) Rehydrate(ctx context.Context, id string) (r checkpoint.Checkpoint, err error) {
	return r, c.byID(ctx, "rehydrate", http.MethodPost, id, "/rehydrate", nil, &r)
}

// Undo undoes the last rollback of a branch; "" is main.
func (c *Client) Undo(ctx context.Context, branch string) (r RollbackReply, err error) {
	return r, c.call(ctx, "undo", http.MethodPost, "/v1/undo", values("branch", branch), nil, &r)
}

// Promote accepts what is there now. With a patch asked for, a failure to make it leaves the checkpoint active.
func (c *Client) Promote(ctx context.Context, id string, o PromoteOptions) (r PromoteReply, err error) {
	err = c.byID(ctx, "promote", http.MethodPost, id, "/promote", &o, &r)
	r.NotUTF8.restore("/patch", &r.Patch)
	return r, err
}

// Between names two states of a branch.
type Between struct {
	Branch string // "" is main
	From   string // ID of a checkpoint; "" is the newest one
	To     string // ID of a checkpoint; "" is now
}

func (b Between) values() url.Values { return values("branch", b.Branch, "from", b.From, "to", b.To) }

// Diff gives what differs between two states. With expand, what is below a new directory is listed too.
func (c *Client) Diff(ctx context.Context, b Between, expand bool) (overlay.Diff, error) {
	q := b.values()
	setFlag(q, "expand", expand)
	var r DiffReply
	err := c.call(ctx, "diff", http.MethodGet, "/v1/diff", q, nil, &r)
	r.restore()
	return r.Diff, err
}

// Patch writes the same as a patch that git apply takes to w. If it gives nil, all of the patch was written.
func (c *Client) Patch(ctx context.Context, b Between, w io.Writer) error {
	resp, err := c.stream(ctx, "patch", "/v1/patch", b.values())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	in := &readFailure{r: resp.Body}
	if _, err = io.Copy(w, in); err != nil && in.err != nil {
		return unreachable(ctx, "patch", err)
	}
	return errs.Wrap(Internal, "patch", "", err)
}

// readFailure remembers that it was reading that failed, and not what was done with the bytes.
type readFailure struct {
	r   io.Reader
	err error
}

func (f *readFailure) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != io.EOF {
		f.err = err
	}
	return n, err
}

// Reconcile gives what changed in a branch since a checkpoint: branch "" is main, id "" the newest one.
func (c *Client) Reconcile(ctx context.Context, branch, id string) (overlay.ReconcileResult, error) {
	var r ReconcileReply
	err := c.call(ctx, "reconcile", http.MethodGet, "/v1/reconcile", values("branch", branch, "checkpoint", id), nil, &r)
	r.restore()
	return r.ReconcileResult, err
}

// GC frees what nothing refers to.
func (c *Client) GC(ctx context.Context) (r GCReply, err error) {
	return r, c.call(ctx, "gc", http.MethodPost, "/v1/gc", nil, nil, &r)
}

// Fsck lists the invariants that do not hold. Deep reads every preimage too.
func (c *Client) Fsck(ctx context.Context, deep bool) ([]overlay.Problem, error) {
	q := url.Values{}
	setFlag(q, "deep", deep)
	var r FsckReply
	err := c.call(ctx, "fsck", http.MethodPost, "/v1/fsck", q, nil, &r)
	return r.Problems, err
}

// Unmount makes the workspace an ordinary directory again and ends the daemon. When it gives nil, the store is free.
func (c *Client) Unmount(ctx context.Context, o UnmountOptions) (r UnmountReply, err error) {
	return r, c.call(ctx, "unmount", http.MethodPost, "/v1/unmount", nil, &o, &r)
}

// byID calls what is below one checkpoint. An ID that is no path element is refused here: it names nothing.
func (c *Client) byID(ctx context.Context, op, method, id, sub string, body, reply any) error {
	if id == "" || id == "." || id == ".." {
		return errs.New(Usage, op, id, "%q is no checkpoint ID", id)
	}
	return c.call(ctx, op, method, "/v1/checkpoints/"+url.PathEscape(id)+sub, nil, body, reply)
}

// values makes query parameters of pairs of names and values. Empty ones are left out.
func values(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

func setFlag(q url.Values, name string, on bool) {
	if on {
		q.Set(name, "true")
	}
}
