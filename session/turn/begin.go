package turn

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"unicode"

	"github.com/oklog/ulid/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/owner"
	"github.com/hyperfs/hyperfs/overlay"
)

// idPrefix is what IDs of checkpoints begin with; a ULID follows.
const idPrefix = "ckpt_"

// Begin lets a turn be under way. Where somebody holds a branch, it waits. Errors: ATTEMPT_IN_PROGRESS with the ID of the one that is in the way, at once; NOT_FOUND for a turn or a branch that there is none of;
// DISPOSED for a turn that can't be resumed, or not with its files, and for a branch that was merged or dropped; USAGE; INTEGRITY where it can't be known what
// the conversation goes on from; and those of Snapshot, Rollback and Fork.
func (e *Engine) Begin(ctx context.Context, o BeginOptions) (Begun, error) {
	own, err := e.checkBegin(o)
	if err != nil {
		return Begun{}, err
	}
	t, from, settled, err := e.claim(ctx, &o, own)
	if err != nil {
		return Begun{Settled: settled}, err
	}
	defer t.lock.release()
	b := beginning{e: e, t: t, o: o, parent: from}
	if err := b.run(ctx); err != nil {
		b.revert()
		e.mu.Lock()
		delete(e.byID, t.ID)
		delete(e.busy, t.WorksIn)
		close(t.left)
		e.mu.Unlock()
		return Begun{Settled: settled}, err
	}
	e.announce(EventBegun, t.ID, b.record)
	e.dropServed()
	begun := Begun{Turn: b.record, Rollback: b.rollback, Settled: settled}
	if !o.NoState {
		if begun.State, err = b.state.load(e.turns, t.Conversation); err != nil {
			// The turn is under way, and its state can't be read: it must not stay in the way.
			_, failed := e.fail(context.WithoutCancel(ctx), t, ReasonFailed, &checkpoint.TurnError{Message: err.Error()}, false)
			return Begun{Settled: settled}, errors.Join(err, failed)
		}
	}
	return begun, nil
}

// checkBegin checks what can be checked without the tables.
func (e *Engine) checkBegin(o BeginOptions) (owner.Process, error) {
	if o.ID != "" {
		if _, err := ulid.ParseStrict(strings.TrimPrefix(o.ID, idPrefix)); err != nil || !strings.HasPrefix(o.ID, idPrefix) {
			return owner.Process{}, errs.New(errs.Usage, op, "id", "%q is not %s and 26 characters of a ULID", o.ID, idPrefix).WithHint("reserve gives one")
		}
		if _, err := e.checkpoint(o.ID); err == nil {
			return owner.Process{}, errs.New(errs.Usage, op, "id", "%s is a checkpoint", o.ID)
		}
	}
	if err := checkName(o.Conversation); err != nil {
		return owner.Process{}, err
	}
	if _, ok := e.w.(forkable); !ok && o.Fork != "" {
		return owner.Process{}, noBranches(o.Fork)
	}
	if o.Fork == overlay.MainBranch {
		return owner.Process{}, errs.New(errs.Usage, op, "fork", "%s is no name for a new branch", o.Fork)
	}
	return owner.Find(op, o.PID, o.PIDStart)
}

// checkName checks the name of a conversation, which may be empty.
func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return errs.New(errs.Usage, op, "conversation", "its name is longer than %d bytes", maxName)
	case name == "." || name == "..", strings.ContainsFunc(name, func(c rune) bool { return unicode.IsControl(c) || c == unicode.ReplacementChar }):
		return errs.New(errs.Usage, op, "conversation", "%q is no name", name)
	}
	return nil
}

// claim makes the entry of a turn that is to begin, which keeps others out of where it works, and gives it with its lock. It completes the options. Turns in
// the way that nobody will end any more are settled before.
func (e *Engine) claim(ctx context.Context, o *BeginOptions, own owner.Process) (t, parent *entry, settled []Turn, err error) {
	for {
		e.mu.Lock()
		t, parent, err = e.plan(o)
		if err != nil {
			e.mu.Unlock()
			return nil, nil, settled, err
		}
		if held := e.held.Held(t.WorksIn); held != nil {
			e.mu.Unlock()
			select {
			case <-held: // by a merge, after which the branch may be no more
				continue
			case <-ctx.Done():
				return nil, nil, settled, ctx.Err()
			}
		}
		other := e.busy[t.WorksIn]
		if other == nil {
			t.PID, t.PIDStart = o.PID, own.Start
			t.CreatedAt = e.now()
			t.UpdatedAt = t.CreatedAt
			_ = t.lock.take(ctx) // it is free
			e.byID[t.ID], e.busy[t.WorksIn] = t, t
			e.mu.Unlock()
			return t, parent, settled, nil
		}
		r, err := e.pass(ctx, other)
		if err != nil {
			return nil, nil, settled, err
		}
		if r != nil {
			settled = append(settled, *r)
		}
	}
}

