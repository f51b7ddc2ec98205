package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/turn"
)

// inTurn makes a turn of fn, which must complete unless fails says otherwise.
func inTurn(t *testing.T, r *session.Runner, fails error, fn func(context.Context, *session.Turn) error) session.RunResult {
	t.Helper()
	ch := make(chan struct{}, 1)
	ch <- struct{}{}
	close(ch)
	result, err := session.RunTurns(background, r, ch, func(ctx context.Context, turn *session.Turn, _ struct{}) (session.TurnResult, error) {
		return session.TurnResult{}, errors.Join(fn(ctx, turn), fails)
	})
	must(t, err)
	if fails == nil && result.LastError != nil || !errors.Is(result.LastError, fails) {
		t.Fatalf("the turn gives %v", result.LastError)
	}
	return result
}

func newRunner(t *testing.T, s *session.Session, o session.RunnerOptions) *session.Runner {
	t.Helper()
	r, err := session.NewRunner(background, s, o)
	must(t, err)
	return r
}

func TestTheStateOfATurnIsWhatItWasGiven(t *testing.T) {
	s := openHere(t)
	r := newRunner(t, s, session.RunnerOptions{Conversation: "c"})
	result := inTurn(t, r, nil, func(ctx context.Context, turn *session.Turn) error {
		return errors.Join(
			turn.AddMessages(ctx, session.Message{Role: "user", Content: "zero"}),
			turn.SetMessages(ctx, session.Message{Role: "system", Content: "one"}, map[string]any{"role": "user", "n": json.Number("1e400")}),
			turn.AddMessages(ctx, json.RawMessage(`{"role":"user","content":[1,2]}`)),
			turn.AddArtifact(ctx, "a", 1), turn.AddArtifact(ctx, "b", "text"), turn.AddArtifact(ctx, "a", []int{2}),
			turn.SetCustom(ctx, map[string]any{"x": 1}),
			turn.PatchCustom(ctx, json.RawMessage(`[{"op":"add","path":"/y","value":{"z":[12345678901234567890]}}]`)),
			turn.SaveBindings(ctx, map[string]int{"n": 3}),
			turn.AddMessages(ctx), turn.AddArtifacts(ctx),
		)
	})
	want := `{"conversation":"c","messages":[{"role":"system","content":"one"},{"n":1e400,"role":"user"},{"role":"user","content":[1,2]}],` +
		`"artifacts":[{"name":"a","data":[2]},{"name":"b","data":"text"}],"custom":{"x":1,"y":{"z":[12345678901234567890]}},"bindings":{"n":3}}`
	if got, _ := json.Marshal(result.LastGoodState); string(got) != want {
		t.Errorf("the state is %s,\nnot %s", got, want)
	}
	inTurn(t, r, nil, func(ctx context.Context, turn *session.Turn) error {
		messages, err := turn.Messages(ctx)
		if err != nil || len(messages) != 3 {
			t.Errorf("%s, %v", messages, err)
		}
		artifacts, err := turn.Artifacts(ctx)
		if err != nil || len(artifacts) != 2 || artifacts[0].Name != "a" || string(artifacts[0].Data) != "[2]" {
			t.Errorf("%s, %v", artifacts, err)
		}
		if raw, err := turn.Custom(ctx); err != nil || string(raw) != `{"x":1,"y":{"z":[12345678901234567890]}}` {
			t.Errorf("%s, %v", raw, err)
		}
		n, ok, err := session.BindingsAs[map[string]int](ctx, turn)
		if err != nil || !ok || n["n"] != 3 {
			t.Errorf("%v, %v, %v", n, ok, err)
		}
		list, ok, err := session.ArtifactAs[[]int](ctx, turn, "a")
		if err != nil || !ok || !reflect.DeepEqual(list, []int{2}) {
			t.Errorf("%v, %v, %v", list, ok, err)
		}
		if _, ok, err := session.ArtifactAs[int](ctx, turn, "none"); ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		if _, _, err := session.ArtifactAs[int](ctx, turn, "b"); control.CodeOf(err) != control.Usage {
			t.Errorf("another type gives %v", err)
		}
		return turn.SaveBindings(ctx, nil)
	})
	if _, ok, err := session.BindingsAs[any](background, r); ok || err != nil {
		t.Errorf("bindings that were removed: %v, %v", ok, err)
	}
}

