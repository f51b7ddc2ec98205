package turn

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/hold"
	"github.com/hyperfs/hyperfs/internal/owner"
	"github.com/hyperfs/hyperfs/overlay"
)

// Workspace is what turns are made in. One that can be forked has the methods of forkable too.
type Workspace interface {
	overlay.History
	Reserve() string
	Announce(overlay.Event)
	Turns() *checkpoint.Turns
}

// forkable is a Workspace with branches.
type forkable interface {
	// In gives the history of an active branch, NOT_FOUND where there never was one, or DISPOSED.
	In(name string) (overlay.History, error)
	Fork(ctx context.Context, o overlay.ForkOptions) (checkpoint.Branch, error)
	DropBranch(ctx context.Context, name string) error
}

// op names what fails.
const op = "turn"

// DefaultKeep is how many completed turns of a conversation are kept where nobody says.
const DefaultKeep = 256

// Options of an engine.
type Options struct {
	Keep int // the newest completed turns of each conversation are kept, this many; 0 means all
}

// Engine has the turns of one workspace. Its methods may be called concurrently. What they give shares nothing with it.
type Engine struct {
	w     Workspace
	turns *checkpoint.Turns
	keep  int

	mu      sync.Mutex // guards what follows, and of the entries what they say
	byID    map[string]*entry
	list    []*entry          // in the order in which they began
	busy    map[string]*entry // by where they work: those that are to begin, are pending, or are not settled
	held    hold.Set          // where none may begin
	served  []string          // checkpoints that completed turns began with: see tidy
	refused []string          // IDs that must not begin any more: see Abort; the last is the newest
	damaged []checkpoint.Damaged
	failure error // of reading the records; nothing works then
	last    time.Time
	closed  bool

	end        context.CancelFunc
	ctx        context.Context // ends with Close
	background sync.WaitGroup
	collecting sync.Mutex // one collection at a time; before all other locks
}

// maxRefused is how many IDs are refused at most. They are for requests on their way.
const maxRefused = 256

// entry is a turn that there is a record of, or that is about to begin.
type entry struct {
	lock turnLock // held while the turn begins, is updated, ended or aborted; before Engine.mu

	// Guarded by Engine.mu.
	Turn
	begun bool          // there is a record
	state *state        // of a pending one; nil after a crash of the process that had it in memory
	left  chan struct{} // closed when it is not pending any more

	// Guarded by lock.
	seq   int
	based bool   // an event has told the whole custom document
	unuse func() // ends the use of the blobs that keepEarly has kept; nil: none
}

// turnLock is a mutex that one can stop waiting for.
type turnLock chan struct{}

// take does not ask for ctx where the lock is free: a failure is rolled back also for who has gone.
func (l turnLock) take(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l turnLock) release() { <-l }

func newEntry(r Turn) *entry {
	return &entry{lock: make(turnLock, 1), Turn: r, left: make(chan struct{})}
}

// New makes an engine, and reads all records of turns. There must be one for a workspace. Where the records can't be read, every call fails with why.
func New(w Workspace, o Options) *Engine {
	e := &Engine{w: w, turns: w.Turns(), keep: o.Keep, byID: map[string]*entry{}, busy: map[string]*entry{}}
	e.ctx, e.end = context.WithCancel(context.Background())
	all, damaged, err := e.turns.All()
	e.damaged, e.failure = damaged, err
	slices.SortFunc(all, func(a, b Turn) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID)) })
	for _, r := range all {
		e.load(r)
	}
	return e
}

// load takes over what the store says of a turn.
func (e *Engine) load(r Turn) {
	t := newEntry(r)
	t.begun = true
	e.byID[t.ID], e.list = t, append(e.list, t)
	for _, at := range []time.Time{t.CreatedAt, t.UpdatedAt} {
		if at.After(e.last) {
			e.last = at
		}
	}
	if t.Status != checkpoint.TurnPending {
		close(t.left)
	} else if !t.Unsaved {
		t.state, _ = stateOf(e.turns, t.State) // without it, it can't complete
	}
	if !t.Settled {
		e.busy[t.WorksIn] = t
	}
}

// Close puts what pending turns have in memory into the store. No call may be under way, and none follow.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	pending := slices.DeleteFunc(slices.Clone(e.list), func(t *entry) bool { return t.Status != checkpoint.TurnPending || !t.Unsaved || t.state == nil })
	e.mu.Unlock()
	e.end()
	e.background.Wait()
	defer e.turns.Using()()
	var failed error
	for _, t := range pending {
		r := t.Turn
		var err error
		if r.State, err = t.state.save(e.turns); err == nil {
			r.Unsaved = false
			err = e.turns.Put(r)
		}
		failed = errors.Join(failed, err)
		t.unused()
	}
	return failed
}

// inBackground runs fn beside all else. Close waits for it.
func (e *Engine) inBackground(fn func(ctx context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.background.Go(func() { fn(e.ctx) })
	}
}

