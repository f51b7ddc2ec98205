package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

// RunnerOptions say in which conversation turns are made, and from where. The zero value begins a new conversation with the files as they are.
type RunnerOptions struct {
	Conversation string // "" is that of From, or a new one. One that there is goes on from its head, with the files as they are
	From         string // a completed turn to resume: when the first turn begins, the files go back to it; see turn.BeginOptions
	Branch       string // where to work; "" is where the conversation has worked, or the session's branch
	Fork         string // a branch that the first turn forks to work in, from From, or else from Branch as it is. Without Conversation it gets one of its own

	Subagent string // tags and message of the checkpoints
	Agent    string
	Message  string

	NoRollback bool // a turn that does not complete leaves the files as they are

	// OnEvent is told of all that the runner does, one after the other, by the goroutine that does it. It must not wait for the runner.
	OnEvent func(TurnEvent)
}

// TurnEvent is what has become of a turn.
type TurnEvent struct {
	Type string // turn.EventBegun, turn.EventUpdated, turn.EventAborted, turn.EventEnded
	Turn turn.Turn

	// Update is that of turn.EventUpdated. Its CustomPatch, a JSON Patch, leads from the custom document that the last event left to the one after. The first
	// of each turn replaces the whole document.
	Update *turn.UpdateEvent
}

// TurnResult is what a handler says of a turn that completes. All may be empty.
type TurnResult struct {
	FinishReason string
	Stop         bool // the runner returns, and takes no more inputs
}

// RunResult is how things are after the last turn of a runner.
type RunResult struct {
	Conversation string // "" before the first turn of one that the runner begins

	// LastGood is the newest completed turn, which one resumes from; "" if there is none. LastGoodState is what it has left, and so after a failure what the turn that
	// failed began with: it is nil while a turn goes on in the background.
	LastGood      string
	LastGoodState *turn.State

	LastFinishReason string // of the last turn, however it ended; turn.ReasonDetached where it goes on
	LastError        error  // of the last turn, as its handler gave it; nil if it completed. ErrTurnAborted is in that of one that was aborted

	Turn      turn.Turn               // the last one
	Rollback  *overlay.RollbackResult // of the files, if it did not complete
	Pending   string                  // ID of the turn that goes on in the background
	Completed int                     // turns that completed in this run

	// Waiting are inputs that were taken from their channel, and of which no turn could be begun: one, but where RunTurns was called with inputs of several types. The runner keeps
	// them: the next RunTurns with inputs of that type takes it first.
	Waiting []any
}

// Runner makes turns of a conversation, one after the other. Any number of goroutines may call its methods.
type Runner struct {
	s    *Session
	o    RunnerOptions
	from string // the conversation of From

	mu      sync.Mutex        // guards what follows
	next    turn.BeginOptions // what the next turn begins with
	run     *run              // the last one, nil before the first
	last    RunResult
	current *Turn // under way, nil if there is none

	waiting []step // of inputs of which no turn could be begun, one of a type. The loop's own: there is one at a time
}

// taken is an input that is out of its channel. Its address tells it from others.
type taken[I any] struct{ input I }

// NewRunner makes a runner. Nothing is begun yet, and no file touched. Errors: NOT_FOUND for a turn that is not there; USAGE for one that has not completed, as
// only completed ones can be resumed.
func NewRunner(ctx context.Context, s *Session, o RunnerOptions) (*Runner, error) {
	r := &Runner{s: s, o: o}
	r.next = turn.BeginOptions{
		Conversation: o.Conversation, From: o.From, Branch: o.Branch, Fork: o.Fork, Subagent: o.Subagent, Agent: o.Agent, Message: o.Message, NoState: true,
	}
	if start := ourStart(); start != 0 {
		r.next.PID, r.next.PIDStart = os.Getpid(), start
	}
	r.last.Conversation = o.Conversation
	if o.From != "" {
		from, err := s.Turn(ctx, o.From)
		if err != nil {
			return nil, err
		}
		if from.Status != checkpoint.TurnCompleted {
			return nil, errs.New(errs.Usage, "resume", o.From, "the turn is %s, not completed", from.Status)
		}
		r.from, r.last.LastGood = from.Conversation, from.ID
		if o.Fork == "" {
			r.last.Conversation = cmp.Or(o.Conversation, from.Conversation)
		}
		return r, nil
	}
	if o.Conversation != "" {
		list, err := s.Conversations(ctx)
		if err != nil {
			return nil, err
		}
		for _, c := range list {
			if c.Name == o.Conversation {
				r.last.LastGood = c.Head
			}
		}
	}
	if r.last.LastGood == "" {
		r.next.Branch = cmp.Or(o.Branch, s.shown) // there is nothing to go on from
	}
	return r, nil
}

// Session gives the session.
func (r *Runner) Session() *Session { return r.s }

// Last gives how things are after the last turn that has ended, without its state.
func (r *Runner) Last() RunResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Current gives the turn under way, nil if there is none.
func (r *Runner) Current() *Turn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// State gives a copy of the state of the turn under way, else of the last good one, which is empty if there is none.
func (r *Runner) State(ctx context.Context) (turn.State, error) {
	r.mu.Lock()
	id := r.last.LastGood
	if r.current != nil {
		id = r.current.ID()
	}
	conversation := r.last.Conversation
	r.mu.Unlock()
	if id == "" {
		return turn.State{Conversation: conversation, Messages: []json.RawMessage{}, Artifacts: []turn.Artifact{}}, nil
	}
	return r.s.TurnState(ctx, id)
}