func TestNobodySeesWhatIsDoneToACopyOfAState(t *testing.T) {
	s := openHere(t)
	r := newRunner(t, s, session.RunnerOptions{})
	spoil := func(st turn.State, err error) {
		t.Helper()
		must(t, err)
		for _, raw := range st.Messages {
			copy(raw, `{"role":"x"`)
		}
		copy(st.Custom, `{"y"`)
		st.Messages, st.Artifacts[0].Name = append(st.Messages[:0], nil), "other"
		copy(st.Artifacts[0].Data, "9")
	}
	same := func(of session.HasState) {
		t.Helper()
		st, err := of.State(background)
		if got, _ := json.Marshal([]any{st.Messages, st.Artifacts, st.Custom}); err != nil || string(got) != `[[{"role":"user","content":"hello"}],[{"name":"a","data":1}],{"x":1}]` {
			t.Errorf("the state is %s, %v", got, err)
		}
	}
	result := inTurn(t, r, nil, func(ctx context.Context, turn *session.Turn) error {
		err := errors.Join(turn.AddMessages(ctx, session.Message{Role: "user", Content: "hello"}), turn.AddArtifact(ctx, "a", 1), turn.SetCustom(ctx, map[string]int{"x": 1}))
		spoil(turn.State(ctx))
		same(turn)
		return err
	})
	spoil(*result.LastGoodState, nil)
	same(r)
	spoil(s.TurnState(background, result.LastGood))
	same(r)
}

func TestAnUpdateThatIsNoneChangesNothing(t *testing.T) {
	s := openHere(t)
	r := newRunner(t, s, session.RunnerOptions{})
	inTurn(t, r, nil, func(ctx context.Context, tn *session.Turn) error {
		must(t, tn.SetCustom(ctx, map[string]int{"x": 1}))
		before, err := tn.State(ctx)
		must(t, err)
		for name, err := range map[string]error{
			"a message without a role":      tn.AddMessages(ctx, map[string]string{"content": "x"}),
			"a message that is no object":   tn.AddMessages(ctx, "hello"),
			"one good message, and one bad": tn.AddMessages(ctx, session.Message{Role: "user"}, 7),
			"a channel":                     tn.AddMessages(ctx, make(chan int)),
			"an artifact without a name":    tn.AddArtifact(ctx, "", 1),
			"a function":                    tn.AddArtifact(ctx, "f", func() {}),
			"no JSON":                       tn.AddArtifacts(ctx, turn.Artifact{Name: "a", Data: json.RawMessage("{")}),
			"a patch of nothing":            tn.PatchCustom(ctx, json.RawMessage(`[{"op":"remove","path":"/none"}]`)),
			"a patch that is none":          tn.PatchCustom(ctx, 7),
			"half a patch":                  tn.PatchCustom(ctx, json.RawMessage(`[{"op":"remove","path":"/x"},{"op":"test","path":"/x","value":1}]`)),
		} {
			if control.CodeOf(err) != control.Usage {
				t.Errorf("%s gives %v (%s)", name, err, control.CodeOf(err))
			}
		}
		mine := errors.New("mine")
		if err := tn.UpdateCustom(ctx, func(json.RawMessage) (any, error) { return nil, mine }); err != mine {
			t.Errorf("%v", err)
		}
		after, err := tn.State(ctx)
		if err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%+v, %v", after, err)
		}
		return nil
	})
}

