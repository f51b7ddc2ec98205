package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session/runtime"
)

// eachMode runs a test with each runtime in each mode that it can have.
func eachMode(t *testing.T, test func(t *testing.T, p *phases)) {
	t.Parallel()
	for _, sub := range subjects {
		for _, mode := range []runtime.Mode{runtime.ModeShared, runtime.ModeFallback} {
			if mode == runtime.ModeShared && sub.language == runtime.Python {
				continue
			}
			t.Run(fmt.Sprint(sub.name, " ", mode), func(t *testing.T) {
				t.Parallel()
				test(t, &phases{t: t, subject: sub, mode: mode})
			})
		}
	}
}

// phases is a coordinator under test.
type phases struct {
	*runtime.Shared
	subject
	t      *testing.T
	mode   runtime.Mode
	opened []runtime.CodeSession
	finals []string // what final was called with
}

// begin makes the coordinator and adopts a first session.
func (p *phases) begin(o runtime.SharedOptions, a runtime.AdoptOptions) {
	p.t.Helper()
	o.Mode, o.Open = p.mode, func(ctx context.Context) (runtime.CodeSession, error) {
		s, err := p.open(ctx, runtime.Limits{})
		p.opened = append(p.opened, s)
		return s, err
	}
	var err error
	p.Shared, err = runtime.NewShared(o)
	must(p.t, err)
	p.t.Cleanup(func() {
		must(p.t, p.Close())
		for _, s := range p.opened {
			<-s.Done() // all of them are closed by now
		}
	})
	first, err := o.Open(background)
	must(p.t, err)
	a.PhaseGlobals = map[string]any{"lookUp": echo, "final": runtime.Func(func(_ context.Context, args []json.RawMessage) (any, error) {
		p.finals = append(p.finals, fmt.Sprintf("%s", args))
		return "noted", nil
	})}
	must(p.t, p.AdoptDistillerSession(background, first, a))
}

func (p *phases) pick(js, py string) string { return (&tried{subject: p.subject}).pick(js, py) }

func (p *phases) is(code, want string) {
	p.t.Helper()
	if got := run(p.t, p.Shared, code); got != want {
		p.t.Errorf("%s gives %.300s, and not %s", code, got, want)
	}
}

