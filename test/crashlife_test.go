package test

import (
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/test/ops"
)

// life is a workspace that is being worked on and may be killed at any instant, with all that must survive of it on disk
// beside it:
//
//	workspace  what is killed
//	ahead      a plain directory on which each operation is done before the workspace gets it
//	behind     one on which it is done afterwards: the workspace is always like one of the two
//	N.state    what checkpoint N must bring back; N.copy is the same as a directory
//	undo-K.state what an undo of rollback K must bring back, with undo-K.copy
//	journal    one line for each thing that began or ended
type life struct {
	dir           string
	sub           subject
	ahead, behind *ops.DirFS
	journal       *os.File
	checkpoints   map[int]string // IDs of the active ones that are on record
	last          int            // the newest one's number
	rollbacks     int            // how many there were since the start
}

// journal lines. What follows the word is told by the writer.
const (
	lineOp         = "op"         // the operation
	lineDone       = "done"       //
	lineCheckpoint = "checkpoint" // N, ID: a snapshot call has returned
	lineRollback   = "rollback"   // N, K: to checkpoint N, or the Kth rollback being an undo if N is 0
	lineRolledBack = "rolledback" // K, the undo checkpoint's ID
	lineReset      = "reset"      // ahead and behind are like the workspace again
	lineForget     = "forget"     // N: a drop or promote begins
	lineForgotten  = "forgotten"  // N
	lineFailed     = "failed"     // why: a defect that is none of the kill
)

func (l *life) path(name string) string { return filepath.Join(l.dir, name) }

func (l *life) workspace() string { return l.path("workspace") }

// note writes a line to the journal. It is in the kernel when it returns, so that a kill cannot lose it.
func (l *life) note(word string, args ...any) {
	line := word + " " + strings.TrimSuffix(fmt.Sprintln(args...), "\n") + "\n"
	if _, err := l.journal.WriteString(line); err != nil {
		panic(err)
	}
}

// begin opens a life in dir after a start or a kill. The subject is open and right.
func begin(dir string, sub subject) (*life, error) {
	l := &life{dir: dir, sub: sub, checkpoints: map[int]string{}}
	if err := l.reset(l.workspace()); err != nil {
		return nil, err
	}
	states, err := filepath.Glob(l.path("*.state"))
	for _, name := range states {
		if n, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(name), ".state")); err == nil {
			s, err := loadState(name)
			if err != nil {
				return nil, err
			}
			l.checkpoints[n], l.last = s.ID, max(l.last, n)
		}
	}
	if err != nil {
		return nil, err
	}
	l.journal, err = os.Create(l.path("journal")) // last: until then nothing was done that a wreck has to be compared with
	return l, err
}

// reset makes both plain directories like from.
func (l *life) reset(from string) error {
	for _, side := range []**ops.DirFS{&l.ahead, &l.behind} {
		name := l.path("ahead")
		if side == &l.behind {
			name = l.path("behind")
		}
		if *side != nil {
			(*side).Close()
		}
		if err := errors.Join(treestate.Remove(name), treestate.Copy(from, name)); err != nil {
			return err
		}
		var err error
		if *side, err = ops.OpenDirFS(name); err != nil {
			return err
		}
	}
	return nil
}

// onDisk is a captured state in a file.
type onDisk struct {
	ID    string
	State treestate.State
}

func saveState(name string, s onDisk) error {
	f, err := os.Create(name + "~")
	if err != nil {
		return err
	}
	if err := errors.Join(gob.NewEncoder(f).Encode(s), f.Close()); err != nil {
		return err
	}
	return os.Rename(name+"~", name)
}

func loadState(name string) (s onDisk, err error) {
	f, err := os.Open(name)
	if err != nil {
		return s, err
	}
	defer f.Close()
	return s, gob.NewDecoder(f).Decode(&s)
}

func (l *life) stateName(n int) string { return l.path(strconv.Itoa(n) + ".state") }
func (l *life) copyName(n int) string  { return l.path(strconv.Itoa(n) + ".copy") }

func undoName(k int) string { return fmt.Sprintf("undo-%d", k) }

// run works until n operations are done, or the process is killed, or the subject fails.
func (l *life) run(seed uint64, n int) error {
	g := &ops.Generator{Root: os.Getuid() == 0, Checkpoints: true, Explain: true, Simple: true, NoDiscard: true}
	c := seeded{rand.New(rand.NewPCG(seed, 1))}
	for range n {
		v, err := viewOf(l.path("behind"))
		if err != nil {
			return err
		}
		for k := range l.checkpoints {
			v.Checkpoints = append(v.Checkpoints, k)
		}
		slices.Sort(v.Checkpoints)
		v.CanUndo = l.rollbacks > 0
		if err := l.do(g.Next(c, v)); err != nil {
			return err
		}
	}
	return nil
}

