package session

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session/turn"
)

// What commands of a turn have in their environment.
const (
	envTurn         = "HYPERFS_TURN"
	envConversation = "HYPERFS_CONVERSATION"
)

// ErrTurnAborted is in the cause of a turn's context, and in RunResult.LastError, where somebody has aborted it.
var ErrTurnAborted = errors.New("the turn was aborted")

// errTurnEnded is the cause where somebody else has ended it.
var errTurnEnded = errors.New("somebody else has ended the turn")

// Turn is one that is under way: what a handler works with. Its methods may be called by any goroutine, until the handler returns.
//
// What it reads of the state it asks for anew each time, since other programs may change that too, such as commands of the turn. What is added counts once
// the turn completes. Messages are any values whose JSON is an object with a role, a string; see Message.
type Turn struct {
	*job
	r      *Runner
	record turn.Turn

	mu  sync.Mutex // held over each update, so that events come in their order
	seq int        // of the last update that is known
}

// ID gives the turn's ID, which the checkpoint gets that is made when it completes. It is known before anything is done, so that other things can be named after it.
func (t *Turn) ID() string { return t.record.ID }

// CheckpointID gives the same as ID. There is no such checkpoint yet.
func (t *Turn) CheckpointID() string { return t.record.ID }

// Conversation gives the conversation's name.
func (t *Turn) Conversation() string { return t.record.Conversation }

// Parent gives the ID of the completed turn whose state it began with, "" if there was none.
func (t *Turn) Parent() string { return t.record.Parent }

// Index tells how many completed turns are before it.
func (t *Turn) Index() int { return t.record.Index }

// Base gives the ID of the checkpoint that the files go back to if the turn does not complete.
func (t *Turn) Base() string { return t.record.Base }

// Runner gives the runner.
func (t *Turn) Runner() *Runner { return t.r }

// Exec runs a command as Session.Exec does, in the turn's branch if it works in one, with HYPERFS_TURN and HYPERFS_CONVERSATION in its environment, which
// `hyperfs turns update` takes for its defaults.
func (t *Turn) Exec(ctx context.Context, c Command) (Result, error) {
	c.Env = append([]string{envTurn + "=" + t.ID(), envConversation + "=" + t.Conversation()}, c.Env...)
	return t.job.Exec(ctx, c)
}

// State gives a copy of the state: nobody sees what is done to it.
func (t *Turn) State(ctx context.Context) (turn.State, error) {
	const op = "read the state"
	ctx, leave, err := t.enter(ctx, op)
	if err != nil {
		return turn.State{}, err
	}
	defer leave()
	return t.s.client.TurnState(ctx, t.ID())
}

// Messages gives all messages.
func (t *Turn) Messages(ctx context.Context) ([]json.RawMessage, error) {
	st, err := t.State(ctx)
	return st.Messages, err
}

// Artifacts gives all artifacts, by the order in which their names came.
func (t *Turn) Artifacts(ctx context.Context) ([]turn.Artifact, error) {
	st, err := t.State(ctx)
	return st.Artifacts, err
}

// Custom gives the custom document, nil if there is none.
func (t *Turn) Custom(ctx context.Context) (json.RawMessage, error) {
	st, err := t.State(ctx)
	return st.Custom, err
}

// AddMessages adds messages at the end.
func (t *Turn) AddMessages(ctx context.Context, messages ...any) error {
	list, err := marshalAll("messages", messages)
	if err != nil || len(list) == 0 {
		return err
	}
	return t.Update(ctx, turn.Update{AddMessages: list})
}

// SetMessages replaces all messages.
func (t *Turn) SetMessages(ctx context.Context, messages ...any) error {
	list, err := marshalAll("messages", messages)
	if err != nil {
		return err
	}
	return t.Update(ctx, turn.Update{SetMessages: &list})
}

// AddArtifact adds an artifact, or replaces the one of that name in its place. data is any value that has a JSON form.
func (t *Turn) AddArtifact(ctx context.Context, name string, data any) error {
	raw, err := marshal("artifact "+name, data)
	if err != nil {
		return err
	}
	return t.AddArtifacts(ctx, turn.Artifact{Name: name, Data: raw})
}

// AddArtifacts adds artifacts; one of the same name is replaced, in its place.
func (t *Turn) AddArtifacts(ctx context.Context, artifacts ...turn.Artifact) error {
	if len(artifacts) == 0 {
		return nil
	}
	return t.Update(ctx, turn.Update{AddArtifacts: artifacts})
}

// SetCustom replaces the custom document.
func (t *Turn) SetCustom(ctx context.Context, document any) error {
	raw, err := marshal("custom document", document)
	if err != nil {
		return err
	}
	return t.Update(ctx, turn.Update{Custom: raw})
}

// UpdateCustom replaces the custom document by what fn makes of it; nil stands for none. No other update of this program comes between. fn must not
// update the turn.
func (t *Turn) UpdateCustom(ctx context.Context, fn func(json.RawMessage) (any, error)) error {
	return t.locked(ctx, func(ctx context.Context) error {
		st, err := t.s.client.TurnState(ctx, t.ID())
		if err != nil {
			return err
		}
		document, err := fn(st.Custom)
		if err != nil {
			return err
		}
		raw, err := marshal("custom document", document)
		if err != nil {
			return err
		}
		return t.update(ctx, turn.Update{Custom: raw})
	})
}

