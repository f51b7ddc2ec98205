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

// turnWait is how long one request waits for a turn to end, at most.
const turnWait = time.Minute

// RollbackReply is the answer to a rollback, and to an undo.
type RollbackReply struct {
	overlay.RollbackResult
	Leaves []turn.Leaves `json:"leaves,omitempty"` // conversations that go on from turns whose files these are not
}

// TurnsReply is the answer to GET /v1/turns, in the order in which they began.
type TurnsReply struct {
	Turns []turn.Turn `json:"turns"`
}

// ConversationsReply is the answer to GET /v1/conversations, by their names.
type ConversationsReply struct {
	Conversations []turn.Conversation `json:"conversations"`
}

// BeginTurn begins a turn. ATTEMPT_IN_PROGRESS says which one is in the way. Reserve gives an ID beforehand.
func (c *Client) BeginTurn(ctx context.Context, o turn.BeginOptions) (r turn.Begun, err error) {
	return r, c.call(ctx, "begin turn", http.MethodPost, "/v1/turns", nil, &o, &r)
}

// UpdateTurn changes the state of a pending turn, all or nothing, and says how many messages there are now. The reply has a CustomPatch only with u.WithPatch; an event has
// it always.
func (c *Client) UpdateTurn(ctx context.Context, id string, u turn.Update) (r turn.UpdateEvent, err error) {
	return r, c.byTurn(ctx, "update turn", http.MethodPost, id, "/update", nil, &u, &r)
}

// EndTurn ends a turn. One that was aborted meanwhile is no error: the result says so. With ATTEMPT_ROLLBACK it is under way still, and can be ended again.
func (c *Client) EndTurn(ctx context.Context, id string, o turn.EndOptions) (r turn.Result, err error) {
	return r, c.byTurn(ctx, "end turn", http.MethodPost, id, "/end", nil, &o, &r)
}

// AbortTurn aborts a pending turn. One that has ended stays as it is, and is given.
func (c *Client) AbortTurn(ctx context.Context, id string, o turn.AbortOptions) (r turn.Turn, err error) {
	return r, c.byTurn(ctx, "abort turn", http.MethodPost, id, "/abort", nil, &o, &r)
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