// now gives the time, later each time: the order of turns must not depend on a clock that is set back. The caller holds e.mu.
func (e *Engine) now() time.Time {
	now := time.Now().Round(0)
	if !now.After(e.last) {
		now = e.last.Add(time.Microsecond)
	}
	e.last = now
	return now
}

func (e *Engine) announce(typ, id string, data any) {
	e.w.Announce(overlay.Event{Type: typ, Time: time.Now(), Checkpoint: id, Data: data})
}

// line gives the history of main or of an active branch.
func (e *Engine) line(name string) (overlay.History, error) {
	f, ok := e.w.(forkable)
	switch {
	case name == overlay.MainBranch && !ok:
		return e.w, nil
	case !ok:
		return nil, noBranches(name)
	}
	return f.In(name)
}

func noBranches(name string) error {
	return errs.New(errs.Unsupported, op, name, "this workspace has no branches").WithHint("they need FUSE: hyperfs mount")
}

// find gives a turn that has begun, or is just beginning. The caller holds e.mu.
func (e *Engine) find(id string) (*entry, error) {
	if e.failure != nil {
		return nil, e.failure
	}
	if t := e.byID[id]; t != nil {
		return t, nil
	}
	for _, d := range e.damaged {
		if d.ID == id {
			return nil, d.Err
		}
	}
	return nil, errs.New(errs.NotFound, op, id, "there is no such turn").WithHint("hyperfs turns list shows them")
}

// take gives a turn and its lock.
func (e *Engine) take(ctx context.Context, id string) (*entry, error) {
	e.mu.Lock()
	t, err := e.find(id)
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := t.lock.take(ctx); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byID[id] != t || !t.begun { // it was collected, or has not begun
		t.lock.release()
		_, err := e.find(id)
		return nil, cmp.Or(err, error(errs.New(errs.NotFound, op, id, "it has not begun")))
	}
	return t, nil
}

// Get gives a turn.
func (e *Engine) Get(id string) (Turn, error) {
	e.mu.Lock()
	t, err := e.find(id)
	if err == nil && !t.begun {
		err = errs.New(errs.NotFound, op, id, "it has not begun yet")
	}
	if err != nil {
		e.mu.Unlock()
		return Turn{}, err
	}
	r := t.Turn
	e.mu.Unlock()
	e.look(&r)
	return r, nil
}

// look finds out whether the files of a completed turn can be had.
func (e *Engine) look(r *Turn) {
	r.FilesGone = r.Status == checkpoint.TurnCompleted && !e.active(r.ID)
	r.State.Pages, r.State.Artifacts = slices.Clone(r.State.Pages), slices.Clone(r.State.Artifacts)
}

func (e *Engine) active(id string) bool {
	c, err := e.checkpoint(id)
	return err == nil && c.Status == checkpoint.Active
}

// finder is a Workspace that can give a checkpoint without what takes time to find out.
type finder interface {
	Find(id string) (checkpoint.Checkpoint, error)
}

func (e *Engine) checkpoint(id string) (checkpoint.Checkpoint, error) {
	if f, ok := e.w.(finder); ok {
		return f.Find(id)
	}
	return e.w.Get(id)
}

// Wait gives a turn when it is not pending any more, or, with no error, when ctx ends.
func (e *Engine) Wait(ctx context.Context, id string) (Turn, error) {
	e.mu.Lock()
	t, err := e.find(id)
	e.mu.Unlock()
	if err != nil {
		return Turn{}, err
	}
	select {
	case <-t.left:
	case <-ctx.Done():
	case <-e.ctx.Done():
	}
	return e.Get(id)
}

// List gives turns in the order in which they began. Those that can't be read are not among them: see Damaged.
func (e *Engine) List(o ListOptions) ([]Turn, error) {
	switch s := checkpoint.TurnStatus(o.Status); {
	case s != "" && s != checkpoint.TurnPending && s != checkpoint.TurnCompleted && s != checkpoint.TurnFailed && s != checkpoint.TurnAborted:
		return nil, errs.New(errs.Usage, op, "status", "%q is no status", o.Status).WithHint("pending, completed, failed or aborted")
	case o.Limit < 0:
		return nil, errs.New(errs.Usage, op, "limit", "%d is negative", o.Limit)
	}
	e.mu.Lock()
	list := []Turn{}
	for _, t := range e.list {
		if t.begun && (o.Conversation == "" || t.Conversation == o.Conversation) && (o.Status == "" || string(t.Status) == o.Status) {
			list = append(list, t.Turn)
		}
	}
	failure := e.failure
	e.mu.Unlock()
	if o.Limit > 0 && len(list) > o.Limit {
		list = slices.Clone(list[len(list)-o.Limit:])
	}
	for i := range list {
		e.look(&list[i])
	}
	return list, failure
}

// UnderWay gives the turns that are not settled, in the order in which they began.
func (e *Engine) UnderWay() []Turn {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []Turn{}
	for _, t := range e.list {
		if t.begun && !t.Settled {
			list = append(list, t.Turn)
		}
	}
	return list
}

