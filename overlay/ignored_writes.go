//go:build linux

package overlay

import (
	"slices"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// recentWrites is how many paths are listed of those that were ignored and written to.
const recentWrites = 256

// ignoredWrites lists the last changes of ignored paths, and stops them in strict mode.
type ignoredWrites struct {
	strict bool
	send   func(Event)

	mu     sync.Mutex // guards what follows
	at     map[string]int
	list   []IgnoredWrite // a ring, once it is full
	next   int            // in list: which one to give up
	exempt map[string]bool
}

// setExempt sets the paths that may be changed in strict mode, with the directories above them that may be made.
func (w *ignoredWrites) setExempt(paths []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exempt = map[string]bool{}
	for _, p := range paths {
		for dir := parentPath(p); dir != ""; dir = parentPath(dir) {
			w.exempt[dir] = false
		}
	}
	for _, p := range paths {
		w.exempt[p] = true
	}
}

// note lists a change of an ignored path that somebody is about to make, or fails with EROFS.
func (w *ignoredWrites) note(path, kind string) error {
	action := w.add(path, kind)
	if action.Action != ActionBlocked {
		return nil
	}
	w.send(Event{Type: "ignored-write", Data: action})
	return unix.EROFS
}

func (w *ignoredWrites) add(path, kind string) IgnoredWrite {
	w.mu.Lock()
	defer w.mu.Unlock()
	action := ActionIgnored
	switch whole, known := w.exempt[path]; {
	case whole, known && kind == "mkdir":
		action = ActionDeclared
	case w.strict:
		action = ActionBlocked
	}
	i, known := w.at[path]
	if !known {
		if w.at == nil {
			w.at = map[string]int{}
		}
		if i = w.next; len(w.list) < recentWrites {
			w.list = append(w.list, IgnoredWrite{})
		} else {
			delete(w.at, w.list[i].Path)
		}
		w.next = (i + 1) % recentWrites
		w.at[path] = i
		w.list[i] = IgnoredWrite{Path: path}
	}
	e := &w.list[i]
	e.Kind, e.Action, e.At, e.Code = kind, action, time.Now(), ""
	if action == ActionBlocked {
		e.Code = errs.IgnoredPath
	}
	e.Count++
	return *e
}

// recent gives what is listed, the last change first.
func (w *ignoredWrites) recent() []IgnoredWrite {
	w.mu.Lock()
	list := slices.Clone(w.list)
	w.mu.Unlock()
	slices.SortFunc(list, func(a, b IgnoredWrite) int { return b.At.Compare(a.At) })
	return list
}

// mayChange fails with EROFS where strict mode stops a change of a slot that holds, or is about to get, a directory or something else.
func (t *Tree) mayChange(dir *Node, name string, isDir bool, kind string) error {
	if t.ignore == nil || !t.ignores(dir, name, isDir) {
		return nil
	}
	return t.ignore.writes.note(below(t.classOf(dir).path, name), kind)
}

// mayChangeNode is mayChange for an inode, by whichever of its names: it may be changed if one of these is protected.
func (t *Tree) mayChangeNode(n *Node, kind string) error {
	if t.ignore == nil {
		return nil
	}
	links := t.namesOf(n)
	for _, l := range links {
		if !t.ignores(l.parent, l.name, n.dir) {
			return nil
		}
	}
	if len(links) == 0 {
		return nil
	}
	return t.mayChange(links[0].parent, links[0].name, n.dir, kind)
}
