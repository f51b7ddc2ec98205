// Package genkit keeps the sessions of Genkit (github.com/firebase/genkit/go/core/x/session) as conversations of hyperfs. Each save is a completed turn, with a
// checkpoint of the workspace: what a session remembers, and the files that it has worked on, go back together.
//
// A Genkit session's ID is the conversation's name, and its state the conversation's custom document. Messages and artifacts of the conversation are left alone, so
// a session.Runner and Genkit can share one: within a turn of a runner, see WithTurn, a save counts when that turn completes.
//
// The session package of Genkit is experimental, and may change in any of its minor versions.
package genkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	genkit "github.com/firebase/genkit/go/core/x/session"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

// Options of a store. All may be empty.
type Options struct {
	Branch   string // where new conversations work; "" is main
	Subagent string // tags of the checkpoints
	Agent    string
}

// Store is a genkit.Store. Any number of goroutines may use it. Errors are *control.Error.
type Store[S any] struct {
	s    *session.Session
	o    Options
	mu   sync.Mutex // held over a save: where one works, there is one turn at a time
	self turn.Owner
}

// NewStore gives a store in the workspace of s, which must stay open as long as the store is used.
func NewStore[S any](s *session.Session, o Options) *Store[S] {
	st := &Store[S]{s: s, o: o}
	if start := attempt.StartOf(os.Getpid()); start != 0 {
		st.self = turn.Owner{PID: os.Getpid(), PIDStart: start}
	}
	return st
}

var _ genkit.Store[any] = (*Store[any])(nil)

type turnKey struct{}

// WithTurn has the stores that get the context work in a turn that is under way: what they save in its conversation counts when it completes, and is gone if it
// does not. Without it such a save is refused, with ATTEMPT_IN_PROGRESS when ctx ends.
func WithTurn(ctx context.Context, t *session.Turn) context.Context {
	return context.WithValue(ctx, turnKey{}, t)
}

// inTurn gives the turn of a conversation that ctx has, or nil.
func inTurn(ctx context.Context, conversation string) *session.Turn {
	t, _ := ctx.Value(turnKey{}).(*session.Turn)
	if t == nil || t.Conversation() != conversation {
		return nil
	}
	return t
}

// Get gives what was saved last, or nil if nothing was.
func (s *Store[S]) Get(ctx context.Context, sessionID string) (*genkit.Data[S], error) {
	var custom json.RawMessage
	var err error
	if t := inTurn(ctx, sessionID); t != nil {
		custom, err = t.Custom(ctx)
	} else {
		custom, err = s.saved(ctx, sessionID)
	}
	if err != nil || custom == nil {
		return nil, err
	}
	d := &genkit.Data[S]{ID: sessionID}
	if err := json.Unmarshal(custom, &d.State); err != nil {
		return nil, fmt.Errorf("read the state of session %s: %w", sessionID, err)
	}
	return d, nil
}

// saved gives the custom document of the last good turn, nil if there is none.
func (s *Store[S]) saved(ctx context.Context, conversation string) (json.RawMessage, error) {
	all, err := s.s.Conversations(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if c.Name == conversation && c.Head != "" {
			st, err := s.s.TurnState(ctx, c.Head)
			return st.Custom, err
		}
	}
	return nil, nil
}

// Save makes a turn of the conversation, with a checkpoint of the files as they are. While another turn is under way in the same place it waits, until ctx ends.
func (s *Store[S]) Save(ctx context.Context, sessionID string, data *genkit.Data[S]) error {
	if sessionID == "" || data == nil {
		return errors.New("save a session: it needs an ID and data")
	}
	custom, err := json.Marshal(data.State)
	if err != nil {
		return fmt.Errorf("save session %s: %w", sessionID, err)
	}
	if t := inTurn(ctx, sessionID); t != nil {
		return t.SetCustom(ctx, json.RawMessage(custom))
	}
	begin := turn.BeginOptions{Conversation: sessionID, Branch: s.o.Branch}
	_, err = s.turn(ctx, begin, &turn.Update{Custom: custom})
	return err
}

// Rewind puts the files back to what they were at an earlier save, and makes its state the newest one: session.Load then gives it. turnID is one of Turns. Session.Undo
// brings the files back that it takes away.
func (s *Store[S]) Rewind(ctx context.Context, turnID string) (*genkit.Data[S], error) {
	t, err := s.turn(ctx, turn.BeginOptions{From: turnID}, nil)
	if err != nil {
		return nil, err
	}
	return s.Get(ctx, t.Conversation)
}

// Turns lists the saves of a session that can be gone back to, oldest first.
func (s *Store[S]) Turns(ctx context.Context, sessionID string) ([]turn.Turn, error) {
	return s.s.Turns(ctx, turn.ListOptions{Conversation: sessionID, Status: string(turn.Completed)})
}

// turn makes a turn that changes the state alone.
func (s *Store[S]) turn(ctx context.Context, begin turn.BeginOptions, u *turn.Update) (turn.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begin.Subagent, begin.Agent, begin.NoState = s.o.Subagent, s.o.Agent, true
	begin.PID, begin.PIDStart = s.self.PID, s.self.PIDStart
	c := s.s.Client()
	begun, err := c.BeginTurn(ctx, begin)
	for wait := time.Millisecond; control.CodeOf(err) == control.AttemptInProgress; wait = min(2*wait, time.Second) {
		select {
		case <-ctx.Done():
			return turn.Turn{}, err
		case <-time.After(wait):
		}
		begun, err = c.BeginTurn(ctx, begin)
	}
	if err != nil {
		return turn.Turn{}, err
	}
	r, err := c.EndTurn(ctx, begun.ID, turn.EndOptions{Outcome: turn.Completed, Update: u})
	if err != nil {
		// Nothing was done to the files but by Rewind, and these are the turn's own. Whatever fails here, the process that has the turn is known.
		_, failed := c.EndTurn(context.WithoutCancel(ctx), begun.ID, turn.EndOptions{Outcome: turn.Failed, NoRollback: true})
		return turn.Turn{}, errors.Join(err, failed)
	}
	return r.Turn, nil
}