func TestBothModesGiveTheSame(t *testing.T) {
	eachMode(t, func(t *testing.T, p *phases) {
		restore, err := runtime.MarshalBindings(p.language, []runtime.Entry{
			{Name: "seen", Type: "number", Value: json.RawMessage("41")}, {Name: "lookUp", Type: "number", Value: json.RawMessage("0")}, {Name: "fn", Type: "function", Why: "it is a function"},
		})
		must(t, err)
		p.begin(runtime.SharedOptions{RestoreState: restore, ExcludeFieldDeletions: []string{"documents"}},
			runtime.AdoptOptions{ReservedNames: []string{"query"}, Inputs: map[string]any{"documents": []string{"d1", "d2"}, "query": "q"}})
		if p.Mode() != p.mode || p.IsShared() != (p.mode == runtime.ModeShared) || p.Phase() != runtime.PhaseDistiller {
			t.Errorf("it is %s, %v, %s", p.Mode(), p.IsShared(), p.Phase())
		}
		if r := p.RestoredEntries(); len(r) != 1 || r[0].Name != "seen" || string(p.RestoreState()) != string(restore) {
			t.Errorf("restored are %+v", r)
		}
		p.is(p.pick("seen++; await lookUp(inputs.query + seen)", "seen += 1\nlookUp(inputs['query'] + str(seen))"), `"q42"`)
		p.is(p.pick("await final('do it', {facts: inputs.documents, n: seen}, 'more')", "final('do it', {'facts': inputs['documents'], 'n': seen}, 'more')"), `"noted"`)
		if !slices.Equal(p.finals, []string{`["do it" "more"]`}) {
			t.Errorf("final was called with %q", p.finals)
		}
		old := p.Session()
		must(t, p.MergeInputs(background, map[string]any{"late": 1}))
		must(t, p.BeginExecutorPhase(background, runtime.PhaseOptions{
			AliasNames: []string{"query", "plan", "documents"}, Inputs: map[string]any{"query": "new", "plan": []int{1}},
			PhaseGlobals: map[string]any{"final": echo, "llmQuery": echo},
		}))
		if p.Phase() != runtime.PhaseExecutor || (p.Session() == old) != p.IsShared() {
			t.Errorf("the phase is %s, the session the same: %v", p.Phase(), p.Session() == old)
		}
		if !p.IsShared() {
			<-old.Done()
		}
		if e, ok := p.FallbackEvidence(); ok == p.IsShared() || ok && string(e) != `{"facts":["d1","d2"],"n":42}` {
			t.Errorf("this process has %s, %v", e, ok)
		}
		p.is("evidence", `{"facts":["d1","d2"],"n":42}`)
		p.is(p.pick("[inputs.query, inputs.late, Object.keys(inputs).length, query, plan, typeof documents, typeof lookUp]", "[inputs['query'], inputs['late'], len(inputs), query, plan, 'undefined' if 'documents' not in globals() else '', 'undefined' if 'lookUp' not in globals() else '']"),
			`["new",1,3,"new",[1],"undefined","undefined"]`)
		p.is(p.pick("[await llmQuery(7), await final(8)]", "[llmQuery(7), final(8)]"), "[7,8]")
		must(t, p.MergeInputs(background, map[string]any{"query": "newer"}))
		p.is(p.pick("[query, inputs.query, inputs.late]", "[query, inputs['query'], inputs['late']]"), `["newer","newer",1]`)
		if !slices.Equal(p.ExcludeFieldDeletions(), []string{"documents"}) || !slices.Equal(p.Phase1ReservedNames(), []string{"evidence", "final", "inputs", "lookUp", "query"}) {
			t.Error(p.ExcludeFieldDeletions(), p.Phase1ReservedNames())
		}
		run(t, p.Shared, p.pick("let mine = [1]", "mine = [1]"))
		entries, err := p.Snapshot(background)
		must(t, err)
		want := map[string]string{"mine": "[1]"}
		if p.IsShared() {
			want["seen"] = "42" // of the first phase
		}
		if got := values(entries); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the program's variables are %v", got)
		}
		saved, err := p.Save(background)
		must(t, err)
		if language, read, err := runtime.UnmarshalBindings(saved); err != nil || language != p.language || len(read) != len(want) {
			t.Error(language, read, err)
		}
	})
}