// PatchCustom changes the custom document by a JSON Patch (RFC 6902), all of it or nothing.
func (t *Turn) PatchCustom(ctx context.Context, patch any) error {
	raw, err := marshal("patch", patch)
	if err != nil {
		return err
	}
	return t.Update(ctx, turn.Update{CustomPatch: raw})
}

// SaveBindings saves the variables of a runtime session with the turn, in place of what was saved before. nil removes them.
func (t *Turn) SaveBindings(ctx context.Context, bindings any) error {
	raw, err := marshal("bindings", bindings)
	if err != nil {
		return err
	}
	return t.Update(ctx, turn.Update{Bindings: raw})
}

// Update makes several changes at once, all or nothing.
func (t *Turn) Update(ctx context.Context, u turn.Update) error {
	return t.locked(ctx, func(ctx context.Context) error { return t.update(ctx, u) })
}

// locked calls fn while nobody else of this program updates the turn.
func (t *Turn) locked(ctx context.Context, fn func(context.Context) error) error {
	ctx, leave, err := t.enter(ctx, "update turn")
	if err != nil {
		return err
	}
	defer leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	return fn(ctx)
}

// update is Update with mu held.
func (t *Turn) update(ctx context.Context, u turn.Update) error {
	u.WithPatch = t.r.o.OnEvent != nil
	ev, err := t.s.client.UpdateTurn(ctx, t.ID(), u)
	if err != nil {
		return err
	}
	err = t.rebase(ctx, &ev)
	t.seq = ev.Seq
	t.r.tell(TurnEvent{Type: turn.EventUpdated, Turn: t.record, Update: &ev})
	return err
}

// rebase makes the patch of an event replace the whole document where another program has updated the turn before: who has seen our events alone does not have what it
// begins with.
func (t *Turn) rebase(ctx context.Context, ev *turn.UpdateEvent) error {
	if ev.Seq == t.seq+1 || t.r.o.OnEvent == nil {
		return nil
	}
	st, err := t.s.client.TurnState(ctx, t.ID())
	if err != nil {
		return err
	}
	ev.CustomPatch, err = marshal("patch", []map[string]any{{"op": "replace", "path": "", "value": st.Custom}})
	return err
}

// Message is a message of a common form. As an input of RunTurns it is added before the handler runs.
type Message struct {
	Role    string `json:"role"`
	Content any    `json:"content"`
}

// TurnMessages makes it a MessageCarrier.
func (m Message) TurnMessages() []any { return []any{m} }

// MessageCarrier is an input that has messages, which are added before the handler runs.
type MessageCarrier interface{ TurnMessages() []any }

// HasState is a *Turn, or a *Runner.
type HasState interface {
	State(ctx context.Context) (turn.State, error)
}

// CustomAs gives the custom document as a T, the zero value if there is none.
func CustomAs[T any](ctx context.Context, in HasState) (v T, err error) {
	st, err := in.State(ctx)
	if err == nil && len(st.Custom) > 0 {
		err = unmarshal("custom document", st.Custom, &v)
	}
	return v, err
}

// UpdateCustomAs is Turn.UpdateCustom with a T, which fn changes.
func UpdateCustomAs[T any](ctx context.Context, t *Turn, fn func(*T) error) error {
	return t.UpdateCustom(ctx, func(raw json.RawMessage) (any, error) {
		var v T
		if len(raw) > 0 {
			if err := unmarshal("custom document", raw, &v); err != nil {
				return nil, err
			}
		}
		return &v, fn(&v)
	})
}

// MessagesAs gives the messages as Ts.
func MessagesAs[T any](ctx context.Context, in HasState) ([]T, error) {
	st, err := in.State(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]T, len(st.Messages))
	for i, raw := range st.Messages {
		if err := unmarshal("message", raw, &list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// ArtifactAs gives an artifact's data as a T; false where there is none of that name.
func ArtifactAs[T any](ctx context.Context, in HasState, name string) (v T, ok bool, err error) {
	st, err := in.State(ctx)
	for _, a := range st.Artifacts {
		if err == nil && a.Name == name {
			return v, true, unmarshal("artifact "+name, a.Data, &v)
		}
	}
	return v, false, err
}

// BindingsAs gives the saved bindings as a T; false where there are none.
func BindingsAs[T any](ctx context.Context, in HasState) (v T, ok bool, err error) {
	st, err := in.State(ctx)
	if err != nil || len(st.Bindings) == 0 {
		return v, false, err
	}
	return v, true, unmarshal("bindings", st.Bindings, &v)
}

func marshal(what string, v any) (json.RawMessage, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, errs.New(errs.Usage, "update turn", what, "it has no JSON form: %w", err)
	}
	return raw, nil
}

func marshalAll(what string, values []any) ([]json.RawMessage, error) {
	list := make([]json.RawMessage, len(values))
	for i, v := range values {
		raw, err := marshal(what, v)
		if err != nil {
			return nil, err
		}
		list[i] = raw
	}
	return list, nil
}

func unmarshal(what string, raw json.RawMessage, v any) error {
	if err := json.Unmarshal(raw, v); err != nil {
		return errs.New(errs.Usage, "read the state", what, "%w", err)
	}
	return nil
}