// Damaged gives the turns whose records can't be read.
func (e *Engine) Damaged() []checkpoint.Damaged {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.damaged)
}

// State gives the state of a completed turn, or what a pending one has so far. DISPOSED says that there is none: a turn that has not completed keeps nothing.
func (e *Engine) State(id string) (*State, error) {
	e.mu.Lock()
	t, err := e.find(id)
	if err == nil && !t.begun {
		err = errs.New(errs.NotFound, op, id, "it has not begun yet")
	}
	if err != nil {
		e.mu.Unlock()
		return nil, err
	}
	r, s := t.Turn, t.state
	e.mu.Unlock()
	// What is read is not freed meanwhile: only a turn whose record is gone loses its blobs.
	switch {
	case r.Status == checkpoint.TurnCompleted:
		if s, err = stateOf(e.turns, r.State); err != nil {
			return nil, err
		}
	case r.Status != checkpoint.TurnPending:
		return nil, noState(r)
	case s == nil:
		return nil, lost(r)
	}
	st, err := s.load(e.turns, r.Conversation)
	if err != nil {
		return nil, err
	}
	return st, nil
}

func noState(r Turn) error {
	err := errs.New(errs.Disposed, op, r.ID, "it is %s, and has no state", r.Status)
	if r.Parent != "" {
		err = err.WithHint("the one before it has: " + r.Parent)
	}
	return err
}

func lost(r Turn) error {
	return errs.New(errs.Disposed, op, r.ID, "what its state was given is lost with the process that had it in memory").WithHint("end it as failed")
}

// Conversations sums up the turns of each conversation, by name.
func (e *Engine) Conversations() ([]Conversation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := map[string]*Conversation{}
	heads := map[string]*entry{}
	for _, t := range e.list {
		if !t.begun {
			continue
		}
		c := at[t.Conversation]
		if c == nil {
			c = &Conversation{Name: t.Conversation}
			at[c.Name] = c
		}
		c.Turns++
		c.WorksIn = t.WorksIn
		if t.Status == checkpoint.TurnPending {
			c.Pending = t.ID
		}
		if t.UpdatedAt.After(c.UpdatedAt) {
			c.UpdatedAt = t.UpdatedAt
		}
		if h := heads[t.Conversation]; t.Status == checkpoint.TurnCompleted && (h == nil || t.UpdatedAt.After(h.UpdatedAt)) {
			heads[t.Conversation] = t
		}
	}
	list := make([]Conversation, 0, len(at))
	for name, c := range at {
		if h := heads[name]; h != nil {
			c.Head = h.ID
			if c.Pending == "" {
				c.WorksIn = h.WorksIn
			}
		}
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b Conversation) int { return strings.Compare(a.Name, b.Name) })
	return list, e.failure
}

// head gives the completed turn of a conversation that completed last: no completed one can follow that. nil if there is none. The caller holds e.mu.
func (e *Engine) head(conversation string) *entry {
	var head *entry
	for _, t := range e.list {
		if t.Conversation == conversation && t.Status == checkpoint.TurnCompleted && (head == nil || t.UpdatedAt.After(head.UpdatedAt)) {
			head = t
		}
	}
	return head
}

// lastGood gives the turn that a conversation goes on from: its head, or where it has none, what its newest turn began with, which is of another conversation. nil if
// there is nothing to go on from. known says that there are turns of it. The caller holds e.mu.
func (e *Engine) lastGood(conversation string) (good *entry, known bool) {
	if h := e.head(conversation); h != nil {
		return h, true
	}
	for _, t := range slices.Backward(e.list) {
		if t.Conversation == conversation {
			return e.byID[t.Parent], true
		}
	}
	return nil, false
}

// gone reports whether nobody is going to end a turn: its owner was named, and is not there any more. The caller holds e.mu.
func (t *entry) gone() bool {
	return t.begun && owner.Process{PID: t.PID, Start: t.PIDStart}.Gone()
}

// Stats are what diagnostics tell of turns.
type Stats struct {
	Turns         int      `json:"turns"`
	Conversations int      `json:"conversations"`
	UnderWay      []Turn   `json:"under_way"`         // those that are not settled, in the order in which they began
	Bytes         int64    `json:"bytes"`             // of the newest states of all conversations
	Damaged       []string `json:"damaged,omitempty"` // turns whose records can't be read
	Keep          int      `json:"keep"`              // completed turns that each conversation keeps; 0 means all
}

// Stats gives them. It does no I/O.
func (e *Engine) Stats() Stats {
	s := Stats{UnderWay: e.UnderWay(), Keep: e.keep}
	list, _ := e.Conversations()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Conversations = len(list)
	for _, c := range list {
		s.Turns += c.Turns
		if t := e.byID[c.Head]; t != nil {
			s.Bytes += t.State.Bytes
		}
	}
	for _, d := range e.damaged {
		s.Damaged = append(s.Damaged, d.ID)
	}
	return s
}
