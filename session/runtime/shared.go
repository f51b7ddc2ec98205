package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Mode says how the evidence gets from one phase to the other.
type Mode string

// The modes.
const (
	ModeShared   Mode = "shared"   // it stays in the one session of both
	ModeFallback Mode = "fallback" // it crosses through this process, from one session to another
)

// Phase is what is being worked on.
type Phase string

// The phases.
const (
	PhaseDistiller Phase = "distiller"
	PhaseExecutor  Phase = "executor"
)

// What globals are called unless SharedOptions say otherwise.
const (
	DefaultInputs   = "inputs"
	DefaultEvidence = "evidence"
	DefaultFinal    = "final"
)

// SharedOptions say how to coordinate. All may be empty, but for Open in fallback mode.
type SharedOptions struct {
	Mode Mode // "" means shared if the session that is adopted is an Adopter, else fallback

	// Open makes a session: for the executor's phase in fallback mode, and in place of one that has died. Without it, ReplaceSession does the latter.
	Open func(ctx context.Context) (CodeSession, error)

	// ExcludeFieldDeletions are inputs that the executor's phase does not have, nor globals of these names.
	ExcludeFieldDeletions []string

	// RestoreState are saved variables, as MarshalBindings and Shared.Save give them.
	RestoreState json.RawMessage

	// Names of globals: with the inputs, for the evidence, and of the function that hands it over.
	Inputs, Evidence, Final string
}

// Shared coordinates the sessions of two phases. Its methods may be called by any goroutine, and wait for one another where they change something; functions of
// the host must not call these.
type Shared struct {
	o       SharedOptions
	restore []Entry // from o.RestoreState

	turn sync.Mutex // held by whoever changes the phase, the inputs or the session

	mu       sync.Mutex // guards what follows
	mode     Mode
	phase    Phase
	session  CodeSession
	closed   bool
	reserved []string // names of the first phase
	restored []Entry
	evidence json.RawMessage // in fallback mode; nil before there is some
	final    Func            // the first phase's own

	globals map[string]any // that the phase's sessions have
	inputs  map[string]any // with all that was merged
	aliases []string
}

const (
	opAdopt  = "adopt session"
	opPhase  = "begin executor phase"
	opShared = "use the shared runtime"
)

// NewShared makes a coordinator, in the distiller's phase and without a session.
//
// Errors: USAGE for an unknown mode; those of UnmarshalBindings.
func NewShared(o SharedOptions) (*Shared, error) {
	switch o.Mode {
	case "", ModeShared, ModeFallback:
	default:
		return nil, errs.New(errs.Usage, opShared, "Mode", "%q is none of shared, fallback", string(o.Mode))
	}
	_, entries, err := UnmarshalBindings(o.RestoreState)
	if err != nil {
		return nil, err
	}
	for _, n := range []struct {
		name *string
		or   string
	}{{&o.Inputs, DefaultInputs}, {&o.Evidence, DefaultEvidence}, {&o.Final, DefaultFinal}} {
		if *n.name == "" {
			*n.name = n.or
		}
	}
	o.ExcludeFieldDeletions = slices.Clone(o.ExcludeFieldDeletions)
	return &Shared{o: o, restore: entries, mode: o.Mode, phase: PhaseDistiller}, nil
}

// Mode gives the mode; "" before the first session has decided it.
func (s *Shared) Mode() Mode { return get(s, func() Mode { return s.mode }) }

// IsShared reports whether both phases have one session.
func (s *Shared) IsShared() bool { return s.Mode() == ModeShared }

// Phase gives the phase.
func (s *Shared) Phase() Phase { return get(s, func() Phase { return s.phase }) }

// Session gives the live session, nil where there is none.
func (s *Shared) Session() CodeSession { return get(s, func() CodeSession { return s.session }) }

// ExcludeFieldDeletions gives the inputs that the executor's phase does not have.
func (s *Shared) ExcludeFieldDeletions() []string { return slices.Clone(s.o.ExcludeFieldDeletions) }

// FallbackEvidence gives the evidence that this process has: in fallback mode, and false where there is none.
func (s *Shared) FallbackEvidence() (json.RawMessage, bool) {
	e := get(s, func() json.RawMessage { return s.evidence })
	return slices.Clone(e), e != nil
}