// pass ends a turn that is in the way, if its owner is gone, and gives it where that was not done meanwhile; else it is ATTEMPT_IN_PROGRESS. The caller holds e.mu, which
// is let go.
func (e *Engine) pass(ctx context.Context, other *entry) (*Turn, error) {
	gone := other.gone()
	id, where := other.ID, other.WorksIn
	e.mu.Unlock()
	if !gone {
		return nil, errs.New(errs.AttemptInProgress, op, id, "it is under way in %s", where).
			WithHint("it must end first; hyperfs turns abort --force " + id + " ends it, and puts the files back")
	}
	return e.interrupt(context.WithoutCancel(ctx), other)
}

// Hold has no turn begin in a branch until release, which is to be called once: whoever wants to waits. One whose owner is gone is ended for that, and its files are back; any other
// is ATTEMPT_IN_PROGRESS with its ID: what it has changed so far may be taken back still.
func (e *Engine) Hold(ctx context.Context, branch string) (release func(), err error) {
	for {
		e.mu.Lock()
		t := e.busy[branch]
		if t == nil {
			release = e.held.Hold(branch, &e.mu)
			e.mu.Unlock()
			return release, nil
		}
		if _, err := e.pass(ctx, t); err != nil {
			return nil, err
		}
	}
}

// Needs gives the turn under way whose files would go back to a checkpoint, "" if there is none.
func (e *Engine) Needs(checkpoint string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.busy {
		if t.Base == checkpoint {
			return t.ID
		}
	}
	return ""
}

// plan makes an entry: which conversation, after which turn, and where. The caller holds e.mu.
func (e *Engine) plan(o *BeginOptions) (t, parent *entry, err error) {
	if e.failure != nil {
		return nil, nil, e.failure
	}
	if slices.Contains(e.refused, o.ID) {
		return nil, nil, errs.New(errs.Disposed, op, o.ID, "it was aborted before it began")
	}
	if e.byID[o.ID] != nil || slices.ContainsFunc(e.damaged, func(d checkpoint.Damaged) bool { return d.ID == o.ID }) {
		return nil, nil, errs.New(errs.Usage, op, "id", "%s is a turn already", o.ID)
	}
	r := Turn{ID: cmp.Or(o.ID, e.w.Reserve()), Conversation: o.Conversation, Status: checkpoint.TurnPending, Message: o.Message}
	known := false
	switch {
	case o.From != "":
		if parent, err = e.find(o.From); err != nil {
			return nil, nil, err
		}
		if parent.Status != checkpoint.TurnCompleted {
			return nil, nil, errs.New(errs.Disposed, op, o.From, "it is %s: only a completed turn can be resumed", parent.Status)
		}
		if r.Conversation == "" && o.Fork == "" {
			r.Conversation = parent.Conversation
		}
		if _, known = e.lastGood(r.Conversation); known && r.Conversation != parent.Conversation {
			return nil, nil, errs.New(errs.Usage, op, "conversation", "%s has turns already, and %s is none of them", r.Conversation, o.From)
		}
	case o.Conversation != "":
		if len(e.damaged) > 0 {
			return nil, nil, errs.New(errs.Integrity, op, o.Conversation, "its last turn is not known, as the record of %s can't be read", e.damaged[0].ID).
				WithHint("say which turn to go on from, or give the damaged one up: hyperfs drop " + e.damaged[0].ID)
		}
		parent, _ = e.lastGood(o.Conversation)
	}
	if r.Conversation == "" {
		r.Conversation = "conv_" + strings.TrimPrefix(r.ID, idPrefix)
	}
	r.WorksIn = cmp.Or(o.Branch, overlay.MainBranch)
	if parent != nil {
		r.Parent, r.Index = parent.ID, parent.Index+1
		r.WorksIn = cmp.Or(o.Branch, parent.WorksIn)
		r.Subagent, r.Agent = parent.Subagent, parent.Agent
	}
	r.Subagent, r.Agent = cmp.Or(o.Subagent, r.Subagent), cmp.Or(o.Agent, r.Agent)
	o.Branch = r.WorksIn
	if o.Fork != "" {
		r.WorksIn = o.Fork
	}
	return newEntry(r), parent, nil
}

// beginning is what is done between a claim and the turn's record.
type beginning struct {
	e      *Engine
	t      *entry // claimed
	o      BeginOptions
	parent *entry // nil: none

	record   Turn
	state    *state
	rollback *overlay.RollbackResult
	made     string // a checkpoint
	forked   bool   // a branch was made
}

