package attempt

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/hold"
	"github.com/hyperfs/hyperfs/internal/owner"
	"github.com/hyperfs/hyperfs/overlay"
)

// Workspace is what attempts are made in. One that can be forked has In too.
type Workspace interface {
	overlay.History
	Reserve() string
	Announce(overlay.Event)
}

// forkable is a Workspace with branches.
type forkable interface {
	// In gives the history of an active branch, NOT_FOUND where there never was one, or DISPOSED.
	In(name string) (overlay.History, error)
}

// Types of events. The first one's data is an Attempt, the second one's a Result without what has changed.
const (
	EventBegun = "attempt-begun"
	EventEnded = "attempt-ended"
)

// op names what fails.
const op = "attempt"

// Engine begins and ends the attempts of one workspace. Its methods may be called concurrently.
type Engine struct {
	w Workspace

	mu      sync.Mutex        // guards what follows, and what the entries hold
	under   map[string]*entry // by where they work
	held    hold.Set          // where none may begin
	refused []string          // IDs that must not begin any more: see Abandon; the last is the newest
}

// maxRefused is how many IDs are refused at most. They are for requests on their way.
const maxRefused = 256

// entry is an attempt that is under way, or about to be. Of its checkpoint it has the ID alone before begun is closed.
type entry struct {
	Attempt
	owner  owner.Process
	begun  chan struct{} // closed when the checkpoint was made, or not
	failed bool          // it was not made
	ending bool          // somebody is ending it
}

// New makes an engine. There must be one for a workspace.
func New(w Workspace) *Engine {
	return &Engine{w: w, under: map[string]*entry{}}
}