// Abort aborts the turn under way, as AbortTurn does: its context ends, with ErrTurnAborted in its cause. NOT_FOUND if there is none.
func (r *Runner) Abort(ctx context.Context, reason string) error {
	t := r.Current()
	if t == nil {
		return errs.New(errs.NotFound, "abort turn", "", "no turn is under way")
	}
	record, err := r.s.AbortTurn(ctx, t.ID(), turn.AbortOptions{Reason: reason})
	if err == nil {
		t.settled(record)
	}
	return err
}

// Detach lets RunTurns return at once, with the ID of the turn that is under way and the finish reason turn.ReasonDetached: that turn, and those of the inputs after it, go on
// in the background, also when the context ends that RunTurns was called with; Session.Close still ends them. False says that nothing runs, or it was detached before.
func (r *Runner) Detach() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.run
	if u == nil || u.over || u.detached {
		return false
	}
	u.detached = true
	u.release()
	close(u.left)
	return true
}

// Wait waits until what runs has ended, and gives what RunTurns gives where nobody detaches it. If nothing runs, it gives that of the last run.
func (r *Runner) Wait(ctx context.Context) (RunResult, error) {
	r.mu.Lock()
	u, last := r.run, r.last
	r.mu.Unlock()
	if u == nil {
		return last, nil
	}
	select {
	case <-u.done:
		return u.result, u.err
	case <-ctx.Done():
		return r.Last(), context.Cause(ctx)
	}
}

// tell gives an event to OnEvent.
func (r *Runner) tell(ev TurnEvent) {
	if r.o.OnEvent != nil {
		r.o.OnEvent(ev)
	}
}

// RunTurns makes a turn of each input, one after the other, until the channel is closed. A turn is begun before fn is called: its ID, its parent and its index are known. Where
// fn gives nil, the files and the conversation's state are committed under that ID, both or neither.
//
// A turn that fails does not fail the runner. Where fn gives an error, panics or ends its goroutine, or where the turn's context ends before fn returns, or what it did can't be
// committed, the turn has failed: the files go back to what they were when it began, RunTurns takes no more inputs, those that are left stay in the channel, and it returns
// without an error: the result has the last good turn, its state, and the error. Undo brings the files back that were rolled back. The same goes for a turn that
// somebody has aborted, by Session.AbortTurn or `hyperfs turns abort`: its context ends with ErrTurnAborted in the cause, and the finish reason is
// turn.ReasonAborted. The next RunTurns goes on from the last good turn.
//
// The context of fn ends when ctx does, unless the run was detached, when the session is closed, and when fn returns; it has the values of ctx. Close does not cut turns
// off silently: the turn under way fails, with the handler's error or else DISPOSED, its files go back, and no more begin. Close waits for that.
//
// The error is for what keeps the runner from working, and nothing is lost by it: an input that was taken, and of which no turn could be begun, is in RunResult.Waiting, and the
// first one of the next RunTurns with inputs of its type. The codes: ATTEMPT_IN_PROGRESS with the ID of another turn in the same branch; BUSY where this runner runs already;
// ATTEMPT_ROLLBACK where a turn has failed and its files can't be put back, with both errors below; the cause of the end of ctx where that came between turns;
// a daemon that is gone. Then the result tells how far it came.
func RunTurns[I any](ctx context.Context, r *Runner, inputs <-chan I, fn func(context.Context, *Turn, I) (TurnResult, error)) (RunResult, error) {
	return r.start(ctx, func(ctx context.Context) (step, bool, error) {
		if ctx.Err() != nil { // also where an input has come too
			return step{}, false, context.Cause(ctx)
		}
		for _, w := range r.waiting {
			if in, ok := w.taken.(*taken[I]); ok {
				return stepOf(in, fn), true, nil
			}
		}
		select {
		case in, ok := <-inputs:
			if !ok {
				return step{}, false, nil
			}
			return stepOf(&taken[I]{in}, fn), true, nil
		case <-ctx.Done():
			return step{}, false, context.Cause(ctx)
		}
	})
}

// stepOf gives what becomes a turn of an input.
func stepOf[I any](in *taken[I], fn func(context.Context, *Turn, I) (TurnResult, error)) step {
	st := step{input: in.input, taken: in, handle: func(ctx context.Context, t *Turn) (TurnResult, error) { return fn(ctx, t, in.input) }}
	if c, carries := any(in.input).(MessageCarrier); carries {
		st.messages = c.TurnMessages
	}
	return st
}

// step is what becomes a turn.
type step struct {
	input    any          // as it came
	taken    any          // the same as a *taken of its type
	messages func() []any // nil if there are none
	handle   func(context.Context, *Turn) (TurnResult, error)
}

// turnErrorOf says in a turn's record why it has failed.
func turnErrorOf(failure error) *checkpoint.TurnError {
	e := &checkpoint.TurnError{Message: shorten(fmt.Sprint(failure))} // fmt bears with an Error method that panics
	var coded *errs.Error
	if errors.As(failure, &coded) {
		e.Code = string(coded.Code)
		if details, err := json.Marshal(coded.Details); err == nil && coded.Details != nil {
			e.Details = details
		}
	}
	return e
}

// shorten bounds a text, and makes it UTF-8.
func shorten(text string) string {
	text = attempt.EndOptions{Message: text}.Shortened().Message
	return strings.ToValidUTF8(text, "�")
}