func (b *beginning) run(ctx context.Context) (err error) {
	b.record = b.t.Turn
	b.state = &state{}
	if b.parent != nil {
		if b.state, err = stateOf(b.e.turns, b.parent.State); err != nil { // that of a completed turn does not change
			return err
		}
		b.record.State = b.parent.State // so that its blobs stay, whatever becomes of the parent
	}
	if b.o.From != "" && !b.e.active(b.o.From) {
		return errs.New(errs.Disposed, op, b.o.From, "its checkpoint is not active any more: its files can't be had, only its state").
			WithHint("hyperfs turns show --state " + b.o.From)
	}
	var source overlay.History // where it works, or what is forked
	if b.o.Fork == "" || b.o.From == "" {
		if source, err = b.e.line(b.o.Branch); err != nil {
			return err
		}
	}
	switch {
	case b.o.Fork != "":
		err = b.fork(ctx, source)
	case b.o.From != "":
		err = b.resume(ctx, source)
	default:
		err = b.goOn(ctx, source)
	}
	if err != nil {
		return err
	}
	crash.Point("turn-begun")
	e := b.e
	e.mu.Lock()
	defer e.mu.Unlock()
	b.t.Turn, b.t.begun, b.t.state = b.record, true, b.state
	e.list = append(e.list, b.t)
	return nil
}

// resume puts the files back to what the turn From has left.
func (b *beginning) resume(ctx context.Context, h overlay.History) error {
	b.record.Base = b.o.From
	if h.Unchanged(b.o.From) {
		return b.commit()
	}
	r, err := b.e.w.Rollback(ctx, b.o.From, b.e.rollbackOf(b.record))
	if err != nil {
		return err
	}
	b.rollback = &r
	return nil
}

// goOn leaves the files as they are.
func (b *beginning) goOn(ctx context.Context, h overlay.History) error {
	if b.atParent(h) {
		b.record.Base = b.parent.ID
		return b.commit()
	}
	b.record.Base = b.e.w.Reserve()
	return b.checkpoint(ctx, h, b.record.Base, func(tx *checkpoint.Tx) error { return tx.PutTurn(b.record) })
}

// atParent reports whether the files are those of the parent.
func (b *beginning) atParent(h overlay.History) bool {
	return b.parent != nil && b.parent.WorksIn == b.o.Branch && b.e.active(b.parent.ID) && h.Unchanged(b.parent.ID)
}

// checkpoint makes one of what there is now.
func (b *beginning) checkpoint(ctx context.Context, h overlay.History, id string, commit func(*checkpoint.Tx) error) error {
	_, err := h.Snapshot(ctx, overlay.SnapshotOptions{
		ID: id, Subagent: b.record.Subagent, Agent: b.record.Agent, CreatedBy: CreatedByBegin, Message: "before turn " + b.record.ID, Commit: commit,
	})
	if err == nil {
		b.made = id
	}
	return err
}

// fork makes the branch, of From or of what there is now.
func (b *beginning) fork(ctx context.Context, source overlay.History) error {
	b.record.Base = b.o.From
	if b.record.Base == "" && b.atParent(source) {
		b.record.Base = b.parent.ID
	}
	if b.record.Base == "" {
		b.record.Base = b.e.w.Reserve()
		if err := b.checkpoint(ctx, source, b.record.Base, nil); err != nil {
			return err
		}
	}
	_, err := b.e.w.(forkable).Fork(ctx, overlay.ForkOptions{
		Name: b.o.Fork, From: b.record.Base, Subagent: b.record.Subagent, Agent: b.record.Agent, Message: b.o.Message,
	})
	if err != nil {
		return err
	}
	b.forked = true
	crash.Point("turn-forked")
	return b.commit()
}

func (b *beginning) commit() error { return b.e.turns.Put(b.record) }

// revert takes back what a beginning that failed has made. A rollback stays: what it has replaced is its undo checkpoint.
func (b *beginning) revert() {
	if b.forked {
		_ = b.e.w.(forkable).DropBranch(context.Background(), b.o.Fork)
	}
	if b.made != "" {
		_ = b.e.w.Drop(context.Background(), b.made)
	}
}

// rollbackOf are the options of a rollback that commits a record.
func (e *Engine) rollbackOf(r Turn) overlay.RollbackOptions {
	o := overlay.RollbackOptions{Commit: func(tx *checkpoint.Tx) error { return tx.PutTurn(r) }}
	if r.WorksIn != overlay.MainBranch {
		o.Branch = r.WorksIn
	}
	return o
}