// Begin makes a checkpoint and lets an attempt be under way. Where somebody holds a branch, it waits. Errors: ATTEMPT_IN_PROGRESS with the ID of the one that is in the way, at once; NOT_FOUND and
// DISPOSED for a parent that can't be one; DISPOSED for a branch that was merged or dropped; USAGE for an owner that is not there; and those of Snapshot.
func (e *Engine) Begin(ctx context.Context, o Options) (Attempt, error) {
	a, o, err := e.begin(ctx, o)
	if err != nil {
		return Attempt{}, err
	}
	c, err := e.w.Snapshot(ctx, overlay.SnapshotOptions{
		ID: a.ID, Parent: o.Parent, Branch: o.Branch, Subagent: o.Subagent, Agent: o.Agent, CreatedBy: CreatedBy, Message: o.Message,
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	defer close(a.begun)
	if err != nil {
		a.failed = true
		delete(e.under, a.WorksIn)
		return Attempt{}, err
	}
	a.Checkpoint = c
	e.w.Announce(overlay.Event{Type: EventBegun, Time: time.Now(), Checkpoint: a.ID, Data: a.Attempt})
	return a.Attempt, nil
}

// begin makes the entry of an attempt, which keeps others out of where it works, and completes the options.
func (e *Engine) begin(ctx context.Context, o Options) (*entry, Options, error) {
	for {
		a, completed, err := e.prepare(o)
		if err != nil {
			return nil, o, err
		}
		held, err := e.claim(a)
		if held == nil {
			return a, completed, err
		}
		select {
		case <-held: // by a merge, after which the branch may be no more
		case <-ctx.Done():
			return nil, o, ctx.Err()
		}
	}
}

// prepare checks the options, and completes them with what the parent says.
func (e *Engine) prepare(o Options) (*entry, Options, error) {
	own, err := owner.Find(op, o.PID, o.PIDStart)
	if err != nil {
		return nil, o, err
	}
	if o.Parent != "" {
		p, err := e.w.Get(o.Parent)
		if err != nil {
			return nil, o, err
		}
		if p.Status != checkpoint.Active {
			return nil, o, errs.New(errs.Disposed, op, o.Parent, "the parent is %s", p.Status)
		}
		o.Branch, o.Subagent, o.Agent = cmp.Or(o.Branch, p.Branch), cmp.Or(o.Subagent, p.Subagent), cmp.Or(o.Agent, p.Agent)
	}
	line, err := e.line(o.Branch)
	if err != nil {
		return nil, o, err
	}
	a := &entry{owner: own, begun: make(chan struct{})}
	a.ID, a.WorksIn, a.PID = cmp.Or(o.ID, e.w.Reserve()), line, o.PID
	return a, o, nil
}

// line gives where an attempt with that tag works.
func (e *Engine) line(branch string) (string, error) {
	f, ok := e.w.(forkable)
	if !ok || branch == "" || branch == overlay.MainBranch {
		return overlay.MainBranch, nil
	}
	switch _, err := f.In(branch); errs.CodeOf(err) {
	case "":
		return branch, nil
	case errs.NotFound:
		return overlay.MainBranch, nil
	default:
		return "", err
	}
}

// claim makes a the attempt where it works, unless held gives what is closed when it can be tried again.
func (e *Engine) claim(a *entry) (held <-chan struct{}, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(e.refused, a.ID) {
		return nil, errs.New(errs.Disposed, op, a.ID, "it was abandoned before it began")
	}
	if held := e.held.Held(a.WorksIn); held != nil {
		return held, nil
	}
	if other := e.under[a.WorksIn]; other != nil && !e.lapsed(other) {
		return nil, inProgress(other)
	} else if other != nil {
		e.drop(other, Abandoned)
	}
	if e.named(a.ID) != nil {
		return nil, errs.New(errs.Usage, op, a.ID, "another attempt has this ID")
	}
	e.under[a.WorksIn] = a
	return nil, nil
}

// Hold has no attempt begin in a branch until release, which is to be called once: whoever wants to waits. ATTEMPT_IN_PROGRESS with its ID says which one is under way: what it has changed
// so far may be taken back still.
func (e *Engine) Hold(branch string) (release func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.under[branch]; a != nil && !e.lapsed(a) {
		return nil, inProgress(a)
	}
	return e.held.Hold(branch, &e.mu), nil
}

func inProgress(other *entry) error {
	return errs.New(errs.AttemptInProgress, op, other.ID, "it is under way in %s", other.WorksIn).
		WithHint("it must end first; hyperfs attempt --abandon " + other.ID + " gives it up, and leaves the files as they are")
}

// lapsed reports whether nobody can end an attempt any more. The caller holds e.mu.
func (e *Engine) lapsed(a *entry) bool {
	if !a.isBegun() || a.ending {
		return false
	}
	if a.owner.Gone() {
		return true
	}
	c, err := e.w.Get(a.ID)
	return errs.CodeOf(err) == errs.NotFound || err == nil && (c.Status == checkpoint.Promoted || c.Status == checkpoint.Disposed)
}

// drop lets an attempt be under way no more. The caller holds e.mu.
func (e *Engine) drop(a *entry, how Outcome) {
	delete(e.under, a.WorksIn)
	e.announce(a.result(EndOptions{Outcome: how}))
}

func (e *Engine) announce(r Result) {
	r.Reconcile = nil // it may be as long as the tree
	e.w.Announce(overlay.Event{Type: EventEnded, Time: time.Now(), Checkpoint: r.ID, Data: r})
}

// result is what there is to say of an attempt that ends now.
func (a *entry) result(o EndOptions) Result {
	return Result{ID: a.ID, WorksIn: a.WorksIn, Outcome: o.Outcome, Message: o.Message, Duration: time.Since(a.CreatedAt)}
}

// Active lists the attempts that are under way, in the order in which they began.
func (e *Engine) Active() []Attempt {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []Attempt{}
	for _, a := range e.under {
		if a.isBegun() {
			list = append(list, a.Attempt)
		}
	}
	slices.SortFunc(list, func(a, b Attempt) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	return list
}
