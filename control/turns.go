package control

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/turn"
)

// How long one request waits for a turn to end: the client's, and any at most.
const (
	turnWait    = time.Minute
	maxTurnWait = 10 * time.Minute
)

// RollbackReply is the answer to a rollback, and to an undo.
type RollbackReply struct {
	overlay.RollbackResult
	Leaves []turn.Leaves `json:"leaves,omitempty"` // conversations that go on from turns whose files these are not
}

// TurnsReply is the answer to GET /v1/turns, in the order in which they began.
type TurnsReply struct {
	Turns   []turn.Turn `json:"turns"`
	Damaged []string    `json:"damaged,omitempty"` // IDs of those whose records can't be read
}

// ConversationsReply is the answer to GET /v1/conversations, by their names.
type ConversationsReply struct {
	Conversations []turn.Conversation `json:"conversations"`
}

// engine gives what has the turns, or UNSUPPORTED.
func (s *Server) engine(op string) (*turn.Engine, error) {
	if s.turns == nil {
		return nil, errs.New(Unsupported, op, "", "this workspace keeps no turns")
	}
	return s.turns, nil
}

// turnCall makes a handler of what an engine does.
func turnCall[B, R any](op string, fn func(e *turn.Engine, ctx context.Context, c *call, body *B) (R, error)) func(*Server, context.Context, *call, *B) (R, error) {
	return func(s *Server, ctx context.Context, c *call, body *B) (r R, err error) {
		e, err := s.engine(op)
		if err != nil {
			return r, err
		}
		r, err = fn(e, ctx, c, body)
		return r, withFaults(err)
	}
}

var beginTurn = turnCall("begin turn", func(e *turn.Engine, ctx context.Context, _ *call, o *turn.BeginOptions) (turn.Begun, error) {
	return e.Begin(ctx, *o)
})

var updateTurn = turnCall("update turn", func(e *turn.Engine, ctx context.Context, c *call, u *turn.Update) (turn.UpdateEvent, error) {
	return e.Update(ctx, c.id, *u)
})

var endTurn = turnCall("end turn", func(e *turn.Engine, ctx context.Context, c *call, o *turn.EndOptions) (turn.Result, error) {
	return e.End(ctx, c.id, *o)
})

var abortTurn = turnCall("abort turn", func(e *turn.Engine, ctx context.Context, c *call, o *turn.AbortOptions) (turn.Turn, error) {
	return e.Abort(ctx, c.id, *o)
})

var turnState = turnCall("show state", func(e *turn.Engine, _ context.Context, c *call, _ *none) (turn.State, error) {
	st, err := e.State(c.id)
	if err != nil {
		return turn.State{}, err
	}
	return *st, nil
})

