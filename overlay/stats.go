//go:build linux

package overlay

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Kinds of PreimageStats that are no tier.
const (
	keptBlocks = "blocks"
	keptTrash  = "trash"
)

// savings counts preimages. What is counted took a system call at least, so a lock does no harm. The zero value is ready for use.
type savings struct {
	mu sync.Mutex // after all others of the package
	by map[string]PreimageStats
}

func (s *savings) add(kind string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string]PreimageStats{}
	}
	p := s.by[kind]
	s.by[kind] = PreimageStats{Kind: kind, Count: p.Count + 1, Bytes: p.Bytes + uint64(max(bytes, 0))}
}

// list gives them sorted by kind.
func (s *savings) list() []PreimageStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]PreimageStats, 0, len(s.by))
	for _, kind := range slices.Sorted(maps.Keys(s.by)) {
		all = append(all, s.by[kind])
	}
	return all
}

// deeds counts what is done to the whole tree.
type deeds struct{ snapshots, rollbacks atomic.Uint64 }

// Stats implements Metered.
func (w *Workspace) Stats() TreeStats {
	t := w.tree
	s := TreeStats{Snapshots: w.done.snapshots.Load(), Rollbacks: w.done.rollbacks.Load(), Preimages: w.tiers.saved.list(), Directories: t.dirs.len()}
	if w.check("stats") != nil {
		return s
	}
	t.nodesMu.RLock()
	s.Nodes = len(t.nodes)
	t.nodesMu.RUnlock()
	s.Handles, s.Descriptors = int(t.handleCount.Load()), openDescriptors()
	hot := w.tiers.hot.Stats()
	s.Hot = &hot
	return s
}

var _ Metered = (*Workspace)(nil)
