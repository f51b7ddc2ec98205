package session

import (
	"context"

	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/turn"
)

// Turns gives the turns that o lets through, in the order in which they began.
func (s *Session) Turns(ctx context.Context, o turn.ListOptions) ([]turn.Turn, error) {
	return call(ctx, s, "turns", func(ctx context.Context) ([]turn.Turn, error) { return s.client.Turns(ctx, o) })
}

// Turn gives one turn.
func (s *Session) Turn(ctx context.Context, id string) (turn.Turn, error) {
	return call(ctx, s, "turn", func(ctx context.Context) (turn.Turn, error) { return s.client.Turn(ctx, id) })
}

// TurnState gives the state of a completed turn, or what a pending one has so far. It shares nothing with anybody.
func (s *Session) TurnState(ctx context.Context, id string) (turn.State, error) {
	return call(ctx, s, "turn", func(ctx context.Context) (turn.State, error) { return s.client.TurnState(ctx, id) })
}

// AbortTurn aborts a pending turn, of whichever program. Its owner is told, and puts the files back; without one, or with o.Force, it is done at once. A turn that has
// ended stays as it is, and is given.
func (s *Session) AbortTurn(ctx context.Context, id string, o turn.AbortOptions) (turn.Turn, error) {
	return call(ctx, s, "abort turn", func(ctx context.Context) (turn.Turn, error) { return s.client.AbortTurn(ctx, id, o) })
}

// Conversations lists conversations by their names.
func (s *Session) Conversations(ctx context.Context) ([]turn.Conversation, error) {
	return call(ctx, s, "conversations", s.client.Conversations)
}

// DeleteConversation forgets all turns of a conversation, and their checkpoints. The files stay as they are. BUSY says that one is under way.
func (s *Session) DeleteConversation(ctx context.Context, name string) (turn.Freed, error) {
	return call(ctx, s, "delete conversation", func(ctx context.Context) (turn.Freed, error) { return s.client.DeleteConversation(ctx, name) })
}

// TurnEvents follows one turn until it has ended, or, with an empty id, a conversation, or all with both empty, until ctx or the session ends. The channel begins with
// how things are, a turn.EventState for each turn under way, so that nothing is missed.
func (s *Session) TurnEvents(ctx context.Context, id, conversation string) (<-chan overlay.Event, error) {
	return call(ctx, s, "turn events", func(context.Context) (<-chan overlay.Event, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(s.base, func() { cancel(errClosed) })
		events, err := s.client.TurnEvents(ctx, id, conversation)
		if err != nil {
			stop()
			cancel(err)
		}
		return events, err
	})
}