func (l *life) do(o ops.Op) error {
	switch o.Kind {
	case ops.Snapshot:
		return l.snapshot()
	case ops.Rollback:
		return l.rollback(o.N)
	case ops.Undo:
		return l.rollback(0)
	case ops.Drop, ops.Promote:
		return l.forget(o)
	case ops.Restart:
		return l.sub.Restart()
	case ops.GC:
		return l.sub.GC()
	case ops.Compare:
		return nil
	case ops.Explain: // which begins an epoch
		_, err := l.sub.Explain(l.checkpoints[o.N])
		return err
	}
	for _, o := range l.singly(o) {
		if err := l.apply(o); err != nil {
			return err
		}
	}
	return nil
}

// singly takes apart the operations of which a kill would leave anything between two states.
func (l *life) singly(o ops.Op) []ops.Op {
	switch o.Kind {
	case ops.Replace:
		create, rename := o, ops.Op{Kind: ops.Rename, Path: o.To, To: o.Path}
		create.Kind, create.Path, create.To = ops.Create, o.To, ""
		return []ops.Op{create, rename}
	case ops.RemoveAll:
		return l.removals(string(o.Path))
	}
	return []ops.Op{o}
}

func (l *life) removals(path string) []ops.Op {
	var list []ops.Op
	if dir, err := l.behind.IsDir(path); err != nil || !dir {
		return []ops.Op{{Kind: ops.Unlink, Path: ops.Bytes(path)}}
	}
	names, _ := l.behind.ReadDir(path)
	for _, name := range names {
		list = append(list, l.removals(path+"/"+name)...)
	}
	return append(list, ops.Op{Kind: ops.Rmdir, Path: ops.Bytes(path)})
}

func (l *life) apply(o ops.Op) error {
	l.note(lineOp, o)
	want := ops.ErrnoName(ops.NewExecutor(l.ahead).Apply(o))
	if got := ops.ErrnoName(l.sub.Apply(o)); want != got { // so it is too if the subject dies in it
		return fmt.Errorf("%v: the subject says %s, the plain directory %s", o, got, want)
	}
	_ = ops.NewExecutor(l.behind).Apply(o)
	l.note(lineDone)
	return nil
}

func (l *life) snapshot() error {
	s, err := l.sub.Capture()
	if err != nil {
		return err
	}
	n := l.last + 1
	l.last = n
	if err := errors.Join(treestate.Remove(l.copyName(n)), treestate.Copy(l.path("behind"), l.copyName(n))); err != nil {
		return err
	}
	id, err := l.sub.Snapshot()
	if err != nil {
		return err
	}
	l.note(lineCheckpoint, n, id) // from here on it must survive; the state of a lost one is the workspace's own
	l.checkpoints[n] = id
	return saveState(l.stateName(n), onDisk{id, s})
}

func (l *life) rollback(n int) error {
	before, err := l.sub.Capture()
	if err != nil {
		return err
	}
	k := l.rollbacks + 1
	copied := l.path(undoName(k) + ".copy")
	if err := errors.Join(saveState(l.path(undoName(k)+".state"), onDisk{State: before}),
		treestate.Remove(copied), treestate.Copy(l.path("behind"), copied)); err != nil {
		return err
	}
	name, from := l.stateName(n), l.copyName(n)
	if n == 0 {
		name, from = l.path(undoName(l.rollbacks)+".state"), l.path(undoName(l.rollbacks)+".copy")
	}
	target, err := loadState(name)
	if err != nil {
		return err
	}
	l.note(lineRollback, n, k)
	undo, err := l.roll(n, target.ID)
	if err != nil {
		return err
	}
	l.note(lineRolledBack, k, undo)
	l.rollbacks = k
	if err := captureIs(l.sub, target.State); err != nil {
		return fmt.Errorf("rollback to %d: %w", n, err)
	}
	if err := l.reset(from); err != nil {
		return err
	}
	l.note(lineReset)
	return nil
}

func (l *life) roll(n int, id string) (undo string, err error) {
	if n == 0 {
		return l.sub.Undo()
	}
	return l.sub.Rollback(id, false)
}

func (l *life) forget(o ops.Op) error {
	l.note(lineForget, o.N)
	id := l.checkpoints[o.N]
	var err error
	if o.Kind == ops.Drop {
		err = l.sub.Drop(id)
	} else {
		err = l.sub.Promote(id)
	}
	if err != nil {
		return err
	}
	l.note(lineForgotten, o.N)
	return l.lose(o.N)
}

// lose forgets what is on record of a checkpoint.
func (l *life) lose(n int) error {
	delete(l.checkpoints, n)
	return errors.Join(os.RemoveAll(l.stateName(n)), treestate.Remove(l.copyName(n)))
}