// Who applies the patches of the events has the document, whatever other programs change meanwhile.
func TestEventsHaveThePatchesOfTheDocument(t *testing.T) {
	s := openHere(t)
	var types []string
	var doc any
	first := false
	r := newRunner(t, s, session.RunnerOptions{Conversation: "c", OnEvent: func(ev session.TurnEvent) {
		types = append(types, ev.Type)
		if ev.Type == turn.EventBegun {
			first = true
		}
		if ev.Update == nil || ev.Update.CustomPatch == nil {
			return
		}
		if first && !strings.HasPrefix(string(ev.Update.CustomPatch), `[{"op":"replace","path":"",`) {
			t.Errorf("the first patch of a turn is %s", ev.Update.CustomPatch)
		}
		first = false
		doc = patched(t, doc, ev.Update.CustomPatch)
	}})
	grow := func(ctx context.Context, tn *session.Turn) error {
		for n := range 3 {
			err := session.UpdateCustomAs(ctx, tn, func(m *map[string]int) error {
				if *m == nil {
					*m = map[string]int{}
				}
				(*m)[fmt.Sprint("n", len(*m))] = n
				return nil
			})
			if err != nil {
				return err
			}
		}
		return tn.AddMessages(ctx, session.Message{Role: "user"})
	}
	inTurn(t, r, nil, grow)
	if want := []string{turn.EventBegun, turn.EventUpdated, turn.EventUpdated, turn.EventUpdated, turn.EventUpdated, turn.EventEnded}; !reflect.DeepEqual(types, want) {
		t.Errorf("the events are %v", types)
	}
	inTurn(t, r, nil, func(ctx context.Context, tn *session.Turn) error {
		must(t, grow(ctx, tn))
		_, err := s.Client().UpdateTurn(ctx, tn.ID(), turn.Update{Custom: json.RawMessage(`{"other":1}`)}) // as another program would
		must(t, err)
		return grow(ctx, tn)
	})
	custom, err := session.CustomAs[any](background, r)
	if err != nil || !reflect.DeepEqual(doc, custom) || len(custom.(map[string]any)) != 4 {
		t.Errorf("the patches give %v, and the document is %v, %v", doc, custom, err)
	}
}

// patched applies a patch of a document of one level.
func patched(t *testing.T, doc any, patch json.RawMessage) any {
	t.Helper()
	var ops []struct {
		Op, Path string
		Value    any
	}
	must(t, json.Unmarshal(patch, &ops))
	for _, o := range ops {
		object, _ := doc.(map[string]any)
		key := strings.TrimPrefix(o.Path, "/")
		switch {
		case o.Path == "":
			doc = o.Value
		case o.Op == "remove":
			delete(object, key)
		case o.Op == "add" || o.Op == "replace":
			object[key] = o.Value
		default:
			t.Fatalf("a patch has %s", o.Op)
		}
	}
	return doc
}

// talk is an input with messages.
type talk []string

func (k talk) TurnMessages() []any {
	var list []any
	for _, text := range k {
		list = append(list, session.Message{Role: "user", Content: text})
	}
	return list
}

func TestInputsBecomeTurnsOneAfterTheOther(t *testing.T) {
	s := openHere(t)
	r := newRunner(t, s, session.RunnerOptions{})
	inputs := make(chan talk)
	go func() {
		for _, in := range []talk{{"a", "b"}, nil, {"stop"}, {"never"}} {
			inputs <- in
		}
	}()
	type key struct{}
	under := 0
	result, err := session.RunTurns(context.WithValue(background, key{}, 7), r, inputs, func(ctx context.Context, tn *session.Turn, in talk) (session.TurnResult, error) {
		if under++; under != 1 || ctx.Value(key{}) != 7 || r.Current() != tn {
			t.Errorf("%d are under way; the value is %v", under, ctx.Value(key{}))
		}
		defer func() { under-- }()
		st, err := tn.State(ctx)
		if err != nil || len(in) > 0 && !strings.Contains(string(st.Messages[len(st.Messages)-1]), in[len(in)-1]) {
			t.Errorf("the input's messages are not there: %s, %v", st.Messages, err)
		}
		if record, err := s.Turn(ctx, tn.ID()); err != nil || record.Index != tn.Index() || record.Parent != tn.Parent() || tn.Parent() != r.Last().LastGood || tn.CheckpointID() != tn.ID() {
			t.Errorf("%+v, %v", record, err)
		}
		return session.TurnResult{FinishReason: fmt.Sprint("reason ", tn.Index()), Stop: len(in) == 1}, nil
	})
	if err != nil || result.Completed != 3 || result.LastFinishReason != "reason 2" || len(result.LastGoodState.Messages) != 3 || r.Current() != nil || result.Conversation == "" {
		t.Errorf("%+v, %v", result, err)
	}
	if <-inputs == nil {
		t.Error("the last input was taken")
	}
	if last := r.Last(); last.LastGood != result.LastGood || last.LastGoodState != nil {
		t.Errorf("%+v", last)
	}
}

