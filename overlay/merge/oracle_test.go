//go:build linux

package merge_test

import (
	"fmt"
	"maps"
	"path"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"golang.org/x/sys/unix"
)

// oracle merges whole manifests path by path, without a thought for renames and links. It tells whether that is possible.
func oracle(base, ours, theirs treestate.State) (treestate.State, bool) {
	result := treestate.State{}
	all := maps.Clone(base)
	maps.Copy(all, ours)
	maps.Copy(all, theirs)
	for p := range all {
		for _, kind := range []uint32{unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK} {
			e, there, ok := mergeEntry(ofKind(base, p, kind), ofKind(ours, p, kind), ofKind(theirs, p, kind))
			if !ok {
				return nil, false
			}
			if _, taken := result[p]; there && taken {
				return nil, false
			}
			if there {
				result[p] = e
			}
		}
	}
	for p := range result {
		if p != "." && result[path.Dir(p)].Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil, false
		}
	}
	return result, true
}

func ofKind(s treestate.State, p string, kind uint32) *treestate.Entry {
	if e, ok := s[p]; ok && e.Mode&unix.S_IFMT == kind {
		return &e
	}
	return nil
}

func mergeEntry(b, o, t *treestate.Entry) (merged treestate.Entry, there, ok bool) {
	switch {
	case o == nil && t == nil:
		return merged, false, true
	case b == nil && o == nil:
		return *t, true, true
	case b == nil && t == nil:
		return *o, true, true
	case o == nil:
		return merged, false, alike(b, t)
	case t == nil:
		return merged, false, alike(b, o)
	case b == nil: // xattrs are merged one by one, and there were none
		if o.Mode != t.Mode || !sameContent(o, t) {
			return merged, true, false
		}
		b = &treestate.Entry{Mode: o.Mode, Sum: o.Sum, Size: o.Size, Target: o.Target}
	}
	merged, ok = *o, true
	choose := func(same func(x, y *treestate.Entry) bool, take func()) {
		switch {
		case same(b, t) || same(o, t):
		case same(b, o):
			take()
		default:
			ok = false
		}
	}
	choose(sameContent, func() { merged.Sum, merged.Size, merged.Target = t.Sum, t.Size, t.Target })
	choose(func(x, y *treestate.Entry) bool { return x.Mode == y.Mode }, func() { merged.Mode = t.Mode })
	merged.Xattrs = map[string]string{}
	names := maps.Clone(map[string]string{})
	for _, e := range []*treestate.Entry{b, o, t} {
		maps.Copy(names, e.Xattrs)
		maps.Copy(merged.Xattrs, o.Xattrs)
	}
	for name := range names {
		choose(func(x, y *treestate.Entry) bool {
			vx, inX := x.Xattrs[name]
			vy, inY := y.Xattrs[name]
			return vx == vy && inX == inY
		}, func() {
			if v, ok := t.Xattrs[name]; ok {
				merged.Xattrs[name] = v
			} else {
				delete(merged.Xattrs, name)
			}
		})
	}
	switch {
	case b.Mtime == t.Mtime:
	case b.Mtime == o.Mtime:
		merged.Mtime = t.Mtime
	default:
		merged.Mtime = max(o.Mtime, t.Mtime)
	}
	return merged, true, ok
}

func sameContent(x, y *treestate.Entry) bool { return x.Sum == y.Sum && x.Target == y.Target }

func alike(x, y *treestate.Entry) bool {
	return x.Mode == y.Mode && sameContent(x, y) && maps.Equal(x.Xattrs, y.Xattrs)
}

func TestMergeIsWhatComparingPathByPathGives(t *testing.T) {
	randomMerges(t, plainSteps, func(x *trees) (string, bool) {
		want, clean := oracle(x.base.state(), x.ours.state(), x.theirs.state())
		got, err := x.merged(x.base, x.ours, x.theirs)
		if err != nil {
			return err.Error(), false
		}
		if clean != (got != nil) {
			return fmt.Sprintf("clean: %v, should be %v", got != nil, clean), false
		}
		return sameTrees(want, got), clean
	})
}
