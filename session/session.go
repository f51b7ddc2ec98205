package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// Session is an open workspace. Its methods may be called by any number of goroutines. A context that ends ends the call it was given to, and so does
// Close. Errors are *control.Error with a code; DISPOSED says that the session is closed.
type Session struct {
	client *control.Client
	end    func(context.Context) error // frees what Open has taken
	root   string                      // the workspace, symlinks resolved
	dir    string                      // where its files are worked on: the mountpoint, or root where there is no mount
	shown  string                      // the branch that this process finds at dir, "" for main
	tier   string

	base   context.Context // ends when the session is closed
	cancel context.CancelCauseFunc
	calls  sync.WaitGroup // those under way; added to only with mu held, and closed false

	mu            sync.Mutex // guards what follows
	closed        bool
	lastReconcile *overlay.ReconcileResult
	lastRollback  *time.Duration

	closeOnce sync.Once
	closeErr  error
}

// errClosed is what ends contexts when a session is closed.
var errClosed = errs.New(errs.Disposed, "use the session", "", "it is closed")

// Open opens a workspace. If a daemon answers for it, that is used; else what cfg.Start says. ctx is for Open alone.
//
// Errors: PATH where the workspace is no directory; NOT_FOUND where no daemon answers, and none is to be started or its program isn't there;
// UNSUPPORTED where what cfg wants can't be had here, or the checkpoints of the workspace were made by another backend; BUSY where another process has
// the workspace open; and those of a mount.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	client, end, err := cfg.connect(ctx)
	if err != nil {
		return nil, err
	}
	st, err := client.Status(ctx)
	if err != nil {
		client.Close()
		_ = end(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	s := &Session{client: client, end: end, root: st.Workspace, dir: st.Workspace, tier: st.Tier}
	if m := st.Daemon.Mountpoint; m != "" {
		s.dir = m
	}
	s.shown = branchAt(s.dir)
	s.base, s.cancel = context.WithCancelCause(context.Background())
	return s, nil
}

// Workspace gives the directory to work in: the mountpoint, or the workspace itself where there is none.
func (s *Session) Workspace() string { return s.dir }

// Branch gives the branch that this process finds in the workspace, as a command does that was started in a branch; it is main for others. What names
// no branch is about that one.
func (s *Session) Branch() string {
	if s.shown == "" {
		return overlay.MainBranch
	}
	return s.shown
}

// Strategy gives the tier that preimages went to when the session was opened. Diagnostics has the one of now.
func (s *Session) Strategy() string { return s.tier }

// Client gives the client that the session uses, for calls that the session does not have. It must not be used after Close.
func (s *Session) Client() *control.Client { return s.client }

// LastReconcile gives what the last reconcile found, by whichever method; false where there was none.
func (s *Session) LastReconcile() (overlay.ReconcileResult, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastReconcile == nil {
		return overlay.ReconcileResult{}, false
	}
	return copied(*s.lastReconcile), true
}

// copied shares nothing with r, so that nobody can change what another one sees.
func copied(r overlay.ReconcileResult) overlay.ReconcileResult {
	r.Created, r.Modified, r.Deleted = slices.Clone(r.Created), slices.Clone(r.Modified), slices.Clone(r.Deleted)
	r.Renamed = slices.Clone(r.Renamed)
	return r
}

// LastRollback gives how long the last rollback took, by whichever method; false where there was none.
func (s *Session) LastRollback() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastRollback == nil {
		return 0, false
	}
	return *s.lastRollback, true
}

// note remembers what was done last.
func (s *Session) note(changed *overlay.ReconcileResult, rolledBack *overlay.RollbackResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if changed != nil {
		s.lastReconcile = new(copied(*changed))
	}
	if rolledBack != nil {
		s.lastRollback = &rolledBack.Duration
	}
}

// Closed reports whether Close was called.
func (s *Session) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close ends all calls, rolls back the attempts that are under way, and frees what Open has taken; a daemon that Open has started ends too, unless
// Config.KeepDaemon says otherwise. It waits for all of that, so a callback of the session must not call it. What was kept
// stays, and checkpoints do. It may be called more than once, and then gives the same error: BUSY where some program uses the mount, which stays.
func (s *Session) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.cancel(errClosed)
		s.calls.Wait()
		s.client.Close()
		s.closeErr = s.end(context.Background())
	})
	return s.closeErr
}

// enter begins a call, whose context ends with the session; leave ends it.
func (s *Session) enter(ctx context.Context, op string) (_ context.Context, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, closed(op)
	}
	s.calls.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.base, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		s.calls.Done()
	}, nil
}

func closed(op string) error { return errs.New(errs.Disposed, op, "", "the session is closed") }

// call runs fn, whose context ends with the session.
func call[R any](ctx context.Context, s *Session, op string, fn func(context.Context) (R, error)) (R, error) {
	var none R
	ctx, leave, err := s.enter(ctx, op)
	if err != nil {
		return none, err
	}
	defer leave()
	r, err := fn(ctx)
	return r, s.explain(ctx, op, err)
}

// explain gives the error of a call, which is DISPOSED where the call ended because the session did.
func (s *Session) explain(ctx context.Context, op string, err error) error {
	if err != nil && context.Cause(ctx) == error(errClosed) {
		return closed(op)
	}
	return err
}

// do is call for what has no result.
func do(ctx context.Context, s *Session, op string, fn func(context.Context) error) error {
	_, err := call(ctx, s, op, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}

// Exec runs a command in the workspace. When it ends, all that it has started does, daemons too: what changes the workspace after that is none of it.
func (s *Session) Exec(ctx context.Context, c Command) (Result, error) {
	return call(ctx, s, op, s.place(c).Run)
}

// place gives a command the workspace, unless it has one.
func (s *Session) place(c Command) Command {
	if c.Workspace == "" {
		c.Workspace = s.dir
	}
	if c.Source == "" && s.shown == "" {
		c.Unset = append(c.Unset[:len(c.Unset):len(c.Unset)], envBranch)
	}
	return c
}

// placeIn gives a command the branch whose directory is dir.
func (s *Session) placeIn(branch, dir string, c Command) Command {
	if dir != s.dir {
		c.Workspace, c.Source = s.root, dir
		c.Env = append([]string{envBranch + "=" + branch}, c.Env...)
	}
	return s.place(c)
}

// Diagnostics is everything that the workspace and the session know about themselves.
type Diagnostics struct {
	control.DiagnosticsReply
	LastReconcile *overlay.ReconcileResult `json:"last_reconcile,omitempty"`
	LastRollback  *time.Duration           `json:"last_rollback_ns,omitempty"`
}

// Diagnostics gives a copy of values: asking runs no git, no shell and no scan.
func (s *Session) Diagnostics(ctx context.Context) (Diagnostics, error) {
	return call(ctx, s, "diagnostics", func(ctx context.Context) (d Diagnostics, err error) {
		d.DiagnosticsReply, err = s.client.Diagnostics(ctx)
		if changed, ok := s.LastReconcile(); ok {
			d.LastReconcile = &changed
		}
		if took, ok := s.LastRollback(); ok {
			d.LastRollback = &took
		}
		return d, err
	})
}
