package runtime

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Language implements CodeSession.
func (p *process) Language() string { return p.language }

// ReservedNames implements CodeSession.
func (p *process) ReservedNames() []string { return slices.Clone(p.names) }

// Execute implements CodeSession.
func (p *process) Execute(ctx context.Context, code string) (r Result, err error) {
	if err := p.enter(ctx); err != nil {
		return r, err
	}
	defer func() { <-p.turn }()
	start := time.Now()
	raw, err := p.askInTurn(ctx, request{Op: "execute", Code: code})
	r.Duration = time.Since(start)
	out, errOut := p.out.take(), p.err.take()
	r.Stdout, r.Stderr, r.Cut = out.text, errOut.text, out.cut || errOut.cut
	if err == nil {
		err = p.decode(raw, &r.Value)
	}
	return r, err
}

// decode reads a result. A driver that gives something else is not ours any more.
func (p *process) decode(raw json.RawMessage, v any) error {
	err := json.Unmarshal(raw, v)
	if err != nil {
		p.end(err)
		<-p.ended
		return p.Err()
	}
	return nil
}

// Globals implements CodeSession.
func (p *process) Globals(ctx context.Context, names ...string) ([]Entry, error) {
	return p.entries(ctx, request{Op: "get", Names: names})
}

// Snapshot implements CodeSession.
func (p *process) Snapshot(ctx context.Context, except ...string) ([]Entry, error) {
	return p.entries(ctx, request{Op: "snapshot", Names: except})
}

func (p *process) entries(ctx context.Context, q request) ([]Entry, error) {
	raw, err := p.ask(ctx, q)
	if err != nil {
		return nil, err
	}
	var r struct{ Entries []Entry }
	if err := p.decode(raw, &r); err != nil {
		return nil, err
	}
	return r.Entries, nil
}

// SetGlobals implements CodeSession.
func (p *process) SetGlobals(ctx context.Context, values map[string]any) error {
	if err := CheckNames(p.reserved, slices.Collect(maps.Keys(values))...); err != nil {
		return err
	}
	return p.send(ctx, request{Op: "set"}, "", values)
}

// PatchGlobal implements CodeSession.
func (p *process) PatchGlobal(ctx context.Context, name string, c Patch) error {
	if err := CheckNames(p.reserved, c.Globals(name)...); err != nil {
		return err
	}
	return p.send(ctx, request{Op: "patch", Name: name, Names: c.Delete, Aliases: c.Alias}, name+".", c.Set)
}

// send makes a request with values.
func (p *process) send(ctx context.Context, q request, prefix string, values map[string]any) error {
	wired, done, err := p.funcs.Wire(p.limits, p.language, prefix, values)
	if err != nil {
		return err
	}
	q.Values = wired
	_, err = p.ask(ctx, q)
	done(err)
	return err
}

// DeleteGlobals implements CodeSession.
func (p *process) DeleteGlobals(ctx context.Context, names ...string) error {
	if err := CheckNames(p.reserved, names...); err != nil {
		return err
	}
	_, err := p.ask(ctx, request{Op: "delete", Names: names})
	if err == nil {
		p.funcs.TakeBack(names...)
	}
	return err
}

// Restore implements CodeSession.
func (p *process) Restore(ctx context.Context, entries []Entry) ([]Entry, error) {
	able, err := Restorable(p.language, entries, p.reserved)
	if err != nil || len(able) == 0 {
		return nil, err
	}
	raw, err := p.ask(ctx, request{Op: "restore", Entries: able})
	if err != nil {
		return nil, err
	}
	var r struct{ Names []string }
	if err := p.decode(raw, &r); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(able, func(e Entry) bool { return !slices.Contains(r.Names, e.Name) }), nil
}

// InstallFinal implements Adopter.
func (p adopting) InstallFinal(ctx context.Context, name string, fn Func) error {
	if err := CheckNames(p.reserved, name); err != nil {
		return err
	}
	if fn == nil {
		return errs.New(errs.Usage, opRun, name, "there is no function")
	}
	id, done := p.funcs.Add(name, fn)
	_, err := p.ask(ctx, request{Op: "final", Name: name, Fn: id})
	done(err)
	return err
}

// Cross implements Adopter.
func (p adopting) Cross(ctx context.Context, b Boundary) error {
	if err := CheckNames(p.reserved, b.Globals()...); err != nil {
		return err
	}
	q := request{Op: "cross", Boundary: &b, Names: b.Patch.Delete, Aliases: b.Patch.Alias}
	err := p.send(ctx, q, b.Inputs+".", b.Patch.Set)
	if err == nil {
		p.funcs.TakeBack(b.Gone()...)
	}
	return err
}