// crossed is how many bytes this process allocates while a text of size bytes is handed over in a mode.
func crossed(t *testing.T, p *phases, size int) uint64 {
	p.begin(runtime.SharedOptions{}, runtime.AdoptOptions{})
	run(t, p.Shared, fmt.Sprintf(p.pick("const large = 'x'.repeat(1000).repeat(%d / 1000); 0", "large = 'x' * %d\n0"), size))
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	run(t, p.Shared, p.pick("await final('look', {large})", "final('look', {'large': large})"))
	must(t, p.BeginExecutorPhase(background, runtime.PhaseOptions{}))
	p.is(p.pick("evidence.large.length + evidence.large.slice(-1)", "str(len(evidence['large'])) + evidence['large'][-1]"), fmt.Sprintf(`"%dx"`, size))
	goruntime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// It is not parallel: what this process allocates is measured.
func TestEvidenceDoesNotCrossInSharedMode(t *testing.T) {
	for _, sub := range subjects {
		for _, mode := range []runtime.Mode{runtime.ModeShared, runtime.ModeFallback} {
			if mode == runtime.ModeShared && sub.language == runtime.Python {
				continue
			}
			t.Run(fmt.Sprint(sub.name, " ", mode), func(t *testing.T) {
				size := 50_000_000
				if mode == runtime.ModeFallback && raceDetector {
					size /= 25 // or JSON takes its time
				}
				n := crossed(t, &phases{t: t, subject: sub, mode: mode}, size)
				t.Logf("%d bytes allocated", n)
				if mode == runtime.ModeShared && n > uint64(size)/10 || mode == runtime.ModeFallback && n < uint64(size) {
					t.Errorf("%d bytes were allocated", n)
				}
			})
		}
	}
}

func TestEvidenceThatCannotCross(t *testing.T) {
	eachMode(t, func(t *testing.T, p *phases) {
		p.begin(runtime.SharedOptions{}, runtime.AdoptOptions{})
		_, err := p.Execute(background, p.pick("await final('x', {m: new Map([[1, 2]])})", "final('x', {'m': {1}})"))
		if p.IsShared() {
			must(t, err)
		} else if err == nil || !strings.Contains(err.Error(), "argument 2 of final can't leave the session") || len(p.finals) > 0 {
			t.Errorf("it gives %v, final was called with %q", err, p.finals)
		}
		must(t, p.BeginExecutorPhase(background, runtime.PhaseOptions{}))
		p.is(p.pick("typeof evidence === 'undefined' ? 'none' : evidence.m.get(1)", "'none' if 'evidence' not in globals() else 0"), map[bool]string{true: "2", false: `"none"`}[p.IsShared()])
		if _, err := p.Execute(background, "final(1)"); err == nil {
			t.Error("the first phase's final is still there")
		}
	})
}

func TestTheLastEvidenceCounts(t *testing.T) {
	eachMode(t, func(t *testing.T, p *phases) {
		p.begin(runtime.SharedOptions{Evidence: "proof", Inputs: "given", Final: "final"}, runtime.AdoptOptions{Inputs: map[string]any{"a": 1}})
		run(t, p.Shared, p.pick("const done = final; await final('x', 1); await final('y', {b: given.a})", "done = final\nfinal('x', 1)\nfinal('y', {'b': given['a']})"))
		must(t, p.BeginExecutorPhase(background, runtime.PhaseOptions{}))
		p.is("proof", `{"b":1}`)
		if p.IsShared() {
			if _, err := p.Execute(background, "await done('late')"); err == nil || !strings.Contains(err.Error(), "taken") || len(p.finals) != 2 {
				t.Errorf("the first phase's final can be called: %v", err)
			}
		}
	})
}

func TestADeadSessionIsReplaced(t *testing.T) {
	eachMode(t, func(t *testing.T, p *phases) {
		if !p.process {
			t.Skip("what ends it by itself can't be had safely in a test: see TestReplaceSession")
		}
		restore, err := runtime.MarshalBindings(p.language, []runtime.Entry{{Name: "seen", Type: "number", Value: json.RawMessage("41")}})
		must(t, err)
		p.begin(runtime.SharedOptions{RestoreState: restore}, runtime.AdoptOptions{Inputs: map[string]any{"query": "q"}})
		die := p.pick("process.kill(process.pid, 'SIGKILL'); await new Promise(() => {})", "import os\nos._exit(3)")
		for phase := range 2 {
			run(t, p.Shared, p.pick("let mine = 1; inputs.mine = 1; 0", "mine = 1\ninputs['mine'] = 1"))
			must(t, p.MergeInputs(background, map[string]any{"late": phase}))
			old := p.Session()
			_, err := p.Execute(background, die)
			var death *runtime.DeathError
			if !errors.As(err, &death) || errs.CodeOf(err) == errs.Disposed || !strings.Contains(err.Error(), p.pick("killed", "exit code 3")) {
				t.Fatalf("a death gives %v", err)
			}
			<-old.Done()
			if p.Session() == old || p.Session().Err() != nil {
				t.Fatal("it was not replaced")
			}
			p.is(p.pick("[inputs, typeof mine, typeof seen, typeof evidence]", "[inputs] + ['undefined' for n in ('mine', 'seen', 'evidence') if n not in globals()]"),
				map[bool]string{true: `[{"late":0,"query":"q"},"undefined","undefined","undefined"]`, false: fmt.Sprintf(`[{"late":1,"query":"q"},"undefined","undefined",%s]`, `"undefined"`)}[phase == 0])
			if len(p.RestoredEntries()) != 1 {
				t.Error("what was restored is not known any more")
			}
			if phase == 0 {
				p.is(p.pick("await lookUp(await final('x'))", "lookUp(final('x'))"), `"noted"`)
				must(t, p.BeginExecutorPhase(background, runtime.PhaseOptions{}))
			}
		}
	})
}

func TestReplaceSession(t *testing.T) {
	eachMode(t, func(t *testing.T, p *phases) {
		p.begin(runtime.SharedOptions{}, runtime.AdoptOptions{Inputs: map[string]any{"a": 1}})
		run(t, p.Shared, p.pick("let x = 1; await final('r', {n: 1})", "x = 1\nfinal('r', {'n': 1})"))
		must(t, p.BeginExecutorPhase(background, runtime.PhaseOptions{AliasNames: []string{"a"}, PhaseGlobals: map[string]any{"act": echo}}))
		old := p.Session()
		next, err := p.open(background, runtime.Limits{})
		must(t, err)
		must(t, p.ReplaceSession(background, next))
		<-old.Done()
		if p.Session() != next || errs.CodeOf(old.Err()) != errs.Disposed {
			t.Errorf("the old one says %v", old.Err())
		}
		p.is(p.pick("[a, await act(2), typeof x, typeof evidence]", "[a, act(2), *['undefined' for n in ['x'] if n not in globals()], 'object' if 'evidence' in globals() else 0]"),
			map[bool]string{true: `[1,2,"undefined","undefined"]`, false: `[1,2,"undefined","object"]`}[p.IsShared()])
		must(t, p.Close())
		<-next.Done()
	})
}

func TestPhasesComeInTheirOrder(t *testing.T) {
	eachMode(t, func(t *testing.T, p *phases) {
		empty, err := runtime.NewShared(runtime.SharedOptions{Mode: p.mode})
		must(t, err)
		_, ran := empty.Execute(background, "1")
		_, snapped := empty.Snapshot(background)
		for what, err := range map[string]error{
			"BeginExecutorPhase": empty.BeginExecutorPhase(background, runtime.PhaseOptions{}), "MergeInputs": empty.MergeInputs(background, nil), "Execute": ran, "Snapshot": snapped,
		} {
			if errs.CodeOf(err) != errs.Usage {
				t.Errorf("%s without a session gives %v", what, err)
			}
		}
		p.begin(runtime.SharedOptions{}, runtime.AdoptOptions{})
		if err := p.AdoptDistillerSession(background, p.Session(), runtime.AdoptOptions{}); errs.CodeOf(err) != errs.Usage {
			t.Errorf("a second session gives %v", err)
		}
		run(t, p.Shared, p.pick("await final('x', [1])", "final('x', [1])"))
		if err := p.BeginExecutorPhase(background, runtime.PhaseOptions{PhaseGlobals: map[string]any{"bad": make(chan int)}}); errs.CodeOf(err) != errs.Usage || p.Phase() != runtime.PhaseDistiller {
			t.Errorf("a phase that can't begin gives %v", err)
		}
		must(t, p.BeginExecutorPhase(background, runtime.PhaseOptions{}))
		p.is("evidence", "[1]")
		if err := p.BeginExecutorPhase(background, runtime.PhaseOptions{}); errs.CodeOf(err) != errs.Usage {
			t.Errorf("a second beginning gives %v", err)
		}
		must(t, p.Close())
		must(t, p.Close())
		if err := p.MergeInputs(background, nil); errs.CodeOf(err) != errs.Disposed {
			t.Errorf("afterwards it gives %v", err)
		}
	})
}

func TestTheModeIsThatOfTheRuntime(t *testing.T) {
	t.Parallel()
	if _, err := runtime.NewShared(runtime.SharedOptions{Mode: "other"}); errs.CodeOf(err) != errs.Usage {
		t.Error(err)
	}
	for _, sub := range subjects {
		t.Run(sub.name, func(t *testing.T) {
			t.Parallel()
			s := sub.start(t, runtime.Limits{})
			free, err := runtime.NewShared(runtime.SharedOptions{})
			must(t, err)
			must(t, free.AdoptDistillerSession(background, s.CodeSession, runtime.AdoptOptions{}))
			if want := s.pick(string(runtime.ModeShared), string(runtime.ModeFallback)); string(free.Mode()) != want {
				t.Errorf("it is %s", free.Mode())
			}
			must(t, free.Close())
			if sub.language == runtime.JavaScript {
				return
			}
			strict, err := runtime.NewShared(runtime.SharedOptions{Mode: runtime.ModeShared})
			must(t, err)
			if err := strict.AdoptDistillerSession(background, s.CodeSession, runtime.AdoptOptions{}); errs.CodeOf(err) != errs.Unsupported {
				t.Errorf("it can be shared: %v", err)
			}
		})
	}
}
