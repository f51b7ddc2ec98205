//go:build linux

package overlay

import (
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"golang.org/x/sys/unix"
)

// What a state had in an ignored slot is no part of it. A slot is ignored by its path in the state, and if any of the lists of patterns ignores it that were in use
// since: under that list its changes were not recorded.

// hide has the view leave out what the patterns ignore. Its checkpoint is that before a rollback, or none: what this has taken out of ignored directories is in
// the log by itself, and goes back there.
func (v *view) hide(rules []*ignore.Rules, c checkpoint.Checkpoint) {
	v.rules, v.paths = rules, map[checkpoint.ID]string{}
	if c.CreatedBy == "rollback" {
		v.undo = c.Epoch
	}
}

func anyMatches(rules []*ignore.Rules, path string, isDir bool) bool {
	return slices.ContainsFunc(rules, func(r *ignore.Rules) bool { return r.Match(path, isDir) })
}

func isDirMode(mode uint32) bool { return mode&unix.S_IFMT == unix.S_IFDIR }

// ignores reports whether a slot is ignored in the state, if it holds something of a type. Its directory is part of the state.
func (v *view) ignores(s checkpoint.Slot, mode uint32) (bool, error) {
	if len(v.rules) == 0 {
		return false, nil
	}
	dir, ok, err := v.dirPath(s.Dir)
	if err != nil || !ok {
		return false, err
	}
	if !anyMatches(v.rules, below(dir, s.Name), isDirMode(mode)) {
		return false, nil
	}
	put, err := v.putByRollback(s)
	return !put, err
}

// putByRollback reports whether the rollback that the view is to undo has changed a slot.
func (v *view) putByRollback(s checkpoint.Slot) (put bool, err error) {
	if v.undo == 0 || len(v.rules) == 0 {
		return false, nil
	}
	err = v.read(func(tx *checkpoint.Tx) (err error) { put, err = tx.HasSlot(v.undo, s); return err })
	return put, err
}

// dirPath gives the path that a directory had in the state; ok is false where it was no part of it.
func (v *view) dirPath(id checkpoint.ID) (path string, ok bool, err error) {
	if id == v.t.root.id {
		return "", true, nil
	}
	if path, ok = v.paths[id]; ok {
		return path, path != "", nil
	}
	v.paths[id] = "" // for whoever asks in a circle
	defer func() {
		if !ok || err != nil {
			delete(v.paths, id)
		}
	}()
	slot, ok, err := v.slotOf(id)
	if err != nil || !ok {
		return "", false, err
	}
	up, ok, err := v.dirPath(slot.Dir)
	if err != nil || !ok {
		return "", false, err
	}
	v.paths[id] = below(up, slot.Name)
	return v.paths[id], true, nil
}

// had reports whether a slot is part of the state, if it holds something of a type.
func (v *view) had(s checkpoint.Slot, mode uint32) (bool, error) {
	alive, err := v.dirAlive(s.Dir)
	if err != nil {
		return false, err
	}
	if !alive {
		return v.putByRollback(s)
	}
	ignored, err := v.ignores(s, mode)
	return !ignored, err
}

// leaves reports whether a slot that is no part of the state is left to what it holds now: it is ignored where it is, and so is nothing above it that a rollback takes
// away.
func (v *view) leaves(s checkpoint.Slot, mode uint32) (bool, error) {
	if len(v.rules) == 0 {
		return false, nil
	}
	n, err := v.find(s.Dir)
	if err != nil || n == nil {
		return false, err
	}
	way := []checkpoint.Slot{s}
	for n != v.t.root {
		parent, name, ok := v.t.slotOf(n)
		if !ok {
			return false, nil
		}
		way = append(way, checkpoint.Slot{Dir: v.t.identity(parent), Name: name})
		n = parent
	}
	path := ""
	for i, up := range slices.Backward(way) {
		path = below(path, up.Name)
		if anyMatches(v.rules, path, i > 0 || isDirMode(mode)) {
			return v.dirAlive(up.Dir)
		}
	}
	return false, nil
}

// omits reports whether what was changed while nobody watched, and was at path then, is no part of the state.
func (v *view) omits(id checkpoint.ID, path string) (bool, error) {
	if len(v.rules) == 0 || strings.HasPrefix(path, StoreName+"/") { // of what the store keeps, no pattern says anything
		return false, nil
	}
	n, err := v.findAt(id, path)
	if err != nil || n == nil {
		return false, err // there is no telling
	}
	if !slices.ContainsFunc(v.rules, func(r *ignore.Rules) bool { return r.Ignored(path, n.dir) }) {
		return false, nil
	}
	_, had, err := v.slotOf(id)
	return !had, err
}

// findAt is find for an inode of which the log may know nothing, but that was seen at a path.
func (v *view) findAt(id checkpoint.ID, path string) (*Node, error) {
	if n, err := v.find(id); n != nil || err != nil {
		return n, err
	}
	dir := v.t.root
	for name := range strings.SplitSeq(path, "/") {
		st, err := v.statIn(dir, name)
		if err != nil || st == nil {
			return nil, err
		}
		at := v.t.idOf(st)
		n, err := v.nodeAt(dir, name, at)
		if err != nil || n == nil {
			return nil, err
		}
		v.saw(at, checkpoint.Slot{Dir: v.t.identity(dir), Name: name})
		v.places[at] = n
		if at == id {
			return n, nil
		}
		if dir = n; !n.dir {
			break
		}
	}
	return nil, nil
}
