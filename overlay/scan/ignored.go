package scan

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
)

// What the patterns ignore is not walked, and is in no manifest. Every manifest has the patterns that it was made under, and the tracked paths that were looked at
// all the same. So a rollback and a diff leave out what the patterns of either side ignore: one of them does not know it. What lists in between have
// ignored does not matter, as a manifest is whole by itself.

// metaRules has the patterns of the last time, as JSON.
const metaRules = "rules"

// refuseStrict says that this backend stops no write.
func refuseStrict(cfg overlay.Config) error {
	if !cfg.StrictIgnored {
		return nil
	}
	return errs.New(errs.Unsupported, "open workspace", cfg.Workspace, "the backend scan sees a write after it was made, and can stop none").
		WithHint("leave --strict-ignored out, or use FUSE: hyperfs mount")
}

// loadRules takes over the patterns, those of the last time if they are to stay, and what the book has tracked.
func (w *Workspace) loadRules() error {
	var last []byte
	if err := w.store.View(func(tx *checkpoint.Tx) (err error) { last, err = tx.Meta(metaRules); return err }); err != nil {
		return err
	}
	lines := w.cfg.Ignore
	if w.cfg.SameIgnored {
		lines = nil
		if last != nil {
			if err := json.Unmarshal(last, &lines); err != nil {
				return errs.New(errs.Integrity, "open workspace", "", "the ignore patterns can't be read: %w", err)
			}
		}
	}
	var err error
	if w.rules, err = ignore.Compile(lines); err != nil {
		return errs.New(errs.Usage, "open workspace", "", "%w", err)
	}
	w.track(w.book.Paths())
	b, err := json.Marshal(w.rules.Lines())
	if err != nil || string(b) == string(last) || last == nil && w.rules == nil {
		return err
	}
	return w.store.Update(func(tx *checkpoint.Tx) error { return tx.PutMeta(metaRules, b) })
}

// track has paths looked at from now on, and no others that are ignored. The caller holds w.admin, or opens the workspace.
func (w *Workspace) track(paths []string) {
	w.scope = scope{}
	if w.rules != nil {
		w.scope = scope{rules: []*ignore.Rules{w.rules}}.with(paths)
	}
}

// protect is track for paths of which the checkpoint that the live state comes from knows nothing yet: what is there now counts for it. The caller has entered.
func (w *Workspace) protect(ctx context.Context, paths []string) error {
	if c, ok := w.history.newest(); ok {
		if err := w.addTracked(ctx, c.ID, paths); err != nil {
			return err
		}
	}
	w.track(paths)
	return nil
}

// addTracked adds paths that the manifest of a checkpoint has left out to it, as they are now.
func (w *Workspace) addTracked(ctx context.Context, id string, paths []string) error {
	m, err := w.manifest(id)
	if err != nil {
		return err
	}
	fresh := slices.DeleteFunc(slices.Clone(paths), m.scope.has)
	if len(fresh) == 0 {
		return nil
	}
	there, saved, err := w.scan(ctx, scanFor{save: true, only: true, scope: scope{rules: m.scope.rules}.with(fresh)})
	if err != nil {
		return err
	}
	with := m.graft(there)
	err = w.store.Update(func(tx *checkpoint.Tx) error { return tx.PutNumber(metaBackups, w.backups.next.Load()) })
	if err == nil {
		err = w.writeManifest(id, with)
	}
	if err == nil { // of what was not there at the time of the checkpoint it needs nothing
		saved = slices.DeleteFunc(saved, func(r strategy.Ref) bool {
			return slices.ContainsFunc(with.entries, func(e entry) bool { return e.ref.Name == r.Name })
		})
	}
	w.discard(saved)
	return err
}

// graft gives the manifest with what another one, of tracked paths alone, has of paths that m has left out. What would be in a protected directory that m does
// not have was not there.
func (m *manifest) graft(there *manifest) *manifest {
	g := &grafter{from: [2]*manifest{m, there}, out: &manifest{stamp: m.stamp, scope: m.scope.with(there.scope.tracked)}}
	for i, f := range g.from {
		g.moved[i] = make([]int32, len(f.entries))
	}
	g.copy(0, 0, -1)
	g.both(0, 0, m.scope.lane())
	g.out.closeDirs()
	return g.out
}

type grafter struct {
	from  [2]*manifest
	moved [2][]int32 // where their entries are in out
	out   *manifest
}

// copy adds the entry i of one of both, below the entry parent of out.
func (g *grafter) copy(from int, i, parent int32) {
	e, at := g.from[from].entries[i], int32(len(g.out.entries))
	g.moved[from][i] = at
	if i > 0 && g.moved[from][e.first] == 0 { // that name was left out
		g.moved[from][e.first] = at
	}
	e.parent, e.first = parent, g.moved[from][e.first]
	g.out.entries = append(g.out.entries, e)
}

// all adds the entry i with all that is below it.
func (g *grafter) all(from int, i, parent int32) {
	g.copy(from, i, parent)
	at := g.moved[from][i]
	g.from[from].children(i, func(k int32) { g.all(from, k, at) })
}

// both adds what is in a directory, i and k, that both have. at is its lane in the scope of the first, where nothing is tracked but what it has.
func (g *grafter) both(i, k int32, at *lane) {
	a, b := g.from[0], g.from[1]
	parent := g.moved[0][i]
	names := newCursor(b, k)
	done := k + 1 // of b
	fresh := func(end int32) {
		for ; done < end; done = b.entries[done].end {
			if e := &b.entries[done]; at.ignores(e.name, &e.stat) {
				g.all(1, done, parent)
			}
		}
	}
	a.children(i, func(x int32) {
		e := &a.entries[x]
		y := names.find(e.name)
		if fresh(names.k); y < 0 {
			g.all(0, x, parent)
			return
		}
		done = b.entries[y].end
		if !e.isDir() || !b.entries[y].isDir() {
			g.all(0, x, parent)
			return
		}
		g.copy(0, x, parent)
		sub, _ := at.enter(e.name, &e.stat)
		g.both(x, y, sub)
	})
	fresh(b.entries[k].end)
}

// ignoreStatus says what is ignored; nil for nothing.
func (w *Workspace) ignoreStatus() *overlay.IgnoreStatus {
	if w.rules == nil {
		return nil
	}
	return &overlay.IgnoreStatus{Patterns: w.rules.Lines()}
}