var showTurn = turnCall("show turn", func(e *turn.Engine, ctx context.Context, c *call, _ *none) (turn.Turn, error) {
	text := c.query["wait"]
	if text == "" {
		return e.Get(c.id)
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxTurnWait {
		return turn.Turn{}, errs.New(Usage, "read the request", "wait", "%q is no duration of %s at most", text, maxTurnWait)
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return e.Wait(ctx, c.id)
})

var listTurns = turnCall("turns", func(e *turn.Engine, _ context.Context, c *call, _ *none) (r TurnsReply, err error) {
	o := turn.ListOptions{Conversation: c.query["conversation"], Status: c.query["status"]}
	if n := c.query["limit"]; n != "" {
		if o.Limit, err = strconv.Atoi(n); err != nil || o.Limit < 1 {
			return r, errs.New(Usage, "read the request", "limit", "%q is no positive number", n)
		}
	}
	r.Turns, err = e.List(o)
	r.Turns = nonNil(r.Turns)
	for _, d := range e.Damaged() {
		r.Damaged = append(r.Damaged, d.ID)
	}
	return r, err
})

var conversations = turnCall("conversations", func(e *turn.Engine, _ context.Context, _ *call, _ *none) (ConversationsReply, error) {
	list, err := e.Conversations()
	return ConversationsReply{nonNil(list)}, err
})

var deleteConversation = turnCall("delete conversation", func(e *turn.Engine, ctx context.Context, c *call, _ *none) (turn.Freed, error) {
	return e.DeleteConversation(ctx, c.id)
})

var collectTurns = turnCall("collect turns", func(e *turn.Engine, ctx context.Context, _ *call, _ *none) (turn.Freed, error) {
	return e.Collect(ctx)
})

// leaving completes the reply to a rollback. That the conversations can't be looked at does not undo it.
func (s *Server) leaving(r overlay.RollbackResult, err error) (RollbackReply, error) {
	reply := RollbackReply{RollbackResult: r}
	if err == nil && s.turns != nil {
		if reply.Leaves, err = s.turns.Leaves(r); err != nil {
			s.log.Warn("conversations that the rollback leaves are not known", "error", err)
		}
		return reply, nil
	}
	return reply, err
}

// eventsOfTurn streams what becomes of one turn until it is settled.
func eventsOfTurn(s *Server, w http.ResponseWriter, c *call) error {
	e, err := s.engine("turn events")
	if err != nil {
		return err
	}
	if _, err := e.Get(c.id); err != nil {
		return err
	}
	return s.follow(w, c, &following{
		wants: func(ev overlay.Event) bool { return ev.Checkpoint == c.id && isOfTurns(ev) },
		now: func() []overlay.Event {
			t, err := e.Get(c.id)
			if err != nil { // it was collected
				return nil
			}
			return []overlay.Event{stateEvent(t)}
		},
		last: func(ev overlay.Event) bool { t, ok := ev.Data.(turn.Turn); return ok && t.Settled },
	})
}

// eventsOfTurns streams what becomes of all turns, or of those of a conversation.
func eventsOfTurns(s *Server, w http.ResponseWriter, c *call) error {
	e, err := s.engine("turn events")
	if err != nil {
		return err
	}
	wanted := func(conversation string) bool {
		only := c.query["conversation"]
		return only == "" || conversation == only
	}
	return s.follow(w, c, &following{
		wants: func(ev overlay.Event) bool {
			switch d := ev.Data.(type) {
			case turn.Turn:
				return wanted(d.Conversation)
			case turn.UpdateEvent:
				return wanted(d.Conversation)
			}
			return false
		},
		now: func() (list []overlay.Event) {
			for _, t := range e.UnderWay() {
				if wanted(t.Conversation) {
					list = append(list, stateEvent(t))
				}
			}
			return list
		},
	})
}

func isOfTurns(ev overlay.Event) bool {
	switch ev.Data.(type) {
	case turn.Turn, turn.UpdateEvent:
		return true
	}
	return false
}

func stateEvent(t turn.Turn) overlay.Event {
	return overlay.Event{Type: turn.EventState, Time: time.Now(), Checkpoint: t.ID, Data: t}
}

// BeginTurn begins a turn. ATTEMPT_IN_PROGRESS says which one is in the way. Reserve gives an ID beforehand.
func (c *Client) BeginTurn(ctx context.Context, o turn.BeginOptions) (r turn.Begun, err error) {
	err = c.call(ctx, "begin turn", http.MethodPost, "/v1/turns", nil, &o, &r)
	return r, bothFaults(err)
}

// UpdateTurn changes the state of a pending turn, all or nothing, and says how many messages there are now. The reply has a CustomPatch only with u.WithPatch; an event has
// it always.
func (c *Client) UpdateTurn(ctx context.Context, id string, u turn.Update) (r turn.UpdateEvent, err error) {
	return r, c.byTurn(ctx, "update turn", http.MethodPost, id, "/update", nil, &u, &r)
}

// EndTurn ends a turn. One that was aborted meanwhile is no error: the result says so. With ATTEMPT_ROLLBACK it is under way still, and can be ended again.
func (c *Client) EndTurn(ctx context.Context, id string, o turn.EndOptions) (r turn.Result, err error) {
	err = c.byTurn(ctx, "end turn", http.MethodPost, id, "/end", nil, &o, &r)
	return r, bothFaults(err)
}

// AbortTurn aborts a pending turn. One that has ended stays as it is, and is given.
func (c *Client) AbortTurn(ctx context.Context, id string, o turn.AbortOptions) (r turn.Turn, err error) {
	err = c.byTurn(ctx, "abort turn", http.MethodPost, id, "/abort", nil, &o, &r)
	return r, bothFaults(err)
}

// Turn gives one turn.
func (c *Client) Turn(ctx context.Context, id string) (r turn.Turn, err error) {
	return r, c.byTurn(ctx, "show turn", http.MethodGet, id, "", nil, nil, &r)
}

// WaitTurn gives a turn when it is not pending any more, or ctx ends.
func (c *Client) WaitTurn(ctx context.Context, id string) (r turn.Turn, err error) {
	for {
		r = turn.Turn{}
		err = c.byTurn(ctx, "wait for turn", http.MethodGet, id, "", values("wait", turnWait.String()), nil, &r)
		if err != nil || r.Status != checkpoint.TurnPending {
			return r, err
		}
	}
}

// TurnState gives the state of a completed turn, or what a pending one has so far.
func (c *Client) TurnState(ctx context.Context, id string) (r turn.State, err error) {
	return r, c.byTurn(ctx, "show state", http.MethodGet, id, "/state", nil, nil, &r)
}

// Turns lists turns, in the order in which they began.
func (c *Client) Turns(ctx context.Context, o turn.ListOptions) ([]turn.Turn, error) {
	q := values("conversation", o.Conversation, "status", o.Status)
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	var r TurnsReply
	err := c.call(ctx, "turns", http.MethodGet, "/v1/turns", q, nil, &r)
	return r.Turns, err
}

// Conversations lists conversations by their names.
func (c *Client) Conversations(ctx context.Context) ([]turn.Conversation, error) {
	var r ConversationsReply
	err := c.call(ctx, "conversations", http.MethodGet, "/v1/conversations", nil, nil, &r)
	return r.Conversations, err
}

// DeleteConversation forgets all turns of a conversation, and their checkpoints. The files stay as they are. BUSY says that one is under way.
func (c *Client) DeleteConversation(ctx context.Context, name string) (r turn.Freed, err error) {
	if name == "" || name == "." || name == ".." {
		return r, errs.New(Usage, "delete conversation", name, "%q is no name of a conversation", name)
	}
	return r, c.call(ctx, "delete conversation", http.MethodDelete, "/v1/conversations/"+url.PathEscape(name), nil, nil, &r)
}

// CollectTurns frees what old turns have, as the daemon does now and then, and GC always.
func (c *Client) CollectTurns(ctx context.Context) (r turn.Freed, err error) {
	return r, c.call(ctx, "collect turns", http.MethodPost, "/v1/turns/collect", nil, nil, &r)
}

// TurnEvents follows one turn until it is settled, or, with an empty id, a conversation, or all with both empty, until ctx ends. The stream begins with a
// turn.EventState for each turn that is under way, or for the one that is asked for, so that nothing is missed. Otherwise it is like Events.
func (c *Client) TurnEvents(ctx context.Context, id, conversation string) (<-chan overlay.Event, error) {
	if id == "." || id == ".." {
		return nil, errs.New(Usage, "turn events", id, "%q is no ID of a turn", id)
	}
	path := "/v1/turns/events"
	if id != "" {
		path = "/v1/turns/" + url.PathEscape(id) + "/events"
	}
	return c.events(ctx, "turn events", path, values("conversation", conversation))
}

func (c *Client) byTurn(ctx context.Context, op, method, id, sub string, q url.Values, body, reply any) error {
	if id == "" || id == "." || id == ".." {
		return errs.New(Usage, op, id, "%q is no ID of a turn", id)
	}
	return c.call(ctx, op, method, "/v1/turns/"+url.PathEscape(id)+sub, q, body, reply)
}