// Phase1ReservedNames gives the names that the first phase had from the host, sorted: what Snapshot leaves out in the second one, although it may still be there.
func (s *Shared) Phase1ReservedNames() []string {
	return get(s, func() []string { return slices.Clone(s.reserved) })
}

// RestoreState gives the saved variables to restore.
func (s *Shared) RestoreState() json.RawMessage { return slices.Clone(s.o.RestoreState) }

// RestoredEntries gives the variables that were restored when the first session was adopted.
func (s *Shared) RestoredEntries() []Entry {
	return get(s, func() []Entry { return slices.Clone(s.restored) })
}

func get[T any](s *Shared, read func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return read()
}

// begin begins a change, which end ends.
func (s *Shared) begin(op string) (end func(), err error) {
	s.turn.Lock()
	if get(s, func() bool { return s.closed }) {
		s.turn.Unlock()
		return nil, errs.New(errs.Disposed, op, "", "it is closed")
	}
	return s.turn.Unlock, nil
}

// AdoptOptions say what the distiller's phase has.
type AdoptOptions struct {
	ReservedNames []string       // of what the host has set in the session before
	PhaseGlobals  map[string]any // set now: functions of the host, and other values. The Func of the name Final gets what final is called with, but for the evidence
	Inputs        map[string]any
}

// AdoptDistillerSession makes a fresh session that of the first phase: saved variables are restored, once and for all, the phase's globals are set, and final
// keeps what it is given. Where it fails, the session stays the caller's.
//
// Errors: UNSUPPORTED in shared mode for a session that is no Adopter; USAGE where there is a session already; those of the session.
func (s *Shared) AdoptDistillerSession(ctx context.Context, session CodeSession, o AdoptOptions) error {
	end, err := s.begin(opAdopt)
	if err != nil {
		return err
	}
	defer end()
	if s.Session() != nil {
		return errs.New(errs.Usage, opAdopt, "", "there is a session already").WithHint("ReplaceSession is for one that has died")
	}
	mode := s.o.Mode
	_, able := session.(Adopter)
	switch {
	case mode == ModeShared && !able:
		return errs.New(errs.Unsupported, opAdopt, session.Language(), "a session of this language can't be shared").WithHint("leave Mode out")
	case mode == "" && able:
		mode = ModeShared
	case mode == "":
		mode = ModeFallback
	}
	final, ok := o.PhaseGlobals[s.o.Final].(Func)
	if !ok && o.PhaseGlobals[s.o.Final] != nil {
		return errs.New(errs.Usage, opAdopt, s.o.Final, "it is not a Func")
	}
	reserved := slices.Concat(o.ReservedNames, slices.Collect(maps.Keys(o.PhaseGlobals)), s.names())
	slices.Sort(reserved)
	reserved = slices.Compact(reserved)
	restored, err := session.Restore(ctx, slices.DeleteFunc(slices.Clone(s.restore), func(e Entry) bool { return slices.Contains(reserved, e.Name) }))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mode, s.final = mode, final
	s.globals, s.inputs = maps.Clone(o.PhaseGlobals), maps.Clone(o.Inputs)
	s.mu.Unlock()
	err = s.equip(ctx, session)
	if err == nil {
		err = s.install(opAdopt, session, func() { s.reserved, s.restored = reserved, restored })
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mode = s.o.Mode
	}
	return err
}

// install makes a session the live one, with what else changes, unless Close was called meanwhile.
func (s *Shared) install(op string, session CodeSession, change func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errs.New(errs.Disposed, op, "", "it is closed")
	}
	s.session = session
	change()
	return nil
}

// names gives the names of what the coordinator itself sets.
func (s *Shared) names() []string { return []string{s.o.Inputs, s.o.Evidence, s.o.Final} }

// equip gives a session what the sessions of this phase have from the host.
func (s *Shared) equip(ctx context.Context, session CodeSession) error {
	globals := maps.Clone(s.globals)
	first := s.Phase() == PhaseDistiller
	if globals == nil {
		globals = map[string]any{}
	}
	if first {
		delete(globals, s.o.Final)
		if s.mode == ModeFallback {
			globals[s.o.Final] = Func(s.handOver)
		}
	} else if e, ok := s.FallbackEvidence(); ok {
		globals[s.o.Evidence] = e
	}
	if err := session.SetGlobals(ctx, globals); err != nil {
		return err
	}
	if err := session.PatchGlobal(ctx, s.o.Inputs, Patch{Set: s.inputs, Alias: s.aliases}); err != nil {
		return err
	}
	if first && s.mode == ModeShared {
		return session.(Adopter).InstallFinal(ctx, s.o.Final, s.callFinal)
	}
	return nil
}