func TestAContextThatEndsBetweenTurnsEndsTheRunner(t *testing.T) {
	s := openHere(t)
	r := newRunner(t, s, session.RunnerOptions{})
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(background)
	inputs := make(chan int, 3)
	inputs <- 1
	result, err := session.RunTurns(ctx, r, inputs, func(context.Context, *session.Turn, int) (session.TurnResult, error) {
		go func() {
			for r.Current() != nil {
				time.Sleep(time.Millisecond)
			}
			cancel(why)
		}()
		return session.TurnResult{}, nil
	})
	if err != why || result.Completed != 1 || result.LastError != nil || result.LastGoodState == nil {
		t.Errorf("%+v, %v", result, err)
	}
	inputs <- 2
	called := false
	result, err = session.RunTurns(ctx, r, inputs, func(context.Context, *session.Turn, int) (session.TurnResult, error) {
		called = true
		return session.TurnResult{}, nil
	})
	if err != why || called || len(inputs) != 1 || result.Completed != 0 {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestRunnersThatCannotBe(t *testing.T) {
	s := openHere(t)
	r := newRunner(t, s, session.RunnerOptions{Conversation: "c"})
	seeded := errors.New("seeded")
	failed := inTurn(t, r, seeded, func(context.Context, *session.Turn) error { return nil }).Turn.ID
	for _, tt := range []struct {
		name string
		o    session.RunnerOptions
		code control.Code
	}{
		{"a turn that there is none of", session.RunnerOptions{From: "ckpt_none"}, control.NotFound},
		{"a turn that failed", session.RunnerOptions{From: failed}, control.Usage},
	} {
		if _, err := session.NewRunner(background, s, tt.o); control.CodeOf(err) != tt.code {
			t.Errorf("%s gives %v (%s)", tt.name, err, control.CodeOf(err))
		}
	}
	nothing := func(context.Context, *session.Turn, int) (session.TurnResult, error) {
		return session.TurnResult{}, nil
	}
	one := make(chan int, 1)
	one <- 1
	if _, err := session.RunTurns(background, newRunner(t, s, session.RunnerOptions{Fork: "b"}), one, nothing); control.CodeOf(err) != control.Unsupported {
		t.Errorf("a branch without a mount gives %v", err)
	}
	inTurn(t, r, nil, func(ctx context.Context, tn *session.Turn) error {
		one <- 1
		other := newRunner(t, s, session.RunnerOptions{})
		_, err := session.RunTurns(ctx, other, one, nothing)
		var e *control.Error
		if control.CodeOf(err) != control.AttemptInProgress || !errors.As(err, &e) || e.On != tn.ID() {
			t.Errorf("another turn gives %v", err)
		}
		if _, err := session.RunTurns(ctx, r, one, nothing); control.CodeOf(err) != control.Busy {
			t.Errorf("the same runner gives %v", err)
		}
		return nil
	})
}

// An input of which no turn can be begun is the first one of the next run, and of those with inputs of another type none.
func TestAnInputWhoseTurnCannotBeginIsNotLost(t *testing.T) {
	s := openHere(t)
	other, r := newRunner(t, s, session.RunnerOptions{}), newRunner(t, s, session.RunnerOptions{})
	var seen []any
	inputs := make(chan session.Message, 2)
	first := session.Message{Role: "user", Content: "first"}
	inputs <- first
	inputs <- session.Message{Role: "user", Content: "second"}
	see := func(_ context.Context, _ *session.Turn, in session.Message) (session.TurnResult, error) {
		seen = append(seen, in.Content)
		return session.TurnResult{}, nil
	}
	inTurn(t, other, nil, func(ctx context.Context, _ *session.Turn) error {
		for range 2 { // the second time it is the one that waits which can't begin
			result, err := session.RunTurns(ctx, r, inputs, see)
			if control.CodeOf(err) != control.AttemptInProgress || !reflect.DeepEqual(result.Waiting, []any{first}) || !reflect.DeepEqual(r.Last().Waiting, result.Waiting) || len(inputs) != 1 {
				t.Errorf("%+v, %v, with %d inputs left", result, err, len(inputs))
			}
		}
		numbers := make(chan int, 1)
		numbers <- 7
		result, err := session.RunTurns(ctx, r, numbers, func(context.Context, *session.Turn, int) (session.TurnResult, error) {
			return session.TurnResult{}, nil
		})
		if control.CodeOf(err) != control.AttemptInProgress || !reflect.DeepEqual(result.Waiting, []any{7, first}) {
			t.Errorf("with one of another type: %+v, %v", result, err)
		}
		return nil
	})
	if result := inTurn(t, r, nil, func(context.Context, *session.Turn) error { return nil }); len(result.Waiting) != 2 || result.Completed != 1 {
		t.Errorf("after a turn of a third type: %+v", result)
	}
	close(inputs)
	result, err := session.RunTurns(background, r, inputs, see)
	if err != nil || len(result.Waiting) != 1 || result.Completed != 2 || !reflect.DeepEqual(seen, []any{"first", "second"}) {
		t.Errorf("%v were seen: %+v, %v", seen, result, err)
	}
	messages, err := session.MessagesAs[session.Message](background, r)
	if err != nil || len(messages) != 2 || messages[0].Content != "first" {
		t.Errorf("the conversation has %v, %v", messages, err)
	}
}

// The files are the turn's parent's, and what was there between turns stays.
func TestWhatIsChangedBetweenTurnsStays(t *testing.T) {
	s := openHere(t)
	r := newRunner(t, s, session.RunnerOptions{})
	inTurn(t, r, nil, func(context.Context, *session.Turn) error { write(t, s.Workspace(), "file", "turn\n"); return nil })
	write(t, s.Workspace(), "file", "person\n")
	seeded := errors.New("seeded")
	inTurn(t, r, seeded, func(context.Context, *session.Turn) error {
		if got := read(t, s.Workspace(), "file"); got != "person\n" {
			t.Errorf("the turn begins with %q", got)
		}
		write(t, s.Workspace(), "file", "bad\n")
		return nil
	})
	if got := read(t, s.Workspace(), "file"); got != "person\n" {
		t.Errorf("after the failure there is %q", got)
	}
	_, err := s.Undo(background, "")
	must(t, err)
	if got := read(t, s.Workspace(), "file"); got != "bad\n" {
		t.Errorf("the undo brings %q", got)
	}
	r = newRunner(t, s, session.RunnerOptions{Conversation: r.Last().Conversation, NoRollback: true})
	result := inTurn(t, r, seeded, func(context.Context, *session.Turn) error { write(t, s.Workspace(), "file", "kept\n"); return nil })
	if got := read(t, s.Workspace(), "file"); got != "kept\n" || result.Rollback != nil {
		t.Errorf("without a rollback there is %q, %+v", got, result.Rollback)
	}
}

func TestASessionListsItsTurns(t *testing.T) {
	s := openHere(t)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	events, err := s.TurnEvents(ctx, "", "c")
	must(t, err)
	r := newRunner(t, s, session.RunnerOptions{Conversation: "c"})
	one := inTurn(t, r, nil, func(context.Context, *session.Turn) error { return nil }).LastGood
	two := inTurn(t, r, errors.New("seeded"), func(ctx context.Context, tn *session.Turn) error {
		return tn.AddMessages(ctx, session.Message{Role: "user"})
	}).Turn.ID
	var seen []string
	for len(seen) < 5 {
		if ev := <-events; ev.Type != turn.EventState { // of a turn that begins before the stream does
			seen = append(seen, ev.Type)
		}
	}
	if want := []string{turn.EventBegun, turn.EventEnded, turn.EventBegun, turn.EventUpdated, turn.EventEnded}; !reflect.DeepEqual(seen, want) {
		t.Errorf("who follows sees %v", seen)
	}
	cancel()
	list, err := s.Turns(background, turn.ListOptions{Conversation: "c"})
	if err != nil || len(list) != 2 || list[0].ID != one || list[1].ID != two {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err = s.Turns(background, turn.ListOptions{Status: "completed", Limit: 1}); err != nil || len(list) != 1 || list[0].ID != one {
		t.Errorf("%+v, %v", list, err)
	}
	talks, err := s.Conversations(background)
	if err != nil || len(talks) != 1 || talks[0].Head != one || talks[0].Name != "c" {
		t.Errorf("%+v, %v", talks, err)
	}
	if record, err := s.AbortTurn(background, one, turn.AbortOptions{}); err != nil || record.Status != "completed" {
		t.Errorf("a completed turn was aborted: %+v, %v", record, err)
	}
	if _, err := s.DeleteConversation(background, "c"); err != nil {
		t.Error(err)
	}
	if list, err := s.Turns(background, turn.ListOptions{}); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := s.TurnState(background, one); control.CodeOf(err) != control.NotFound {
		t.Errorf("the state of a turn that was deleted: %v", err)
	}
}