// callFinal is final without the evidence.
func (s *Shared) callFinal(ctx context.Context, args []json.RawMessage) (any, error) {
	final := get(s, func() Func { return s.final })
	if final == nil {
		return nil, nil
	}
	return final(ctx, args)
}

// handOver is final in fallback mode.
func (s *Shared) handOver(ctx context.Context, args []json.RawMessage) (any, error) {
	var evidence json.RawMessage
	if len(args) > 1 {
		evidence = args[1]
		args = slices.Delete(slices.Clone(args), 1, 2)
	}
	s.mu.Lock()
	s.evidence = evidence
	s.mu.Unlock()
	return s.callFinal(ctx, args)
}

// PhaseOptions say what the executor's phase has.
type PhaseOptions struct {
	AliasNames   []string       // inputs that are globals too
	Inputs       map[string]any // merged into those of the first phase, by key
	PhaseGlobals map[string]any // functions of the host, and other values, in place of those of the first phase
}

// BeginExecutorPhase goes over to the second phase. What the first one has handed over is the global Evidence then; without that there is none. Where it fails, the
// first phase goes on, and it may be called again.
//
// Errors: USAGE where the phase has begun, or nothing was adopted; those of sessions, and of Open.
func (s *Shared) BeginExecutorPhase(ctx context.Context, o PhaseOptions) error {
	end, err := s.begin(opPhase)
	if err != nil {
		return err
	}
	defer end()
	old := s.Session()
	switch {
	case old == nil:
		return errs.New(errs.Usage, opPhase, "", "no session was adopted")
	case s.Phase() == PhaseExecutor:
		return errs.New(errs.Usage, opPhase, "", "it has begun")
	}
	next := &Shared{o: s.o, mode: s.mode, phase: PhaseExecutor, evidence: s.evidence, globals: maps.Clone(o.PhaseGlobals), inputs: merged(s.inputs, o.Inputs)}
	for _, name := range s.o.ExcludeFieldDeletions {
		delete(next.inputs, name)
	}
	excluded := func(name string) bool { return slices.Contains(s.o.ExcludeFieldDeletions, name) }
	next.aliases = slices.DeleteFunc(slices.Clone(o.AliasNames), excluded)
	session := old
	if s.mode == ModeShared {
		err = s.cross(ctx, old.(Adopter), next, o.Inputs)
	} else {
		session, err = s.open(ctx, next)
	}
	if err != nil {
		return err
	}
	err = s.install(opPhase, session, func() {
		s.phase, s.final = PhaseExecutor, nil
		s.globals, s.inputs, s.aliases = next.globals, next.inputs, next.aliases
	})
	switch {
	case err != nil:
		return errors.Join(err, session.Close())
	case session != old:
		return old.Close()
	}
	return nil
}

// cross takes the live session over to the phase that next describes.
func (s *Shared) cross(ctx context.Context, session Adopter, next *Shared, inputs map[string]any) error {
	set := next.globals
	if set == nil {
		set = map[string]any{}
	}
	if err := session.SetGlobals(ctx, set); err != nil {
		return err
	}
	b := Boundary{
		Evidence: s.o.Evidence, Inputs: s.o.Inputs,
		Patch: Patch{Set: inputs, Delete: s.o.ExcludeFieldDeletions, Alias: next.aliases},
	}
	for _, name := range append(slices.Sorted(maps.Keys(s.globals)), s.o.Final) {
		if _, again := next.globals[name]; !again {
			b.Delete = append(b.Delete, name)
		}
	}
	return session.Cross(ctx, b)
}

// open opens a session for the phase that next describes.
func (s *Shared) open(ctx context.Context, next *Shared) (CodeSession, error) {
	if s.o.Open == nil {
		return nil, errs.New(errs.Usage, opPhase, "Open", "without it there is no session for the executor")
	}
	session, err := s.o.Open(ctx)
	if err != nil {
		return nil, err
	}
	if err := next.equip(ctx, session); err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return session, nil
}

func merged(a, b map[string]any) map[string]any {
	m := maps.Clone(a)
	if m == nil {
		m = map[string]any{}
	}
	maps.Copy(m, b)
	return m
}

// MergeInputs sets single inputs, in the middle of a phase. What the program has made of others stays. It waits for the end of an execution.
func (s *Shared) MergeInputs(ctx context.Context, inputs map[string]any) error {
	const op = "merge inputs"
	end, err := s.begin(op)
	if err != nil {
		return err
	}
	defer end()
	session := s.Session()
	if session == nil {
		return errs.New(errs.Usage, op, "", "no session was adopted")
	}
	p := Patch{Set: inputs}
	for _, name := range s.aliases {
		if _, ok := inputs[name]; ok {
			p.Alias = append(p.Alias, name)
		}
	}
	if err := session.PatchGlobal(ctx, s.o.Inputs, p); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inputs = merged(s.inputs, inputs)
	return nil
}

// ReplaceSession puts a fresh session in the place of one that has died, and closes that. It gets what the phase's sessions have from the host: functions, inputs,
// and in fallback mode the evidence. All else is gone, restored variables too, and in shared mode the evidence. Where it fails, the session stays the caller's.
func (s *Shared) ReplaceSession(ctx context.Context, session CodeSession) error {
	const op = "replace session"
	end, err := s.begin(op)
	if err != nil {
		return err
	}
	defer end()
	return s.replace(ctx, op, session)
}

func (s *Shared) replace(ctx context.Context, op string, session CodeSession) error {
	old := s.Session()
	if old == nil {
		return errs.New(errs.Usage, op, "", "no session was adopted")
	}
	if _, able := session.(Adopter); s.mode == ModeShared && !able {
		return errs.New(errs.Unsupported, op, session.Language(), "a session of this language can't be shared")
	}
	if err := s.equip(ctx, session); err != nil {
		return err
	}
	if err := s.install(op, session, func() {}); err != nil {
		return err
	}
	return old.Close()
}

// Execute runs a piece of the program in the live session. If that dies, and there is an Open, another one has taken its place when Execute returns, with the error
// of the death: see ReplaceSession for what is gone.
func (s *Shared) Execute(ctx context.Context, code string) (Result, error) {
	session := s.Session()
	if session == nil {
		return Result{}, errs.New(errs.Usage, opRun, "", "no session was adopted")
	}
	r, err := session.Execute(ctx, code)
	var death *DeathError
	if s.o.Open != nil && errors.As(err, &death) {
		err = errors.Join(err, s.revive(context.WithoutCancel(ctx), session))
	}
	return r, err
}

// revive opens another session in the place of a dead one, unless somebody has done it.
func (s *Shared) revive(ctx context.Context, dead CodeSession) error {
	end, err := s.begin(opRun)
	if err != nil {
		return err
	}
	defer end()
	if s.Session() != dead {
		return nil
	}
	session, err := s.o.Open(ctx)
	if err != nil {
		return err
	}
	if err := s.replace(ctx, opRun, session); err != nil {
		return errors.Join(err, session.Close())
	}
	return nil
}

// Snapshot gives the program's variables in the live session, without what the host has set in any phase.
func (s *Shared) Snapshot(ctx context.Context) ([]Entry, error) {
	session := s.Session()
	if session == nil {
		return nil, errs.New(errs.Usage, opShared, "", "no session was adopted")
	}
	except := get(s, func() []string {
		return slices.Concat(s.reserved, slices.Collect(maps.Keys(s.globals)), s.aliases, s.names())
	})
	return session.Snapshot(ctx, except...)
}

// Save gives the program's variables as one document, for the state of a turn and for SharedOptions.RestoreState.
func (s *Shared) Save(ctx context.Context) (json.RawMessage, error) {
	entries, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return MarshalBindings(s.Session().Language(), entries)
}

// Close ends the live session. It may be called more than once; all that comes after it is DISPOSED.
func (s *Shared) Close() error {
	s.mu.Lock()
	s.closed = true
	session := s.session
	s.mu.Unlock()
	if session == nil {
		return nil
	}
	return session.Close()
}
